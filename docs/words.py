#!/usr/bin/env python3
"""How long the sentences of the documentation are, and whether its links lead anywhere.

    docs/words.py                 a row for each page: words, sentences, mean, longest
    docs/words.py --long [N]      also the sentences of more than N words (35)
    docs/words.py check           fails where a page is above its limit, has a word of PLAINER, or a
                                  link is dead
    docs/words.py lengths|links   the one or the other
    docs/words.py openers         fails where a sentence of a page, or too many of the headers' comments,
                                  begin with a word of OPENERS; also where the pages have too many words
    docs/words.py self-test       each rule is broken once, and must be found

What counts: prose. Code blocks, tables, headings, pictures, comments and the bold words that begin
a paragraph or an item are left out. Code in a line is one word, and so is a file. A sentence ends with a full stop, a
question mark, an exclamation mark, or with its paragraph or item.
"""
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MEAN_OF_README = 16
MEAN = 18
LONGEST = 35
# Words of ours that a reader in another country stumbles over.
PLAINER = {"foretold": "predicted", "told": "given", "gives way": "is evicted",
           "give way": "are evicted", "gave way": "were evicted", "has it leave": "offloads it"}
# A sentence that begins so has no subject that stands without the sentence above it. Questions may.
OPENERS = re.compile(r"(What|Who|Whoever|Whose|Of|The same|Whether|Where|One (that|who|of|is|has|which))\b")
# What comments of include/ still have of them, and the words of all pages. Both only shrink.
OPENERS_IN_COMMENTS = 0
WORDS = 24_250  # 22 000, and 2 250 for packing, counted rows, Megatron's recipes, grids of ranks, what strangers asked
# Pages that are named in links and not written yet. One that is there has no place here.
PENDING = set()
# Pages whose sentences are still too long. One that keeps to the limits has no place here.
TOO_LONG_YET = set()


def pages(root):
    """The pages that are held to the limits of length."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def linked_pages(root):
    others = [root / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
                                       "tests/README.md", "examples/train_moe/README.md",
                                       "examples/gpt/README.md", "examples/graph_moe/README.md")]
    return [path for path in pages(root) + others if path.exists()]


# --- reading a page

def without_code_blocks(text):
    lines, fence = [], None
    for line in text.splitlines():
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and fence is None:
            fence = mark.group(1)
            lines.append("")
        elif mark and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = None
        elif fence is None:
            lines.append(line)
        else:
            lines.append("")
    return lines


def paragraphs(text):
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    found, current = [], []

    def close():
        if current:
            found.append(" ".join(current))
            current.clear()

    for line in without_code_blocks(text):
        bare = re.sub(r"^[\s>]+", "", line)
        if not bare or bare.startswith(("#", "|")) or re.fullmatch(r"[-=*_]{3,}", bare.strip()):
            close()
            continue
        item = re.match(r"([-*+]|\d+\.)\s+(\[[ x]\]\s+)?(.*)", bare)
        if item:
            close()
            bare = item.group(3)
        current.append(bare.strip())
    close()
    return found


def sentences(text):
    for paragraph in paragraphs(text):
        paragraph = re.sub(r"(`+)(.+?)\1", "Code", paragraph)
        paragraph = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", paragraph)
        paragraph = re.sub(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", paragraph)
        paragraph = re.sub(r"(?<![\w/])[\w./-]+\.(md|cu|cpp|hpp|txt|sh|py)\b", "File", paragraph)
        paragraph = re.sub(r"^\*\*[^*]*\*\*[.:]?(?=\s|$)", "", paragraph)
        paragraph = re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", paragraph)
        for sentence in re.split(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9…])", paragraph):
            words = [word for word in sentence.split() if re.search(r"\w|%", word)]
            if words:
                yield len(words), sentence.strip()


def comments(text):
    """The sentences of a header's comments."""
    for block in re.findall(r"(?:^[ \t]*//.*\n)+|//[/!]<.*$", text, flags=re.M):
        prose = " ".join(re.sub(r"^\s*//[/!]?<?\s?", "", line) for line in block.splitlines())
        yield from (each.strip() for each in re.split(r"(?<=[.!?:])\s+(?=[A-Z])", prose))


def slug(heading):
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    heading = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return heading.replace(" ", "-")


def anchors(text):
    found, seen = set(), {}
    for line in without_code_blocks(text):
        heading = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if heading:
            name = slug(heading.group(1))
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
        found.update(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", line))
    return found


def links(text):
    prose = "\n".join(without_code_blocks(text))
    prose = re.sub(r"(`+)(.+?)\1", lambda code: "`" * len(code.group(0)), prose, flags=re.S)
    yield from re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", prose)
    yield from re.findall(r"^\s*\[[^\]]+\]:\s+(\S+)", prose, flags=re.M)
    yield from re.findall(r"(?:src|href)=\"([^\"]+)\"", prose)


# --- the rules

def length_errors(root, rows=None):
    errors = []
    for path in pages(root):
        name = path.relative_to(root)
        of_this_page = []
        counted = list(sentences(path.read_text()))
        if not counted:
            errors.append(f"{name}: there is no sentence in it")
            continue
        total = sum(length for length, _ in counted)
        mean, longest = total / len(counted), max(length for length, _ in counted)
        if rows is not None:
            rows.append((str(name), total, len(counted), mean, longest))
        most = MEAN_OF_README if path.name == "README.md" and path.parent == root else MEAN
        if mean > most:
            of_this_page.append(f"{name}: {mean:.1f} words a sentence, at most {most} on the average")
        of_this_page += [f"{name}: a sentence of {length} words, at most {LONGEST}: {sentence}"
                         for length, sentence in counted if length > LONGEST]
        of_this_page += [f"{name}: \"{word}\": write \"{PLAINER[word]}\": {sentence}" for _, sentence in counted
                         for word in PLAINER if re.search(rf"\b{word}\b", sentence)]
        if str(name) not in TOO_LONG_YET:
            errors += of_this_page
        elif not of_this_page:
            errors.append(f"{name} keeps to the limits: take it out of TOO_LONG_YET in docs/words.py")
    return errors


def opener_errors(root):
    errors = [f"{path.relative_to(root)}: begins without a subject: {sentence}"
              for path in linked_pages(root) if path.name != "CHANGELOG.md"
              for _, sentence in sentences(path.read_text())
              if OPENERS.match(sentence) and not sentence.endswith("?")]
    found = sum(bool(OPENERS.match(each)) and not each.endswith("?")
                for path in sorted((root / "include").rglob("*.hpp")) for each in comments(path.read_text()))
    if found != OPENERS_IN_COMMENTS:
        errors.append(f"include: {found} comments begin so, OPENERS_IN_COMMENTS is {OPENERS_IN_COMMENTS}: "
                      f"{'name the subjects' if found > OPENERS_IN_COMMENTS else 'lower it'}")
    words = sum(len(path.read_text().split()) for path in pages(root))
    if words > WORDS:
        errors.append(f"the pages have {words} words, {WORDS} at most")
    return errors


def link_errors(root):
    errors = [f"{name} is there: take it out of PENDING in docs/words.py"
              for name in sorted(PENDING) if (root / name).exists()]
    known = {}
    for path in linked_pages(root):
        name = path.relative_to(root)
        for link in links(path.read_text()):
            if re.match(r"[a-z][a-z+.-]*:", link):
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            if not target.is_relative_to(root):
                errors.append(f"{name}: {link} leads out of the tree")
            elif str(target.relative_to(root)) in PENDING and not target.exists():
                continue
            elif not target.exists():
                errors.append(f"{name}: {link} is not there")
            elif anchor and target.suffix == ".md":
                if target not in known:
                    known[target] = anchors(target.read_text())
                if anchor not in known[target]:
                    errors.append(f"{name}: {link}: no heading makes #{anchor}")
    return errors


# --- the rules themselves

def self_test():
    short = "A page. It has short sentences.\n"
    long = " ".join(["word"] * 36) + ".\n"
    wide = (" ".join(["word"] * 19) + ". ") + "\n"
    cases = [
        ("nothing wrong", {"README.md": short, "docs/a.md": "# One `two`\n\nText. [b](../README.md)\n"},
         None),
        ("a long sentence", {"README.md": short, "docs/a.md": short * 9 + "\n" + long}, "36 words"),
        ("a long page", {"README.md": short, "docs/a.md": wide}, "19.0 words"),
        ("a long README", {"README.md": " ".join(["word"] * 17) + "."}, "README.md: 17.0 words"),
        ("the same elsewhere", {"README.md": short, "docs/a.md": " ".join(["word"] * 17) + "."}, None),
        ("a word of ours", {"README.md": short, "docs/a.md": "It was foretold.\n"}, 'write "predicted"'),
        ("code and tables", {"README.md": short + "\n```\n" + long + "```\n\n| " + long + "\n# " + long},
         None),
        ("a dead link", {"README.md": short + "[x](docs/none.md)\n"}, "docs/none.md is not there"),
        ("a dead picture", {"README.md": short + "![x](docs/none.svg)\n"}, "docs/none.svg is not"),
        ("a dead anchor", {"README.md": short + "[x](docs/a.md#nowhere)\n", "docs/a.md": short},
         "no heading makes #nowhere"),
        ("an anchor", {"README.md": short + "[x](docs/a.md#one-two-three)\n",
                       "docs/a.md": "# One `two`, three\n\n" + short}, None),
        ("a second heading", {"README.md": short + "[x](#b-1)\n\n# B\n\n# B\n"}, None),
        ("an anchor in code", {"README.md": short + "[x](#b)\n\n```\n# B\n```\n"}, "makes #b"),
        ("a link in code", {"README.md": short + "`[x](none.md)`\n"}, None),
        ("a changelog", {"README.md": short, "CHANGELOG.md": "[x](none.md)\n"}, "none.md is not there"),
        ("a pending page", {"README.md": short, "docs/torch.md": short}, "take it out of PENDING"),
        ("no subject", {"README.md": short, "docs/a.md": "What is away comes back.\n"}, "begins without"),
        ("a question", {"README.md": short, "docs/a.md": "What is away?\n"}, None),
        ("a comment without a subject", {"README.md": short, "include/a.hpp": "// Of the device.\nint a;\n"},
         "include: 1 comments"),
        ("too many words", {"README.md": "A word is here. " * 7000}, f"words, {WORDS} at most"),
        ("a page that is short now", {"README.md": short, "docs/planning.md": short},
         "take it out of TOO_LONG_YET"),
    ]
    wrong = 0
    global OPENERS_IN_COMMENTS
    OPENERS_IN_COMMENTS = 0
    PENDING.clear()
    PENDING.add("docs/torch.md")
    TOO_LONG_YET.clear()
    TOO_LONG_YET.add("docs/planning.md")
    for name, files, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            for file, text in files.items():
                (root / file).parent.mkdir(exist_ok=True)
                (root / file).write_text(text)
            errors = length_errors(root) + link_errors(root) + opener_errors(root)
        right = not errors if expected is None else any(expected in error for error in errors)
        if not right:
            wrong += 1
            print(f"{name}: expected {expected or 'nothing'}, found {errors}")
    print(f"{len(cases)} cases, {wrong} wrong")
    return wrong


def main(arguments):
    what, *rest = arguments or [""]
    if what == "self-test":
        return 1 if self_test() else 0
    rows, errors = [], []
    if what in ("", "--long", "check", "lengths"):
        errors += length_errors(ROOT, rows)
    if what in ("check", "links"):
        errors += link_errors(ROOT)
    if what in ("check", "openers"):
        errors += opener_errors(ROOT)
    if what not in ("", "--long", "check", "lengths", "links", "openers"):
        print(__doc__, file=sys.stderr)
        return 2
    if rows:
        print(f"{'page':28}{'words':>7}{'sentences':>11}{'mean':>7}{'longest':>9}")
        for name, total, count, mean, longest in rows:
            print(f"{name:28}{total:7}{count:11}{mean:7.1f}{longest:9}")
    if what == "--long":
        most = int(rest[0]) if rest else LONGEST
        for path in pages(ROOT):
            for length, sentence in sentences(path.read_text()):
                if length > most:
                    print(f"{path.relative_to(ROOT)}: {length}: {sentence}")
    if what in ("check", "lengths", "links", "openers"):
        for error in errors:
            print(error, file=sys.stderr)
        return 1 if errors else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
