#!/usr/bin/env python3
"""Makes the pages fit for Doxygen: docs/site/pages.py <folder for pages> <folder for HTML>

A page keeps its words. Its headings get names, and its links lead to these: GitHub derives the name
of a heading from its words, Doxygen does not. A link to another file of the project leads to a copy
of it in the site (source/), as text, so that a browser shows it. Pictures are copied beside. In
docs/README.md links to pages become \\subpage: that gives the tree of pages its order.
"""
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
sys.dont_write_bytecode = True  # nothing is left in the tree
import words  # noqa: E402

SHOWN_BY_A_BROWSER = {".svg", ".png", ".txt"}


def pages(root):
    return words.linked_pages(root)


def page_name(path, root):
    if path == root / "README.md":
        return "index"
    if path == root / "docs" / "README.md":
        return "documentation"
    if path.stem == "README":
        return path.parent.name
    return path.stem.lower()


def label(page, anchor):
    """Doxygen's name of a heading."""
    return f"{page}_{re.sub(r'[^a-z0-9]', '_', anchor.lower())}"


def with_code_marked(text):
    """(line, whether it belongs to a block of code)"""
    fence = None
    for line in text.splitlines():
        mark = re.match(r"\s*(```+|~~~+)", line)
        code = bool(mark) or fence is not None
        if mark and fence is None:
            fence = mark[1]
        elif mark and line.strip() == fence:
            fence = None
        yield line, code


class page_writer:
    def __init__(self, root, html):
        self.root, self.html = root, html
        self.names = {path: page_name(path, root) for path in pages(root)}

    def copied(self, file):
        """Where the site has a copy of the file."""
        inside = file.relative_to(self.root)
        name = inside if file.suffix in SHOWN_BY_A_BROWSER else inside.with_name(inside.name + ".txt")
        to = self.html / "source" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)
        return f"source/{name.as_posix()}"

    def link(self, page, text, target):
        """Words that Doxygen looks up may hold no code."""
        plain = text.replace("`", "")
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if path in self.names:
            name = self.names[path]
            if anchor:
                return f"[{plain}](#{label(name, anchor)})"
            if self.names[page] == "documentation" and name != "index":
                return f'\\subpage {name} "{plain}"'
            return f"[{plain}](@ref {name})" if name != "index" else f'<a href="index.html">{plain}</a>'
        if path.is_file() and path.is_relative_to(self.root):
            shown = re.sub(r"`([^`]+)`", r"<tt>\1</tt>", text)
            return f'<a href="{self.copied(path)}">{shown}</a>'
        return None

    def prose(self, page, text):
        """Lines that are no code: their links led to the site, code between them left alone."""
        def replaced(found):
            if found["code"] is not None:
                # To Doxygen a quotation mark ends what one backtick began, but not what two did.
                return f"`{found['code']}`" if found["mark"] == "`" else found["code"]
            target = found["target"]
            if re.match(r"[a-z][a-z+.-]*:", target):
                return found[0]
            if found["picture"]:
                file = (page.parent / target).resolve()
                if not file.is_file():
                    return found[0]
                return f"<img src=\"{self.copied(file)}\" alt=\"{found['text']}\"/>"
            return self.link(page, found["text"].replace("\n", " "), target) or found[0]
        pattern = (r"(?P<code>(?P<mark>`+)(?!`)(?:(?!\n\n).)+?(?<!`)(?P=mark)(?!`))"
                   r"|(?P<picture>!?)\[(?P<text>(?:(?!\n\n)[^\[\]`]|`[^`]*`)*)\]\((?P<target>[^)\s]+)\)")
        return re.sub(pattern, replaced, text, flags=re.S)

    def text(self, page):
        name, seen, found = self.names[page], {}, []
        text = page.read_text()
        prose = []

        def close():
            if prose:
                found.append(self.prose(page, "\n".join(prose)))
                prose.clear()

        for line, code in with_code_marked(text):
            heading = None if code else re.match(r"(#{1,6})\s+(.*?)\s*#*$", line)
            if not heading and not code:
                prose.append(line)
                continue
            close()
            if heading:
                anchor = words.slug(heading[2])
                count = seen.get(anchor, 0)
                seen[anchor] = count + 1
                anchor = f"{anchor}-{count}" if count else anchor
                line = self.heading(name, heading, anchor, first=len(seen) == 1 and count == 0)
            found.append(line)
        close()
        return "\n".join(found) + "\n"

    @staticmethod
    def heading(page, heading, anchor, first):
        title = heading[2].replace("`", "")
        if not first:
            return f"{heading[1]} {title} {{#{label(page, anchor)}}}"
        name = f" {{#{page}}}" if page != "index" else ""
        # The title of a page is no section, and may be linked all the same.
        return f"{heading[1]} {title}{name}\n\n\\anchor {label(page, anchor)}\n"


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    to, html = (pathlib.Path(argument) for argument in arguments)
    to.mkdir(parents=True, exist_ok=True)
    html.mkdir(parents=True, exist_ok=True)
    writer = page_writer(ROOT, html)
    for page in writer.names:
        (to / (writer.names[page] + ".md")).write_text(writer.text(page))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
