#!/usr/bin/env python3
"""Whether everything is still there that was there at commit 6f5e844.

    tests/house/kept.py list TREE               options, public names and test cases of a tree
    tests/house/kept.py tests [--no-cuda] LIST  the tests in what `ctest -N` printed
    tests/house/kept.py check [BUILD [--no-cuda]]
                                                this tree, and with BUILD its tests, against kept.txt
    tests/house/kept.py self-test

kept.txt is that commit's list, made by the first two; it stays as it is. What has another name today
or is gone stands in changed.txt, each with the reason: `renamed KIND OLD -> NEW | reason`,
`dropped KIND OLD | reason`. A row for a class or a namespace serves its members as well, and a star at
the end of OLD (and NEW) all that begin so. A row that nothing needs is refused.

KIND is `option` (of the library or a program), `name` (public, of a header, without `tidepool::`),
`macro`, `case` (a TEST_CASE) or `test` (of CTest; `cuda-test` where only a tree with CUDA has it).
"""
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import house  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
TEXT = r'"((?:\\.|[^"\\\n])*)"'


def enumerators(body):
    for part in re.sub(r"\([^()]*\)|\{[^{}]*\}", "", body).split(","):
        hit = re.match(r"\s*(\w+)", part)
        if hit:
            yield hit.group(1)


def declared(head):
    """(kind, name) of a declaration, without its body; None where it declares nothing."""
    text = house.without_brackets(head)
    text = re.sub(r"^\s*(?:(?:public|private|protected)\s*:)?\s*", "", text).strip()
    if not text or re.match(r"(friend|static_assert|using\s+[\w:]+\s*$|using\s+namespace|return)\b", text):
        return None
    text = re.sub(r"(?<=^namespace tidepool)::inline v\w+", "", text)
    hit = re.match(r"(?:inline\s+)?namespace\b\s*([\w:]*)", text)
    if hit:
        return ("inline" if text.startswith("inline") else "namespace"), hit.group(1)
    hit = re.match(r"(?:typedef\s+)?enum\s+(?:class\s+|struct\s+)?(\w+)", text)
    if hit:
        return "enum", hit.group(1)
    hit = re.search(r"\b(class|struct|union)\s+(?:alignas\([^)]*\)\s*)?(\w+)[^()=]*$", text)
    if hit:
        return hit.group(1), hit.group(2)
    hit = re.search(r"\busing\s+(\w+)\s*=|\bconcept\s+(\w+)\s*=", text)
    if hit:
        return "name", hit.group(1) or hit.group(2)
    if re.search(r"\boperator\b|~", text.split("(")[0]):
        return None
    flat = text
    while re.search(r"<[^<>]*>", flat):
        flat = re.sub(r"<[^<>]*>", " ", flat)
    flat = re.sub(r"\b(?:requires|decltype|noexcept|alignas|explicit)\s*\((?:[^()]|\([^()]*\))*\)", " ", flat)
    hit = re.search(r"(\w+)\s*\(", flat.split("=")[0])
    if hit:
        return "name", hit.group(1)
    hit = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)?$", re.split(r"=|(?<!:):(?!:)", flat)[0].strip())
    return ("name", hit.group(1)) if hit else None


def public_names(text):
    """Names that a header shows, with the classes and namespaces below `tidepool` around them."""
    found, scopes, head = set(), [], ""
    # Of each open brace: kind, name, what is declared now is public, where its text begins.
    text = house.bare(text)

    def add(name):
        path = [scope[1] for scope in scopes if scope[0] != "inline" and scope[1] != "tidepool"]
        if all(scope[2] for scope in scopes) and name and not name.endswith("_") and name not in path[-1:]:
            found.add("::".join([*path, name]).removeprefix("tidepool::"))

    for at, sign in enumerate(text):
        outside = not scopes or scopes[-1][0] in ("namespace", "inline", "class", "struct", "union")
        if sign == "{":
            nested = not outside or head.count("(") > head.count(")")
            kind, name = ("block", "") if nested else declared(head) or ("block", "")
            if not nested and kind not in ("namespace", "inline"):
                add(name)
            shown = kind != "class" and not (kind == "namespace" and "detail" in name)
            if kind == "namespace" and name == "":
                shown = False
            scopes.append([kind if kind != "name" else "block", name, shown, at + 1])
            head = "" if kind not in ("name", "block") else head
        elif sign == "}":
            if scopes[-1][0] == "enum":
                for each in enumerators(text[scopes[-1][3]:at]):
                    add(each)
            scopes.pop()
            # A body ends a declaration; what a variable or a member begins with does not.
            body = "(" in head and head.count("(") == head.count(")")
            if body and text[at + 1:].lstrip()[:1] not in (",", "{"):
                head = ""
        elif outside:
            if sign == ";":
                seen = declared(head)
                if seen and seen[0] == "name":
                    add(seen[1])
                head = ""
            else:
                head += sign
                hit = re.search(r"\b(public|private|protected)\s*:$", head)
                if hit and text[at + 1:at + 2] != ":":
                    scopes[-1][2] = hit.group(1) == "public"
                    head = ""
    return found


def sources(tree, *folders):
    for folder in folders:
        for path in sorted((tree / folder).rglob("*")):
            if path.suffix in (".hpp", ".cpp", ".cu", ".cuh"):
                yield path


def names_of(tree):
    """{kind: names}"""
    found = {kind: set() for kind in ("option", "name", "macro", "case")}
    for path in sources(tree, "include"):
        text = path.read_text()
        found["name"] |= public_names(text)
        found["macro"] |= {name for name in re.findall(r"\bTIDEPOOL_[A-Z][A-Z_]*\b", text)
                           if "DETAIL" not in name}
        # A row of the table of options: flag, member, Megatron's name, value, help.
        for row in re.findall(r"\b\w+[{(]\s*" + r",\s*".join([TEXT] * 5) + r",", text):
            found["option"] |= {name for name in row[:3] if name}
    for path in sources(tree, "examples", "bench"):
        found["option"] |= set(re.findall(r"--[a-z][a-z-]*[a-z]", path.read_text()))
    for path in sources(tree, "tests"):
        for row in re.findall(r"\bTEST_CASE(?:_TEMPLATE)?\(\s*((?:" + TEXT + r"\s*)+)", path.read_text()):
            found["case"].add("".join(re.findall(TEXT, row[0])))
    return found


def tests_in(listing):
    return set(re.findall(r"^ *Test +#\d+: (\S+)", listing, re.M))


ROW = re.compile(r"(?:renamed (?P<a>\S+) (?P<old>.+?) -> (?P<new>.+?)|dropped (?P<b>\S+) (?P<gone>.+?)) \| \S.*")


def stands_for(row, kind, name):
    """What became of a name by a row: a name, "" where it was dropped, None where it says nothing."""
    if row["kind"] != kind:
        return None
    old, new = row["old"], row["new"]
    if name == old:
        return new or ""
    begin = old[:-1] if old.endswith("*") else old + "::" if kind == "name" else None
    if begin is None or not name.startswith(begin):
        return None
    if not new:
        return ""
    return (new[:-1] if old.endswith("*") else new + "::") + name[len(begin):]


def rows_of(changed, errors):
    rows = []
    for line in changed.splitlines():
        hit = ROW.fullmatch(line)
        if hit:
            rows.append({"kind": hit["a"] or hit["b"], "old": hit["old"] or hit["gone"], "new": hit["new"],
                         "line": line, "used": False})
        elif line and not line.startswith("#"):
            errors.append(f"changed.txt: '{line}' is no row")
    return rows


def check(kept, changed, found):
    """`kept` and `changed` are texts, `found` is {kind: names}; kinds that it lacks are not asked."""
    errors, old = [], {}
    for line in kept.splitlines():
        kind, _, name = line.partition(" ")
        if name and not line.startswith("#"):
            old.setdefault(kind, set()).add(name)
    rows = rows_of(changed, errors)
    for kind, names in found.items():
        if not old.get(kind):
            errors.append(f"kept.txt has no {kind}")
        for name in sorted(old.get(kind, set()) - names):
            became = None
            # The longest goes first: a member may have a row of its own.
            for row in sorted(rows, key=lambda row: -len(row["old"])):
                became = stands_for(row, kind, name)
                if became is not None:
                    row["used"] = True
                    break
            if became is None:
                errors.append(f"{kind} {name} is gone; changed.txt does not say why")
            elif became and became not in names:
                errors.append(f"{kind} {name} should be {became} now, which is not there")
    errors += [f"changed.txt: needed no more: {row['line']}" for row in rows
               if row["kind"] in found and not row["used"]]
    return errors


def self_test():
    names = public_names('''#pragma once
namespace tidepool {
enum class kind : int { one, two = f(1, 2) };
class a : public b<int> {
 public:
  using type = int;
  a() : x_{1}, y_(2) {}
  explicit a(int);
  template <class T> requires (c<T>) [[nodiscard]] std::map<int, T> get(const T& x = {}) const { return f(x); }
  void put(int), also() noexcept(true);
  static constexpr std::size_t most = 3;
  int open[4] = {};
 private:
  void hidden();
  int x_;
};
struct p { std::optional<int> q{}; std::size_t r = std::size_t{3} << 2; std::vector<a> s; unsigned bits : 3; bool operator==(const p&) const = default; };
template <class T> concept thing = requires(T t) { t.run(); };
inline constexpr int value = 1;
inline namespace v1 { void versioned(); }
namespace detail { void inside(); class also_inside {}; }
namespace plan { struct step { int n = 0; }; [[nodiscard]] inline auto make(step& s) -> int { return s.n; } }
}
''')
    wanted = {"kind", "kind::one", "kind::two", "a", "a::type", "a::get", "a::put", "a::most", "a::open", "p", "p::q", "p::r", "p::s",
              "p::bits", "thing", "value", "versioned", "plan::step", "plan::step::n", "plan::make"}
    assert names == wanted, (names - wanted, wanted - names)
    assert tests_in("  Test  #1: a.b\n  Test #12: c\n\nTotal Tests: 2\n") == {"a.b", "c"}
    old = "# list\nname a\nname b::c\ncase a thing: done\n"
    here = {"name": {"a", "b::c"}, "case": {"a thing: done"}}
    assert check(old, "", here) == []
    gone = here | {"name": {"a", "d"}}
    assert "name b::c is gone" in check(old, "", gone)[0]
    for row in ("renamed name b::c -> d | why", "dropped name b::c | why", "dropped name b | why", "dropped name b* | why",
                "renamed name b -> x | why\ndropped name b::c | why", "# a note\n\ndropped name b::c | why"):
        assert [each for each in check(old, row, gone) if "b -> x" not in each] == [], row
    assert check(old, "renamed name b -> x | why", here | {"name": {"a", "x::c"}}) == []
    assert check(old, "renamed case a thing: * -> two: * | why", here | {"case": {"two: done"}}) == []
    assert "should be two: done" in check(old, "renamed case a thing: * -> two: * | why", here | {"case": set()})[0]
    assert "is no row" in check(old, "dropped name b::c\n", here)[0]
    assert "needed no more" in check(old, "dropped name b::c | why\n", here)[0]
    assert "needed no more" in check(old, "dropped name x | why\n", here)[0]
    assert "which is not there" in check(old, "renamed name b::c -> e | why\n", gone)[0]
    assert "is gone" in check(old, "", here | {"case": set()})[0]
    assert "has no case" in check("name a\nname b::c\n", "", here)[0]
    return []


def main():
    what, *rest = sys.argv[1:] or [""]
    if what == "list":
        for kind, names in names_of(pathlib.Path(rest[0])).items():
            print(*(f"{kind} {name}" for name in sorted(names)), sep="\n")
        return 0
    if what == "tests":
        print(*sorted(tests_in(pathlib.Path(rest[-1]).read_text())), sep="\n")
        return 0
    if what == "self-test":
        errors = self_test()
    elif what == "check":
        found = names_of(house.ROOT)
        if rest:
            listed = subprocess.run(["ctest", "-N", "--test-dir", rest[0]], check=True, capture_output=True, text=True)
            found["test"] = tests_in(listed.stdout)
            if "--no-cuda" not in rest:
                found["cuda-test"] = found["test"]
        errors = check((HERE / "kept.txt").read_text(), (HERE / "changed.txt").read_text(), found)
        print("kept: looked for " + ", ".join(f"{kind} among {len(names)}" for kind, names in found.items()))
    else:
        print(__doc__)
        return 2
    for error in errors:
        print(f"kept: {error}")
    print(f"kept {what}: " + (f"{len(errors)} errors" if errors else "all there"))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
