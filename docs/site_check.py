#!/usr/bin/env python3
"""Builds the site of the documentation and checks it.

    docs/site_check.py [folder]      builds by docs/site.sh (build/site), then all checks
    docs/site_check.py browser [folder]
                                     builds, and opens it in headless Chromium: pages, pictures, search
    docs/site_check.py self-test     each rule is broken once, and must be found

What is checked:
    warnings  Doxygen has none but those of docs/site/known_warnings.txt. An undocumented name is one.
    names     each public name of namespace tidepool, as clang's AST has it, is in the site's index and
              in its search. Left out without clang, and said so. libtorch's headers are not
              compiled: what torch.hpp declares is left to Doxygen's warnings.
    parameters
              the words of what a trainer calls name each parameter (docs/site/parameters.py).
    pages     no link is dead, no page is empty or shows markup, every picture is there.

Faults of Doxygen itself differ from version to version: with another than 1.9.4 (Debian 12), what is
found is an error where it is about a name without words, and a note elsewhere.

Ends with 77, as tests do that are skipped, where Doxygen is missing (for `browser`: or Chromium).
"""
import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "site"))
sys.dont_write_bytecode = True  # a check leaves nothing in the tree
import parameters  # noqa: E402  its folder is only known here
KNOWN = ROOT / "docs" / "site" / "known_warnings.txt"
INCLUDE = ROOT / "include" / "tidepool"
# Words that a page must have beside its frame. Lists of a letter may be short; two are a name and
# what it is of.
LEAST_WORDS = 2


# --- warnings

def known_warnings(text):
    """{"file: words of the warning": reason}"""
    known, reason = {}, ""
    for line in text.splitlines():
        if line.startswith("#"):
            reason = line[1:].strip()
        elif line.strip():
            known[line.strip()] = reason
    return known


def warning_errors(log, known):
    errors, met = [], set()
    for line in log.splitlines():
        found = re.match(r"(.+?):(\d+): warning: (.*)", line)
        name = f"{found[1]}: {found[3]}" if found else line
        if name in known:
            met.add(name)
        elif line.strip():
            errors.append(f"Doxygen: {line}")
    errors += [f"Doxygen does not say any more: {name}; take it out of docs/site/known_warnings.txt"
               for name in known if name not in met]
    errors += [f"{name}: docs/site/known_warnings.txt gives no reason"
               for name, reason in known.items() if not reason]
    return errors


# --- names

HOLDERS = {"NamespaceDecl", "CXXRecordDecl", "ClassTemplateDecl", "EnumDecl", "LinkageSpecDecl"}
NAMED = {"CXXRecordDecl", "ClassTemplateDecl", "EnumDecl", "EnumConstantDecl", "FieldDecl", "VarDecl",
         "VarTemplateDecl", "FunctionDecl", "FunctionTemplateDecl", "CXXMethodDecl", "CXXConstructorDecl",
         "CXXConversionDecl", "TypeAliasDecl", "TypeAliasTemplateDecl", "TypedefDecl", "ConceptDecl"}
KEYS = ("kind|name|access|tagUsed|isImplicit|isInline|explicitlyDeleted|explicitlyDefaulted"
        "|parentDeclContextId")
# clang indents a declaration's members by two, a declaration in another by four; what is nested in
# a member (a type, a place in a file) stands between these.
LINES = rf'^  (    ){{0,7}}"({KEYS})": '


def nodes(lines):
    """The declarations of an AST that clang wrote as JSON, of whose lines those of LINES are here."""
    path = []
    pattern = re.compile(r'( +)"(\w+)": "?([^",]*)')
    for line in lines:
        found = pattern.match(line)
        if not found:
            continue
        indent, key, value = len(found[1]), found[2], found[3].strip()
        if key == "kind":
            while path and path[-1]["indent"] >= indent:
                path.pop()
            path.append({"indent": indent, "kind": value, "parent": path[-1] if path else None})
            yield path[-1]
        elif path and path[-1]["indent"] == indent:
            path[-1].setdefault(key, value)


def access_of(node):
    """Whether a member is public; AccessSpecDecl stand before what they are about."""
    record = node["parent"]
    if record is None or record["kind"] != "CXXRecordDecl":
        return "public"
    return record.get("now", "private" if record.get("tagUsed") == "class" else "public")


def kind_of(node):
    return node["kind"] if node is not None else ""


def qualified_name(node):
    """None where it is not public, not named, or not declared where it belongs."""
    if node["kind"] not in NAMED or not node["public"] or "isImplicit" in node:
        return None
    if "explicitlyDeleted" in node or "explicitlyDefaulted" in node or "parentDeclContextId" in node:
        return None
    name = node.get("name", "")
    if name.startswith("<"):  # a deduction guide
        return None
    # A constructor of a template is named with its arguments.
    parts, inner = [name if name.startswith("operator") else name.partition("<")[0]], node
    while inner["parent"] is not None and inner["parent"]["kind"] != "TranslationUnitDecl":
        outer = inner["parent"]
        if outer["kind"] not in HOLDERS or not outer["public"] or "parentDeclContextId" in outer:
            return None
        # The class of a class template has its name once.
        of_template = outer["kind"] == "CXXRecordDecl" and kind_of(outer["parent"]) == "ClassTemplateDecl"
        inline = outer["kind"] == "NamespaceDecl" and "isInline" in outer
        if not of_template and not inline and outer["kind"] != "LinkageSpecDecl":
            parts.append(outer.get("name", ""))
        inner = outer
    if node["kind"] == "CXXRecordDecl" and kind_of(node["parent"]) == "ClassTemplateDecl":
        return None
    parts.reverse()
    if parts[0] != "tidepool" or "detail" in parts or "" in parts or len(parts) < 2:
        return None
    return "::".join(parts)


def public_names(lines):
    found, previous = set(), None

    def take(node):
        # Its keys are known once the next one begins.
        node["public"] = node["kind"] == "TranslationUnitDecl" or access_of(node) == "public"
        if node["kind"] == "AccessSpecDecl" and node["parent"] is not None:
            node["parent"]["now"] = node.get("access")
        name = qualified_name(node)
        if name:
            found.add(name)

    for node in nodes(lines):
        if previous is not None:
            take(previous)
        previous = node
    if previous is not None:
        take(previous)
    return found


def compiled_headers():
    """Public headers, but those that need libtorch."""
    for path in sorted(INCLUDE.rglob("*.hpp")):
        inside = path.relative_to(INCLUDE)
        if inside.parts[0] in ("torch", "torch.hpp", "config", "src.hpp") or "detail" in inside.parts:
            continue
        if inside.parts[0] == "engine" and inside.name != "group.hpp":
            continue
        yield inside


def names_of_clang(clang):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "all.cpp"
        text = []
        for header in compiled_headers():
            line = f'#include "tidepool/{header.as_posix()}"'
            if "json" in header.name:  # the only ones that need a library
                line = f"#if __has_include(<nlohmann/json.hpp>)\n{line}\n#endif"
            text.append(line)
        source.write_text("\n".join(text) + "\n")
        command = [clang, "-std=c++20", f"-I{ROOT / 'include'}", "-DTIDEPOOL_COMPILED", "-fsyntax-only"]
        toolkit = pathlib.Path("/usr/local/cuda/include")
        if toolkit.is_dir():
            command.append(f"-I{toolkit}")
        # Hundreds of megabytes, of which few lines count; the standard library would make them gigabytes.
        command += ["-Xclang", "-ast-dump=json", "-Xclang", "-ast-dump-filter=tidepool"]
        tree = subprocess.Popen([*command, str(source)], stdout=subprocess.PIPE)
        lines = subprocess.Popen(["grep", "-E", LINES], stdin=tree.stdout, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "LC_ALL": "C"}, errors="replace")
        tree.stdout.close()
        found = public_names(lines.stdout)
        lines.wait()
        if tree.wait() != 0:
            sys.exit("tidepool: docs/site_check.py: clang cannot compile the public headers")
    return found


def indexed_names(tags):
    """{qualified name: (file, anchor)} of a tag file."""
    found, root = {}, xml.etree.ElementTree.fromstring(tags)

    def add(name, file, anchor):
        found[name] = (file, anchor)

    for compound in root.iter("compound"):
        kind, scope = compound.get("kind"), compound.findtext("name")
        if kind in ("class", "struct", "concept", "union", "namespace"):
            # Doxygen does not warn of a class without words that has no members of its own either.
            add(scope, compound.findtext("filename"), "details")
        if kind not in ("class", "struct", "union", "namespace"):
            continue
        for member in compound.findall("member"):
            name = f"{scope}::{member.findtext('name')}"
            add(name, member.findtext("anchorfile"), member.findtext("anchor"))
            for value in member.findall("enumvalue"):
                add(f"{name}::{value.text}", value.get("file"), value.get("anchor"))
    return found


def name_errors(names, index, searched, pages):
    """`pages`: the anchors of each."""
    errors = []
    for name in sorted(names):
        # Doxygen writes conversions as "operator bool", clang too; specializations with arguments.
        place = index.get(name)
        if place is None:
            errors.append(f"{name} is public, and not in the site")
        elif place[0] not in pages or place[1] not in pages[place[0]]:
            errors.append(f"{name} is in the index, and has no text")
        elif name.rsplit("::", 1)[-1] not in searched and not re.match(r"operator\b", name.rsplit("::", 1)[-1]):
            errors.append(f"{name} is in the site, and its search does not find it")
    return errors


def searched_names(folder):
    """What the search finds, by its plain name."""
    found = set()
    for path in (folder / "search").glob("all_*.js"):
        found.update(re.findall(r"^\s*\['[^']*',\['([^']*)'", path.read_text(), flags=re.M))
    return {name.split("&lt;")[0].strip() for name in found}


# --- pages

class page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.pictures, self.anchors = [], [], set()
        self.depth, self.words, self.markup = 0, 0, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.anchors.update(known[key] for key in ("id", "name") if known.get(key))
        if tag in ("a", "link", "area") and known.get("href"):
            self.links.append(known["href"])
        if tag in ("script", "iframe") and known.get("src"):
            self.links.append(known["src"])
        if tag in ("img", "embed") and known.get("src"):
            self.pictures.append(known["src"])
        if tag == "object" and known.get("data"):
            self.pictures.append(known["data"])
        if tag == "div":
            if self.depth or known.get("class") == "contents":
                self.depth += 1

    def handle_endtag(self, tag):
        if tag == "div" and self.depth:
            self.depth -= 1

    def handle_data(self, text):
        if self.depth:
            self.words += len(re.findall(r"\w+", text))
            found = re.search(r".{0,40}(\\ilinebr|markdownTable|</?t[drt]>|\{#)", text)
            self.markup = self.markup or (found[0] if found else "")


def links_of_scripts(path, text):
    """The tree of pages and the search keep their links in JavaScript."""
    if path.parent.name == "search":
        return re.findall(r"'\.\./([^']+)'", text)
    return re.findall(r'"([\w-]+\.html(?:#[\w.:-]*)?)"', text)


def page_errors(folder):
    errors = []
    pages = {path: page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    if folder / "index.html" not in pages:
        errors.append("there is no index.html")

    def check(path, base, link, what):
        if re.match(r"[a-z][a-z+.-]*:", link):
            return
        file, _, anchor = urllib.parse.unquote(link).partition("#")
        target = (base / file.partition("?")[0]).resolve() if file else path
        name = path.relative_to(folder)
        if not target.is_file():
            errors.append(f"{name}: {what} {link} is not there")
        elif target.stat().st_size == 0:
            errors.append(f"{name}: {what} {link} is an empty file")
        elif anchor and target in pages and anchor not in pages[target].anchors:
            errors.append(f"{name}: {what} {link} leads to no place of that page")

    for path, read in pages.items():
        for link in read.links:
            check(path, path.parent, link, "link")
        for picture in read.pictures:
            check(path, path.parent, picture, "picture")
        if path.parent == folder and read.words < LEAST_WORDS:
            errors.append(f"{path.name}: the page is empty")
        if read.markup:
            errors.append(f"{path.name}: shows markup: {read.markup}")
    for path in sorted(folder.rglob("*.js")):
        for link in links_of_scripts(path, path.read_text()):
            check(path, folder, link, "link")
    return errors


# --- all

def check_site(folder):
    tags = (folder / "names.xml").read_text()
    index, searched = indexed_names(tags), searched_names(folder)
    errors = warning_errors((folder / "warnings.txt").read_text(), known_warnings(KNOWN.read_text()))
    clang = os.environ.get("TIDEPOOL_CLANG") or shutil.which("clang++") or shutil.which("clang++-14")
    if clang:
        names = names_of_clang(clang)
        if "tidepool::offloader::begin" not in names:
            errors.append("clang's AST was not understood: it has no tidepool::offloader::begin")
        anchors = {path.name: page(path.read_text()).anchors for path in folder.glob("*.html")}
        errors += name_errors(names, index, searched, anchors)
        print(f"{len(names)} public names by clang, {len(index)} in the index of the site")
    else:
        print("no clang++: public names are checked by Doxygen's warnings alone")
    for header in parameters.HEADERS:
        errors += parameters.parameter_errors(header, (INCLUDE / header).read_text())
    errors += page_errors(folder)
    print(f"{len(list(folder.rglob('*.html')))} pages")
    return errors


# --- in a browser

# Its last words are in the title of the page, so that they are in the text that Chromium prints.
SEEN = """<!DOCTYPE html><title></title><body><script>
const missing = [], pictures = PICTURES;
let open = pictures.length;
const done = () => { if (--open === 0) document.title = 'missing: ' + missing.join(' ') + '.'; };
for (const name of pictures) {
  const picture = new Image();
  picture.onload = () => { if (picture.naturalWidth === 0) missing.push(name); done(); };
  picture.onerror = () => { missing.push(name); done(); };
  picture.src = name;
}
</script>"""


def browser_errors(folder, browser, wanted):
    """What a reader would miss: the tree beside the page, a picture, a name of `wanted` in the search."""
    errors = []
    with tempfile.TemporaryDirectory() as home:
        def opened(url):
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}",
                       "--virtual-time-budget=5000", "--dump-dom", url]
            return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                  timeout=120).stdout

        for name in ("index.html", "classtidepool_1_1chunk.html"):
            text = opened((folder / name).as_uri())
            if len(re.findall(r'<span class="label">', text)) < 5:
                errors.append(f"{name}: Chromium shows no tree of pages beside it")
            if "</h1>" not in text and "</h2>" not in text:
                errors.append(f"{name}: Chromium shows no heading")

        pictures = set()
        for path in folder.glob("*.html"):
            pictures.update((path.parent / picture).resolve().as_uri() for picture in page(path.read_text()).pictures)
        if not pictures:
            errors.append("no page has a picture")
        looks = pathlib.Path(home) / "pictures.html"
        looks.write_text(SEEN.replace("PICTURES", repr(sorted(pictures))))
        title = re.search(r"<title>missing: (.*?)\.</title>", opened(looks.as_uri()))
        if title is None or title[1]:
            errors.append(f"Chromium cannot show: {title[1] if title else 'it did not end'}")

        letters = re.search(r'0: "([^"]+)"', (folder / "search" / "searchdata.js").read_text())[1]
        for word in wanted:
            results = folder / "search" / f"all_{letters.index(word[0]):x}.html"
            shown = opened(f"{results.as_uri()}?{word}")
            if not re.search(rf'id="SR_{word.replace("_", "_5f")}_[^>]*display: block', shown):
                errors.append(f"the search does not show {word}")
    return errors


# --- the rules themselves

AST = """  "kind": "TranslationUnitDecl",
      "kind": "NamespaceDecl",
      "name": "tidepool",
          "kind": "CXXRecordDecl",
          "name": "box",
          "tagUsed": "class",
              "kind": "CXXRecordDecl",
              "isImplicit": true,
              "name": "box",
              "kind": "FieldDecl",
              "name": "hidden_",
              "kind": "AccessSpecDecl",
              "access": "public",
              "kind": "CXXMethodDecl",
              "name": "open",
                  "kind": "ParmVarDecl",
                  "name": "how",
              "kind": "CXXMethodDecl",
              "name": "operator=",
              "explicitlyDeleted": true,
          "kind": "ClassTemplateDecl",
          "name": "list",
              "kind": "CXXRecordDecl",
              "name": "list",
              "tagUsed": "struct",
                  "kind": "FieldDecl",
                  "name": "size",
          "kind": "EnumDecl",
          "name": "kind",
              "kind": "EnumConstantDecl",
              "name": "none",
          "kind": "NamespaceDecl",
          "name": "detail",
              "kind": "FunctionDecl",
              "name": "secret",
          "kind": "NamespaceDecl",
          "name": "form",
          "isInline": true,
              "kind": "VarDecl",
              "name": "value",
      "kind": "FunctionDecl",
      "name": "other",
"""
TAGS = """<tagfile>
<compound kind="class"><name>tidepool::box</name><filename>b.html</filename>
<member kind="function"><name>open</name><anchorfile>b.html</anchorfile><anchor>a1</anchor></member></compound>
<compound kind="struct"><name>tidepool::list</name><filename>l.html</filename>
<member kind="variable"><name>size</name><anchorfile>l.html</anchorfile><anchor>a2</anchor></member></compound>
<compound kind="namespace"><name>tidepool</name><filename>n.html</filename>
<member kind="enumeration"><name>kind</name><anchorfile>n.html</anchorfile><anchor>a3</anchor>
<enumvalue file="n.html" anchor="a4">none</enumvalue></member>
<member kind="variable"><name>value</name><anchorfile>n.html</anchorfile><anchor>a5</anchor></member></compound>
</tagfile>"""
NAMES = {f"tidepool::{name}" for name in ("box", "box::open", "list", "list::size", "kind", "kind::none", "value")}


def self_test():
    wrong = 0

    def expect(what, errors, part=None):
        nonlocal wrong
        if (any(part in error for error in errors) and len(errors) == 1) if part else not errors:
            return
        wrong += 1
        print(f"{what}: expected {part or 'nothing'}, found {errors}")

    line = "include/a.hpp:7: warning: Member x is not documented."
    entry = "include/a.hpp: Member x is not documented."
    expect("no warning", warning_errors("", {}))
    expect("a warning", warning_errors(line, {}), "Doxygen: include/a.hpp:7")
    expect("a known one", warning_errors(line, known_warnings(f"# its fault\n{entry}\n")))
    expect("one without a reason", warning_errors(line, known_warnings(entry)), "gives no reason")
    expect("one that is gone", warning_errors("", {entry: "its fault"}), "does not say any more")

    found = public_names(AST.splitlines())
    if found != NAMES:
        wrong += 1
        print(f"names: found {sorted(found)}")
    index, searched = indexed_names(TAGS), {name.rsplit("::", 1)[-1] for name in NAMES}
    places = {"b.html": {"details", "a1"}, "l.html": {"details", "a2"}, "n.html": {"a3", "a4", "a5"}}
    expect("all names", name_errors(NAMES, index, searched, places))
    expect("a name without a place", name_errors(NAMES | {"tidepool::box::shut"}, index, searched, places),
           "box::shut is public")
    expect("a name that is not found", name_errors(NAMES, index, searched - {"open"}, places), "search does not find it")
    expect("a name without text", name_errors(NAMES, index, searched, {**places, "l.html": {"details"}}),
           "list::size is in the index")
    expect("a class without words", name_errors(NAMES, index, searched, {**places, "b.html": {"a1"}}),
           "box is in the index, and has no text")

    parameters.self_test(expect)

    def site(**files):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name).resolve()
            (folder / "search").mkdir()
            (folder / "p.svg").write_text("<svg/>")
            (folder / "empty.svg").write_text("")
            texts = {"index": "Two words.", **files}
            for file, text in texts.items():
                path = folder / file.replace("__", "/").replace("_js", ".js")
                if path.suffix == "":
                    path = path.with_suffix(".html")
                    text = f'<div class="header">Title</div><div class="contents"><div>{text}</div></div>'
                path.write_text(text)
            return page_errors(folder)

    expect("a page", site(a='<a href="index.html">two words</a> <img src="p.svg"/> <a href="https://x.y">z</a>'))
    expect("a dead link", site(a='two words <a href="b.html">b</a>'), "a.html: link b.html is not there")
    expect("a dead place", site(a='two words <a href="#b">b</a>'), "#b leads to no place")
    expect("a place", site(a='two words <a name="b">b</a><a href="#b">b</a>'))
    expect("an empty page", site(a=""), "a.html: the page is empty")
    expect("no picture", site(a='two words <img src="q.svg"/>'), "picture q.svg is not there")
    expect("an empty picture", site(a='two words <img src="empty.svg"/>'), "picture empty.svg is an empty file")
    expect("markup", site(a="two words \\ilinebr"), "shows markup")
    expect("a dead entry of the tree", site(tree_js='["b", "b.html", null]'), "tree.js: link b.html is not there")
    expect("a dead entry of the search", site(search__all_js="['b',['../b.html',1,'']]"), "link b.html is not there")
    found = ["Doxygen: a.hpp:1: warning: Member x is not documented.", "a.html: link b.html is not there"]
    expect("this Doxygen", [str(len(weighed(found, "by Doxygen 1.9.4")[0]))], "2")
    expect("another Doxygen", [str(len(weighed(found, "by Doxygen 1.9.8")[0]))], "1")
    print(f"{wrong} wrong")
    return wrong


def weighed(errors, index):
    """(errors, notes)"""
    if "Doxygen 1.9.4" in index:
        return errors, []
    kept = [error for error in errors if re.search(r"is not documented|is public, and not|is in the index|do not name", error)]
    return kept, [error for error in errors if error not in kept]


def main(arguments):
    if arguments == ["self-test"]:
        return 1 if self_test() else 0
    browser = None
    if arguments[:1] == ["browser"]:
        arguments = arguments[1:]
        browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if browser is None:
            print("no Chromium (Debian: chromium): the site was not opened")
            return 77
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(arguments[0] if arguments else ROOT / "build" / "site").resolve()
    built = subprocess.run([ROOT / "docs" / "site.sh", folder])
    if built.returncode != 0:
        return built.returncode
    wanted = ("commit", "offload_modules", "virtual_device")
    errors = browser_errors(folder, browser, wanted) if browser else check_site(folder)
    errors, notes = weighed(errors, (folder / "index.html").read_text())
    for note in notes:
        print(f"note: {note}")
    for error in errors:
        print(error, file=sys.stderr)
    print(f"{len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
