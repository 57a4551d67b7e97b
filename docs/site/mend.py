#!/usr/bin/env python3
"""Takes dead links of Doxygen's own out of the site: docs/site/mend.py <folder of the site>

Doxygen 1.9.4 writes two kinds of them:
- the summary on top of a class whose nested classes are all private links to a list of nested classes
  that the page has not: such an entry is taken out;
- the tree shows, below a header, the functions and values of its namespaces, and links to places in the
  header's page, which has not their text: these links lead to the page.
"""
import pathlib
import re
import sys


def mended_page(text):
    anchors = set(re.findall(r'(?:id|name)="([^"]+)"', text))

    def summary(found):
        entries = re.findall(r'<a href="#[^"]+">[^<]+</a>', found[2])
        kept = [entry for entry in entries if re.search(r'#([^"]+)', entry)[1] in anchors]
        others = re.findall(r'<a href="(?!#)[^"]+">[^<]+</a>', found[2])
        return found[1] + " &#124;\n".join(kept + others) + "  </div>"

    return re.sub(r'(<div class="summary">\n)(.*?)</div>', summary, text, count=1, flags=re.S)


def mended_tree(text, anchors_of):
    def link(found):
        known = anchors_of(found[1])
        return found[0] if known is None or found[2] in known else f'"{found[1]}"'

    return re.sub(r'"([\w-]+_8hpp\.html)#([\w.:-]+)"', link, text)


def main(folder):
    anchors = {}

    def anchors_of(name):
        if name not in anchors:
            path = folder / name
            anchors[name] = set(re.findall(r'(?:id|name)="([^"]+)"', path.read_text())) if path.is_file() else None
        return anchors[name]

    def mend(path, by):
        text = path.read_text()
        mended = by(text)
        if mended != text:
            path.write_text(mended)

    for path in folder.glob("*.html"):
        mend(path, mended_page)
    for path in folder.glob("*.js"):
        mend(path, lambda text: mended_tree(text, anchors_of))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
