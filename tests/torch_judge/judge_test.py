"""Offloaders with and without a mistake under `tidepool_judge.watch`: what is reported, and what is not.

    judge_test.py [--megatron-file FILE]

FILE is fine_grained_activation_offload.py of Megatron-LM, which is watched as it is, and with the waits that it lacks.
"""

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import torch
import torch.nn as nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import tidepool_judge

megatron_file = None


class Offloader:
    """Copies what autograd saves to pinned memory on a stream of its own, and back; `without` names a wait."""

    def __init__(self, without=None, reload_stream=False):
        self.without = without
        self.out = torch.cuda.Stream()
        self.back = torch.cuda.Stream() if reload_stream else None

    def hooks(self):
        return saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor):
        if isinstance(tensor, nn.Parameter):
            return tensor
        if self.without != "producer":
            self.out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.out):
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            kept.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.out)
        return kept, self.out.record_event(), tensor.device

    def unpack(self, saved):
        if isinstance(saved, torch.Tensor):
            return saved
        kept, left, device = saved
        now = torch.cuda.current_stream()
        with torch.cuda.stream(self.back or now):
            on = torch.cuda.current_stream()
            if self.without != "own offload":
                on.wait_event(left)
            tensor = torch.empty(kept.shape, dtype=kept.dtype, device=device)
            tensor.copy_(kept, non_blocking=True)
        if self.back is not None and self.without != "consumer":
            now.wait_stream(self.back)
        return tensor


def net():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh())
    return model.to(torch.ones(1, device="cuda").device)


def train(model, hooks, steps=3):
    for _ in range(steps):
        with hooks():
            loss = model(torch.ones(8, 16, device="cuda")).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for each in model.parameters():
                each.sub_(each.grad, alpha=0.1)
                each.grad = None
    return loss


def judged(without=None, **options):
    with tidepool_judge.watch() as judge:
        off = Offloader(without, **options)
        judge.name_stream(off.out, "the stream of offloads")
        if off.back is not None:
            judge.name_stream(off.back, "the stream of reloads")
        train(net(), off.hooks)
    return judge


class Judged(unittest.TestCase):
    def assert_found(self, judge, *words):
        self.assertTrue(judge.findings, "nothing was found")
        first = judge.findings[0]
        for each in words:
            self.assertRegex(first, each)

    def assert_clean(self, judge):
        self.assertEqual(judge.findings, [])
        self.assertGreater(judge.operators, 50)
        self.assertRegex(judge.report(), r"^order: 0 mistakes found in \d+ operators\n$")

    def test_right_offloaders_are_not_reported(self):
        for reload_stream in (False, True):
            with self.subTest(reload_stream=reload_stream):
                self.assert_clean(judged(reload_stream=reload_stream))

    def test_an_inline_reload_that_does_not_wait_for_its_own_copy(self):
        self.assert_found(
            judged("own offload"), "'aten::copy_' writes on the stream of offloads",
            "'aten::copy_' reads on the default stream",
            "the default stream has to wait for an event that the stream of offloads records",
            r"called:  .*judge_test.py:\d+, unpack")

    def test_a_reload_stream_that_does_not_wait_for_the_copy(self):
        self.assert_found(judged("own offload", reload_stream=True),
                          "the stream of reloads has to wait for an event that the stream of offloads records")

    def test_an_offload_that_does_not_wait_for_the_tensor(self):
        self.assert_found(judged("producer"), "writes on the default stream", "reads on the stream of offloads",
                          "the stream of offloads has to wait", r"judge_test.py:\d+, pack")

    def test_a_reader_that_does_not_wait_for_the_reload(self):
        self.assert_found(judged("consumer", reload_stream=True), "'aten::copy_' writes on the stream of reloads",
                          "reads on the default stream", "the default stream has to wait")

    def test_host_memory_that_is_used_again_too_early(self):
        for right in (False, True):
            with tidepool_judge.watch() as judge:
                out, back = torch.cuda.Stream(), torch.cuda.Stream()
                judge.name_stream(out, "out")
                judge.name_stream(back, "back")
                kept = torch.ones(64, device="cpu", pin_memory=True)
                with torch.cuda.stream(back):
                    tensor = kept.to("cuda", non_blocking=True)
                if right:
                    out.wait_stream(back)
                with torch.cuda.stream(out):
                    kept.copy_(torch.ones(64, device="cuda"), non_blocking=True)
                del tensor
            with self.subTest(right=right):
                if right:
                    self.assertEqual(judge.findings, [])
                else:
                    self.assert_found(judge, "'aten::copy_' reads on back", "'aten::copy_' writes on out",
                                      "out has to wait for an event that back records")

    def test_waits_of_the_host(self):
        for wait in (lambda s, e: s.synchronize(), lambda s, e: e.synchronize(), lambda s, e: torch.cuda.synchronize(),
                     None):
            with tidepool_judge.watch() as judge:
                side = torch.cuda.Stream()
                x = torch.ones(64, device="cuda")
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    x.mul_(2)
                event = side.record_event()
                if wait is not None:
                    wait(side, event)
                x.add_(1)
            with self.subTest(wait=wait):
                self.assertEqual(bool(judge.findings), wait is None)

    def test_save_on_cpu_and_checkpoints(self):
        for hooks in (lambda: torch.autograd.graph.save_on_cpu(pin_memory=True), contextlib.nullcontext):
            for reentrant in (True, False):
                with tidepool_judge.watch() as judge:
                    model = net()
                    train(lambda_of(model, reentrant), hooks)
                with self.subTest(reentrant=reentrant):
                    self.assert_clean(judge)

    @unittest.skipIf(torch.cuda.is_available(), "stand-ins serve machines without a GPU")
    def test_values_are_those_of_the_cpu(self):
        expected = train_on_cpu()
        with tidepool_judge.watch():
            loss = train(net(), Offloader().hooks)
            self.assertEqual(loss.device.type, "cuda")
            self.assertEqual(loss.cpu().device.type, "cpu")
        self.assertEqual(loss.device.type, "cpu")
        self.assertTrue(torch.equal(loss, expected))

    def test_everything_is_put_back(self):
        names = [(torch, "empty"), (torch.cuda, "Stream"), (torch.cuda, "current_stream"), (torch.Tensor, "to"),
                 (torch.Tensor, "device"), (saved_tensors_hooks, "__init__")]
        before = [getattr(*each) for each in names]
        with self.assertRaises(ZeroDivisionError):
            with tidepool_judge.watch():
                1 / 0
        self.assertEqual([getattr(*each) for each in names], before)
        with tidepool_judge.watch():
            with self.assertRaisesRegex(tidepool_judge.TidepoolError, "a run is watched already"):
                with tidepool_judge.watch():
                    pass
        self.assert_clean(judged())

    def test_a_script(self):
        source = ("import sys, torch\ns = torch.cuda.Stream()\nx = torch.ones(64, device='cuda')\n"
                  "if len(sys.argv) > 1: s.wait_stream(torch.cuda.current_stream())\n"
                  "with torch.cuda.stream(s): y = x * 2\n")
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(source)
            script.flush()
            for right, arguments in ((False, []), (True, ["right"])):
                ran = subprocess.run([sys.executable, "-m", "tidepool_judge", script.name, *arguments],
                                     stderr=subprocess.PIPE, text=True, check=False)
                self.assertEqual(ran.returncode, 0 if right else 1, ran.stderr)
                self.assertRegex(ran.stderr, "order: 0 mistakes" if right else rf"{script.name}:5, <module>")


def lambda_of(model, reentrant):
    """The model under a checkpoint, with its parameters."""
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return checkpoint(self.model, x.requires_grad_(), use_reentrant=reentrant)

    return Checkpointed()


def train_on_cpu():
    ones = torch.ones
    with unittest.mock.patch.object(torch, "ones", lambda *size, device: ones(*size)):
        return train(net(), contextlib.nullcontext)


class Megatron(unittest.TestCase):
    """Their file, unmodified, under a stack of layers with their call sites."""

    ALL = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")

    def setUp(self):
        if megatron_file is None:
            self.skipTest("--megatron-file names their file")
        if not hasattr(torch.Tensor, "untyped_storage"):  # before PyTorch 2.0
            torch.Tensor.untyped_storage = lambda tensor: tensor.storage().untyped()
        import torch._subclasses as classes

        if not hasattr(classes, "functional_tensor"):
            classes.functional_tensor = types.SimpleNamespace(FunctionalTensor=type("FunctionalTensor", (), {}))

    def judged(self, modules, depth, waits=()):
        from bench import megatron_interface
        from model import Shape, Stack

        with tidepool_judge.watch() as judge, contextlib.redirect_stdout(io.StringIO()):
            off = megatron_interface(megatron_file)
            theirs = sys.modules["their_offload"]
            before = theirs.ChunkOffloadHandler.tensor_pop

            def tensor_pop(self, tag):
                if not isinstance(tag, torch.Tensor):
                    group = self.offload_groups[tag[0] - 1]
                    for each in waits:
                        getattr(group, each)(torch.cuda.current_stream())
                return before(self, tag)

            if waits:
                theirs.ChunkOffloadHandler.tensor_pop = tensor_pop
            off.reset_instance()
            manager = theirs.PipelineOffloadManager.get_instance()
            judge.name_stream(manager.d2h_stream, "d2h_stream")
            judge.name_stream(manager.h2d_stream, "h2d_stream")
            torch.manual_seed(1)
            stack = Stack(2, Shape(24, 32, 16, 4, 2, 2, 8, device="cuda"), off, set(modules), min_elements=1)
            for _ in range(4):
                stack.step([torch.randn(24, 32, device="cuda") for _ in range(4)], depth)
        print(f"\n{', '.join(modules)}; {depth} in flight; added: {', '.join(waits) or 'nothing'}\n{judge.report()}",
              end="")
        return judge

    def test_the_inline_reload_that_does_not_wait_for_its_copy(self):
        """Megatron-LM's issue 7398."""
        judge = self.judged(("expert_fc1", "moe_act"), 1)
        self.assertEqual(len(judge.findings), 1)
        for each in ("writes on d2h_stream", "reads on the default stream",
                     "the default stream has to wait for an event that d2h_stream records",
                     r"called:  .*, reload\n  called:  .*, tensor_pop"):
            self.assertRegex(judge.findings[0], each)

    def test_with_that_wait_nothing_is_reported(self):
        self.assertEqual(self.judged(("expert_fc1", "moe_act"), 1, ("wait_offload_event",)).findings, [])

    def test_all_modules(self):
        judge = self.judged(self.ALL, 2, ("wait_offload_event",))
        self.assertTrue(any("writes on h2d_stream" in each and "the default stream has to wait" in each
                            for each in judge.findings))
        self.assertEqual(self.judged(self.ALL, 2, ("wait_offload_event", "wait_reload_event")).findings, [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--megatron-file", type=os.path.abspath)
    known, rest = parser.parse_known_args()
    megatron_file = known.megatron_file
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *rest])
