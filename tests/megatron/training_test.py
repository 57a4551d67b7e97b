"""Training through Megatron's call sites, with offload and without: bits of losses and gradients.

    training_test.py [--leave-out JOIN]

With a join of the virtual device left out it must fail; CTest sees to it.
"""

import argparse
import gc
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import torch

import tidepool_offload
from model import Nothing, Shape, Stack
from tidepool_offload import FineGrainedActivationOffloadingInterface as off_interface

MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
SHAPE = Shape(tokens=24, hidden=32, ffn=16, experts=4, top_k=2, heads=2, head=8)
left_out = None


def stack(off, modules=MODULES, **options):
    torch.manual_seed(1)
    return Stack(2, SHAPE, off, set(modules), min_elements=1, **options)


def inputs(count=4):
    torch.manual_seed(2)
    return [torch.randn(SHAPE.tokens, SHAPE.hidden) for _ in range(count)]


def bits(tensors):
    return [hashlib.md5(each.detach().contiguous().numpy().tobytes()).hexdigest()
            for each in tensors]


def train(off, steps=3, depth=2, modules=MODULES, wrap=None, between=None, **options):
    """Bits of all losses, and of all gradients after each step."""
    model = stack(off, modules, **options)
    result = []
    for _ in range(steps):
        result += bits(model.step(inputs(), depth, wrap))
        result += bits(each.grad for each in model.parameters())
        for each in model.parameters():
            each.data.sub_(each.grad, alpha=0.1)
            each.grad = None
        if between is not None:
            between(model)
    return result


def begin(order=0, *flags):
    off_interface.reset_instance()
    tidepool_offload.configure("--no-margin", "--host-step=1MiB", *flags, device="virtual",
                               order=order)


make_engine = tidepool_offload._make_engine


def make_engine_without(*args):
    engine = make_engine(*args)
    if left_out is not None:
        engine.leave_out(left_out)
    return engine


tidepool_offload._make_engine = make_engine_without


def bytes_out():
    return sum(row["bytes_offloaded"] for row in off_interface.summary().values())


class Training(unittest.TestCase):
    maxDiff = 200

    def assert_bits(self, got, expected):
        different = [i for i, (a, b) in enumerate(zip(got, expected)) if a != b]
        self.assertFalse(different, f"{len(different)} of {len(expected)} losses and gradients")
        self.assertEqual(len(got), len(expected))

    @classmethod
    def setUpClass(cls):
        cls.plain = train(Nothing)

    def test_bits_are_equal_in_every_order(self):
        for order in range(10):
            begin(order)
            with self.subTest(order=order):
                self.assert_bits(train(off_interface), self.plain)
                for name in MODULES:
                    row = off_interface.summary()[name]
                    # What attn_proj and others share with a module before them left with that.
                    if name in ("attn_norm", "core_attn", "expert_fc1", "moe_act"):
                        self.assertGreater(row["bytes_offloaded"], 0, name)
                self.assertGreater(bytes_out(), 0)

    def test_caps_arena_and_plans(self):
        for flags in (["--max-inflight=0"], ["--memory=arena", "--device-budget=1MiB"],
                      ["--policy=automatic", "--timed-step=2", "--adopt-after=0",
                       "--device-budget=64KiB", "--plan-effort=50"]):
            begin(3, *flags)
            with self.subTest(flags=flags):
                reports = []
                with unittest.mock.patch.object(
                        tidepool_offload, "_print_reports",
                        lambda: reports.extend(tidepool_offload._state.engine.take_reports())):
                    self.assert_bits(train(off_interface, steps=5)[: len(self.plain)], self.plain)
                self.assertGreater(bytes_out(), 0)
                planned = any(each.startswith("plan: ") for each in reports)
                self.assertEqual(planned, "--policy=automatic" in flags)

    def test_some_modules_and_one_at_a_time(self):
        modules = ("expert_fc1", "moe_act")
        begin(1)
        self.assert_bits(train(off_interface, depth=1, modules=modules, max_inflight=1),
                         train(Nothing, depth=1))
        out = {name for name, row in off_interface.summary().items() if row["bytes_offloaded"]}
        self.assertEqual(out, set(modules))

    def test_what_left_is_not_held_by_python(self):
        begin(0)
        model = stack(off_interface)
        for _ in range(2):
            model.step(inputs(), 2)
        self.assertEqual(tidepool_offload._state.passes, [])
        gc.collect()
        self.assertFalse([each for each in gc.get_objects()
                          if type(each).__name__ in ("SavedTensor", "Group", "Pass")])

    def test_checkpoints_save_nothing_in_backward(self):
        from torch.utils.checkpoint import checkpoint

        wrap = lambda *args: checkpoint(*args, use_reentrant=True)
        begin(2)
        self.assert_bits(train(off_interface, wrap=wrap), train(Nothing, wrap=wrap))
        self.assertEqual(bytes_out(), 0)

    def test_evaluation_between_steps(self):
        def evaluate(model):
            with torch.no_grad():
                for each in inputs(2):
                    model(each)
                    self.assertEqual(tidepool_offload._state.passes, [])
            model.off.reset()

        begin(4)
        self.assert_bits(train(off_interface, between=evaluate), self.plain)

    def test_offload_switched_off_and_on(self):
        begin(5)
        off_interface.disable_offload()
        model = stack(off_interface)
        model.step(inputs(), 2)
        self.assertEqual(bytes_out(), 0)
        off_interface.enable_offload()
        model.step(inputs(), 2)
        self.assertGreater(bytes_out(), 0)

    def test_delayed_groups(self):
        class Delayed(off_interface):
            def group_offload(self, tensor, forced_released_tensors=None, delay_offload=False):
                off_interface.enter_replay()
                result = super().group_offload(tensor, forced_released_tensors, True)
                off_interface.exit_replay()
                if len(tidepool_offload._state.delayed) > 2:
                    off_interface.flush_delayed_groups()
                return result

        begin(6)
        self.assert_bits(train(Delayed), self.plain)
        self.assertGreater(bytes_out(), 0)

    def test_marked_tensors_stay(self):
        begin(0)
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        x = torch.randn(64, requires_grad=True)
        kept, goes = x * 2, x * 3
        off_interface.mark_not_offload(kept)
        scope = off_interface(True, kept, "core_attn")
        with scope as kept:
            y = kept * goes
        scope.group_offload(y).sum().backward()
        off_interface.reset()
        self.assertEqual(off_interface.summary()["core_attn"]["bytes_offloaded"], 256)

    def test_fake_tensors_stay(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        begin(0)
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        with FakeTensorMode():
            x = torch.randn(64, requires_grad=True)
            scope = off_interface(True, x, "core_attn")
            with scope:
                y = x.exp()
            scope.group_offload(y).sum().backward()
        off_interface.reset()
        self.assertEqual(off_interface.summary()["core_attn"]["bytes_offloaded"], 0)

    def test_what_a_question_says_true_for_stays(self):
        begin(0)
        sizes = set()

        def wide(tensor):
            sizes.add(tensor.numel())
            return tensor.numel() == 128

        withdraw = tidepool_offload.exclude_if(wide)
        try:
            off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
            x = torch.randn(64, requires_grad=True)
            gathered = torch.randn(128)
            scope = off_interface(True, x, "core_attn")
            with scope:
                y = (x + x).exp().repeat(2) * gathered
            gathered = gathered.clone()  # a storage that goes
            scope.group_offload(y).sum().backward()
            off_interface.reset()
        finally:
            withdraw()
        self.assertTrue(sizes >= {64, 128})
        self.assertEqual(off_interface.summary()["core_attn"]["bytes_offloaded"], 256)
        torch.testing.assert_close(
            x.grad, (2 * (2 * x).exp() * (gathered[:64] + gathered[64:])).detach())
        self.assertEqual(tidepool_offload._questions, [])

    def test_questions_leave_the_bits(self):
        begin(3)
        withdraw = tidepool_offload.exclude_if(lambda tensor: tensor.dim() == 2 and tensor.size(0) == 32)
        try:
            self.assert_bits(train(off_interface), self.plain)
        finally:
            withdraw()

    def test_marks_of_transformer_engine(self):
        begin(0)
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        x = torch.randn(64, requires_grad=True)
        kept, goes = x * 2, x * 3
        kept._TE_do_not_offload = True
        scope = off_interface(True, kept, "core_attn")
        with scope as kept:
            y = kept * goes
        scope.group_offload(y).sum().backward()
        off_interface.reset()
        self.assertTrue(torch.equal(x.grad, 12 * x))
        self.assertEqual(off_interface.summary()["core_attn"]["bytes_offloaded"], 256)

    def test_marks_inside_of_a_quantized_tensor(self):
        class Quantized(torch.Tensor):
            """Stands in for a tensor of Transformer Engine, whose data are tensors of their own."""

            def get_data_tensors(self):
                return self.inside

        def bytes_out(inside):
            begin(0)
            off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
            kept = torch.ones(64).as_subclass(Quantized)
            kept.inside = inside
            factor = torch.randn(64, requires_grad=True)
            scope = off_interface(True, kept, "core_attn")
            with scope:
                y = kept * factor.exp()
            scope.group_offload(y).sum().backward()
            off_interface.reset()
            self.assertTrue(torch.equal(factor.grad, factor.exp()))
            return off_interface.summary()["core_attn"]["bytes_offloaded"]

        marked = torch.ones(64)
        marked._TE_do_not_offload = True
        both = bytes_out((None, torch.ones(64)))
        self.assertEqual(bytes_out((None, marked)), both - 256)
        self.assertEqual(bytes_out(marked), both - 256)

    def test_thin_views_leave_without_their_gaps(self):
        begin(0)
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        x = torch.randn(512, 512, requires_grad=True)
        scope = off_interface(True, x, "core_attn")
        with scope:
            y = (x + x)[:, 8:24].sin()
        scope.group_offload(y).sum().backward()
        off_interface.reset()
        expected = torch.zeros(512, 512)
        expected[:, 8:24] = 2 * (x.detach() * 2)[:, 8:24].cos()
        self.assertTrue(torch.equal(x.grad, expected))
        self.assertEqual(off_interface.summary()["core_attn"]["bytes_offloaded"], 512 * 16 * 4)

    def test_a_delayed_group_that_comes_after_its_backward_stays(self):
        begin(0)
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        x = torch.randn(64, requires_grad=True)
        first, second = off_interface(True, x, "core_attn"), off_interface(True, x, "moe_act")
        with first:
            y = x * x
        y = first.group_offload(y)
        with second:
            z = y * y
        off_interface.enter_replay()
        z = second.group_offload(z, delay_offload=True)
        off_interface.exit_replay()
        z.sum().backward(retain_graph=True)
        off_interface.flush_delayed_groups()
        grad, x.grad = x.grad, None
        z.sum().backward()
        self.assertTrue(torch.equal(x.grad, grad))
        self.assertEqual(off_interface.summary()["moe_act"]["bytes_offloaded"], 0)
        off_interface.reset()

    def test_passes_that_are_over_are_closed(self):
        begin(0)
        model = stack(off_interface)
        most = 0
        enter = off_interface.init_chunk_handler

        class Counting(off_interface):
            @staticmethod
            def init_chunk_handler(*args, **options):
                nonlocal most
                enter(*args, **options)
                most = max(most, len(tidepool_offload._state.passes))

        model.off = Counting
        model.step(inputs(6), 2)
        self.assertEqual(most, 2)

    def test_a_graph_that_is_read_after_reset(self):
        begin(0)
        model = stack(off_interface)
        loss = model(inputs(1)[0].requires_grad_(True)).sum()
        off_interface.reset()
        with self.assertRaisesRegex(RuntimeError, "after its pass was finished"):
            loss.backward()

    def test_a_graph_that_outlives_the_engine(self):
        begin(0)
        loss = stack(off_interface)(inputs(1)[0].requires_grad_(True)).sum()
        off_interface.reset_instance()
        with self.assertRaisesRegex(RuntimeError, "after its pass was finished"):
            loss.backward()
        del loss

    def test_a_scope_that_throws_leaves_all_where_it_is(self):
        begin(0)
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        x = torch.randn(64, requires_grad=True)
        scope = off_interface(True, x, "core_attn")
        with self.assertRaises(ValueError):
            with scope:
                y = x * x
                raise ValueError
        y = scope.group_offload(y)
        y.sum().backward()
        self.assertTrue(torch.equal(x.grad, 2 * x))
        self.assertEqual(bytes_out(), 0)
        off_interface.reset()


def config(**options):
    """What TransformerConfig has of it."""
    return types.SimpleNamespace(**{
        "offload_modules": [], "recompute_modules": [], "min_offloaded_tensor_size": 1,
        "delta_offload_bytes_across_pp_ranks": 0, "activation_offload_fraction": 1.0,
        "fine_grained_offloading_max_inflight_offloads": None, **options})


class Chunk:
    """A model chunk, as Megatron's GPTModel begins its pass."""

    def __init__(self, config):
        self.config = config

    def preprocess(self, **arguments):
        off_interface.init_chunk_handler(**arguments)

    def forward(self, names, x, recompute=None):
        self.preprocess()
        for name in names:
            scope = off_interface(name in self.config.offload_modules, x, name)
            with scope as x:
                y = (x.exp() if recompute is None else recompute(torch.exp, x)) * 0.5
            x = scope.group_offload(y, forced_released_tensors=[x])
        return x


def made_with():
    """The options of the engine that the first pass makes."""
    made = []
    real = tidepool_offload._core.Engine

    def engine(**arguments):
        made.extend(arguments["code"])
        return real(**arguments)

    return made, unittest.mock.patch.object(tidepool_offload._core, "Engine", engine)


class Configs(unittest.TestCase):
    def run_chunk(self, chunk, names, recompute=None, steps=3):
        torch.manual_seed(3)
        for _ in range(steps):
            x = torch.randn(64, requires_grad=True)
            chunk.forward(names, x, recompute).sum().backward()
            off_interface.reset()
        return x.grad

    def test_the_config_of_the_calling_module(self):
        begin(0)
        chunk = Chunk(config(
            offload_modules=["fused_group_mlp"], min_offloaded_tensor_size=7,
            delta_offload_bytes_across_pp_ranks=5, activation_offload_fraction=0.75,
            fine_grained_offloading_max_inflight_offloads=2))
        made, patch = made_with()
        with patch:
            self.run_chunk(chunk, ["fused_group_mlp"])
        self.assertEqual(set(made), {
            "--offload-modules=fused_group_mlp", "--min-tensor-elements=7",
            "--delta-bytes-per-rank=5", "--offload-fraction=0.75", "--pipeline-rank=0",
            "--max-inflight=2"})

    def test_a_fused_group_leaves_without_any_arguments_of_megatron(self):
        begin(0)
        self.assertNotIn("megatron.training", sys.modules)
        chunk = Chunk(config(offload_modules=["core_attn", "fused_group_mlp"]))
        plain = self.run_chunk(Chunk(config()), ["core_attn", "fused_group_mlp"])
        begin(0)
        got = self.run_chunk(chunk, ["core_attn", "fused_group_mlp"])
        self.assertTrue(torch.equal(got, plain))
        self.assertGreater(off_interface.summary()["fused_group_mlp"]["bytes_offloaded"], 0)

    def test_a_given_config_comes_before_that_of_the_module(self):
        off_interface.reset_instance()
        tidepool_offload.configure(device="virtual", config=config(
            offload_modules=["fused_group_mlp"],
            fine_grained_offloading_max_inflight_offloads=1))
        chunk = Chunk(config(offload_modules=["core_attn"]))
        made, patch = made_with()
        with patch:
            chunk.preprocess(min_offloaded_tensor_size=9)
        self.assertIn("--offload-modules=fused_group_mlp", made)
        self.assertIn("--max-inflight=1", made)
        self.assertIn("--min-tensor-elements=9", made)  # what the call gives stands
        off_interface.reset()

    def test_the_arguments_of_megatron_come_last(self):
        training = types.SimpleNamespace(get_args=lambda: config(offload_modules=["moe_act"]))
        for owner, expected in ((Chunk(config(offload_modules=["core_attn"])), "core_attn"),
                                (Chunk(None), "moe_act")):
            begin(0)
            made, patch = made_with()
            with patch, unittest.mock.patch.dict(sys.modules, {"megatron.training": training}):
                owner.preprocess()
            self.assertIn(f"--offload-modules={expected}", made)
            off_interface.reset()

    def test_the_lists_of_megatrons_recipes(self):
        for offloaded, recomputed, cap in (
                (["expert_fc1"], ["mla_up_proj"], None),
                (["core_attn", "attn_proj"], ["layernorm", "mla_up_proj", "moe_act"], None),
                (["core_attn", "attn_proj"], ["layernorm", "mla_up_proj", "moe_act"], 1),
                (["core_attn", "attn_proj"], [], 2),
                (["fused_group_mlp"], ["moe_act"], 1),
                (["fused_group_mlp"], ["moe_act"], None),
                (["expert_fc1"], ["moe_act", "layernorm"], None)):
            with self.subTest(offloaded=offloaded, recomputed=recomputed, cap=cap):
                plain = self.run_chunk(Chunk(config()), offloaded * 2)
                begin(2)
                got = self.run_chunk(Chunk(config(
                    offload_modules=offloaded, recompute_modules=recomputed,
                    fine_grained_offloading_max_inflight_offloads=cap)), offloaded * 2)
                self.assertTrue(torch.equal(got, plain))
                for name in offloaded:
                    row = off_interface.summary()[name]
                    self.assertGreater(row["bytes_offloaded"], 0, name)

    def test_names_in_both_lists(self):
        from torch.utils.checkpoint import checkpoint

        both = config(offload_modules=["fused_group_mlp"],
                      recompute_modules=["fused_group_mlp", "moe_act", "mhc", "gdn_norm_out"])
        plain = self.run_chunk(Chunk(config()), ["fused_group_mlp"])
        for wrap in (None, lambda *args: checkpoint(*args, use_reentrant=True),
                     lambda *args: checkpoint(*args, use_reentrant=False)):
            begin(1)
            got = self.run_chunk(Chunk(both), ["fused_group_mlp"], wrap)
            self.assertTrue(torch.equal(got, plain))
            # The input leaves; what the checkpoint computes again was never saved.
            self.assertGreater(off_interface.summary()["fused_group_mlp"]["bytes_offloaded"], 0)

    def test_transformer_engine_without_its_variable(self):
        for version, variable, refused in (("2.9.0", None, False), ("2.10.0", None, True),
                                           ("2.14.0+abc", "0", True), ("3.0", None, True),
                                           ("2.14.0", "1", False)):
            begin(0)
            engine = types.SimpleNamespace(__version__=version)
            variables = {} if variable is None else {"NVTE_CPU_OFFLOAD_V1": variable}
            with self.subTest(version=version, variable=variable), \
                    unittest.mock.patch.dict(sys.modules, {"transformer_engine": engine}), \
                    unittest.mock.patch.dict(os.environ, variables):
                if refused:
                    with self.assertRaisesRegex(tidepool_offload.OptionError,
                                                "set NVTE_CPU_OFFLOAD_V1=1"):
                        off_interface.init_chunk_handler()
                else:
                    off_interface.init_chunk_handler()
                    off_interface.reset()


class Summaries(unittest.TestCase):
    def test_the_summary_of_the_first_step_is_what_leaves_in_the_next_ones(self):
        manager = tidepool_offload.PipelineOffloadManager.get_instance()
        for flags in ((), ("--no-margin",), ("--offload-fraction=0.5",)):
            with self.subTest(flags=flags):
                off_interface.reset_instance()
                tidepool_offload.configure("--host-step=1MiB", *flags, device="virtual")
                self.assertEqual(manager.offload_summary_total_bytes, 0)
                model = stack(off_interface)
                model.step(inputs(1), 1)
                summary = manager.offload_summary_bytes
                warm = off_interface.summary()
                model.step(inputs(1), 1)
                for name, row in off_interface.summary().items():
                    moved = row["bytes_offloaded"] - warm[name]["bytes_offloaded"]
                    self.assertEqual(summary.get(name, 0), moved, name)
                self.assertEqual(manager.offload_summary_bytes, summary)
                self.assertEqual(manager.offload_summary_total_bytes, sum(summary.values()))
                in_warm_up = sum(row["bytes_offloaded"] for row in warm.values())
                self.assertEqual(sum(summary.values()) == in_warm_up, flags == ("--no-margin",))
                self.assertGreater(sum(summary.values()), 0)

    def test_the_summary_follows_an_automatic_plan(self):
        manager = tidepool_offload.PipelineOffloadManager.get_instance()
        begin(0, "--policy=automatic", "--timed-step=2", "--adopt-after=0",
              "--device-budget=48KiB", "--plan-effort=50")
        model, predicted, moved, before = stack(off_interface), [], [], 0
        with unittest.mock.patch.object(tidepool_offload, "_print_reports", lambda: None):
            for _ in range(5):
                predicted.append(manager.offload_summary_total_bytes)
                model.step(inputs(1), 1)
                moved.append(bytes_out() - before)
                before += moved[-1]
        self.assertEqual(predicted[:2], [0, 0])  # no plan yet
        self.assertEqual(predicted[2:], moved[2:])
        self.assertLess(moved[-1], moved[0])

    def test_model_chunks_add_up_to_the_first_pass_of_the_last(self):
        begin(0)
        x = torch.ones(64, requires_grad=True)
        losses = []
        for stage in (0, 0, 1, 1):
            off_interface.init_chunk_handler(0, 2, stage, 1, 0, 1.0)
            scope = off_interface(True, x, "core_attn")
            with scope:
                y = x.exp()
            losses.append(scope.group_offload(y).sum())
        for loss in reversed(losses):
            loss.backward()
        off_interface.reset()
        manager = tidepool_offload.PipelineOffloadManager.get_instance()
        self.assertEqual(manager.offload_summary_bytes, {"core_attn": 3 * 256})

    def test_a_table_over_ranks(self):
        self.check_table()

    def test_a_table_over_ranks_waits_for_plans(self):
        self.check_table("--policy=automatic", "--timed-step=2", "--adopt-after=0",
                         "--device-budget=512KiB", "--plan-effort=50")

    def check_table(self, *flags):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(__file__).with_name("ranks.py")
            ranks = [subprocess.Popen(
                [sys.executable, str(script), str(rank), "2", f"{folder}/store", *flags],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
            said = [each.communicate(timeout=120) for each in ranks]
        for each, (_, error) in zip(ranks, said):
            self.assertEqual(each.returncode, 0, error)
        lines = [line.split() for line in said[0][0].splitlines()]
        self.assertEqual(lines, [
            ["tidepool:", "MiB", "offloaded", "core_attn", "moe_act", "total"],
            ["tidepool:", "rank", "0", "1.00", "0.00", "1.00"],
            ["tidepool:", "rank", "1", "1.00", "2.00", "3.00"],
            ["tidepool:", "total", "2.00", "2.00", "4.00"]])
        self.assertEqual(said[1][0], "")

    def test_spans(self):
        begin(0)
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        x = torch.randn(64, requires_grad=True)
        with torch.profiler.profile() as profile:
            scope = off_interface(True, x, "core_attn")
            with scope:
                y = x.exp()
            scope.group_offload(y).sum().backward()
        off_interface.reset()
        spans = {each.key: each.count for each in profile.key_averages()}
        self.assertEqual(spans.get("megatron.activation.offload"), 1)
        self.assertEqual(spans.get("megatron.activation.reload"), 1)


class Refusals(unittest.TestCase):
    def test_an_extension_of_another_torch(self):
        major, minor = torch.__version__.split(".")[:2]
        tidepool_offload._check_torch(f"{major}.{minor}.7")
        with self.assertRaisesRegex(ImportError, f"built with PyTorch {major}.{int(minor) + 1}.0"):
            tidepool_offload._check_torch(f"{major}.{int(minor) + 1}.0")

    def test_a_misspelt_module(self):
        begin(0)
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        with self.assertRaisesRegex(tidepool_offload.UnknownModule, "did you mean 'expert_fc1'"):
            with off_interface(True, torch.ones(4), "expert_fc"):
                pass

    def test_a_fused_group_that_was_not_named(self):
        begin(0)
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        with self.assertRaisesRegex(tidepool_offload.OptionError, "fused_group_mlp"):
            with off_interface(True, torch.ones(4), "fused_group_mlp"):
                pass
        begin(0, "--offload-modules=fused_group_mlp,gdp_qkv")
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        for name in ("fused_group_mlp", "gdp_qkv"):
            scope = off_interface(True, torch.ones(4), name)
            with scope:
                self.assertIsNotNone(scope._group)
        off_interface.reset()

    def test_wrong_options(self):
        begin(0, "--offload-modules=core_atn")
        with self.assertRaisesRegex(tidepool_offload.UnknownModule, "did you mean 'core_attn'"):
            off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        begin(0, "--device-budgt=1GiB")
        with self.assertRaisesRegex(tidepool_offload.OptionError, "--device-budget"):
            off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)

    def test_writes_after_commit(self):
        begin(0)
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
        x = torch.ones(64, requires_grad=True)
        inner = x * 2
        scope = off_interface(True, inner, "core_attn")
        with scope as inner:
            y = inner * inner
        y = scope.group_offload(y)
        with torch.no_grad():
            inner.add_(1)
        with self.assertRaisesRegex(RuntimeError, "core_attn of layer 0.*written to in place"):
            y.sum().backward()
        off_interface.reset()

    def test_outside_of_captures_the_records_do_nothing(self):
        x = torch.ones(3, requires_grad=True)
        off_interface.forward_record()
        off_interface.backward_record(x).sum().backward()
        self.assertEqual(x.grad.tolist(), [1, 1, 1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--leave-out")
    known, rest = parser.parse_known_args()
    left_out = known.leave_out
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *rest])
