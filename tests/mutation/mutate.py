#!/usr/bin/env python3
"""Changes the engine's headers in small ways and sees whether the tests notice.

    tests/mutation/mutate.py [--jobs 2] [--folder FOLDER] [--report FILE]

A mutant is one change: a condition turned round, a comparison shifted, `and` for `or`, a number one
more or one less, two arguments swapped, a statement left out (not one that only reserves memory). All
of them are compiled at once into one `explore` and one program of the unit tests, where a variable of
the environment says which one is alive. What cannot be switched that way (what the compiler evaluates,
expressions over several lines) is built and judged by itself. The tests of the mutant's own header come
first, then the engine's, `explore`, and the rest. A mutant that does not compile counts for nothing.
Survivors are listed with their line. A test that fails with no mutant alive is named and left out.

--folder keeps what was built (--build-only ends there; a later call finds it); with --report, a
later call leaves out the mutants that the report has. --since OLD takes over what was killed
according to an older report, wherever its line is now. --thorough runs every case of the faults'
sweeps, not one in twelve: a survivor then costs minutes.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Every header of these folders, and the calls of a user that end in them.
SUBJECTS = ["rules", "engine", "memory", "core/clocks.hpp", "core/block.hpp", "chunk.hpp",
            "buffer.hpp", "graph.hpp", "host_state.hpp", "device/detail/captured.hpp"]


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


HEADERS = headers_of(SUBJECTS)
FOLDERS = ["engine", "memory", "known_failures", "trace", "plan", "device", "options", "faults"]
# One in twelve of the faults' cases, as under AddressSanitizer: a survivor then costs seconds.
THINNED = "-DTIDEPOOL_TEST_THINNED=12"
FLAGS = ["-std=c++20", "-O1", "-DTIDEPOOL_NO_CUDA", THINNED, "-w", "-static",
         f'-DTIDEPOOL_SOURCE_DIR="{ROOT}"']
EXPLORE = ["--schedules", "12000", "--programs", "600"]
SWITCH = """#pragma once
#include <cstdlib>
namespace tidepool_mutation {
inline const int alive = std::getenv("MUTANT") ? std::atoi(std::getenv("MUTANT")) : -1;
inline bool is(int mutant) { return alive == mutant; }
}
"""
OPERATORS = [(r" == ", " != "), (r" != ", " == "), (r" <= ", " < "), (r" >= ", " > "),
             (r"(?<![<\w]) < (?!<)", " <= "), (r"(?<!-) > (?!>)", " >= "), (r" && ", " || "),
             (r" \|\| ", " && "), (r" \+ 1\b", ""), (r" - 1\b", "")]


class Mutant:
    """One change of one line: `old[start:end]` becomes `new`."""

    def __init__(self, header, line, what, old, start, end, new, kind):
        self.header, self.line, self.what = header, line, what
        self.old, self.start, self.end, self.new, self.kind = old, start, end, new, kind

    def changed(self):
        return self.old[:self.start] + self.new + self.old[self.end:]

    def place_free(self):
        """Its name without the number of the line, which other changes move."""
        return f"{self.header}: {self.what}: {self.changed().strip()}"

    def name(self):
        return f"{self.header}:{self.line + 1}: {self.what}: {self.changed().strip()}"


def mutants_of(header):
    lines = (ROOT / "include/tidepool" / header).read_text().splitlines()
    for number, line in enumerate(lines):
        code = line.split("//")[0].rstrip()
        bare = code.strip()
        if not bare or bare.startswith(("#", "//", "*", "template", "static_assert", "using",
                                        "friend")):
            continue
        if "throw" in bare or '"' in bare or "requires" in bare or "constexpr std::size_t" in bare:
            continue
        for pattern, to in OPERATORS:
            for found in re.finditer(pattern, code):
                yield Mutant(header, number, f"'{found.group().strip()}' became '{to.strip()}'",
                             code, found.start(), found.end(), to, "operator")
        span = span_of(code) if "constexpr" not in bare else None
        for found in re.finditer(r"(?<![\w.'<])(\d+)(?![\w.'>])", code) if span else ():
            if not span[0] <= found.start() < span[1]:
                continue
            number_there = int(found.group())
            for to in {number_there + 1, max(number_there - 1, 0)} - {number_there}:
                yield Mutant(header, number, f"{number_there} became {to}", code, found.start(),
                             found.end(), str(to), "operator")
        # The larger and the smaller of two are the same in either order.
        for found in re.finditer(r"\b(?!max|min)\w+\((\w[\w.\->]*), (\w[\w.\->]*)\)", code) if span else ():
            if span[0] <= found.start() < span[1]:
                yield Mutant(header, number, f"'{found.group()}': arguments swapped", code,
                             found.start(1), found.end(2), f"{found.group(2)}, {found.group(1)}",
                             "operator")
        found = re.match(r"(\s*)if \((?!constexpr)(.*)\)( .*;| \{)$", code)
        if found and ";" not in found.group(2):
            yield Mutant(header, number, "condition turned round", code, found.start(2),
                         found.end(2), f"!({found.group(2)})", "operator")
        statement = re.match(r"\s+(?!return|const |constexpr |auto |break|continue|case|default|else|if|for|while"
                             r"|\}|\[\[|[\w:<>]+ \w+(\{.*\})?;|[\w:<>*&]+ [\w]+ = )[\w(*+-].*;$", code)
        declares = re.match(r"\s*[\w:<>,]+[*&]*(?: const)? +[*&]?\w+(?:\s*=|\(|\{|;)",
                            re.sub(r"<[^;()]*>", "", code))
        declares = declares or re.match(r"\s*(static|virtual|explicit|typename|mutable|inline|~|operator)\b"
                                        r"|.*(= delete|= default|const|noexcept|override);$", code)
        # A statement of one line: not the middle of a longer one, not a declaration.
        if statement and not declares and ".reserve(" not in bare and number > 0 and lines[number - 1].rstrip().endswith((";", "{", "}", ":")):
            first = len(code) - len(code.lstrip())
            yield Mutant(header, number, f"left out '{bare}'", code, first, len(code), ";",
                         "statement")


def span_of(code):
    """The expression of this line that can be chosen at run time, or None."""
    condition = re.match(r"\s*(?:\} else )?(?:if|while) \((?!constexpr)", code)
    if condition:
        end = closing(code, condition.end())
        inside = code[condition.end():end]
        if end and ";" not in inside and "[&" not in inside:
            return condition.end(), end, "bool"
    for pattern in [r"\s*for \([^;]*; (?P<e>[^;]*); [^;]*\)(?: .*| \{)$",
                    r"\s*return (?P<e>[^;{}]*);$",
                    r"\s*(?:const )?(?:auto|bool|std::size_t|index)\*? \w+ = (?P<e>[^;{}]*);$",
                    r"\s*[\w.\->\[\]]+ [+\-|&]?= (?P<e>[^;{}]*);$",
                    r".*\{ return (?P<e>[^;{}]*); \}$",
                    r"\s*[\w.\->]+\((?P<e>[^;,{}]*)\);$",
                    # A part of a condition over several lines.
                    r"\s*(?:return |(?:const )?bool \w+ = |[\w.\->]+ = )?(?P<e>(?:(?! = )[^;{}])*) (?:&&|\|\|)$",
                    r"\s*(?P<e>[^;{}=]*[=!<>]= [^;{}]*|[^;{}=]* [<>] [^;{}]*);$"]:
        found = re.match(pattern, code)
        if found and balanced(found.group("e")) and "[&" not in found.group("e"):
            decides = re.match(r"\s*for ", code) or code.endswith(("&&", "||"))
            return found.start("e"), found.end("e"), "bool" if decides else ""
    return None


def closing(code, start):
    """The place of the parenthesis that ends what begins at `start`, or None."""
    depth = 0
    for at in range(start, len(code)):
        depth += (code[at] == "(") - (code[at] == ")")
        if depth < 0:
            return at
    return None


def balanced(text):
    depth = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return False
    return depth == 0


def combined(mutants, alone):
    """The text of each header with all mutants but those in `alone`; line numbers stay."""
    texts = {}
    for header in HEADERS:
        lines = (ROOT / "include/tidepool" / header).read_text().splitlines()
        by_line = {}
        for number, mutant in enumerate(mutants):
            if mutant.header == header and number not in alone:
                by_line.setdefault(mutant.line, []).append(number)
        for line, numbers in by_line.items():
            code = mutants[numbers[0]].old
            span = span_of(code)
            inner, left_out = "", None
            for number in numbers:
                mutant = mutants[number]
                if mutant.kind == "statement":
                    left_out = number
                elif span and span[0] <= mutant.start and mutant.end <= span[1]:
                    shift = len(mutant.new) - (mutant.end - mutant.start)
                    changed = mutant.changed()[span[0]:span[1] + shift]
                    inner += f"::tidepool_mutation::is({number}) ? {span[2]}({changed}) : "
                else:
                    alone.add(number)
            if inner:
                code = (f"{code[:span[0]]}({inner}{span[2]}({code[span[0]:span[1]]}))"
                        f"{code[span[1]:]}")
            if left_out is not None:
                code = f"{{ if (!::tidepool_mutation::is({left_out})) {{ {code.strip()} }} }}"
            lines[line] = code
        first = next(i for i, text in enumerate(lines) if text == "#pragma once")
        lines[first] += ' \n#include "tidepool/mutation_switch.hpp"\n#line ' + str(first + 2)
        texts[header] = "\n".join(lines) + "\n"
    return texts


def write_include(folder, texts):
    include = folder / "include"
    shutil.rmtree(include, ignore_errors=True)
    shutil.copytree(ROOT / "include", include)
    (include / "tidepool/mutation_switch.hpp").write_text(SWITCH)
    for header, text in texts.items():
        (include / "tidepool" / header).write_text(text)
    return include


def call(command, timeout, mutant=None):
    environment = dict(os.environ)
    environment.pop("MUTANT", None)
    if mutant is not None:
        environment["MUTANT"] = str(mutant)
    try:
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout, check=False,
                              env=environment, preexec_fn=within_memory)
        return done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired:
        return "timeout", ""


def within_memory():
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def compiler(include):
    folders = [f"-I{ROOT}/tests/{name}" for name in ("support", *FOLDERS)]
    return [os.environ.get("CXX", "g++"), *FLAGS, f"-I{include}", *folders, f"-I{ROOT}/tests"]


def sources():
    found = [path for folder in FOLDERS for path in sorted((ROOT / "tests" / folder).glob("*.cpp"))]
    # Neither has to do with the engine, and both ask the machine for much.
    return [path for path in found if path.name not in ("host_pages_test.cpp", "nvtx_test.cpp")]


def batches(folder, size):
    """The tests in fewer sources, as tests/batches.cmake has them; the faults by themselves."""
    made, together = [], []
    for path in sources():
        bound = re.search(r"^(namespace [a-z_:0-9]+ {|template <>)", path.read_text(), re.M)
        if bound or path.parent.name == "faults":
            made.append(path)
        else:
            together.append(path)
    for first in range(0, len(together), size):
        chosen = together[first:first + size]
        includes = dict.fromkeys(line for path in chosen for line in
                                 path.read_text().splitlines() if line.startswith("#include "))
        tests = [f'namespace {path.parent.name}_{path.stem} {{\n#include "{path}"\n}}'
                 for path in chosen]
        batch = folder / f"batch_{size}_{first}.cpp"
        batch.write_text("\n".join([*includes, *tests]) + "\n")
        made.append(batch)
    return sorted(made, key=lambda path: (path.parent.name == "faults", path.parent != folder))


def switchable(folder, mutants, jobs):
    """Writes the headers with as many mutants as compile together; returns those left alone."""
    alone = set()
    # Between them they make every template of the headers.
    probes = [ROOT / "tests" / name for name in (
        "explore/explore.cpp", "engine/host_state_test.cpp", "engine/recompute_test.cpp",
        "engine/graph_test.cpp", "engine/buffer_test.cpp", "memory/fence_test.cpp", "memory/slots_test.cpp",
        "memory/pinned_test.cpp", "memory/ranges_test.cpp", "plan/forecast_test.cpp")]
    for _ in range(40):
        include = write_include(folder, combined(mutants, alone))

        def errors_of(probe):
            code, text = call([*compiler(include), "-fsyntax-only", "-fmax-errors=0", probe], 900)
            return "" if code == 0 else text

        with concurrent.futures.ThreadPoolExecutor(jobs) as crew:
            text = "".join(crew.map(errors_of, probes))
        if not text:
            return alone
        wrong = {(header, int(line) - 1) for header, line in
                 re.findall(r"include/tidepool/([\w/]+\.hpp):(\d+)", text)}
        more = {number for number, mutant in enumerate(mutants)
                if (mutant.header, mutant.line) in wrong} - alone
        # What compiles least, before all else of the same line.
        more = {each for each in more if mutants[each].kind == "statement" or
                mutants[each].what.endswith("swapped")} or more
        if not more:  # what is missing here was declared a few lines above
            more = {number for number, mutant in enumerate(mutants)
                    if any((mutant.header, mutant.line + down) in wrong for down in range(9))}
            more -= alone
        if not more:  # or anywhere above, under the name that is missing
            names = set(re.findall("[\u2018'](\\w+)[\u2019'] (?:was not declared|has not been)", text))
            more = {number for number, mutant in enumerate(mutants)
                    if names & set(re.findall(r"\w+", mutant.old))} - alone
        if not more:  # constant expressions, which no variable can switch: all of their header
            headers = {header for header, _ in wrong}
            more = {number for number, mutant in enumerate(mutants) if mutant.header in headers}
            more -= alone
        if not more:
            sys.exit(f"mutate.py: does not compile, and no mutant is the reason:\n{text[-3000:]}")
        alone |= more
    sys.exit("mutate.py: still does not compile after 40 rounds")


def build(folder, mutants, jobs):
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "alone.txt"
    if done.exists():
        return {int(line) for line in done.read_text().split()}
    alone = switchable(folder, mutants, jobs)
    include = folder / "include"

    def object_of(source):
        target = folder / f"{source.parent.name}_{source.stem}.o"
        code, text = call([*compiler(include), "-c", source, "-o", target], 1800)
        if code != 0:
            sys.exit(f"mutate.py: {source}: {text[-3000:]}")
        return target

    every = [ROOT / "tests/support/main.cpp", *batches(folder, 3)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as crew:
        objects = list(crew.map(object_of, every))
        explore = object_of(ROOT / "tests/explore/explore.cpp")
    for program, parts in (("unit", objects), ("explore", [explore])):
        code, text = call([*compiler(include), *parts, "-o", folder / program, "-lpthread"], 900)
        if code != 0:
            sys.exit(f"mutate.py: {program}: {text[-3000:]}")
        subprocess.run(["strip", folder / program], check=True)
    done.write_text("\n".join(str(number) for number in sorted(alone)) + "\n")
    return alone


# What most often notices a mutant comes first; the faults take longest.
FIRST = "--source-file=*/memory/*,*/engine/*,*/options/*,*/known_failures/*"
PARTS = (FIRST, "explore", FIRST.replace("file=", "file-exclude=") + ",*/faults/*",
         "--source-file=*/faults/*")


class Judge:
    """The tests without a mutant: how long each may take, and which are left out, as they fail."""

    def __init__(self, folder):
        self.programs = {"explore": [folder / "explore", *EXPLORE]}
        self.unit = [folder / "unit", "--no-colors"]
        self.limits, self.without = {}, []
        for part in PARTS:
            begin = time.monotonic()
            code, text = call(self.programs.get(part, [*self.unit, part]), 900)
            took = time.monotonic() - begin
            # What many at a time take longer, on a machine whose cores are half cores.
            self.limits[part] = 30 + 5 * took
            print(f"{took:6.1f} s with no mutant alive: {part}", flush=True)
            cases = [case for case in text.split("=" * 79) if ": ERROR: " in case]
            failed = [found.group(1) for case in cases if (found := re.search(r"TEST CASE:  (.*)", case))]
            if code != 0 and not failed:
                sys.exit(f"mutate.py: {part} ends with {code} and no mutant alive:\n{text[-2000:]}")
            for name in dict.fromkeys(failed):
                print(f"left out, since it fails with no mutant alive: {name}", flush=True)
                self.without.append("--test-case-exclude=" + name.strip().replace(",", "*"))

    def fate(self, number, mutant):
        """None if nothing noticed it."""
        own = f"--source-file=*/{pathlib.Path(mutant.header).stem}*_test.cpp"
        for part in (own, *PARTS):
            command = self.programs.get(part, [*self.unit, "--abort-after=1", part, *self.without])
            code, text = call(command, self.limits.get(part, 90), number)
            if code != 0:
                return killer(text) if part != "explore" else "killed by explore"
        return None


def killer(text):
    found = re.search(r"tests/([\w/]+\.(?:cpp|hpp)):\d+", text)
    return f"killed by {found.group(1) if found else 'a unit test'}"


def judge_alone(mutant, folder, tests):
    with tempfile.TemporaryDirectory() as scratch:
        include = write_include(pathlib.Path(scratch), {})
        target = include / "tidepool" / mutant.header
        lines = target.read_text().splitlines()
        lines[mutant.line] = mutant.changed()
        target.write_text("\n".join(lines) + "\n")
        explore = pathlib.Path(scratch) / "explore"
        source = ROOT / "tests/explore/explore.cpp"
        if call([*compiler(include), source, "-o", explore, "-lpthread"], 900)[0] != 0:
            return "does not compile"
        if call([explore, *EXPLORE], 60)[0] != 0:
            return "killed by explore"
        main_object = folder / "support_main.o"
        for test in tests:
            program = pathlib.Path(scratch) / "test"
            built = call([*compiler(include), test, main_object, "-o", program, "-lpthread"], 900)
            if built[0] != 0:
                return "does not compile"  # a test asks for what explore does not
            code, text = call([program, "--abort-after=1", "--no-colors"], 90)
            if code != 0:
                return killer(text)
        return "SURVIVED"


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--jobs", type=int, default=os.cpu_count())
    words.add_argument("--folder", type=pathlib.Path, help="where the programs are kept")
    words.add_argument("--build-only", action="store_true")
    words.add_argument("--report", type=pathlib.Path)
    words.add_argument("--seconds", type=float, default=0, help="begin no mutant after these")
    words.add_argument("--sample", type=int, metavar="N", help="only N of them, drawn at random")
    words.add_argument("--since", type=pathlib.Path, metavar="OLD")
    words.add_argument("--thorough", action="store_true")
    given = words.parse_args()
    if given.thorough:
        FLAGS.remove(THINNED)
    folder = given.folder or pathlib.Path(tempfile.mkdtemp(prefix="tidepool-mutants-"))
    mutants = [mutant for header in HEADERS for mutant in mutants_of(header)]
    alone = build(folder, mutants, given.jobs)
    print(f"{len(mutants)} mutants, {len(alone)} of them built alone", flush=True)
    if given.build_only:
        return 0
    judge = Judge(folder)

    report = {}
    if given.report and given.report.exists():
        for line in given.report.read_text().splitlines():
            fate, bar, text = line.partition(" | ")
            if bar:
                report[text] = fate.strip()
    tests = batches(folder, 8)
    end = time.monotonic() + given.seconds if given.seconds else None

    def fate_of(number):
        if end and time.monotonic() > end:
            return number, None
        if number in alone:
            return number, judge_alone(mutants[number], folder, tests)
        return number, judge.fate(number, mutants[number]) or "SURVIVED"

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
    left.sort(key=lambda number: number in alone)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as crew:
        for asked in concurrent.futures.as_completed([crew.submit(fate_of, each) for each in left]):
            number, fate = asked.result()
            if fate is None:
                continue
            report[mutants[number].name()] = fate
            if fate == "SURVIVED":
                print(f"{fate:32} | {mutants[number].name()}", flush=True)
            if given.report:
                write(given.report, report)
    print(total(report, len(mutants)))
    killed, valid = counts(report)
    return 0 if killed >= 0.9 * valid else 1


def counts(report):
    killed = sum(fate.startswith("killed") for fate in report.values())
    return killed, killed + sum(fate == "SURVIVED" for fate in report.values())


def total(report, every):
    killed, valid = counts(report)
    return (f"{killed} of {valid} killed ({100 * killed / max(valid, 1):.1f} %), "
            f"{len(report) - valid} more did not compile, {every - len(report)} were not tried")


def write(path, report):
    lines = sorted(f"{fate:32} | {text}" for text, fate in report.items())
    path.write_text("\n".join([*lines, total(report, len(report))]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
