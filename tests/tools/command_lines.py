#!/usr/bin/env python3
"""Whether all programs of examples/ and bench/ speak with one voice on their command lines.

    tests/tools/command_lines.py [--built] VERSION PROGRAM...

VERSION is the library's. PROGRAMs are the files of all executables that CMake has in these folders: each
needs a row in the table below. With --built those that were not built yet are passed over.

The programs run without a GPU, whatever the machine has.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

VIRTUAL = "virtual device: simulated time"
SMALL_STEP = ["--set", "layers=1", "--set", "microbatches=2"]
TINY = ["--device", "virtual", "--preset", "tiny", "--steps", "1"]


class Row:
    """The command line of one program.

    value   an option that needs a value
    size    an option that takes bytes, and the ways in which they are written
    run     arguments with which it ends soon, and the first line that it then prints
    json    arguments beside `--json -`
    fails   arguments with which a check or a promise fails
    """

    def __init__(self, value=None, size=None, run=None, first=VIRTUAL, json=None, fails=None, listing=None):
        self.value, self.size, self.run, self.first = value, size, run, first
        self.json, self.fails, self.listing = json, fails, listing


LIBRARY = {"value": "--max-inflight", "size": "--device-budget"}
ROWS = {
    "static_trainer": Row(run=[]),
    "layers_trainer": Row(**LIBRARY, run=[]),
    "dynamic_trainer": Row(**LIBRARY, run=[]),
    "decode": Row(run=[]),
    "graph_trainer": Row(value="--device", run=[]),
    "check_order": Row(run=[], fails=["--mistake"]),
    "cuda_first": Row(),
    "decode_cuda": Row(),
    "torch_trainer": Row(**LIBRARY, run=["--steps=1", "--layers=1"]),
    "torch_first": Row(listing="docs/torch.md shows it word for word, and it compiles alone beside an installed library"),
    "train_moe": Row(value="--steps", size="--lend", run=TINY, json=TINY),
    "gradient_check": Row(),
    "gpt": Row(value="--steps", size="--device-budget", run=["--device=virtual", "--steps=1"],
               json=["--device=virtual", "--steps=1"], fails=["--compare", "--mistake", "--offload-modules=all"]),
    "graph_moe": Row(value="--steps", size="--device-budget", run=["--device=virtual", "--steps=4"],
                     fails=["--skewed=2", "--steps=5", "--mistake"]),
    "plan": Row(value="--budget", size="--budget", json=[*SMALL_STEP, "--budget", "1700MiB"],
                first="no device: forecast time", fails=[*SMALL_STEP, "--budget", "1MiB"]),
    "caps": Row(value="--caps", size="--group", first=VIRTUAL,
                json=["--device", "virtual", "--depth", "1", "--compute-over-copy", "1"]),
    "bench_engine": Row(run=["--benchmark_list_tests=true"], first=""),
    "bench_inflight": Row(run=["--benchmark_list_tests=true"], first=""),
    "bench_planner": Row(run=["--benchmark_list_tests=true"], first=""),
    "bench_codec": Row(),
    "bench_soak": Row(value="--steps", size="--largest", run=["--steps", "200", "--slowest", "1000"]),
    "bench_link": Row(value="--gpus", size="--pin"),
    "bench_nccl": Row(value="--gpus"),
    "bench_pack": Row(value="--tensor"),
    "bench_managed": Row(),
    "bench_step": Row(value="--depth"),
    "bench_step_checked": Row(value="--depth"),
}


def ran(program, *arguments):
    environment = {key: text for key, text in os.environ.items() if not key.startswith(("TIDEPOOL_", "OMPI_", "PMI"))}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "LC_ALL": "C.UTF-8"}
    return subprocess.run([program, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=300, text=True, check=False)


class Check:
    def __init__(self, program, row, version):
        self.program, self.row, self.version = program, row, version
        self.name, self.errors = program.name, []

    def expect(self, holds, arguments, problem, done):
        if holds:
            return
        shown = f"exit status {done.returncode}, stdout {done.stdout[:300]!r}, stderr {done.stderr[:300]!r}"
        self.errors.append(f"{self.name} {' '.join(arguments)}: {problem}: {shown}")

    def refuses(self, *arguments, says):
        """Exit status 2, and one line of the program's that matches."""
        done = ran(self.program, *arguments)
        self.expect(done.returncode == 2, arguments, "exit status 2 is due", done)
        self.expect(done.stdout == "", arguments, "standard output is for results", done)
        told = re.fullmatch(rf"{self.name}: [^\n]*\n", done.stderr) and re.search(says, done.stderr)
        self.expect(told, arguments, f"one line with '{says}' is due", done)

    def answers(self):
        done = ran(self.program, "--help")
        for text in (self.name, "--help", "--version", "Exit status:\n  0  ", "\n  1  ", "\n  2  "):
            self.expect(text in done.stdout, ["--help"], f"{text!r} is missing", done)
        if self.row.size:
            shown = re.search(rf"{self.row.size}[ =]SIZE", done.stdout)
            self.expect(shown, ["--help"], f"{self.row.size} has no unit", done)
        self.expect((done.returncode, done.stderr) == (0, ""), ["--help"], "it is no mistake", done)
        done = ran(self.program, "--version")
        self.expect((done.returncode, done.stdout, done.stderr) == (0, f"{self.name} (Tidepool) {self.version}\n", ""),
                    ["--version"], f"version {self.version} alone is due", done)

    def refusals(self):
        self.refuses("--no-such-flag", says=r"--no-such-flag: no such option; .*see --help")
        self.refuses("stray", says="stray: no such option; .*see --help")
        if self.row.value:
            self.refuses(self.row.value, says=self.row.value)
        if self.row.size:
            size = self.row.size
            self.refuses(f"{size}=10", says=f"{size} is '10': the unit is missing; .*10GiB")
            self.refuses(f"{size}=10XB", says=f"{size} is '10XB'.*MiB")

    def results(self):
        if self.row.run is not None:
            done = ran(self.program, *self.row.run)
            self.expect(done.returncode == 0, self.row.run, "it is to run", done)
            self.expect(done.stdout.startswith(self.row.first), self.row.run, "the first line is to name the device", done)
            self.expect(not re.search(r"[0-9]\s*MB\b|, MB\b", done.stdout), self.row.run, "MB beside MiB", done)
        if self.row.fails is not None:
            done = ran(self.program, *self.row.fails)
            self.expect(done.returncode == 1, self.row.fails, "exit status 1 is due", done)
        if self.row.json is not None:
            arguments = [*self.row.json, "--json", "-"]
            done = ran(self.program, *arguments)
            self.expect(done.returncode == 0, arguments, "it is to run", done)
            self.expect(done.stderr.startswith(self.row.first), arguments, "the rest belongs to stderr", done)
            try:
                self.expect(json.loads(done.stdout), arguments, "the JSON is empty", done)
            except ValueError as problem:
                self.expect(False, arguments, f"stdout is no JSON ({problem})", done)


def main(arguments):
    built_alone = arguments[:1] == ["--built"]
    version, *programs = arguments[built_alone:]
    errors, checked = [], 0
    for program in map(pathlib.Path, programs):
        row = ROWS.get(program.name)
        if row is None:
            errors.append(f"{program.name}: it has no row in {pathlib.Path(__file__).name}; add its command line there")
        elif row.listing:
            print(f"{program.name}: not checked, because {row.listing}")
        elif built_alone and not program.exists():
            print(f"{program.name}: not checked, because it was not built")
        else:
            check = Check(program, row, version)
            check.answers()
            check.refusals()
            check.results()
            errors += check.errors
            checked += 1
    for error in errors:
        print(error)
    print(f"command lines: {checked} programs, {len(errors)} mistakes")
    return 1 if errors or not checked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
