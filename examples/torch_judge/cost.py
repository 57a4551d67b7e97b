"""What a step costs under the judge: a few layers trained with `save_on_cpu`, watched and not, in turns.

    cost.py [--width 4096] [--rows 8192] [--layers 8]
"""

import argparse
import contextlib
import statistics
import time

import torch
import torch.nn as nn

import tidepool_judge


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    return parser.parse_args()


def turn(args, device, watched):
    context = tidepool_judge.watch() if watched else contextlib.nullcontext()
    with context as judge:
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(args.width, args.width), nn.GELU())
                                for _ in range(args.layers))).to(device)
        x = torch.ones(args.rows, args.width, device=device)
        times = []
        for _ in range(2 + args.steps):
            began = time.perf_counter()
            with torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda"):
                model(x).pow(2).mean().backward()
            model.zero_grad()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 1e3)
    if watched and judge.findings:
        print(judge.report())
    return times[2:], judge.operators / (2 + args.steps) if watched else 0


def main():
    args = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    turns = {False: [], True: []}
    for _ in range(args.rounds):
        for watched in turns:
            turns[watched].append(turn(args, device, watched))
    plain, watched = (statistics.median(t for times, _ in turns[kind] for t in times) for kind in (False, True))
    operators = turns[True][-1][1]
    print(f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}; torch {torch.__version__}: a step takes"
          f" {plain:.2f} ms, watched {watched:.2f} ms; {(watched - plain) / operators * 1e3:.1f} us for each of"
          f" {operators:.0f} operators")


if __name__ == "__main__":
    main()
