"""One stack, four ways to hold its saved tensors, in turns in one process.

    bench.py [--megatron-file FILE] [--modules expert_fc1,moe_act] [--depth 2] [--tidepool "FLAGS"]...

`none` keeps all, `recompute` checkpoints each layer, `megatron` is the file named, of Megatron-LM
(megatron/core/pipeline_parallel/fine_grained_activation_offload.py), `ours` once for each --tidepool.
It prints ms of a microbatch, what torch's allocator had at most, what the driver had given out at
most, host time of a scope, and whether losses and gradients have the bits of `none`.
--tiny with --device virtual runs it on the CPU, where times and memory mean nothing.
"""

import argparse
import gc
import importlib.util
import os
import statistics
import sys
import threading
import time
import types

import torch
from torch.utils.checkpoint import checkpoint

import tidepool_offload
from model import Nothing, Shape, Stack

GIB = 2.0**30


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron-file")
    parser.add_argument("--modules", default="expert_fc1,moe_act")
    parser.add_argument("--depth", type=int, default=2, help="microbatches in flight")
    parser.add_argument("--microbatches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3, help="turns of all ways")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a turn")
    parser.add_argument("--warm-up", type=int, default=4, help="steps of a turn before them")
    parser.add_argument("--tidepool", action="append", help="flags of ours; may stand several times")
    parser.add_argument("--max-inflight", type=int)
    parser.add_argument("--device", choices=("cuda", "virtual"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--scopes", type=int, default=256, help="for host time")
    return parser.parse_args()


def megatron_interface(path):
    """The class of a file of Megatron-LM, alone: of what it imports it uses little."""
    def module(name, **content):
        made = types.ModuleType(name)
        made.__dict__.update(content)
        sys.modules[name] = made

    for name in ("megatron", "megatron.core", "megatron.core.transformer",
                 "megatron.core.extensions", "megatron.core.telemetry"):
        module(name)
    module("megatron.core.transformer.cuda_graphs", is_graph_capturing=lambda: False)
    module("megatron.core.utils", nvtx_range_push=lambda *a, **k: None,
           nvtx_range_pop=lambda *a, **k: None)
    module("megatron.core.telemetry.fallbacks", trace_fn=lambda *a, **k: lambda call: call)
    module("megatron.core.extensions.transformer_engine",
           cpu_offload=types.SimpleNamespace(CPUOffloadEnabled=False))
    spec = importlib.util.spec_from_file_location("their_offload", path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["their_offload"] = loaded
    spec.loader.exec_module(loaded)
    if not torch.distributed.is_initialized():  # its summary wants ranks
        # Kept in the process: with a port, two benchmarks on one host would meet.
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                             world_size=1)
    return loaded.FineGrainedActivationOffloadingInterface


class Driver:
    """The most memory that the driver had given out, asked for every millisecond."""

    def __init__(self, cuda):
        self.cuda, self.most, self.stop = cuda, 0, threading.Event()

    def __enter__(self):
        if self.cuda:
            self.thread = threading.Thread(target=self.watch)
            self.thread.start()
        return self

    def watch(self):
        while not self.stop.wait(0.001):
            free, total = torch.cuda.mem_get_info()
            self.most = max(self.most, total - free)

    def __exit__(self, *args):
        self.stop.set()
        if self.cuda:
            self.thread.join()


class Bench:
    def __init__(self, args):
        self.args, self.cuda = args, args.device == "cuda"
        if args.tiny:
            shape = Shape(64, 64, 32, 4, 2, 2, 16, torch.float32, "cpu")
        else:
            shape = Shape(4096, 7168, 2048, 16, 8, 28, 128, torch.bfloat16, "cuda")
        if self.cuda and args.tiny:
            shape.device = "cuda"
        self.elements = 1 if args.tiny else 1 << 20
        torch.manual_seed(0)
        self.stack = Stack(2 if args.tiny else 8, shape, Nothing, set(), self.elements,
                           args.max_inflight)
        for each in self.stack.parameters():  # gradients are there before and after
            each.grad = torch.zeros_like(each)
        self.expected = None
        self.inputs = [torch.randn(shape.tokens, shape.hidden, dtype=shape.dtype,
                                   device=shape.device) for _ in range(args.microbatches)]

    def sync(self):
        if self.cuda:
            torch.cuda.synchronize()

    def use(self, off, modules, flags):
        off.reset_instance()
        if off is tidepool_offload.FineGrainedActivationOffloadingInterface:
            host = ["--host-step=1MiB"] if self.args.tiny else []
            tidepool_offload.configure("--offload-modules=" + self.args.modules, *host,
                                       *flags.split(), device=self.args.device)
        self.stack.off, self.stack.marked = off, False
        for layer in self.stack.layers:
            layer.off, layer.modules_on = off, modules

    def step(self, wrap):
        for each in self.stack.parameters():
            each.grad.zero_()
        return self.stack.step(self.inputs, self.args.depth, wrap)

    def same_bits(self, losses):
        """Whether losses and gradients are those of the first turn, which are kept on the host."""
        parts = [part.view(torch.uint8) for each in losses + [p.grad for p in self.stack.parameters()]
                 for part in each.reshape(-1).split(1 << 24)]
        if self.expected is None:
            self.expected = [torch.empty(part.shape, dtype=part.dtype, pin_memory=self.cuda)
                             for part in parts]
            for kept, part in zip(self.expected, parts):
                kept.copy_(part)
        return all(torch.equal(kept.to(part.device), part)
                   for kept, part in zip(self.expected, parts))

    def turn(self, way):
        name, off, modules, flags, wrap = way
        self.use(off, modules, flags)
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
        for _ in range(self.args.warm_up):
            losses = self.step(wrap)
        self.sync()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(self.args.steps):
            begin = time.perf_counter()
            losses = self.step(wrap)
            self.sync()
            times.append((time.perf_counter() - begin) / self.args.microbatches * 1e3)
        with Driver(self.cuda) as driver:  # apart from the timed steps, because it asks CUDA every millisecond
            losses = self.step(wrap)
            self.sync()
        peak = torch.cuda.max_memory_allocated() if self.cuda else 0
        left = away = 0
        if off is tidepool_offload.FineGrainedActivationOffloadingInterface:
            rows = off.summary().values()
            steps = self.args.warm_up + self.args.steps + 1
            left = sum(row["bytes_offloaded"] for row in rows) / steps / self.args.microbatches
            away = off.totals()["away_at_peak"]
        result = (times, peak, driver.most, self.same_bits(losses), left, away)
        del losses
        self.use(Nothing, set(), "")
        off.reset_instance()
        return result

    def host_us(self, way):
        """Of one scope, forward and backward, on tensors so small that the device waits."""
        name, off, modules, flags, wrap = way
        if wrap is not None:
            return None
        module = sorted(modules)[0] if modules else "expert_fc1"
        self.use(off, modules, flags)

        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.view_as(x)

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad

        device = "cuda" if self.cuda else "cpu"
        x = torch.randn(1 << 19, device=device)

        def once():
            off.init_chunk_handler(pp_rank=0, vp_size=None, vp_stage=None,
                                   min_offloaded_tensor_size=1,
                                   delta_offload_bytes_across_pp_ranks=0,
                                   activation_offload_fraction=1.0, max_inflight_offloads=None)
            y = x.detach().requires_grad_(True) * 1
            for _ in range(self.args.scopes):
                scope = off(bool(modules), y, module)
                with scope as z:
                    z = Square.apply(z)
                y = scope.group_offload(z * 1, forced_released_tensors=[])
            y.sum().backward()
            off.reset()

        times = []
        for i in range(8):
            self.sync()
            begin = time.perf_counter()
            once()
            end = time.perf_counter()
            self.sync()
            if i >= 3:
                times.append((end - begin) / self.args.scopes * 1e6)
        off.reset_instance()
        return statistics.median(times)


def main():
    args = arguments()
    if args.device == "virtual":
        torch.set_num_threads(1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # With `warn_only`, flash attention's backward would add in any order.
    torch.use_deterministic_algorithms(True)
    if hasattr(torch.utils, "deterministic"):  # time that no way of holding tensors costs
        torch.utils.deterministic.fill_uninitialized_memory = False
    bench = Bench(args)
    modules = set(args.modules.split(","))
    ours = tidepool_offload.FineGrainedActivationOffloadingInterface
    ways = [("none", Nothing, set(), "", None)]
    for flags in args.tidepool or [""]:
        ways.append((f"ours {flags}".strip(), ours, modules, flags, None))
    if args.megatron_file:
        ways.append(("megatron", megatron_interface(args.megatron_file), modules, "", None))
    ways.append(("recompute", Nothing, set(), "",
                 lambda *call: checkpoint(*call, use_reentrant=True)))

    where = torch.cuda.get_device_name() if bench.cuda else "CPU, virtual device: times mean nothing"
    print(f"{where}; torch {torch.__version__}; depth {args.depth}, {args.microbatches} microbatches")
    results = {way[0]: [] for way in ways}
    for _ in range(args.rounds):
        for way in ways:
            results[way[0]].append(turn := bench.turn(way))
            print(f"a turn of {way[0]}: {statistics.median(turn[0]):.2f} ms, driver {turn[2] / GIB:.2f} GiB,"
                  f" bits {'equal' if turn[3] else 'DIFFER'}", file=sys.stderr, flush=True)
    base = statistics.median(t for turn in results["none"] for t in turn[0])
    base_driver = max(turn[2] for turn in results["none"])
    equal = True
    for way in ways:
        turns = results[way[0]]
        ms = statistics.median(t for turn in turns for t in turn[0])
        same = all(turn[3] for turn in turns)
        driver = max(turn[2] for turn in turns)
        equal = equal and (same or not way[2])
        host = bench.host_us(way)
        print(f"{way[0]:40s} {ms:9.2f} ms ({(ms / base - 1) * 100:+6.2f} %)"
              f"  allocator {max(turn[1] for turn in turns) / GIB:6.2f} GiB"
              f"  driver {driver / GIB:6.2f} GiB ({(driver - base_driver) / GIB:+5.2f};"
              f" {max(turn[5] for turn in turns) / GIB:.2f} away at the peak)"
              f"  left {turns[-1][4] / GIB:8.5f} GiB a microbatch"
              f"  host {'-' if host is None else f'{host:.1f}'} us a scope"
              f"  bits {'equal' if same else 'DIFFER'}")
    print(f"bits equal to none: {'yes' if equal else 'NO'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
