#!/usr/bin/env python3
"""Changes the engine's headers in small ways and sees whether the tests notice.

    tests/mutation/mutate.py [--sample 100] [--seed 1] [--jobs 2] [--report FILE [--resume]]

A mutant is one change: a condition turned round, a comparison shifted, `and` for `or`, a statement
left out. It is killed by `explore` (built against the changed headers) or, failing that, by one of
the unit tests that are nearest; a mutant that does not compile counts for nothing. Survivors are
listed with their line. The report grows as mutants are judged, and --resume leaves out those that
it has.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = [
    "engine.hpp", "storage.hpp", "group.hpp", "window.hpp",
    "detail/engine_forward.hpp", "detail/engine_backward.hpp", "detail/engine_memory.hpp",
    "detail/engine_capture.hpp", "memory/fence.hpp", "memory/lanes.hpp", "memory/ranges.hpp",
    "memory/pool.hpp", "memory/arena.hpp", "memory/slots.hpp", "memory/fixed.hpp",
]
# In the order in which they are asked.
TESTS = [
    "engine/misuse_test.cpp", "engine/counters_test.cpp", "memory/ranges_test.cpp",
    "memory/lanes_test.cpp", "engine/reload_test.cpp", "engine/cap_test.cpp",
    "engine/knobs_test.cpp", "engine/manual_test.cpp", "engine/views_test.cpp",
    "engine/sharing_test.cpp", "engine/chunks_test.cpp", "engine/graph_test.cpp",
    "engine/copies_test.cpp", "memory/pool_test.cpp", "memory/slots_test.cpp",
    "engine/steady_state_test.cpp", "engine/window_test.cpp", "engine/random_test.cpp",
    "engine/heap_counter_test.cpp", "engine/trace_test.cpp", "memory/fence_test.cpp",
    "engine/forward_only_test.cpp", "engine/buffer_test.cpp", "faults/faults_test.cpp",
]
FLAGS = ["-std=c++20", "-O1", "-DTIDEPOOL_NO_CUDA", "-w"]


def mutants_of(path):
    """(line number, what, new line) for every change that this header allows."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        code = line.split("//")[0]
        bare = code.strip()
        if not bare or bare.startswith(("#", "//", "*", "template", "static_assert", "using")):
            continue
        if "throw" in bare or '"' in bare or "requires" in bare or "constexpr std::size_t" in bare:
            continue
        for pattern, to in [(r" == ", " != "), (r" != ", " == "), (r" <= ", " < "),
                            (r" >= ", " > "), (r"(?<![<\w]) < (?!<)", " <= "),
                            (r"(?<!-) > (?!>)", " >= "), (r" && ", " || "), (r" \|\| ", " && "),
                            (r" \+ 1\b", ""), (r" - 1\b", "")]:
            for found in re.finditer(pattern, code):
                changed = code[:found.start()] + to + code[found.end():]
                yield number, f"'{found.group().strip()}' became '{to.strip()}'", changed
        found = re.match(r"(\s*)(if|while) \((?!constexpr)(.*)\)( .*;| \{)$", code)
        if found and found.group(2) == "if" and ";" not in found.group(3):
            yield (number, "condition turned round",
                   f"{found.group(1)}if (!({found.group(3)})){found.group(4)}")
        statement = re.match(r"\s+(?!return|const |auto |break|continue|case|default|else|if|for|while"
                             r"|\}|\[\[|[\w:<>]+ \w+(\{.*\})?;|[\w:<>*&]+ [\w]+ = )[\w(*+-].*;$", code)
        # A statement of one line: not the middle of a longer one, not a declaration of a member.
        if statement and number > 0 and lines[number - 1].rstrip().endswith((";", "{", "}", ":")):
            yield number, f"left out '{bare}'", re.match(r"\s*", code).group() + ";"


def run(command, timeout):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, check=False)
        return done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired:
        return "timeout", ""


def compiled(source, include, out, extra=()):
    command = [os.environ.get("CXX", "g++"), *FLAGS, f"-I{include}", f"-I{ROOT}/tests/support",
               f"-I{ROOT}/tests", *extra, str(source), "-o", str(out), "-lpthread"]
    code, text = run(command, 600)
    return code == 0, text


def judge(mutant):
    header, number, what, changed = mutant
    with tempfile.TemporaryDirectory() as folder:
        include = pathlib.Path(folder) / "include"
        shutil.copytree(ROOT / "include", include)
        target = include / "tidepool" / header
        lines = target.read_text().splitlines()
        lines[number] = changed
        target.write_text("\n".join(lines) + "\n")
        program = pathlib.Path(folder) / "explore"
        built, _ = compiled(ROOT / "tests/explore/explore.cpp", include, program)
        if not built:
            return mutant, "does not compile"
        code, _ = run([program, "--schedules", "12000", "--programs", "600"], 60)
        if code != 0:
            return mutant, "killed by explore"
        for test in TESTS:
            source = ROOT / "tests" / test
            if not source.exists():
                continue
            program = pathlib.Path(folder) / "test"
            built, _ = compiled(source, include, program,
                                ("-DDOCTEST_CONFIG_IMPLEMENT_WITH_MAIN",
                                 f'-DTIDEPOOL_SOURCE_DIR="{ROOT}"'))
            if built and run([program], 120)[0] != 0:
                return mutant, f"killed by {test}"
        return mutant, "SURVIVED"


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--sample", type=int, default=100, help="mutants to try; 0 for all")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--jobs", type=int, default=os.cpu_count())
    words.add_argument("--report", type=pathlib.Path)
    words.add_argument("--resume", action="store_true", help="go on with what the report lacks")
    words.add_argument("--seconds", type=float, default=0, help="stop beginning mutants after these")
    given = words.parse_args()
    every = [(header, *mutant) for header in HEADERS
             for mutant in mutants_of(ROOT / "include/tidepool" / header)]
    chosen = list(every)
    random.Random(given.seed).shuffle(chosen)
    if given.sample:
        chosen = chosen[:given.sample]
    report = {}
    if given.resume and given.report and given.report.exists():
        for line in given.report.read_text().splitlines():
            fate, bar, text = line.partition(" | ")
            if bar:
                report[text] = fate.strip()
    end = time.monotonic() + given.seconds if given.seconds else None

    def fate_of(mutant):
        if end and time.monotonic() > end:
            return mutant, None
        return judge(mutant)

    left = [mutant for mutant in chosen if name(mutant) not in report]
    print(f"{len(every)} mutants, {len(chosen)} of them chosen, {len(left)} to try", flush=True)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as crew:
        for asked in concurrent.futures.as_completed([crew.submit(fate_of, each) for each in left]):
            mutant, fate = asked.result()
            if fate is None:
                continue
            report[name(mutant)] = fate
            if fate == "SURVIVED":
                print(f"{fate:32} | {name(mutant)}", flush=True)
            if given.report:
                write(given.report, report)
    print(total(report))
    killed, valid = counts(report)
    return 0 if killed >= 0.9 * valid else 1


def name(mutant):
    header, number, what, changed = mutant
    return f"{header}:{number + 1}: {what}: {changed.strip()}"


def counts(report):
    killed = sum(fate.startswith("killed") for fate in report.values())
    return killed, killed + sum(fate == "SURVIVED" for fate in report.values())


def total(report):
    killed, valid = counts(report)
    return (f"{killed} of {valid} killed ({100 * killed / max(valid, 1):.1f} %), "
            f"{len(report) - valid} more did not compile")


def write(path, report):
    lines = sorted(f"{fate:32} | {text}" for text, fate in report.items())
    path.write_text("\n".join([*lines, total(report)]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
