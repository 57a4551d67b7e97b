"""The mutants of a header, and its text with all of them in it, each behind a switch."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
# `is` is asked wherever a mutant could act. MUTANT_COVERAGE names a file with a byte for each mutant,
# which is set then; threads and processes that the tests start share it.
SWITCH = """#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <cstdlib>
#include <type_traits>
namespace tidepool_mutation {
inline constexpr int counting = -2;
inline void* const asked = [] {
  const char* file = std::getenv("MUTANT_COVERAGE");
  return file ? ::mmap(nullptr, %d, PROT_READ | PROT_WRITE, MAP_SHARED, ::open(file, O_RDWR), 0) : nullptr;
}();
inline const int alive = asked ? counting : std::getenv("MUTANT") ? std::atoi(std::getenv("MUTANT")) : -1;
[[gnu::cold, gnu::noinline]] inline bool note(int mutant) {
  __atomic_store_n(static_cast<char*>(asked) + mutant, 1, __ATOMIC_RELAXED);
  return false;
}
constexpr bool is(int mutant) {
  if (std::is_constant_evaluated()) return false;
  return alive == mutant || (alive == counting && note(mutant));
}
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


def lines_of(header):
    return (ROOT / "include/tidepool" / header).read_text().splitlines()


def mutants_of(header):
    lines = lines_of(header)
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


def part_of(code, start, end):
    """What lies around `start` and `end` between brackets, commas and the like."""
    stops = re.compile(r"(return|[^=!<>]=| \?| :|,|;) $")
    depth, first = 0, start
    while first > 0:
        depth += (code[first - 1] in ")]}") - (code[first - 1] in "([{")
        if depth < 0 or depth == 0 and stops.search(code[:first]):
            break
        first -= 1
    depth, last = 0, end
    while last < len(code):
        depth += (code[last] in "([{") - (code[last] in ")]}")
        if depth < 0 or depth == 0 and (code[last] in ",;" or code[last:].startswith((" ? ", " : ", " {"))
                                        or code[last:] in (" &&", " ||", " ?")):
            break
        last += 1
    text = code[first:last]
    first += len(text) - len(text.lstrip())
    first += 2 if code[first:last].startswith((": ", "? ")) else 0
    return (first, last, "") if balanced(code[first:last]) and "[&" not in code[first:last] else None


def combined(mutants, alone):
    """The text of each header with all mutants but those in `alone`; line numbers stay."""
    by_header = {}
    for number, mutant in enumerate(mutants):
        lines = by_header.setdefault(mutant.header, {})
        if number not in alone:
            lines.setdefault(mutant.line, []).append(number)
    texts = {}
    for header, by_line in by_header.items():
        lines = lines_of(header)
        for line, numbers in by_line.items():
            lines[line] = switched(mutants, numbers, alone)
        first = next(i for i, text in enumerate(lines) if text == "#pragma once")
        lines[first] += ' \n#include "tidepool/mutation_switch.hpp"\n#line ' + str(first + 2)
        texts[header] = "\n".join(lines) + "\n"
    return texts


def switched(mutants, numbers, alone):
    """A line with these mutants of it; those that no part of it can be chosen for go to `alone`."""
    code = mutants[numbers[0]].old
    spans, left_out = {}, None
    whole = span_of(code)
    for number in numbers:
        mutant = mutants[number]
        if mutant.kind == "statement":
            left_out = number
            continue
        span = whole
        if not span or mutant.start < span[0] or span[1] < mutant.end:
            span = part_of(code, mutant.start, mutant.end)
        if span:
            spans.setdefault(span, []).append(number)
        else:
            alone.add(number)

    def text_of(start, end, inside):
        """The code from `start` to `end` with the spans that lie in it; the longer ones come first."""
        text, at = "", start
        for place, span in enumerate(inside):
            if span[0] < at:
                continue
            first, last, kind = span
            chosen = ""
            for number in spans[span]:
                mutant = mutants[number]
                changed = code[first:mutant.start] + mutant.new + code[mutant.end:last]
                chosen += f"::tidepool_mutation::is({number}) ? {kind}({changed}) : "
            rest = [each for each in inside[place + 1:] if first <= each[0] and each[1] <= last]
            text += f"{code[at:first]}({chosen}{kind}({text_of(first, last, rest)}))"
            at = last
        return text + code[at:end]

    code = text_of(0, len(code), sorted(spans, key=lambda span: (span[0], -span[1])))
    if left_out is not None:
        code = f"{{ if (!::tidepool_mutation::is({left_out})) {{ {code.strip()} }} }}"
    return code


def at_column(code, column):
    """The mutant whose text is at this column of a line of `combined`, or None."""
    for found in re.finditer(r"::tidepool_mutation::is\((\d+)\) \? (?:bool)?\(", code):
        if found.start() <= column < (closing(code, found.end()) or len(code)):
            return int(found.group(1))
    return None


def constant(header, line):
    """Whether it lies in what is `constexpr`, so that the compiler may have evaluated it."""
    lines = lines_of(header)
    left = len(lines[line]) + 1
    for text in reversed(lines[:line + 1]):
        margin = len(text) - len(text.lstrip())
        if text.strip() and margin < left:
            left = margin
            if re.search(r"(?<!if )constexpr ", text.split("//")[0]):
                return True
    return False
