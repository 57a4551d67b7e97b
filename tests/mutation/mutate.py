#!/usr/bin/env python3
"""Changes the engine's headers in small ways and sees whether the tests notice.

    tests/mutation/mutate.py [--jobs 2] [--folder FOLDER] [--report FILE]

A mutant is one change: a condition turned round, a comparison shifted, `and` for `or`, a number one
more or one less, two arguments swapped, a statement left out (not one that only reserves memory). All
of them are compiled at once into one program of the unit tests, `stranger` and `explore`, where a
variable of the environment says which one is alive. Each test case runs once with none alive, and writes
down the mutants that it comes by. A mutant is then judged by the cases that come by it, the quickest
first. After some seconds of cases, and `stranger`, it waits until the others have been tried that long:
until then it has survived "so far", and a later call goes on with the other cases and `explore`. One that
nothing comes by survives. A case that takes several times as long as it did has noticed.

What cannot be switched that way is built by itself, with the tests that come by its neighbours: the
compiler evaluates it, or the two ways have different types. So is a survivor that is `constexpr`. A
mutant that does not compile counts for nothing. Survivors are listed with their line. A case that fails
with no mutant alive is named and left out.

--folder keeps what was built (--build-only ends there; a later call finds it); with --report, a
later call leaves out the mutants that the report has. --since OLD takes over what was killed
according to an older report, wherever its line is now. --subjects and --folders draw less: mutants of
these headers, tests of these folders. --thorough runs every case of the faults' sweeps, not one in
twelve.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import itertools
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from mutants import ROOT, SWITCH, at_column, combined, constant, lines_of, mutants_of

# Every header of these folders, and the calls of a user that end in them.
SUBJECTS = ["decide", "rules", "engine", "memory", "core/clocks.hpp", "core/block.hpp", "chunk.hpp",
            "buffer.hpp", "graph.hpp", "host_state.hpp", "device/detail/captured.hpp"]
FOLDERS = ["engine", "memory", "known_failures", "trace", "plan", "device", "options", "faults",
           "checked", "recovery", "stranger", "explore"]
# One in twelve of the faults' cases, as under AddressSanitizer: a survivor then costs seconds.
THINNED = "-DTIDEPOOL_TEST_THINNED=12"
FLAGS = ["-std=c++20", "-DTIDEPOOL_NO_CUDA", THINNED, "-w", f'-DTIDEPOOL_SOURCE_DIR="{ROOT}"',
         *(f"-I{ROOT}/tests/{name}" for name in ("support", *FOLDERS, "."))]
# Programs of their own, by their folder: the words that they are called with.
PROGRAMS = {"stranger": ["--programs", "300", "--seed", "1", "--limit", "60"],
            "explore": ["--schedules", "12000", "--programs", "600"]}
# What other tests ask for the heap.
HEAP = ROOT / "tests/engine/heap_counter_test.cpp"
# Between them they make every template of the headers.
PROBES = ["explore/explore.cpp", "engine/host_state_test.cpp", "engine/recompute_test.cpp",
          "engine/graph_test.cpp", "engine/buffer_test.cpp", "memory/fence_test.cpp",
          "memory/slots_test.cpp", "memory/pinned_test.cpp", "memory/ranges_test.cpp",
          "plan/forecast_test.cpp"]
# The seconds of test cases after which a mutant waits until all others have been tried that long.
PATIENCE = 10
SO_FAR = "SURVIVED, so far"
# What a mutant that is built alone may cost, in seconds, before it has survived.
ALONE = 600


def headers_of(subjects):
    """Paths below include/tidepool; a folder without headers is an error."""
    base = ROOT / "include/tidepool"
    headers = []
    for subject in subjects:
        found = sorted(path.relative_to(base).as_posix() for path in (base / subject).rglob("*.hpp"))
        if (base / subject).is_file():
            found = [subject]
        if not found:
            sys.exit(f"mutate.py: {subject} has no header")
        headers += found
    return headers


def call(command, timeout, **variables):
    """The status and what was printed; ends what the command has started."""
    environment = dict(os.environ, **{name: str(value) for name, value in variables.items()})
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen([str(word) for word in command], stdout=printed,
                                   stderr=subprocess.STDOUT, env=environment,
                                   start_new_session=True, preexec_fn=within_memory)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = "timeout"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        printed.seek(0)
        return code, printed.read().decode(errors="replace")


def within_memory():
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def each(jobs, function, *lists):
    with concurrent.futures.ThreadPoolExecutor(jobs) as crew:
        return list(crew.map(function, *lists))


def compiler(include, optimise="-O1"):
    return [os.environ.get("CXX", "g++"), *FLAGS, optimise, f"-I{include}"]


def sources(folders):
    found = [path for folder in folders for path in sorted((ROOT / "tests" / folder).glob("*_test.cpp"))]
    # Neither has to do with the engine, and both ask the machine for much.
    return [path for path in found if path.name not in ("host_pages_test.cpp", "nvtx_test.cpp")]


def sources_of(program):
    return sorted((ROOT / "tests" / program).glob("*.cpp"))


def batches(folder, folders):
    """The tests in fewer sources, as tests/batches.cmake has them; what takes longest comes first."""
    made, together = [], []
    for path in sources(folders):
        bound = re.search(r"^(namespace [a-z_:0-9]+ {|template <>)", path.read_text(), re.M)
        alone = bound or path == HEAP or path.parent.name == "faults"
        (made if alone else together).append(path)
    for first in range(0, len(together), 3):
        chosen = together[first:first + 3]
        includes = dict.fromkeys(line for path in chosen for line in
                                 path.read_text().splitlines() if line.startswith("#include "))
        tests = [f'namespace {path.parent.name}_{path.stem} {{\n#include "{path}"\n}}'
                 for path in chosen]
        batch = folder / f"batch_{first}.cpp"
        batch.write_text("\n".join(["#define TIDEPOOL_COMPILED", '#include "engines.hpp"', *includes,
                                    *tests]) + "\n")
        made.append(batch)
    engine = folder / "engine.cpp"
    engine.write_text('#include "tidepool/src.hpp"\n')
    engines = [ROOT / "tests/support" / name for name in ("engines_counting.cpp", "engines_faulty.cpp")]
    return list(dict.fromkeys([engine, *engines, *made, HEAP, ROOT / "tests/mutation/main.cpp"]))


def blamed(mutants, texts, alone, printed):
    """The mutants that may be the reason why this was printed, as few as can be said."""
    errors = {(header, int(line) - 1, int(column) - 1) for header, line, column in
              re.findall(r"include/tidepool/([\w/]+\.hpp):(\d+):(\d+): error", printed)}
    shown = {header: text.splitlines() for header, text in texts.items()}
    more = {at_column(shown[header][line + 2], column)  # two more lines are above
            for header, line, column in errors if header in shown} - {None}
    if more:
        return more
    wrong = {(header, line) for header, line, _ in errors if header in shown}
    wrong = wrong or {(header, int(line) - 1) for header, line in
                      re.findall(r"include/tidepool/([\w/]+\.hpp):(\d+)", printed)}

    def those(suspect):
        return {number for number, mutant in enumerate(mutants) if suspect(mutant)} - alone

    more = those(lambda mutant: (mutant.header, mutant.line) in wrong)
    # What compiles least, before all else of the same line.
    more = {number for number in more if mutants[number].kind == "statement" or
            mutants[number].what.endswith("swapped")} or more
    # What is missing here was declared a few lines above,
    more = more or those(lambda mutant: any((mutant.header, mutant.line + down) in wrong
                                            for down in range(9)))
    if not more:  # or anywhere above, under the name that is missing.
        names = set(re.findall("[\u2018'](\\w+)[\u2019'] (?:was not declared|has not been)", printed))
        more = those(lambda mutant: names & set(re.findall(r"\w+", mutant.old)))
    # What no variable can switch: all of its header.
    headers = {header for header, _ in wrong}
    return more or those(lambda mutant: mutant.header in headers)


class Headers:
    """A copy of all headers, with as many mutants in them as compile; `alone` are the others."""

    def __init__(self, folder, mutants):
        self.mutants, self.alone, self.lock = mutants, set(), threading.Lock()
        self.include = folder / "include"
        shutil.rmtree(self.include, ignore_errors=True)
        shutil.copytree(ROOT / "include", self.include)
        (self.include / "tidepool/mutation_switch.hpp").write_text(SWITCH % len(mutants))
        self.texts = {}
        self.write()

    def write(self):
        for header, text in combined(self.mutants, self.alone).items():
            if text != self.texts.get(header):
                fresh = self.include / "fresh.hpp"
                fresh.write_text(text)
                fresh.rename(self.include / "tidepool" / header)
                self.texts[header] = text

    def leave_out(self, printed):
        """Those that may be the reason why a compiler printed this. Whether there is any."""
        with self.lock:
            more = blamed(self.mutants, self.texts, self.alone, printed)
            self.alone |= more
            self.write()
            return bool(more)


def build(folder, mutants, given):
    """The programs, in `folder`; returns the mutants that are not in them. Made anew when a file changed."""
    folder.mkdir(parents=True, exist_ok=True)
    every = [*(ROOT / "include").rglob("*.hpp"), *(ROOT / "tests").rglob("*.[ch]pp"),
             ROOT / "tests/mutation/mutants.py"]
    stamp = hashlib.sha256(f"{given.subjects} {given.folders} {FLAGS}".encode())
    for path in sorted(every):
        stamp.update(path.read_bytes())
    done = folder / "alone.txt"
    before = done.read_text().split() if done.exists() else [""]
    if before[0] == stamp.hexdigest():
        return {int(number) for number in before[1:]}
    shutil.rmtree(folder / "coverage", ignore_errors=True)
    headers = Headers(folder, mutants)
    command = compiler(headers.include)

    def errors_of(probe):
        code, text = call([*command, "-fsyntax-only", "-fmax-errors=0", probe], 900)
        return "" if code == 0 else text

    def object_of(source):
        target = folder / f"{source.parent.name}_{source.stem}.o"
        for _ in range(20):
            code, text = call([*command, "-c", source, "-o", target], 1800)
            if code == 0:
                return target
            headers.leave_out(text)
        sys.exit(f"mutate.py: does not compile: {source}: {text[-3000:]}")

    probes = [ROOT / "tests" / name for name in PROBES if name.split("/")[0] in given.folders]
    while printed := "".join(each(given.jobs, errors_of, probes)):
        if not headers.leave_out(printed):
            sys.exit(f"mutate.py: does not compile, and no mutant is the reason:\n{printed[-3000:]}")
    parts = {name: sources_of(name) for name in PROGRAMS if name in given.folders}
    parts["unit"] = batches(folder, given.folders)
    every = [source for sources in parts.values() for source in sources]
    objects = dict(zip(every, each(given.jobs, object_of, every)))
    for program, sources in parts.items():
        code, text = call([command[0], "-static", *(objects[source] for source in sources), "-o",
                           folder / program, "-lpthread"], 900)
        if code != 0:
            sys.exit(f"mutate.py: {program}: {text[-3000:]}")
    done.write_text("\n".join([stamp.hexdigest(), *map(str, sorted(headers.alone))]) + "\n")
    return headers.alone


class Case:
    """A test case, or a program: what runs it, its seconds, and the mutants that it comes by."""

    def __init__(self, source, name, command, seconds, asked):
        self.source, self.name, self.command = source, name, command
        self.seconds, self.asked = seconds, asked
        self.kills = collections.Counter()  # of which header

    def rank(self, header):
        """How soon it is asked: first what is quick and has noticed others."""
        return (self.seconds + 0.02) / (1 + self.kills[header])


def cases_of(folder, count, given):
    """Runs every case with no mutant alive, the first time; those that fail are left out."""
    unit = folder / "unit"
    listed = [(line.split("\t"), [unit, number]) for number, line in
              enumerate(call([unit], 60)[1].splitlines())]
    for name, words in PROGRAMS.items():
        if name in given.folders:
            listed.insert(0, ([name, name], [folder / name, *words]))
    (folder / "coverage").mkdir(exist_ok=True)

    def run(where, command):
        (source, name) = where
        kept = folder / "coverage" / (source if source in PROGRAMS else f"{command[1]}")
        seconds = kept.with_suffix(".seconds")
        if not seconds.exists():
            kept.write_bytes(bytes(count))
            begin = time.monotonic()
            code, text = call(command, 900, MUTANT_COVERAGE=kept)
            took = re.findall(r"^seconds ([\d.]+)", text, re.M) or [time.monotonic() - begin]
            seconds.write_text(str(took[0]) if code == 0 else "failed")
        if seconds.read_text() == "failed":
            print(f"left out, since it fails with no mutant alive: {source}: {name}", flush=True)
            return None
        source = source.split("/tests/")[-1]
        return Case(source, name, command, float(seconds.read_text()), kept.read_bytes())

    return [case for case in each(given.jobs, run, *zip(*listed)) if case]


def failed(units, **variables):
    """What was printed if one of these cases, in this order, notices something, else None."""
    words = [f"{case.command[1]}:{2 + 5 * case.seconds:.0f}" for case in units]
    limit = 60 + 5 * sum(case.seconds for case in units)
    code, text = call([units[0].command[0], *words], limit, **variables) if units else (0, "")
    return text if code != 0 else None


def judged(number, header, cases, first):
    """What becomes of a mutant that is in the programs. The `first` time for PATIENCE seconds of cases and
    by `stranger`, and then by all others: of those the slow ones are most of the cost, and of the kills
    few."""
    asking = sorted((case for case in cases if case.asked[number]), key=lambda case: case.rank(header))
    if not asking:
        return "SURVIVED, not reached"
    units = [case for case in asking if case.source not in PROGRAMS]
    programs = [case for case in asking if (case.source == "stranger") == first and case not in units]
    sums = itertools.accumulate(case.seconds for case in units)
    units = [case for case, seconds in zip(units, sums) if not first or seconds <= PATIENCE]
    text = failed(units, MUTANT=number)
    if text is not None:
        units[min(text.count("\ncase "), len(units) - 1)].kills[header] += 1
        return killer(text)
    for case in programs:
        if call(case.command, 30 + 5 * case.seconds, MUTANT=number)[0] != 0:
            return f"killed by {case.source}"
    return SO_FAR if first and len(units) + len(programs) < len(asking) else "SURVIVED"


def control(seed, cases):
    """Half of the cases in some order with no mutant alive: then nothing may fail."""
    units = [case for case in cases if case.source not in PROGRAMS]
    text = failed(random.Random(seed).sample(units, len(units) // 2))
    if text is not None:
        print(f"mutate.py: fails among others, with no mutant alive: {killer(text)}\n{text[-2000:]}")
    return text is None


def killer(text):
    """The file of the last case that was begun."""
    begun = re.findall(r"^case .*?/tests/(.*)", text, re.M)
    return f"killed by {begun[-1] if begun else 'a unit test'}"


def judged_alone(mutants, number, alone, cases, folder):
    """What becomes of a mutant that is built by itself: the tests that come by its neighbours see it."""
    mutant = mutants[number]
    near = [other for other in range(max(0, number - 40), min(len(mutants), number + 40))
            if mutants[other].header == mutant.header and other not in alone]
    near = sorted(near, key=lambda other: abs(mutants[other].line - mutant.line))[:4]
    asking = [case for case in cases if any(case.asked[other] for other in near)] or cases
    # A source is worth the more the sooner its cases come by here; it costs its compilation.
    seconds, share = {}, {}
    for case in asking:
        seconds[case.source] = seconds.get(case.source, 15) + case.seconds
        share[case.source] = share.get(case.source, 0) + 1
    order = sorted(seconds, key=lambda source: (source in PROGRAMS, seconds[source] / share[source]))
    end = time.monotonic() + ALONE
    with tempfile.TemporaryDirectory() as scratch:
        target = pathlib.Path(scratch) / "tidepool" / mutant.header
        target.parent.mkdir(parents=True)
        lines = lines_of(mutant.header)
        lines[mutant.line] = mutant.changed()
        target.write_text("\n".join(lines) + "\n")
        for source in order:
            if time.monotonic() > end:
                return "SURVIVED, not all asked"
            fate = fate_with(source, scratch, folder, [case for case in cases if case.source == source])
            if fate:
                return fate
    return "SURVIVED"


def fate_with(source, scratch, folder, cases):
    """What one source of tests says to the headers in `scratch`; None if it notices nothing."""
    program = pathlib.Path(scratch) / "test"
    own = sources_of(source) if source in PROGRAMS else [ROOT / "tests" / source]
    others = [folder / f"{name}.o" for name in ("mutation_main", "engine_heap_counter_test")]
    others = [] if source in PROGRAMS else others
    optimise = "-O1" if sum(case.seconds for case in cases) > 2 else "-O0"
    code, text = call([*compiler(scratch, optimise), f"-I{ROOT}/include", *own, *others, "-o", program,
                       "-lpthread"], 900)
    if code != 0:
        return f"killed by {source}" if "static assertion failed" in text else "does not compile"
    if source in PROGRAMS:
        code, text = call([program, *PROGRAMS[source]], 30 + 5 * cases[0].seconds)
        return None if code == 0 else f"killed by {source}"
    seconds = {case.name: 10 + 20 * case.seconds for case in cases}
    words = [f"{number}:{seconds[name]:.0f}" for number, name in
             enumerate(line.split("\t")[1] for line in call([program], 60)[1].splitlines())
             if name in seconds]
    code, text = call([program, *words], 60 + sum(seconds.values()))
    return killer(text) if code != 0 else None


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--jobs", type=int, default=os.cpu_count())
    words.add_argument("--folder", type=pathlib.Path, help="where the programs are kept")
    words.add_argument("--build-only", action="store_true")
    words.add_argument("--report", type=pathlib.Path)
    words.add_argument("--seconds", type=float, default=0, help="begin no mutant after these")
    words.add_argument("--sample", type=int, metavar="N", help="only N of them, drawn at random")
    words.add_argument("--since", type=pathlib.Path, metavar="OLD")
    words.add_argument("--subjects", nargs="+", default=SUBJECTS, metavar="HEADER")
    words.add_argument("--folders", nargs="+", default=FOLDERS, metavar="TESTS")
    words.add_argument("--thorough", action="store_true")
    given = words.parse_args()
    begin = time.monotonic()
    if given.thorough:
        FLAGS.remove(THINNED)
    folder = given.folder or pathlib.Path(tempfile.mkdtemp(prefix="tidepool-mutants-"))
    mutants = [mutant for header in headers_of(given.subjects) for mutant in mutants_of(header)]
    alone = build(folder, mutants, given)
    print(f"{len(mutants)} mutants, {len(alone)} of them built alone; {spent(begin)}", flush=True)
    if given.build_only:
        return 0
    cases = cases_of(folder, len(mutants), given)
    print(f"{len(cases)} cases, {sum(case.seconds for case in cases):.0f} s; {spent(begin)}", flush=True)

    report = {}
    if given.report and given.report.exists():
        for line in given.report.read_text().splitlines():
            fate, bar, text = line.partition(" | ")
            if bar:
                report[text] = fate.strip()
    end = time.monotonic() + given.seconds if given.seconds else None

    def fate_of(number, first):
        if end and time.monotonic() > end:
            return number, None
        mutant = mutants[number]
        fate = judged(number, mutant.header, cases, first) if number not in alone else "SURVIVED"
        last = fate.startswith("SURVIVED") and fate != SO_FAR
        if last and (number in alone or constant(mutant.header, mutant.line)):
            fate = judged_alone(mutants, number, alone, cases, folder)
        return number, fate

    def tried(numbers, first):
        with concurrent.futures.ThreadPoolExecutor(given.jobs) as crew:
            asked = [crew.submit(fate_of, number, first) for number in numbers]
            for each_of in concurrent.futures.as_completed(asked):
                number, fate = each_of.result()
                if fate is None:
                    continue
                report[mutants[number].name()] = fate
                if fate.startswith("SURVIVED") and fate != SO_FAR:
                    print(f"{fate:32} | {mutants[number].name()}", flush=True)
                if given.report:
                    write(given.report, report)

    left = [number for number, mutant in enumerate(mutants) if mutant.name() not in report]
    if given.since:
        found = re.findall(r"(killed .*?) +\| ([^:]+):\d+(: .*)", given.since.read_text())
        before = {header + text: fate for fate, header, text in found}
        for number in left:
            if fate := before.get(mutants[number].place_free()):
                report[mutants[number].name()] = fate
        left = [number for number in left if mutants[number].name() not in report]
        print(f"{len(left)} were not killed before", flush=True)
    if given.sample:
        left = random.Random(1).sample(left, min(given.sample, len(left)))
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as crew:
        sound = all(list(crew.map(lambda seed: control(seed, cases), range(4))))
    # What takes longest comes first.
    tried(sorted(left, key=lambda number: number not in alone), True)
    print(f"{total(report, len(mutants))}; {spent(begin)}", flush=True)
    tried([number for number, mutant in enumerate(mutants) if report.get(mutant.name()) == SO_FAR], False)
    print(f"{total(report, len(mutants))}; {spent(begin)}")
    killed, valid = counts(report)
    return 0 if sound and killed >= 0.9 * valid else 1


def spent(begin):
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (f"{time.monotonic() - begin:.0f} s, "
            f"{used.ru_utime + used.ru_stime:.0f} core seconds")


def counts(report):
    killed = sum(fate.startswith("killed") for fate in report.values())
    return killed, killed + sum(fate.startswith("SURVIVED") for fate in report.values())


def total(report, every):
    killed, valid = counts(report)
    return (f"{killed} of {valid} killed ({100 * killed / max(valid, 1):.1f} %), "
            f"{valid - killed} survived ({list(report.values()).count(SO_FAR)} of them so far), "
            f"{len(report) - valid} more did not compile, "
            f"{every - len(report)} were not tried")


def write(path, report):
    lines = sorted(f"{fate:32} | {text}" for text, fate in report.items())
    path.write_text("\n".join([*lines, total(report, len(report))]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
