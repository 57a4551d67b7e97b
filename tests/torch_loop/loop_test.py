"""Plain loops under `tidepool_loop.offload`, and without: bits of losses and of parameters.

    loop_test.py [--leave-out JOIN]

With a join of the virtual device left out it must fail; CTest sees to it.
"""

import argparse
import copy
import gc
import hashlib
import pickle
import sys
import unittest
import warnings

import torch
import torch.nn as nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import tidepool_loop
import tidepool_megatron

left_out = None
FLAGS = ("--no-margin", "--host-step=1MiB", "--min-tensor-elements=1")
HIDDEN, TOKENS = 16, 12


def make_engine(*args, engine=tidepool_megatron.Engine, **options):
    made = engine(*args, **options)
    if left_out is not None:
        made.leave_out(left_out)
    return made


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.transpose(-1, -2) / 4).softmax(-1) @ v)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(HIDDEN, 64), nn.GELU(), nn.Linear(64, HIDDEN)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.self_attn, self.mlp = nn.LayerNorm(HIDDEN), Attention(), Mlp()
        self.raises = False

    def forward(self, x):
        x = x + self.self_attn(self.norm(x))
        x = x + self.mlp(x)
        if self.raises:
            raise ValueError("out of luck")
        return x


class CheckpointedBlock(Block):
    """As in transformers: the call, not the forward, makes the checkpoint."""

    reentrant = True

    def __call__(self, x):
        if not torch.is_grad_enabled():
            return super().__call__(x)
        return checkpoint(super().__call__, x, use_reentrant=self.reentrant)


class Model(nn.Module):
    def __init__(self, block=Block, layers=3):
        super().__init__()
        self.embed = nn.Linear(HIDDEN, HIDDEN)
        self.layers = nn.ModuleList([block() for _ in range(layers)])

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x


def model(**options):
    torch.manual_seed(1)
    return Model(**options)


def batch(step):
    torch.manual_seed(100 + step)
    return torch.randn(TOKENS, HIDDEN)


def digest(tensors):
    return [hashlib.md5(each.detach().contiguous().numpy().tobytes()).hexdigest() for each in tensors]


def train(net, steps=3, each=None, microbatches=1, forward=None):
    """Digests of each step's loss, and of all parameters after the last one."""
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    forward = forward or (lambda x: net(x).pow(2).mean())
    result = []
    for step in range(steps):
        for i in range(microbatches):
            loss = forward(batch(step * microbatches + i))
            loss.backward()
            result += digest([loss])
        optimizer.step()
        optimizer.zero_grad()
        if each is not None:
            each(net)
    return result + digest(net.parameters())


def offload(net, modules=("mlp", "self_attn"), *args, flags=(), **options):
    return tidepool_loop.offload(net, list(modules), *args, flags=(*FLAGS, *flags), **options)


def left(run):
    return {name: row["bytes_offloaded"] for name, row in run.summary().items()}


class Loops(unittest.TestCase):
    def setUp(self):
        tidepool_megatron.Engine, self.engine = make_engine, tidepool_megatron.Engine
        self.call = {cls: cls.__call__ for cls in (Model, Block, Mlp, Attention, CheckpointedBlock)}

    def tearDown(self):
        tidepool_megatron.Engine = self.engine
        for cls, before in self.call.items():
            self.assertIs(cls.__call__, before)
        self.assertEqual(tidepool_loop._around, {})
        self.assertEqual(tidepool_loop._patched, {})
        tidepool_loop._sweep_lingering()
        self.assertEqual(tidepool_loop._lingering, [])
        self.assertIs(saved_tensors_hooks.__enter__, tidepool_loop._enter_hooks)
        saw = []
        with saved_tensors_hooks(lambda tensor: saw.append(1) or tensor, lambda tensor: tensor):
            torch.ones(2, requires_grad=True).exp()
        self.assertEqual(saw, [1])  # no hooks of ours lie on top

    def assert_same(self, got, expected):
        different = sum(a != b for a, b in zip(got, expected))
        self.assertFalse(different, f"{different} of {len(expected)} losses and parameters")
        self.assertEqual(len(got), len(expected))

    def compare(self, make, modules=("mlp", "self_attn"), *args, training=None, **options):
        """Trains twice, and returns the bytes that left by name."""
        training = training or {}
        expected = train(make(), **training)
        net = make()
        with offload(net, modules, *args, **options) as run:
            got = train(net, **training)
        self.assert_same(got, expected)
        return left(run)

    # ---- bits ----

    def test_twenty_steps_in_every_order(self):
        for order in range(4):
            with self.subTest(order=order):
                out = self.compare(model, training={"steps": 20}, order=order)
                # 3 layers, 20 steps: at least the input and the result of the activation.
                self.assertGreaterEqual(out["mlp"], 20 * 3 * TOKENS * (64 + 64) * 4)
                self.assertGreater(out["self_attn"], 0)

    def test_budgets_and_plans(self):
        for budget in ("16KiB", 1 << 20):
            with self.subTest(budget=budget):
                out = self.compare(model, ("mlp", "self_attn"), budget, training={"steps": 8},
                                   flags=("--timed-step=2", "--adopt-after=0", "--plan-effort=50"))
                self.assertGreater(sum(out.values()), 0)

    def test_accumulated_gradients(self):
        out = self.compare(model, training={"microbatches": 3}, microbatches=3)
        self.assertGreater(out["mlp"], 0)

    def test_steps_are_counted(self):
        net = model()
        with offload(net, microbatches=2) as run:
            train(net, steps=3, microbatches=2)
        self.assertEqual(run.totals()["steps"], 3)

    # ---- models ----

    def test_nested_names(self):
        out = self.compare(model, ("layers.*", "mlp", "mlp.act"))
        self.assertEqual(set(out), {"layers", "mlp", "mlp.act"})
        self.assertTrue(all(out.values()), out)

    def test_a_shared_module_and_one_that_is_called_twice(self):
        class Shared(Model):
            def __init__(self):
                super().__init__()
                self.layers[2].mlp = self.layers[0].mlp
                self.embed.also = self.layers[0].mlp  # its first name

            def forward(self, x):
                return self.layers[1](super().forward(x))

        def shared():
            torch.manual_seed(1)
            return Shared()

        once, twice = self.compare(model), self.compare(shared)
        self.assertEqual(twice["mlp"] * 3, once["mlp"] * 4)

    def test_frozen_layers(self):
        def frozen():
            net = model()
            for each in net.layers[:2].parameters():
                each.requires_grad_(False)
            for each in net.embed.parameters():
                each.requires_grad_(False)
            return net

        out, all_of_it = self.compare(frozen), self.compare(model)
        self.assertEqual(out["mlp"] * 3, all_of_it["mlp"])

    def test_weights_stay(self):
        net = nn.Sequential(nn.Linear(HIDDEN, 256, bias=False))
        with offload(net, ["0"]) as run:
            for _ in range(2):  # the second time, they have other memory
                net(batch(0).requires_grad_()).sum().backward()
                net[0].weight.data = net[0].weight.data.clone()
                net[0].weight.grad = None
        self.assertEqual(left(run), {"0": 2 * TOKENS * HIDDEN * 4})

    def test_weights_without_a_module_stay(self):
        class Tied(nn.Linear):
            def forward(self, x):
                return nn.functional.linear(x, self.of[0].weight)

        net = nn.Sequential(nn.Linear(HIDDEN, HIDDEN, bias=False), Tied(HIDDEN, HIDDEN, bias=False))
        net[1].of = [net[0]]
        with offload(net, ["1"]) as run:
            net(batch(0).requires_grad_()).sum().backward()
        self.assertEqual(left(run), {"1": TOKENS * HIDDEN * 4})

    def test_gathered_weights_stay(self):
        """As FSDP does it: outside of forward a module has a part, and gathers the whole before."""
        net = nn.Sequential(nn.Linear(HIDDEN, HIDDEN, bias=False))
        part = net[0].weight
        part.to_local = lambda: part

        def gather(module, inputs):
            module[0]._parameters["weight"] = nn.Parameter(part.detach().clone())

        net.register_forward_pre_hook(gather)
        with offload(net, ["0"]) as run:
            for _ in range(3):
                net(batch(0).requires_grad_()).sum().backward()
        self.assertEqual(left(run), {"0": 3 * TOKENS * HIDDEN * 4})

    def test_two_models_at_once(self):
        nets = model(), model(layers=2)

        def both(pair):
            return train(pair[0], forward=lambda x: pair[1](pair[0](x)).pow(2).mean())

        expected = both(nets)
        nets = model(), model(layers=2)
        with offload(nets[0]) as first, offload(nets[1]) as second:
            self.assert_same(both(nets), expected)
        self.assertEqual(left(first)["mlp"] * 2, left(second)["mlp"] * 3)

    # ---- checkpoints ----

    def test_only_the_inputs_of_checkpoints_leave(self):
        for reentrant in (True, False):
            CheckpointedBlock.reentrant = reentrant
            with self.subTest(reentrant=reentrant), warnings.catch_warnings():
                warnings.simplefilter("error")
                out = self.compare(lambda: model(block=CheckpointedBlock), ("layers.*",))
                # Before 2.0, torch's own checkpoint without reentry keeps its inputs in a closure.
                keeps = not reentrant and not hasattr(torch.utils.checkpoint, "_NoopSaveInputs")
                inputs = 3 * 3 * TOKENS * HIDDEN * 4
                self.assertEqual(out["layers"], 0 if keeps else inputs)

    def test_modules_inside_checkpoints_keep_what_checkpoints_drop(self):
        for reentrant in (True, False):
            CheckpointedBlock.reentrant = reentrant
            with self.subTest(reentrant=reentrant):
                with self.assertWarnsRegex(UserWarning, "'mlp' runs .* inside a checkpoint"):
                    out = self.compare(lambda: model(block=CheckpointedBlock))
                self.assertEqual(sum(out.values()), 0)

    def test_a_checkpoint_inside_a_module(self):
        class Inside(Mlp):
            def forward(self, x):
                return checkpoint(super().forward, x, use_reentrant=True)

        class Outside(Block):
            def __init__(self):
                super().__init__()
                self.mlp = Inside()

        out = self.compare(lambda: model(block=Outside))
        self.assertEqual(out["mlp"], 3 * 3 * TOKENS * HIDDEN * 4)
        self.assertGreater(out["self_attn"], 0)

    def test_a_checkpoint_around_the_model(self):
        for reentrant in (True, False):
            def around(net):
                return lambda x: checkpoint(net, x.requires_grad_(), use_reentrant=reentrant).pow(2).mean()

            with self.subTest(reentrant=reentrant), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                net = model()
                expected = train(net, forward=around(net))
                net = model()
                with offload(net) as run:
                    self.assert_same(train(net, forward=around(net)), expected)
                self.assertEqual(sum(left(run).values()), 0)
                # No pass begins in backward, when a checkpoint runs the model again.
                self.assertEqual(run.totals().get("steps"), None if reentrant else 3)

    # ---- what happens in a step ----

    def test_evaluation(self):
        def evaluate(net):
            with torch.no_grad():
                net(batch(7))
            with torch.enable_grad():
                net(batch(8))  # its graph is dropped

        out = self.compare(model, training={"each": evaluate})
        self.assertGreater(out["mlp"], 0)

    def test_an_exception_in_forward_and_in_backward(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise ValueError("out of luck")

        def mishap(net):
            net.layers[1].raises = True
            with self.assertRaisesRegex(ValueError, "out of luck"):
                net(batch(9))
            net.layers[1].raises = False
            y = net.layers[0](batch(9))
            with self.assertRaisesRegex(ValueError, "out of luck"):
                net(Fails.apply(net(batch(9)))).sum().backward()
            del y
            net.zero_grad()

        out = self.compare(model, ("mlp", "self_attn", "layers.*"), training={"each": mishap})
        self.assertGreater(out["mlp"], 0)

    def test_an_exception_ends_the_context(self):
        net = model()
        with self.assertRaisesRegex(ValueError, "out of luck"):
            with offload(net):
                net.layers[2].raises = True
                net(batch(0))
        net.layers[2].raises = False
        self.assert_same(train(net), train(model()))

    def test_a_backward_behind_the_context(self):
        expected = model()
        expected(batch(0)).sum().backward()
        net = model()
        with offload(net) as run:
            loss = net(batch(0)).sum()
        self.assertEqual(len(tidepool_loop._lingering), 1)
        loss.backward()
        del loss
        self.assertGreater(left(run)["mlp"], 0)
        self.assert_same(digest(p.grad for p in net.parameters()), digest(p.grad for p in expected.parameters()))

    def test_several_passes_before_a_backward(self):
        def twins(net):
            return lambda x: (net(x) - net(x.flip(0))).pow(2).mean()

        net = model()
        expected = train(net, forward=twins(net))
        net = model()
        with offload(net, microbatches=2) as run:
            self.assert_same(train(net, forward=twins(net)), expected)
        self.assertEqual(run.totals()["steps"], 3)
        self.assertGreater(left(run)["mlp"], 0)

    def test_a_graph_that_is_kept(self):
        net = model()

        def again(x):
            loss = net(x).pow(2).mean()
            loss.backward(retain_graph=True)
            return loss

        expected = train(net, forward=again)
        net = model()
        with offload(net):
            self.assert_same(train(net, forward=again), expected)

    def test_copies_and_pickles_of_the_model(self):
        net = model()
        with offload(net) as run:
            train(net)
            before = left(run)
            twin = copy.deepcopy(net)
            other = pickle.loads(pickle.dumps(net))
            self.assert_same(train(twin), train(other))
            self.assertEqual(left(run), before)
        self.assertEqual(net.state_dict().keys(), model().state_dict().keys())

    def test_memory_goes(self):
        net = model()
        with offload(net) as run:
            train(net)
            gc.collect()
            kinds = [type(each).__name__ for each in gc.get_objects()]
            self.assertFalse([each for each in kinds if each in ("SavedTensor", "Group")])
            net(batch(0))
            self.assertEqual(len(run._passes), 1)


class Refusals(unittest.TestCase):
    def test_a_misspelt_name(self):
        with self.assertRaisesRegex(tidepool_loop.OptionError, "'mpl'; did you mean 'mlp'"):
            tidepool_loop.offload(model(), ["mpl"])

    def test_a_wrong_flag(self):
        net = model()
        with tidepool_loop.offload(net, "mlp", flags="--device-budgt=1GiB"):
            with self.assertRaisesRegex(tidepool_loop.OptionError, "--device-budget"):
                net(batch(0))

    def test_one_model_under_two(self):
        net = model()
        with tidepool_loop.offload(net, ["mlp"]):
            with self.assertRaisesRegex(tidepool_loop.TidepoolError, "under another offload"):
                with tidepool_loop.offload(net, ["self_attn"]):
                    pass

    def test_writes_in_place(self):
        net = model()
        with offload(net):
            y = net(batch(0))
            with torch.no_grad():
                for each in net.buffers():
                    each.add_(1)
            hidden = []
            hook = net.layers[0].mlp.register_forward_pre_hook(lambda module, inputs: hidden.append(inputs[0]))
            y = net(batch(0))
            hook.remove()
            with torch.no_grad():
                hidden[0].add_(1)
            with self.assertRaisesRegex(RuntimeError, "mlp of layer 0.*written to in place"):
                y.sum().backward()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--leave-out")
    known, rest = parser.parse_known_args()
    left_out = known.leave_out
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *rest])
