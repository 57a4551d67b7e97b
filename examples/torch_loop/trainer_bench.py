"""One model and one training loop, several ways to hold what backward needs, in turns in one process.

    trainer_bench.py [--tokens 16384] [--budget 12GiB]...
    torchrun --nproc_per_node=2 trainer_bench.py --plain        # FSDP2 over two GPUs

The model is `transformers`' LlamaForCausalLM with random weights, the loop its unmodified Trainer. Without that
package (or with --plain) they are llama.py and a plain loop, and the first line of the output says so. Ways:

    none, save_on_cpu(pin_memory=True), recompute, recompute with save_on_cpu, recompute with ours ("layers.*"),
    ours for each --modules, and ours with --modules and each --budget

It prints ms of a step (the median over all rounds), what torch's allocator had at most, what the driver had given
out at most, the bytes that left, and whether losses and parameters have the bits of the first way that fits the GPU.
--tiny --device cpu runs it on the virtual device, where times and memory mean nothing.
"""

import argparse
import contextlib
import gc
import os
import re
import statistics
import sys
import tempfile
import threading
import time

import torch

import tidepool_loop
from llama import Llama

GIB = 2.0**30


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=14336)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--modules", default="mlp,self_attn")
    parser.add_argument("--budget", action="append", help="of a plan; may stand several times")
    parser.add_argument("--flags", default="", help="more options of Tidepool")
    parser.add_argument("--rounds", type=int, default=2, help="turns of all ways")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a turn")
    parser.add_argument("--warm-up", type=int, default=5, help="steps of a turn before them")
    parser.add_argument("--reentrant", action="store_true", help="checkpoints with use_reentrant=True")
    parser.add_argument("--loose", action="store_true", help="allow operators that are not deterministic")
    parser.add_argument("--only", help="the ways whose names this pattern finds, beside none")
    parser.add_argument("--plain", action="store_true", help="llama.py and a plain loop")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


class Driver:
    """What the driver has given out at most, asked for every millisecond."""

    def __init__(self, cuda):
        self.cuda, self.most, self.stop, self.thread = cuda, 0, threading.Event(), None

    def start(self):
        if self.cuda:
            self.thread = threading.Thread(target=self.watch, args=[torch.cuda.current_device()])
            self.thread.start()

    def watch(self, device):
        while not self.stop.wait(0.001):
            free, total = torch.cuda.mem_get_info(device)
            self.most = max(self.most, total - free)

    def end(self):
        self.stop.set()
        if self.thread is not None:  # none where memory ran out before the timed steps
            self.thread.join()


class Meter:
    """Times the steps behind the warm-up, and their peaks."""

    def __init__(self, cuda, warm_up, steps):
        self.cuda, self.warm_up, self.steps = cuda, warm_up, steps
        self.driver, self.times, self.done, self.allocator = Driver(cuda), [], 0, 0

    def begin(self):
        if self.cuda:
            torch.cuda.synchronize()
        if self.done == self.warm_up:
            if self.cuda:
                torch.cuda.reset_peak_memory_stats()
            self.driver.start()
        self.began = time.perf_counter()

    def end(self):
        if self.cuda:
            torch.cuda.synchronize()
        if self.done >= self.warm_up:
            self.times.append((time.perf_counter() - self.began) * 1e3)
        self.done += 1
        if self.done == self.warm_up + self.steps:
            self.driver.end()
            self.allocator = torch.cuda.max_memory_allocated() if self.cuda else 0


class Texts(torch.utils.data.Dataset):
    """Random tokens, the same for each turn."""

    def __init__(self, args, count):
        torch.manual_seed(2)
        self.rows = torch.randint(args.vocabulary, (count, args.tokens))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def make_model(args, transformers):
    torch.manual_seed(1)
    shape = (args.vocabulary, args.layers, args.hidden, args.inner, args.heads, args.kv_heads)
    torch.set_default_dtype(torch.float32 if args.device == "cpu" else torch.bfloat16)
    try:
        if transformers is None:
            return Llama(*shape).to(args.device)
        config = transformers.LlamaConfig(
            vocab_size=args.vocabulary, num_hidden_layers=args.layers, hidden_size=args.hidden,
            intermediate_size=args.inner, num_attention_heads=args.heads, num_key_value_heads=args.kv_heads,
            max_position_embeddings=args.tokens, use_cache=False)
        with torch.device(args.device):  # on the CPU random weights would take half a minute
            return transformers.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)


def train_with_trainer(transformers, args, model, texts, meter, recompute):
    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            meter.begin()

        def on_step_end(self, *args, **kwargs):
            meter.end()

    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder, max_steps=len(texts), per_device_train_batch_size=1, save_strategy="no",
            logging_strategy="no", report_to=[], disable_tqdm=True, learning_rate=1e-4,
            use_cpu=args.device == "cpu", gradient_checkpointing=recompute,
            gradient_checkpointing_kwargs={"use_reentrant": args.reentrant} if recompute else None)
        transformers.Trainer(model=model, args=settings, train_dataset=texts, callbacks=[Clock()]).train()


def train_plain(args, model, texts, meter, recompute):
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": args.reentrant})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for row in texts.rows:
        meter.begin()
        row = row[None].to(args.device)
        model(row, row).backward()
        optimizer.step()
        optimizer.zero_grad()
        meter.end()


def local(parameter):
    """This rank's part of it."""
    return (parameter.to_local() if hasattr(parameter, "to_local") else parameter).detach()


class Bench:
    def __init__(self, args):
        self.args, self.cuda = args, args.device == "cuda"
        self.ranks, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        self.transformers = None if args.plain or self.ranks > 1 else self.find_transformers()
        if self.ranks > 1:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            torch.distributed.init_process_group("nccl")
        self.model = make_model(args, self.transformers)
        if self.ranks > 1:
            from torch.distributed.fsdp import fully_shard

            for layer in self.model.layers:
                fully_shard(layer)
            fully_shard(self.model)
        self.first = [local(each).to("cpu", copy=True) for each in self.model.parameters()]
        self.texts = Texts(args, args.warm_up + args.steps)
        self.losses, self.expected = [], None
        self.model.register_forward_hook(lambda module, inputs, out: self.losses.append(
            (out if isinstance(out, torch.Tensor) else out.loss).detach().clone()))

    @staticmethod
    def find_transformers():
        try:
            import transformers

            transformers.TrainingArguments(output_dir=tempfile.gettempdir(), report_to=[], use_cpu=True)
            return transformers
        except ImportError as why:
            print(f"transformers' Trainer cannot run here ({str(why).strip().splitlines()[0]})")
            return None

    def bits(self):
        """Of all losses, and a sum of each parameter's bits in which every place has a weight of its own."""
        result = torch.stack(self.losses).double().tolist()
        for each in self.model.parameters():
            each = local(each)
            words = each.reshape(-1).view(torch.int16 if each.element_size() == 2 else torch.int32)
            total = 0
            for i, part in enumerate(words.split(1 << 24)):
                places = torch.arange(1, part.numel() + 1, device=part.device)
                total += (i + 1) * int((part.long() * places).sum())
            result.append(total)
        return result

    def turn(self, around, recompute):
        with torch.no_grad():
            for each, first in zip(self.model.parameters(), self.first):
                local(each).copy_(first)
                each.grad = None
        self.losses.clear()
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            getattr(torch._C, "_host_emptyCache", lambda: None)()
        meter = Meter(self.cuda, self.args.warm_up, self.args.steps)
        try:
            with around() as run:
                if self.transformers is None:
                    train_plain(self.args, self.model, self.texts, meter, recompute)
                else:
                    train_with_trainer(self.transformers, self.args, self.model, self.texts, meter, recompute)
        finally:
            meter.driver.end()
            if recompute:
                self.model.gradient_checkpointing_disable()
        bits = self.bits()
        self.expected = self.expected or bits
        left = 0
        if isinstance(run, tidepool_loop.offload):
            left = sum(row["bytes_offloaded"] for row in run.summary().values()) / len(self.texts)
        return meter.times, meter.allocator, meter.driver.most, bits == self.expected, left

    def ways(self):
        args = self.args
        tiny = ["--min-tensor-elements=1", "--host-step=1MiB"] if args.tiny else []
        modules, flags = args.modules.split(","), [*tiny, *args.flags.split()]

        def ours(modules, budget=None):
            return lambda: tidepool_loop.offload(self.model, modules, budget, flags=flags)

        save_on_cpu = lambda: torch.autograd.graph.save_on_cpu(pin_memory=self.cuda)
        result = [("none", contextlib.nullcontext, False), ("save_on_cpu", save_on_cpu, False),
                  ("recompute", contextlib.nullcontext, True), ("recompute, save_on_cpu", save_on_cpu, True),
                  ("recompute, ours layers.*", ours(["layers.*"]), True),
                  (f"ours {args.modules}", ours(modules), False)]
        for budget in args.budget or (["64KiB"] if args.tiny else ["12GiB"]):
            result.append((f"ours {args.modules} {budget}", ours(modules, budget), False))
        return [way for way in result if way[0] == "none" or re.search(args.only or "", way[0])]


def main():
    args = arguments()
    if args.tiny:
        args.layers, args.hidden, args.inner, args.heads, args.kv_heads = 3, 64, 128, 4, 2
        args.vocabulary, args.tokens = 256, 64
    if args.device == "cpu":
        torch.set_num_threads(1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if "WORLD_SIZE" not in os.environ:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # of several GPUs, the Trainer would use all
    torch.use_deterministic_algorithms(True, warn_only=args.loose)
    if hasattr(torch.utils, "deterministic"):
        torch.utils.deterministic.fill_uninitialized_memory = False
    bench = Bench(args)
    where = torch.cuda.get_device_name() if bench.cuda else "CPU, virtual device: times mean nothing"
    loop = "llama.py, a plain loop" if bench.transformers is None else (
        f"LlamaForCausalLM and Trainer of transformers {bench.transformers.__version__}")
    if bench.rank == 0:
        print(f"{where} x {bench.ranks}; torch {torch.__version__}; {loop}; {args.layers} layers of {args.hidden},"
              f" {args.tokens} tokens", flush=True)
    results, lost = {}, set()
    for _ in range(args.rounds):
        for name, around, recompute in bench.ways():
            if name in lost:
                continue
            try:
                results.setdefault(name, []).append(turn := bench.turn(around, recompute))
                print(f"a turn of {name}: {statistics.median(turn[0]):.2f} ms, allocator {turn[1] / GIB:.2f} GiB,"
                      f" driver {turn[2] / GIB:.2f} GiB, bits {'equal' if turn[3] else 'DIFFER'}",
                      file=sys.stderr, flush=True)
            except torch.cuda.OutOfMemoryError if bench.cuda else () as error:
                lost.add(name)
                print(f"{name}: {str(error).splitlines()[0]}", flush=True)
    results = {name: turns for name, turns in results.items() if name not in lost}
    first = next(iter(results))
    base = statistics.median(t for turn in results[first] for t in turn[0])
    equal = True
    for name, turns in results.items():
        ms = statistics.median(t for turn in turns for t in turn[0])
        allocator, driver = (max(turn[i] for turn in turns) / GIB for i in (1, 2))
        same = all(turn[3] for turn in turns)
        equal = equal and same
        if bench.rank == 0 or not same:
            print(f"{name:34s} {ms:9.2f} ms ({(ms / base - 1) * 100:+7.2f} %)  allocator {allocator:6.2f} GiB"
                  f"  driver {driver:6.2f} GiB  left {turns[-1][4] / GIB:8.5f} GiB a step"
                  f"  bits {'equal' if same else 'DIFFER'}", flush=True)
    print(f"rank {bench.rank}: bits equal to {first}: {'yes' if equal else 'NO'}")
    if bench.ranks > 1:
        torch.distributed.destroy_process_group()
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
