"""Scopes inside CUDA graphs that torch captures: a whole step, and graphs of single layers with eager
scopes between them. Bits are those of eager training without offload; the driver gives out less.

    captures_test.py [--layers N] [--rows N] [--hidden N] [--replays N]

Each way trains in a process of its own, so that the driver's figure is its own. Ends with 77 where there
is no GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import traceback

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.nn.functional as F

WARM_UP = 4  # eager steps before a capture


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--replays", type=int, default=50)
    parser.add_argument("--only", help="of one way, its figures, in this process")
    return parser.parse_args()


class Layer(torch.nn.Module):
    """A gated layer; `offload` names what leaves of it: nothing, or the scopes' modules."""

    def __init__(self, args, offload, recorded=False):
        super().__init__()
        hidden = args.hidden
        shape = {"device": "cuda", "dtype": torch.bfloat16}
        self.up = torch.nn.Parameter(torch.randn(2 * hidden, hidden, **shape) / hidden**0.5)
        self.down = torch.nn.Parameter(torch.randn(hidden, 2 * hidden, **shape) / (2 * hidden) ** 0.5)
        self.offload = offload
        self.recorded = recorded

    def forward(self, x):
        if not self.offload:
            return x + F.linear(F.gelu(F.linear(x, self.up)), self.down)
        interface = offloading().FineGrainedActivationOffloadingInterface
        if self.recorded:
            x = interface.backward_record(x)
        first = interface(True, x, "expert_fc1")
        with first as entered:
            h = F.linear(entered, self.up)
        h = first.group_offload(h)
        second = interface(True, h, "moe_act")
        with second as entered:
            a = F.gelu(entered)
        a = second.group_offload(a)
        del h, entered, first, second
        y = x + F.linear(a, self.down)
        if self.recorded:
            interface.forward_record()
        return y


def offloading():
    import tidepool_offload

    return tidepool_offload


def checksum(tensor):
    """All bits of a tensor, as one number."""
    words = tensor.detach().contiguous().view(torch.int16).to(torch.int64)
    ramp = torch.arange(1, words.numel() + 1, device=words.device, dtype=torch.int64)
    return int((words.flatten() * (ramp % 65521)).sum().item())


class Training:
    def __init__(self, args, cap):
        torch.manual_seed(11)
        self.args = args
        self.cap = cap
        self.offload = cap != "none"
        self.layers = [Layer(args, self.offload) for _ in range(args.layers)]
        self.parameters = [p for layer in self.layers for p in layer.parameters()]
        self.data = [
            torch.randn(args.rows, args.hidden, device="cuda", dtype=torch.bfloat16)
            for _ in range(args.microbatches)
        ]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.losses = torch.zeros(args.microbatches, device="cuda", dtype=torch.float32)
        if self.offload:
            offloading().configure("--no-margin")
            for parameter in self.parameters:
                self.interface.mark_not_offload(parameter)

    @property
    def interface(self):
        return offloading().FineGrainedActivationOffloadingInterface

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.float().pow(2).mean()

    def step(self):
        """1F1B with one microbatch in flight, and the optimizer."""
        for parameter in self.parameters:
            parameter.grad.zero_()
        for number, data in enumerate(self.data):
            if self.offload:
                cap = None if self.cap == "free" else int(self.cap)
                self.interface.init_chunk_handler(0, None, None, 1024, 0, 1.0, cap)
            loss = self.forward(data)
            self.losses[number].copy_(loss.detach())
            loss.backward()
            del loss
        if self.offload:
            self.interface.reset()
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.add_(parameter.grad, alpha=-1e-3)

    def bits(self):
        return [value.hex() for value in self.losses.tolist()]


def whole_step(args, captured, cap):
    training = Training(args, cap)
    losses = []
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            training.step()
            losses.append(training.bits())
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    eager = driver()
    torch.cuda.empty_cache()
    moved = summary(training)
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            training.step()
        captured_bytes = summary(training) - moved
        for _ in range(args.replays):
            graph.replay()
            losses.append(training.bits())
    else:
        captured_bytes = 0
        with torch.cuda.stream(stream):
            for _ in range(args.replays):
                training.step()
                losses.append(training.bits())
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    figures = {
        "losses": losses,
        "parameters": [checksum(p) for p in training.parameters],
        "driver": driver(),
        "driver_eager": eager,
        "reserved": torch.cuda.memory_reserved(),
        "offloaded_by_capture": captured_bytes,
    }
    if captured:  # behind the comparison, as it trains on
        begin.record()
        for _ in range(5):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        figures["ms"] = begin.elapsed_time(end) / 5
        if training.offload:  # eager steps go on beside the graph
            with torch.cuda.stream(stream):
                training.step()
            graph.replay()
            torch.cuda.synchronize()
            figures["finite_after_eager"] = all(
                value == value for value in training.losses.tolist())
    return figures


def layer_graphs(args, captured, offload):
    """Layers in graphs of their own, with offload in them, and eager layers between them."""
    training = Training(args, "1" if offload else "none")
    interface = training.interface if offload else None
    graphed = list(training.layers[::2])
    if captured:
        if offload:  # the options of the engine come with the first microbatch
            interface.init_chunk_handler(0, None, None, 1024, 0, 1.0, 1)
            interface.reset()
        for layer in graphed:
            layer.recorded = offload
        samples = tuple(
            (torch.randn_like(training.data[0]).requires_grad_(True),) for _ in graphed)
        graphed = list(torch.cuda.make_graphed_callables(tuple(graphed), samples))
        del samples
    order = [graphed[n // 2] if n % 2 == 0 else training.layers[n] for n in range(args.layers)]
    losses = []
    for _ in range(args.replays):
        for parameter in training.parameters:
            parameter.grad.zero_()
        for number, data in enumerate(training.data):
            if offload:
                interface.init_chunk_handler(0, None, None, 1024, 0, 1.0, 1)
            x = data.detach().requires_grad_(True)
            for layer in order:
                x = layer(x)
            loss = x.float().pow(2).mean()
            training.losses[number].copy_(loss.detach())
            loss.backward()
            del loss, x
        if offload:
            interface.reset()
        with torch.no_grad():
            for parameter in training.parameters:
                parameter.add_(parameter.grad, alpha=-1e-3)
        losses.append(training.bits())
    torch.cuda.synchronize()
    return {
        "losses": losses,
        "parameters": [checksum(p) for p in training.parameters],
        "driver": driver(),
        "reserved": torch.cuda.memory_reserved(),
        "offloaded": summary(training),
    }


def summary(training):
    if not training.offload:
        return 0
    return sum(row["bytes_offloaded"] for row in training.interface.summary().values())


def driver():
    free, total = torch.cuda.mem_get_info()
    return total - free


WAYS = {
    "step eager none": lambda args: whole_step(args, False, "none"),
    "step graph none": lambda args: whole_step(args, True, "none"),
    "step graph cap free": lambda args: whole_step(args, True, "free"),
    "step graph cap 0": lambda args: whole_step(args, True, "0"),
    "step graph cap 2": lambda args: whole_step(args, True, "2"),
    "layers eager none": lambda args: layer_graphs(args, False, False),
    "layers graph none": lambda args: layer_graphs(args, True, False),
    "layers graph offload": lambda args: layer_graphs(args, True, True),
}


def in_process_of_its_own(way):
    run = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--only", way],
                         stdout=subprocess.PIPE, text=True, timeout=500)
    lines = run.stdout.strip().splitlines()
    if run.returncode != 0 or not lines:
        print(f"{way}: FAILED, ended with {run.returncode}", flush=True)
        for line in lines[-40:]:
            print("   ", line[:400])
        return None
    return json.loads(lines[-1])


def compare(figures, reference, way):
    """Says where the bits part, and returns whether they are equal."""
    expected, found = figures[reference], figures[way]
    if expected is None or found is None:
        return False
    for step, (wanted, got) in enumerate(zip(expected["losses"], found["losses"])):
        if wanted != got:
            print(f"{way}: losses of step {step} are {got}, {reference} has {wanted}")
            return False
    same = expected["parameters"] == found["parameters"]
    if not same:
        differ = sum(a != b for a, b in zip(expected["parameters"], found["parameters"]))
        print(f"{way}: losses equal {reference}, but {differ} of"
              f" {len(found['parameters'])} parameters differ")
    return same and len(expected["losses"]) == len(found["losses"])


def main():
    args = options()
    if not torch.cuda.is_available():
        print("skipped: there is no GPU")
        return 77
    if args.only:
        try:
            figures = WAYS[args.only](args)
        except BaseException:  # with its context, as a capture that fails ends with another error
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(1)
        print(json.dumps(figures), flush=True)
        os._exit(0)  # the figures are there: an end of the process is not what is tested
    figures = {}
    for way in WAYS:
        figures[way] = in_process_of_its_own(way)
        if figures[way] is not None:
            shown = {key: value for key, value in figures[way].items()
                     if key not in ("losses", "parameters")}
            for key in ("driver", "driver_eager", "reserved", "offloaded_by_capture", "offloaded"):
                if key in shown:
                    shown[key] = f"{shown[key] / 2**20:.0f} MiB"
            print(f"{way}: {shown}", flush=True)
    good = True

    def check(what, holds):
        nonlocal good
        good = good and bool(holds)
        print(f"{'yes' if holds else 'NO '}  {what}", flush=True)

    for way in ("step graph none", "step graph cap free", "step graph cap 0", "step graph cap 2"):
        check(f"{way}: {args.replays} replays have the bits of eager training",
              compare(figures, "step eager none", way))
    for way in ("layers graph none", "layers graph offload"):
        check(f"{way}: {args.replays} steps have the bits of eager training",
              compare(figures, "layers eager none", way))
    plain = figures["step graph none"]
    for way in ("step graph cap free", "step graph cap 0", "step graph cap 2"):
        run = figures[way]
        if run is None or plain is None:
            continue
        away = run["offloaded_by_capture"] / args.microbatches
        check(f"{way}: its capture offloads ({away / 2**20:.0f} MiB a microbatch)", away > 0)
        saved = plain["driver"] - run["driver"]
        check(f"{way}: the driver has given out {saved / 2**20:.0f} MiB less, at least 40 % of them",
              saved >= 0.4 * away)
        check(f"{way}: an eager step and a replay behind it still run",
              run.get("finite_after_eager"))
    layers = figures["layers graph offload"]
    if layers is not None:
        check("layers graph offload: graphs and eager layers offload", layers["offloaded"] > 0)
    print("captures: good" if good else "captures: FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
