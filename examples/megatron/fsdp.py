"""Parameters sharded over GPUs (FSDP2, ZeRO-3), and activations offloaded beside it.

    torchrun --nproc_per_node=2 fsdp.py [--modules expert_fc1,moe_act] [--tidepool "FLAGS"]...

The stack of `model.py`, each layer sharded. Ways take turns: nothing offloaded, and once for each --tidepool.
Rank 0 prints ms of a step, what torch's allocator and the driver had at most on any rank, and whether losses and
gradients have the bits of the first turn, on every rank. Needs PyTorch 2.6 or later, and a GPU for each rank.
"""

import argparse
import gc
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import tidepool_offload
from bench import Driver
from model import Nothing, Shape, Stack

GIB = 2.0**30
OURS = tidepool_offload.FineGrainedActivationOffloadingInterface


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default="expert_fc1,moe_act")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--tidepool", action="append")
    return parser.parse_args()


class Gathered:
    """The storages that hold a layer's parameters while it computes. They come and go, so that no mark
    can name them: autograd saves them, and FSDP gathers them again for backward."""

    def __init__(self, layers):
        self.storages = set()
        for layer in layers:
            layer.register_forward_pre_hook(self.note)  # behind FSDP's own, which gathers

    def note(self, layer, inputs):
        self.storages = {each.untyped_storage().data_ptr() for each in layer.parameters()}

    def __call__(self, tensor):
        return tensor.untyped_storage().data_ptr() in self.storages


class Bench:
    def __init__(self, args):
        self.args, self.rank = args, dist.get_rank()
        shape = Shape(4096, 7168, 2048, 16, 8, 28, 128, torch.bfloat16, "cuda")
        torch.manual_seed(0)
        self.stack = Stack(args.layers, shape, Nothing, set(), 1 << 20)
        self.stack.marked = True  # a shard is nothing that autograd saves
        for layer in self.stack.layers:
            fully_shard(layer)
        fully_shard(self.stack)
        tidepool_offload.exclude_if(Gathered(self.stack.layers))
        torch.manual_seed(1 + self.rank)
        self.inputs = [torch.randn(shape.tokens, shape.hidden, dtype=shape.dtype, device="cuda")
                       for _ in range(args.microbatches)]
        self.expected = None

    def use(self, off, modules, flags=""):
        off.reset_instance()
        if off is OURS:
            tidepool_offload.configure("--offload-modules=" + self.args.modules, *flags.split(),
                                       device="cuda")
        self.stack.off = off
        for layer in self.stack.layers:
            layer.off, layer.modules_on = off, modules

    def step(self):
        for each in self.stack.parameters():
            each.grad = None
        return self.stack.step(self.inputs, 1)

    def same_bits(self, losses):
        parts = losses + [each.grad.to_local() for each in self.stack.parameters()]
        if self.expected is None:
            self.expected = [each.cpu() for each in parts]
        same = all(torch.equal(kept.cuda().view(torch.uint8), part.contiguous().view(torch.uint8))
                   for kept, part in zip(self.expected, parts))
        everywhere = torch.tensor(int(same), device="cuda")
        dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
        return bool(everywhere)

    def turn(self, off, modules, flags):
        self.use(off, modules, flags)
        gc.collect()
        torch.cuda.empty_cache()
        for _ in range(self.args.warm_up):
            losses = self.step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        times = []
        with Driver(True) as driver:
            for _ in range(self.args.steps):
                dist.barrier()
                begin = time.perf_counter()
                losses = self.step()
                torch.cuda.synchronize()
                times.append((time.perf_counter() - begin) * 1e3)
        same = self.same_bits(losses)
        left = sum(row["bytes_offloaded"] for row in off.summary().values()) if off is OURS else 0
        del losses
        peaks = torch.tensor([torch.cuda.max_memory_allocated(), driver.most, left],
                             dtype=torch.float64, device="cuda")
        dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
        self.use(Nothing, set())
        off.reset_instance()
        return times, same, peaks.tolist()


def main():
    args = arguments()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    dist.init_process_group("nccl")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    bench = Bench(args)
    ways = [("nothing offloaded", Nothing, set(), "")]
    for flags in args.tidepool or [""]:
        ways.append((f"tidepool {flags}".strip(), OURS, set(args.modules.split(",")), flags))
    turns = {way[0]: [] for way in ways}
    for _ in range(args.rounds):
        for name, *how in ways:
            turns[name].append(bench.turn(*how))
    equal = True
    base = statistics.median(t for turn in turns[ways[0][0]] for t in turn[0])
    for name, seen in turns.items():
        ms = statistics.median(t for turn in seen for t in turn[0])
        same = all(turn[1] for turn in seen)
        equal = equal and same
        peaks = [max(turn[2][i] for turn in seen) / GIB for i in range(3)]
        if bench.rank == 0:
            print(f"{name:48s} {ms:8.2f} ms ({(ms / base - 1) * 100:+6.2f} %)  allocator {peaks[0]:6.2f} GiB"
                  f"  driver {peaks[1]:6.2f} GiB  left {peaks[2]:8.2f} GiB in all"
                  f"  bits {'equal' if same else 'DIFFER'}", flush=True)
    if bench.rank == 0:
        print(f"{torch.cuda.get_device_name()} x {dist.get_world_size()}; torch {torch.__version__};"
              f" bits equal on every rank: {'yes' if equal else 'NO'}")
    dist.destroy_process_group()
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
