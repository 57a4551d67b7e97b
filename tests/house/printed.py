#!/usr/bin/env python3
"""Whether what the pages show as printed is what the programs print.

    tests/house/printed.py check [--night] BUILD [PAGE]...    runs the commands of PAGES and compares
    tests/house/printed.py update [--night] BUILD [PAGE]...   writes what they print into the pages
    tests/house/printed.py self-test                          each rule is broken once, and must be found

A block of ```text, or of no language, is what a program prints: all of it, where no line `...` stands for
lines that are left out. The last command of the ```sh or ```console block above printed it; commands that
build alone are passed over. A comment above the block, or above prose, says more, each on a line of its own:

    run: COMMAND            another command printed it
    run at night: COMMAND   the same, where it takes minutes: only with --night
    not run: REASON         it needs a GPU, or the like
    writes: FILE = PICTURE  the command's FILE is that picture, named as the page names it
    says: REGEX             what its groups find in what was printed or written stands in the text
                            below, up to the next heading; `update` cannot write that

Commands run in a folder that looks like this tree, with BUILD under every name that pages give a build,
without a GPU, and with the kernels that OpenBLAS has for AVX2: other kernels round otherwise, so that
other experts may be chosen.
"""
import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/planning.md", "docs/options.md", "docs/seeing.md", "docs/caps.md",
         "docs/your_trainer.md"]
BUILDS = ["default", "quick", "examples", "no-cuda", "demo"]
KEYS = ["run at night", "not run", "run", "writes", "says"]
SECONDS = 900


# --- reading a page

class Shown:
    """A block of output, or a comment about prose."""

    def __init__(self, line):
        self.line, self.command, self.reason, self.night = line, None, None, False
        self.block = None  # the first line of it and the one behind it, from 0
        self.writes, self.says, self.below = [], [], ""


def command_of(lines):
    found = None
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        command = re.sub(r"\s+#.*", "", line.strip().removeprefix("$ "))
        if command and not re.match(r"#|cmake\b|[gc]\+\+ (?!.*&& )", command):
            found = command
    return found


def marks_of(shown, comment, where, errors):
    for line in comment.splitlines():
        key = next((key for key in KEYS if line.strip().startswith(key + ":")), None)
        value = line.split(":", 1)[1].strip() if key else ""
        if not key:
            if line.strip():
                errors.append(f"{where}: \"{line.strip()}\" is none of: {', '.join(KEYS)}")
        elif not value:
            errors.append(f"{where}: \"{key}\" says nothing")
        elif key == "writes":
            shown.writes.append(re.split(r"\s*=\s*", value))
        elif key == "says":
            shown.says.append(value)
        elif key == "not run":
            shown.reason = value
        else:
            shown.command, shown.night = value, key == "run at night"


def read(text, name, errors):
    lines, all_shown, above, waiting = text.splitlines(), [], None, None
    at = 0
    while at < len(lines):
        line = lines[at]
        fence = re.match(r"```(\w*)", line)
        if fence:
            end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith("```")), len(lines))
            if fence.group(1) in ("sh", "console"):
                above = command_of(lines[at + 1:end])
            elif fence.group(1) in ("", "text"):
                if waiting is None:
                    waiting = Shown(at + 1)
                    all_shown.append(waiting)
                waiting.block = (at + 1, end)
                waiting.command = waiting.command or above
            waiting, at = None, end + 1
            continue
        if line.startswith("<!--"):
            end = next((i for i in range(at, len(lines)) if "-->" in lines[i]), len(lines) - 1)
            comment = "\n".join(lines[at:end + 1])[4:].split("-->")[0]
            if any(re.match(rf"\s*{key}\s*:", part) for key in KEYS for part in comment.splitlines()):
                waiting = Shown(at + 1)
                marks_of(waiting, comment, f"{name}:{at + 1}", errors)
                waiting.command = waiting.command or above
                all_shown.append(waiting)
            at = end + 1
            below = next((i for i in range(at, len(lines)) if lines[i].startswith("#")), len(lines))
            if waiting:
                waiting.below = "\n".join(lines[at:below])
            continue
        if line.strip():
            waiting = None
        at += 1
    return lines, all_shown


# --- running

class Programs:
    def __init__(self, root, build):
        self.known = {}
        self.folder = pathlib.Path(tempfile.mkdtemp())
        for entry in root.iterdir():
            if entry.name not in ("build", ".git"):
                (self.folder / entry.name).symlink_to(entry)
        (self.folder / "build").mkdir()
        for name in BUILDS:
            (self.folder / "build" / name).symlink_to(build)
        gpu = self.folder / ".no_gpu"
        gpu.mkdir()
        (gpu / "nvidia-smi").symlink_to(shutil.which("false"))
        paths = [gpu, build / "examples", build / "bench", build / "tests" / "house"]
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("TIDEPOOL_")}
        self.environment |= {"PATH": ":".join([*map(str, paths), os.environ["PATH"]]),
                             "OPENBLAS_CORETYPE": "Haswell", "CUDA_VISIBLE_DEVICES": "", "LC_ALL": "C.UTF-8",
                             "TIDEPOOL_DEMO_BUILD": "build/demo"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def printed(self, command):
        """(lines, exit status), of stdout and stderr as a terminal shows them."""
        if command not in self.known:
            done = subprocess.run(["stdbuf", "-oL", "bash", "-c", command], cwd=self.folder, env=self.environment,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=SECONDS, text=True, check=False)
            self.known[command] = [line.rstrip() for line in done.stdout.strip("\n").splitlines()], done.returncode
        return self.known[command]


# --- comparing

def fitted(block, printed):
    """What the block would be: the lines that are printed, with `...` where the block has it."""
    parts = [[]]
    for line in block:
        if line == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    if len(parts) == 1:
        return printed

    def likeness(part, at):
        shape = [re.sub(r"[\d.]+", "#", line).split() for line in part + printed[at:at + len(part)]]
        return sum((3 if line == printed[at + i] else 0) + (shape[i] == shape[len(part) + i])
                   for i, line in enumerate(part))

    result, at = [], 0
    for i, part in enumerate(parts):
        result += ["..."] if i else []
        last = len(printed) - len(part)
        if i == len(parts) - 1:
            at = max(at, last)
        elif i:
            at = max(range(at, last + 1), key=lambda place: likeness(part, place), default=at)
        result += printed[at:at + len(part)] if part else []
        at += len(part)
    return result


class Comparison:
    """One page; with `update` its blocks and pictures become what they should be."""

    def __init__(self, page, name, programs, update):
        self.page, self.name, self.programs, self.update = page, name, programs, update
        self.errors, self.notes, self.compared = [], [], 0
        self.lines, self.all_shown = read(page.read_text(), name, self.errors)

    def run(self, night):
        for shown in reversed(self.all_shown):  # what is above keeps its lines while blocks change
            where = f"{self.name}:{shown.line}"
            if shown.reason is not None or (shown.night and not night):
                self.notes.append(f"{where}: not run: {shown.reason or 'it takes minutes, and runs at night'}")
            elif shown.command is None:
                self.errors.append(f"{where}: no command above prints this: name it in a comment "
                                   "(tests/house/printed.py says how)")
            else:
                self.one(shown, where)
        if self.update:
            self.page.write_text("\n".join(self.lines) + "\n")

    def one(self, shown, where):
        self.compared += 1
        printed, status = self.programs.printed(shown.command)
        if status != 0:
            self.errors.append(f"{where}: `{shown.command}` ends with {status}:\n" + "\n".join(printed[-5:]))
            return
        texts = ["\n".join(printed)]
        for file, picture in shown.writes:
            made = self.programs.folder / file
            if not made.exists():
                self.errors.append(f"{where}: `{shown.command}` writes no {file}")
                continue
            texts.append(made.read_text())
            self.picture(made, picture, where)
        for pattern in shown.says:
            self.prose(pattern, "\n".join(texts), shown.below, where)
        if shown.block:
            self.block(shown, printed, where)

    def picture(self, made, name, where):
        kept = self.page.parent / name
        if kept.exists() and made.read_bytes() == kept.read_bytes():
            return
        if self.update:
            shutil.copyfile(made, kept)
            self.notes.append(f"{where}: {name} is new")
        else:
            self.errors.append(f"{where}: {name} is not what is drawn")

    def prose(self, pattern, printed, below, where):
        found = re.search(pattern, printed)
        if not found:
            self.errors.append(f"{where}: nothing like \"{pattern}\" is printed")
            return
        for value in found.groups():
            if not re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", below):
                self.errors.append(f"{where}: the text below does not say {value}; printed is "
                                   f"\"{found.group(0).strip()}\"")

    def block(self, shown, printed, where):
        block = self.lines[slice(*shown.block)]
        right = fitted(block, printed)
        if block == right:
            return
        if self.update:
            self.lines[slice(*shown.block)] = right
            self.notes.append(f"{where}: the block is new")
            return
        diff = difflib.unified_diff(block, right, f"{self.name}, from line {shown.block[0] + 1}",
                                    shown.command, lineterm="", n=1)
        self.errors.append(f"{where}: this is not what is printed:\n" + "\n".join(diff))


def check(root, build, pages, night=False, update=False):
    """(errors, notes)"""
    errors, notes, compared = [], [], 0
    with Programs(root, build) as programs:
        for name in pages:
            page = Comparison(root / name, name, programs, update)
            page.run(night)
            errors += page.errors
            notes += page.notes
            compared += page.compared
    return errors, [*notes, f"{compared} places of {len(pages)} pages compared"]


# --- the rules themselves

def self_test():
    program = "echo '12 groups leave'; echo; echo 'step 3.25 ms'; echo '<svg>7 stalls</svg>' >new.svg"
    call = "```sh\ncmake --build build\nbuild/quick/examples/program --all  # some words\n```\n\n"
    right = "```text\n12 groups leave\n\nstep 3.25 ms\n```\n"
    mark = "<!-- writes: new.svg = images/old.svg\n     says: (\\d+) stalls -->\n"
    cases = [
        ("as printed", call + right, None),
        ("no language", call + right.replace("text", ""), None),
        ("a number", call + right.replace("3.25", "3.52"), "page.md:6: this is not what is printed"),
        ("the diff", call + right.replace("3.25", "3.52"), "-step 3.52 ms\n+step 3.25 ms"),
        ("a line that is gone", call + right.replace("\nstep 3.25 ms", ""), "+step 3.25 ms"),
        ("lines left out", call + "```text\n...\nstep 3.25 ms\n```\n", None),
        ("lines left out in the middle", call + "```text\n12 groups leave\n...\nstep 3.25 ms\n```\n", None),
        ("one of lines that are alike",
         "<!-- run: printf 'a 1\\na 2\\na 3\\nb' -->\n```\n...\na 2\n...\nb\n```\n", None),
        ("a number behind them", call + "```text\n...\nstep 3.52 ms\n```\n", "-step 3.52 ms\n+step 3.25 ms"),
        ("lines that are not the last", call + "```text\n12 groups leave\n...\n12 groups leave\n```\n", "+step"),
        ("a line too many", call + right.replace("\n```\n", "\nmore\n```\n", 1), "-more"),
        ("no command", right, "no command above prints this"),
        ("a build and a run", "```sh\ng++ --version >v && echo 5\n```\n```\n6\n```\n", "+5"),
        ("only a build", call.replace("build/quick/examples/program --all", "") + right, "no command"),
        ("another command", call + "<!-- run: echo 5 -->\n```\n5\n```\n", None),
        ("one that fails", "<!-- run: echo no; exit 3 -->\n```\nno\n```\n", "`echo no; exit 3` ends with 3:\nno"),
        ("not run", "<!-- not run: it needs a GPU -->\n" + right, None),
        ("without a reason", "<!-- not run: -->\n" + right, "\"not run\" says nothing"),
        ("an unknown word", "<!-- run: echo 5\nwrites nothing -->\n```\n5\n```\n", "is none of"),
        ("at night", "<!-- run at night: echo 5 -->\n```\n6\n```\n", "+5"),
        ("a picture and prose", call + mark + "It has 7 stalls.\n", None),
        ("another picture", call + mark.replace("old", "other") + "It has 7 stalls.\n", "other.svg is not what is drawn"),
        ("no picture", call + mark.replace("new", "none") + "7\n", "writes no none.svg"),
        ("other prose", call + mark + "It has 17 stalls, of 7.5 ms.\n\n# 7\n", "does not say 7"),
        ("prose of nothing", call + "<!-- says: (\\d+) waits -->\n7\n", "nothing like"),
    ]
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "images").mkdir()
        for picture, text in (("old", "<svg>7 stalls</svg>\n"), ("other", "<svg/>\n")):
            (root / "images" / f"{picture}.svg").write_text(text)
        (root / "bin" / "examples").mkdir(parents=True)
        (root / "bin" / "examples" / "program").write_text(f"#!/bin/sh\n{program}\n")
        (root / "bin" / "examples" / "program").chmod(0o755)
        for what, text, expected in cases:
            page = root / "page.md"
            page.write_text(text)
            errors, _ = check(root, root / "bin", ["page.md"], night=True)
            if expected is None and errors or expected and not any(expected in error for error in errors):
                failures.append(f"{what}: expected {expected}, found {errors}")
            if not expected or not expected.startswith(("-", "+")):
                continue
            check(root, root / "bin", ["page.md"], night=True, update=True)
            errors, _ = check(root, root / "bin", ["page.md"], night=True)
            if errors:
                failures.append(f"{what}: updated, and yet {errors}")
        (root / "page.md").write_text("<!-- run at night: echo 5 -->\n```\n6\n```\n")
        if check(root, root / "bin", ["page.md"])[0]:
            failures.append("what runs at night is run by day")
    return failures


def main(arguments):
    night = "--night" in arguments
    arguments = [word for word in arguments if word != "--night"]
    if arguments == ["self-test"]:
        errors, notes = self_test(), []
    elif len(arguments) >= 2 and arguments[0] in ("check", "update"):
        errors, notes = check(ROOT, pathlib.Path(arguments[1]).resolve(), arguments[2:] or PAGES, night,
                              arguments[0] == "update")
    else:
        print(__doc__, file=sys.stderr)
        return 2
    print("\n".join([*notes, *errors]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
