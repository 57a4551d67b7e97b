#!/usr/bin/env python3
"""Whether the headers keep to the plan of the house.

    tests/house/house.py includes              who may include whom (parts.txt), and what only plans need
    tests/house/house.py sizes                 lines of headers and of functions; what the engine weighs
    tests/house/house.py version               every header's inline namespace is the version's, and files that
                                               give the version give this one
    tests/house/house.py symbols OBJECT        no planner in an object that never plans
    tests/house/house.py self-test             each of the rules above is broken, and must be found

What breaks a rule today stands in exceptions.txt with a reason. That list may only shrink: one that
nothing needs any more is refused as well, and so are more of them than its first line says. The
weights have their limits in limits.txt.
"""
import collections
import fnmatch
import pathlib
import re
import subprocess
import sys
import tempfile

import limits

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MOST_LINES = 400
MOST_LINES_OF_A_FUNCTION = 60
# Who includes one of these and no more reads nothing of parts that only plans need.
UNPLANNED = ("tidepool.hpp", "layers.hpp", "keyed.hpp", "torch.hpp")
PLANNING = ("learn", "planner", "forecast")
# A limit of lines follows them down when so much of it is free.
SLACK = 0.02


def lines_of(path):
    for line in path.read_text().splitlines():
        text = line.split("#", 1)[0].strip()
        if text:
            yield text


# --- exceptions

class Exceptions:
    """`arrow A -> B: reason`, `lines FILE N: reason`, `function FILE NAME N: reason`,
    `symbol NAME: reason`."""

    def __init__(self, path, kinds):
        self.known = {}
        self.used = set()
        self.errors = []
        counted = collections.Counter()
        most = {}
        for text in lines_of(path):
            if text.startswith("at most"):
                most = {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)", text)}
                continue
            rule, _, reason = text.partition(": ")
            kind = rule.split()[0]
            counted[kind] += 1
            if kind not in kinds:
                continue
            if not reason:
                self.errors.append(f"{path.name}: '{text}' gives no reason")
            what = rule.split(" ", 1)[1]
            if kind in ("lines", "function"):
                what, limit = what.rsplit(" ", 1)
                self.known[kind, what] = int(limit)
            else:
                self.known[kind, what] = None
        for kind in kinds:
            if counted[kind] != most.get(kind, 0):
                self.errors.append(f"{path.name}: {counted[kind]} of kind '{kind}', and its first line"
                                   f" says {most.get(kind, 0)}: the list may only shrink")

    def allow(self, kind, what, size=None):
        if (kind, what) not in self.known:
            return False
        self.used.add((kind, what))
        limit = self.known[kind, what]
        return limit is None or size <= limit

    def stale(self):
        for kind, what in self.known:
            if (kind, what) not in self.used:
                yield f"exception '{kind} {what}' is needed no more: take it out"


# --- who may include whom

def read_parts(path):
    """[(name, patterns, uses)], in the order of the file."""
    parts = []
    for text in lines_of(path):
        key, *words = text.split()
        if key == "part":
            parts.append((words[0], [], []))
        else:
            parts[-1][("files", "uses").index(key) + 1].extend(words)
    return parts


def headers_below(include):
    found = sorted(path for path in include.rglob("*") if path.suffix in (".hpp", ".cuh"))
    return {str(path.relative_to(include)): path for path in found}


def part_of_each(headers, parts, errors):
    owner = {}
    for name, patterns, _ in parts:
        for pattern in patterns:
            # A star stays in its folder.
            hits = [file for file in headers if fnmatch.fnmatchcase(file, pattern)
                    and file.count("/") == pattern.count("/")]
            if not hits:
                errors.append(f"parts.txt: '{pattern}' of part {name} has no file")
            for file in hits:
                if "*" not in pattern and owner.get(file, name) != name:
                    errors.append(f"parts.txt: {file} belongs to {owner[file]} and to {name}")
                # A file that is named goes before a pattern that has it.
                if "*" not in pattern or file not in owner:
                    owner[file] = name
    for file in headers:
        if file not in owner:
            errors.append(f"parts.txt: no part has {file}")
    return owner


def arrows_of(path):
    for line in path.read_text().splitlines():
        hit = re.match(r'\s*#\s*include\s*["<]tidepool/([^">]+)[">]', line)
        if hit:
            yield hit.group(1)


def folder_of(file):
    return file.rpartition("/")[0]


def others_detail(file, target):
    """A folder named detail serves the headers of the folder that it lies in."""
    folder = folder_of(target)
    if folder != "detail" and not folder.endswith("/detail"):
        return False
    return folder_of(file) not in (folder, folder.removesuffix("detail").rstrip("/"))


def check_includes(include, parts_file, exceptions):
    errors = []
    parts = read_parts(parts_file)
    named = [name for name, _, _ in parts]
    uses = {name: set(words) for name, _, words in parts}
    for name, _, words in parts:
        errors += [f"parts.txt: {name} uses {word}, which is no part" for word in words
                   if word not in named]
    errors += cycles(uses)
    headers = headers_below(include)
    if not headers:
        errors.append(f"no header below {include}")
    owner = part_of_each(headers, parts, errors)
    for file, path in headers.items():
        for target in arrows_of(path):
            if target not in headers:
                errors.append(f"{file} includes {target}, which is not there")
                continue
            mine, other = owner.get(file), owner.get(target)
            if None in (mine, other):
                continue
            why = None
            if other != mine and other not in uses[mine]:
                why = f"{mine} may not include {other}"
            elif others_detail(file, target):
                why = "what lies in detail serves its own folder alone"
            if why and not exceptions.allow("arrow", f"{file} -> {target}"):
                errors.append(f"{file} includes {target}: {why}")
    for root in UNPLANNED:
        errors += [f"{root} reads {file} of part {owner[file]}, which only plans need"
                   for file in sorted(closure_of(root, headers)) if owner.get(file) in PLANNING]
    return errors


def cycles(uses):
    """Arrows between parts run one way."""
    errors, done = [], set()

    def walk(name, path):
        if name in path:
            errors.append("parts.txt: a ring of parts: " + " -> ".join(path[path.index(name):] + [name]))
        elif name not in done:
            for word in sorted(uses.get(name, ())):
                walk(word, path + [name])
            done.add(name)

    for name in uses:
        walk(name, [])
    return errors


# --- sizes

TOKENS = re.compile(
    r'//[^\n]*|/\*.*?\*/|(?:u8|[uUL])?R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'"
    r"|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.S | re.M)


def bare(text):
    """Without comments, texts and directives, with every line in its place."""
    return TOKENS.sub(lambda hit: "\n" * hit.group().count("\n") or " ", text)


def without_brackets(head):
    """`template <…>` and attributes hold words that mean something else outside of them."""
    kept = re.sub(r"\[\[.*?\]\]", " ", head, flags=re.S)
    while True:
        hit = re.search(r"\btemplate\s*<", kept)
        if not hit:
            return kept
        depth, at = 1, hit.end()
        while depth and at < len(kept):
            depth += {"<": 1, ">": -1}.get(kept[at], 0) if kept[at - 1:at + 1] != "->" else 0
            at += 1
        kept = kept[:hit.start()] + kept[at:]


def opens_a_scope(head):
    kept = without_brackets(head)
    if re.search(r'\b(namespace|extern)\b[^()]*$', kept):
        return True
    return re.search(r"\b(class|struct|union)\b[^()=]*$", kept) is not None


def functions(text):
    """(name, first line, lines) of every block of code that stands in a class or a namespace."""
    text = bare(text)
    found, scopes = [], []  # of each open brace: (is a scope, its head, its line)
    head, line = "", 1
    for at, sign in enumerate(text):
        if sign == "\n":
            line += 1
        if sign == "{":
            inside = all(scope for scope, _, _ in scopes)
            scopes.append((inside and opens_a_scope(head), head if inside else "", line))
            if inside:
                head = "" if scopes[-1][0] else head
        elif sign == "}":
            if not scopes:
                raise ValueError(f"line {line}: a brace too many")
            scope, opened_by, first = scopes.pop()
            if not scope and all(outer for outer, _, _ in scopes):
                # Data is no function: `a b = {…}`, `a b{…}`. A member that a constructor makes is
                # one of a line.
                if "(" in opened_by and not re.search(r"=\s*$", opened_by) or opened_by.strip()[-1:] == "]":
                    named = re.search(r"(\boperator\b[^(]*|(?!(?:requires|decltype|noexcept|explicit)\b)"
                                      r"(?<![\w~])[~\w]+)\s*\(", without_brackets(opened_by))
                    name = " ".join((named.group(1) if named else opened_by).split()) or "?"
                    found.append((name, first, line - first + 1))
            # `f() : a_{1}, b_{2} {`: what a constructor makes before its body belongs to its head.
            if all(outer for outer, _, _ in scopes) and text[at + 1:].lstrip()[:1] not in (",", "{"):
                head = ""
        elif not scopes or all(scope for scope, _, _ in scopes):
            head = "" if sign == ";" else head + sign
            if re.search(r"\b(public|private|protected)\s*:$", head):
                head = ""
    if scopes:
        raise ValueError(f"line {line}: a brace is never closed")
    return found


def check_sizes(include, exceptions):
    errors = []
    headers = headers_below(include)
    if not headers:
        errors.append(f"no header below {include}")
    seen = 0
    for file, path in headers.items():
        text = path.read_text()
        lines = text.count("\n")
        if lines > MOST_LINES and not exceptions.allow("lines", file, lines):
            errors.append(f"{file} has {lines} lines; {MOST_LINES} at most")
        try:
            blocks = functions(text)
        except ValueError as why:
            errors.append(f"{file}: not understood: {why}")
            continue
        seen += len(blocks)
        for name, first, lines in blocks:
            if lines > MOST_LINES_OF_A_FUNCTION:
                if not exceptions.allow("function", f"{file} {name}", lines):
                    errors.append(f"{file}:{first}: {name} has {lines} lines;"
                                  f" {MOST_LINES_OF_A_FUNCTION} at most")
    if seen < len(headers):
        errors.append(f"only {seen} functions were found in {len(headers)} headers")
    return errors


# --- what the engine weighs

def lines_of_code(text):
    """As cloc counts them: neither blank nor comment alone."""
    bare_of_comments = TOKENS.sub(lambda hit: "\n" * hit.group().count("\n") or " "
                                  if hit.group().startswith(("//", "/*")) else hit.group(), text)
    return sum(1 for line in bare_of_comments.splitlines() if line.strip())


def closure_of(file, headers):
    """What a file that includes `file` reads, whatever its macros say."""
    seen, left = set(), [file]
    while left:
        at = left.pop()
        if at in headers and at not in seen:
            seen.add(at)
            left += arrows_of(headers[at])
    return seen


def members_of_structs(text):
    """{struct: [type of each data member]}, of structs that hold data."""
    text = re.sub(r"\[\[.*?\]\]", " ", bare(text), flags=re.S)
    found = {}
    for hit in re.finditer(r"\bstruct (\w+)(?: final)?(?: : [^{;()]*)? \{", text):
        members, said, depth = [], "", 1
        for sign in text[hit.end():]:
            depth += {"{": 1, "}": -1}.get(sign, 0)
            if depth == 0:
                break
            no_data = "(" in said or re.match(r"\s*(struct|class|enum|union)\b", said)
            if depth == 1 and sign == "}" and no_data:
                said = ""
            elif depth == 1 and sign == ";":
                said = re.sub(r"\b(public|private|protected)\s*:", " ", said).split("=")[0].split("{")[0]
                data = re.fullmatch(r"(?!(?:using|friend|static|enum|struct|class|template|typedef)\b)"
                                    r"([^()]+?[\s*&])\w+(?:\[\w*\])?", said.strip())
                if data:
                    members.append(data.group(1).strip())
                said = ""
            elif depth == 1 or sign == "{" and depth == 2:
                said += sign
        found[hit.group(1)] = members
    return found


def nested_members(name, structs):
    return sum(nested_members(member, structs) if structs.get(member) else 1 for member in structs[name])


def weights(include):
    """({what: lines of code}, {what: a count}, words to print)"""
    headers = headers_below(include)
    code = {file: lines_of_code(path.read_text()) for file, path in headers.items()}
    lines = {"closure of offloader.hpp": sum(code[file] for file in closure_of("offloader.hpp", headers)),
             "engine and decide": sum(count for file, count in code.items()
                                      if file.startswith(("engine/", "decide/"))),
             "include": sum(code.values())}
    counts = {"try in engine": 0}
    structs = {}
    for file, path in headers.items():
        if file.startswith("engine/"):
            counts["try in engine"] += len(re.findall(r"\btry\b", bare(path.read_text())))
        if file.startswith(("core/", "engine/")):
            structs |= members_of_structs(path.read_text())
    words = []
    for what, names in {"tensor": ("tensor", "storage"), "group": ("group",)}.items():
        for name in [name for name in names if name in structs][:1]:
            counts[f"members of a {what}"] = len(structs[name])
            words.append(f"struct {name}: {len(structs[name])} members, {nested_members(name, structs)} with"
                         " those of its members")
    longest = max(headers, key=lambda file: headers[file].read_text().count("\n"))
    words.append(f"longest header: {longest}, {headers[longest].read_text().count(chr(10))} lines")
    return lines, counts, words


def check_weights(include, limits_file):
    lines, counts, words = weights(include)
    for what, count in lines.items():
        print(f"lines of code, {what}: {count}")
    print("\n".join([f"{what}: {count}" for what, count in counts.items()] + words))
    return (limits.judge(lines, limits.read(limits_file, "lines"), SLACK) +
            limits.judge(counts, limits.read(limits_file, "count")))


# --- the version

def check_version(include):
    """Headers of two versions in one program have names of their own (tests/odr)."""
    text = (include / "version.hpp").read_text()
    numbers = re.findall(r"^#define TIDEPOOL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.M)
    wanted = f"namespace tidepool::inline v{'_'.join(numbers)}"
    errors = []
    for file, path in headers_below(include).items():
        for line in re.findall(r"^ *(?:inline )?namespace tidepool\b.*$", path.read_text(), re.M):
            if not re.match(re.escape(wanted) + r"(::| \{)", line):
                errors.append(f"{file}: '{line.strip()}' is not {wanted}")
    return errors


# Files that give the version, and how. In the changelog the first place counts, elsewhere each.
GIVE_THE_VERSION = {
    "CHANGELOG.md": r"## \[(\d+\.\d+\.\d+)\]",
    "CITATION.cff": r"version: (\S+)",
    "packaging/vcpkg/tidepool/vcpkg.json": r'  "version": "(\S+)"',
    "cmake/tidepool-config.cmake.in": r".*find_package\(tidepool (\d+\.\d+)",
    "docs/installing.md": r".*find_package\(tidepool (\d+\.\d+)",
    "tests/consumer/installed/CMakeLists.txt": r".*find_package\(tidepool (\d+\.\d+)",
}


def check_given_versions(root):
    text = (root / "include" / "tidepool" / "version.hpp").read_text()
    version = ".".join(re.findall(r"^#define TIDEPOOL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.M))
    errors = []
    for file, pattern in GIVE_THE_VERSION.items():
        given = re.findall("^" + pattern, (root / file).read_text(), re.M)
        if file == "CHANGELOG.md":
            given = given[:1]
        if not given:
            errors.append(f"{file} gives no version")
        errors += [f"{file} gives version {other}, and version.hpp has {version}"
                   for other in given if other != version and not version.startswith(other + ".")]
    return errors


# --- symbols

def check_symbols(names, exceptions):
    """`names` as `nm -C` prints them."""
    errors, ours = set(), False
    for line in names.splitlines():
        if "tidepool::" not in line:
            continue
        ours = True
        # An inline namespace of a version may stand in between.
        for name in re.findall(r"tidepool::(?:v\w+::)?plan::((?:detail::)?\w+)", line):
            if not exceptions.allow("symbol", name):
                errors.add(f"plan::{name} in an object that never plans: {line.strip()[:200]}")
    if not ours:
        errors.add("the object has no symbol of Tidepool: nothing was looked at")
    return sorted(errors)


# --- the rules themselves

def self_test():
    failed = []

    def expect(what, errors, *wanted):
        for text in wanted:
            if not any(text in error for error in errors):
                failed.append(f"{what}: '{text}' was not found in {errors}")
        if not wanted and errors:
            failed.append(f"{what}: {errors}")

    def tree(folder, files):
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return pathlib.Path(folder)

    def with_exceptions(folder, text, kinds):
        return Exceptions(tree(folder, {"exceptions.txt": text}) / "exceptions.txt", kinds)

    def includes(files, parts, allowed="at most 0 arrow\n"):
        with tempfile.TemporaryDirectory() as folder:
            base = tree(folder, {"parts.txt": parts} | {"i/" + name: text for name, text in files.items()})
            exceptions = with_exceptions(folder, allowed, ["arrow"])
            errors = check_includes(base / "i", base / "parts.txt", exceptions)
            return errors + exceptions.errors + list(exceptions.stale())

    house = "part core\n files core/*.hpp\npart engine\n files engine/engine.hpp engine/*.hpp\n uses core\n"
    good = {"core/a.hpp": "", "engine/engine.hpp": '#include "tidepool/core/a.hpp"\n', "engine/b.hpp": ""}
    up = good | {"core/a.hpp": "  #  include <tidepool/engine/engine.hpp>\n"}
    expect("good", includes(good, house))
    expect("an arrow upwards", includes(up, house), "core/a.hpp includes engine/engine.hpp: core may not")
    once = "arrow core/a.hpp -> engine/engine.hpp: so it is\n"
    expect("an exception", includes(up, house, "at most 1 arrow\n" + once))
    expect("too many", includes(up, house, "at most 0 arrow\n" + once), "the list may only shrink")
    expect("no reason", includes(up, house, "at most 1 arrow\narrow core/a.hpp -> engine/engine.hpp\n"),
           "gives no reason")
    expect("stale", includes(good, house, "at most 1 arrow\n" + once), "is needed no more")
    expect("an empty folder", includes(good, house + "part rules\n files rules/*.hpp\n"),
           "'rules/*.hpp' of part rules has no file")
    expect("a file of nobody", includes(good | {"x.hpp": ""}, house), "no part has x.hpp")
    expect("nothing", includes({}, house), "no header below")
    expect("a ring", includes(good, house.replace("*.hpp\npart", "*.hpp\n uses engine\npart")), "a ring")
    expect("a part that is not", includes(good, house + " uses rules\n"), "which is no part")
    expect("detail", includes(good | {"core/detail/c.hpp": "", "engine/b.hpp":
                                      '#include "tidepool/core/detail/c.hpp"\n'},
                              house.replace("core/*.hpp", "core/*.hpp core/detail/*.hpp")),
           "serves its own folder")

    learn = "part learn\n files core/learn.hpp\n" + house.replace("core/*.hpp", "core/*.hpp tidepool.hpp")
    planned = good | {"tidepool.hpp": '#include "tidepool/core/a.hpp"\n', "core/learn.hpp": ""}
    expect("plans apart", includes(planned, learn.replace("part engine", " uses learn\npart engine")))
    planned["core/a.hpp"] = '#include "tidepool/core/learn.hpp"\n'
    expect("plans for everybody", includes(planned, learn.replace("part engine", " uses learn\npart engine")),
           "tidepool.hpp reads core/learn.hpp of part learn")

    def sizes(text, allowed="at most 0 lines, 0 function\n"):
        with tempfile.TemporaryDirectory() as folder:
            exceptions = with_exceptions(folder, allowed, ["lines", "function"])
            errors = check_sizes(tree(folder, {"i/a.hpp": text}) / "i", exceptions)
            return errors + exceptions.errors + list(exceptions.stale())

    def body(lines):
        return "{\n" + "  f();\n" * (lines - 2) + "}\n"

    long, short = body(61), body(60)
    expect("short", sizes("void f() " + short))
    for what, text in {
            "function": "void f() " + long,
            "member": "template <class T> class a : b<T> {\n public:\n  void f() const " + long + "};\n",
            "constructor": "struct a {\n  f(int x) : x_{x}, y_(x) " + long + "};\n",
            "template": "template <class A, int N = (3 > 2)> requires c<A> auto f(A& x) -> b " + long,
            "with texts": "void f() " + long.replace("f();", 'g("}", \'{\', R"x(})x"); // }', 1),
            "in a namespace": "namespace a {\nvoid g() {}\nvoid f(struct b* x) noexcept " + long + "}\n",
            "separators": "void f() " + long.replace("f();", "g(1'000, 0x1'F, '{');", 1),
            "second": "void a::g(int x) " + short + "\nvoid a::f() " + long,
            "operator's neighbour": "bool operator()(int x) " + short + "decltype(auto) f(int) " + long,
            "macro": "#define a {\nvoid f() " + long}.items():
        expect("a long " + what, sizes(text), ": f has 61 lines")
    expect("a long lambda", sizes("void g() {}\ninline auto f = [](int x) " + long), "has 61 lines")
    expect("another", sizes("void g() {}\ninline auto f = [] " + long), "has 61 lines")
    for data in ("int f[] = ", "inline constexpr std::array f"):
        expect("data is no function", sizes("void g() {}\n" + data + body(99).replace("f();", "1,")))
    expect("a brace", sizes("void f() {"), "not understood")
    expect("a long header", sizes("void f() {}\n" + "\n" * 400), "a.hpp has 401 lines")
    kept = "at most 0 lines, 1 function\nfunction a.hpp f 61: long\n"
    expect("one that may be long", sizes("void f() " + long, kept))
    expect("and grew", sizes("void f() " + body(62), kept), "f has 62 lines")
    expect("and is short now", sizes("void f() " + short, kept), "is needed no more")
    expect("nothing is read", sizes("int x;\n"), "only 0 functions")

    text = 'int a;  // b\n\n/* c\n d */ int e;\n  // f\nauto g = "// h";\n#define i \\\n  1\n'
    if lines_of_code(text) != 5:
        failed.append(f"lines of code: {lines_of_code(text)}, not 5")
    data = """
struct plain { int a = f(1); b* c{}; std::map<int, int> d = {{1, 2}}; };
struct group final : base<int> {
  group() : x_{1} { int y; }
  void f() const { return; }
  friend bool operator==(const group&, const group&) = default;
  using t = int;
  static constexpr int most = 3;
  struct inner { int z; int w; } ;
  enum class state { on, off };
  plain one[places];
  [[maybe_unused]] bool two;
  plain* three = nullptr;
};
"""
    structs = members_of_structs(data)
    wanted = ["int", "b*", "std::map<int, int>"], ["plain", "bool", "plain*"]
    if (structs["plain"], structs["group"]) != wanted:
        failed.append(f"members: {structs}")
    if nested_members("group", structs) != 5:
        failed.append(f"nested members: {nested_members('group', structs)}, not 5")
    with tempfile.TemporaryDirectory() as folder:
        base = tree(folder, {"offloader.hpp": '#include "tidepool/engine/a.hpp"\n', "b.hpp": "int b;\n",
                             "engine/a.hpp": "void f() {\n  try {  // try\n  } catch (...) {}\n}\n"
                                             "struct storage { int a; };\nstruct group { int a; int b; };\n"})
        lines, counts, _ = weights(base)
        if lines != {"closure of offloader.hpp": 7, "engine and decide": 6, "include": 8}:
            failed.append(f"lines: {lines}")
        if counts != {"try in engine": 1, "members of a tensor": 1, "members of a group": 2}:
            failed.append(f"counts: {counts}")
    expect("at its limit", limits.judge({"a": 100}, {"a": 100}))
    expect("over it", limits.judge({"a": 101}, {"a": 100}), "a 101; 100 at most")
    expect("within the slack", limits.judge({"a": 98}, {"a": 100}, 0.02))
    expect("far below", limits.judge({"a": 97}, {"a": 100}, 0.02), "lower it")
    expect("without a limit", limits.judge({"a": 1}, {}), "a has no limit")
    expect("not counted", limits.judge({}, {"a": 1}), "nothing counts it")

    def symbols(names, allowed):
        with tempfile.TemporaryDirectory() as folder:
            exceptions = with_exceptions(folder, allowed, ["symbol"])
            return check_symbols(names, exceptions) + exceptions.errors + list(exceptions.stale())

    def version(text):
        with tempfile.TemporaryDirectory() as folder:
            numbers = "".join(f"#define TIDEPOOL_VERSION_{name} {n}\n"
                              for n, name in enumerate(("MAJOR", "MINOR", "PATCH")))
            return check_version(tree(folder, {"version.hpp": numbers, "a/b.hpp": text}))

    expect("the version", version("\nnamespace tidepool::inline v0_1_2 {\n\nnamespace tidepool::inline v0_1_2::plan {\n"))
    for text in ("", "::inline v0_1_21", "::plan", "::inline v0_1_1::plan"):
        expect("another version", version(f"namespace tidepool{text} {{\n"), "a/b.hpp: 'namespace tidepool")

    def given(**changed):
        right = {"CHANGELOG.md": "## [Unreleased]\n\n## [0.1.2] - today\n## [0.1.1] - before\n", "CITATION.cff": "version: 0.1.2\n",
                 "vcpkg.json": '  "version": "0.1.2",\n', "installing.md": "find_package(tidepool 0.1 REQUIRED)\n"}
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for file in [*GIVE_THE_VERSION, "include/tidepool/version.hpp"]:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                name = pathlib.Path(file).name
                (root / file).write_text((right | changed).get(name, right["installing.md"]))
            (root / "include/tidepool/version.hpp").write_text("".join(
                f"#define TIDEPOOL_VERSION_{name} {n}\n" for n, name in enumerate(("MAJOR", "MINOR", "PATCH"))))
            return check_given_versions(root)

    expect("the version is given", given())
    expect("an old changelog", given(**{"CHANGELOG.md": "## [0.1.1] - before\n"}), "CHANGELOG.md gives version 0.1.1")
    expect("an old package", given(**{"vcpkg.json": '  "version": "0.1.20",\n'}), "vcpkg.json gives version 0.1.20")
    expect("an old page", given(**{"installing.md": "find_package(tidepool 0.10)\n"}), "installing.md gives version 0.10")
    expect("no version", given(**{"CITATION.cff": "title: x\n"}), "CITATION.cff gives no version")

    data = "at most 1 symbol\nsymbol profile: data\n"
    clean = "0000 W tidepool::engine::end(tidepool::plan::profile const&)\n"
    expect("data of plans", symbols(clean, data))
    expect("a planner", symbols(clean + "0000 W tidepool::v1::plan::planner::run()\n", data),
           "plan::planner in an object")
    expect("its details", symbols(clean + "0 W tidepool::plan::detail::seeds(int)\n", data),
           "plan::detail::seeds in an object")
    expect("no data", symbols("0000 T tidepool::engine::end()\n", data), "is needed no more")
    expect("no symbols", symbols("0000 T main\n", "at most 0 symbol\n"), "no symbol of Tidepool")
    return failed


def main():
    what, *rest = sys.argv[1:] or ["--help"]
    include = ROOT / "include" / "tidepool"
    kinds = {"includes": ["arrow"], "sizes": ["lines", "function"], "symbols": ["symbol"]}
    if what == "self-test":
        errors = self_test()
    elif what == "version":
        errors = check_version(include) + check_given_versions(ROOT)
    elif what in kinds:
        exceptions = Exceptions(HERE / "exceptions.txt", kinds[what])
        if what == "includes":
            errors = check_includes(include, HERE / "parts.txt", exceptions)
        elif what == "sizes":
            errors = check_sizes(include, exceptions) + check_weights(include, HERE / "limits.txt")
        else:
            names = subprocess.run(["nm", "-C", *rest], check=True, capture_output=True, text=True)
            errors = check_symbols(names.stdout, exceptions)
        errors += exceptions.errors + list(exceptions.stale())
    else:
        print(__doc__)
        return 2
    for error in errors:
        print(f"house: {error}")
    print(f"house {what}: " + (f"{len(errors)} errors" if errors else "as planned"))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
