#!/usr/bin/env python3
"""What a call of a training loop does, function by function, and how far a reader has to follow it.

    tests/house/walk.py PROGRAM                the figures of each call, against limits.txt
    tests/house/walk.py PROGRAM CALL [--all]   the walk of one: allocate, commit, restore or reset
    tests/house/walk.py self-test

PROGRAM is walk.cpp, built with -O0 -g1 -finstrument-functions and without PIE. A call counts when its
function lies below include/tidepool, is none of device/, and calls another function from there, of
device/ or not. So the standard library, the device and looks at data count for nothing. A walk shows the
calls that count and the first functions of the device; --all shows the others as well, with a dot.
"""
import collections
import pathlib
import re
import subprocess
import sys

import limits

HERE = pathlib.Path(__file__).resolve().parent
CALLS = ("allocate", "commit", "restore", "reset")

Place = collections.namedtuple("Place", "file line function")  # file: below include/tidepool, or None


class Frame:
    """One call of a function, with those that it made."""

    def __init__(self, place):
        self.place = place
        self.made = []

    def calls_ours(self):
        return any(frame.place.file or frame.calls_ours() for frame in self.made)

    @property
    def of_device(self):
        return (self.place.file or "").startswith("device/")

    @property
    def counts(self):
        return bool(self.place.file) and not self.of_device and self.calls_ours()


def frames_of(events, place_of):
    """The frame that has made all calls of `events`: functions, and `<` for a return."""
    root = Frame(Place(None, 0, ""))
    stack = [root]
    for event in events:
        if event == "<":
            stack.pop()
        else:
            stack[-1].made.append(Frame(place_of(event)))
            stack.append(stack[-1].made[-1])
    if len(stack) != 1:
        raise ValueError(f"{len(stack) - 1} functions were entered and not left")
    return root


def below(frame):
    for made in frame.made:
        yield made
        yield from below(made)


def figures(root):
    counted = [frame.place for frame in below(root) if frame.counts]
    return {"calls": len(counted), "functions": len({place[:2] for place in counted}),
            "files": len({place.file for place in counted})}


def figures_of_all(root):
    """With the device and functions that call nothing; `again`: how often the walk comes back into a
    file that it had left."""
    ours = [frame.place for frame in below(root) if frame.place.file]
    files = [place.file for place in ours]
    entered = [file for before, file in zip([None] + files, files) if file != before]
    return {"calls": len(ours), "functions": len({place[:2] for place in ours}),
            "files": len(set(files)), "again": len(entered) - len(set(files))}


def most_called(root, most=10):
    counted = collections.Counter(frame.place for frame in below(root) if frame.counts)
    return counted.most_common(most)


def shown(frame, everything, depth=0):
    """(depth, mark, place) of each call to be printed."""
    for made in frame.made:
        inside = depth
        # Of the device, its first function alone: what lies below is the device's own matter.
        wanted = made.counts or made.of_device and not frame.of_device
        if made.place.file and (everything or wanted):
            yield depth, "" if made.counts else ". ", made.place
            inside += 1
        yield from shown(made, everything, inside)


def short(function):
    """Without the types of templates and parameters."""
    text = function.replace("(anonymous namespace)::", "").replace("operator()", "operator call")
    text = re.sub(r"operator(<=>|<<|>>|<=|>=|->|<|>)", "operator", text)
    for inner in (r"<[^<>]*>", r"\([^()]*\)", r"\[[^][]*\]"):
        while re.search(inner, text):
            text = re.sub(inner, "", text)
    text = re.sub(r"( const)?::\{lambda#\d+\}::operator call", "::lambda", text)
    text = re.sub(r"tidepool::|detail::|\bv\d+_\d+_\d+::|( const)?( &{1,2})?$", "", text)
    return text if "operator" in text else text.split(" ")[-1]


def places_of(program, addresses):
    asked = subprocess.run(["addr2line", "-f", "-C", "-e", program], input="\n".join(addresses),
                           check=True, capture_output=True, text=True).stdout.splitlines()
    known = {}
    for address, function, place in zip(addresses, asked[::2], asked[1::2]):
        file, _, line = place.split(" ")[0].rpartition(":")
        if "??" in place:
            sys.exit(f"walk: {program} does not say where {function} comes from; build it with -g1")
        _, inside, file = file.rpartition("include/tidepool/")
        known[address] = Place(file if inside else None, int(line), short(function))
    return known


def walks_of(program):
    """{call: (copies, frame)}"""
    program = str(pathlib.Path(program).resolve())  # a bare name would be looked up on PATH
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    told = [line.split() for line in lines]
    known = places_of(program, sorted({word for _, _, *events in told for word in events if word != "<"}))
    return {call: (int(copies), frames_of(events, known.get)) for call, copies, *events in told}


def judge(walks, allowed):
    """A commit copies its tensor out; a restore finds its own copy back issued, and issues the next."""
    have = {}
    errors = []
    for call in ("commit", "restore"):
        copies, root = walks[call]
        if copies != 1:
            errors.append(f"the {call} gave the device {copies} copies, not one")
        if not figures(root)["calls"]:
            return [f"the {call} has no call of a file below include/tidepool: nothing was looked at"]
        have |= {f"{call} {what}": count for what, count in figures(root).items() if what != "functions"}
    return errors + limits.judge(have, allowed)


def print_figures(walks):
    for call in CALLS:
        copies, root = walks[call]
        lean, all_of_it = figures(root), figures_of_all(root)
        print(f"{call}: {lean['calls']} calls of {lean['functions']} functions in {lean['files']} files;"
              f" with the device and what calls nothing, {all_of_it['calls']} of {all_of_it['functions']}"
              f" in {all_of_it['files']}, {all_of_it['again']} times back into a file; copies {copies}")


def print_walk(root, everything):
    for depth, mark, place in shown(root, everything):
        name = "  " * depth + mark + place.function
        print(f"{name:70} {place.file}:{place.line}")
    print("\nmost called:")
    for place, count in most_called(root):
        print(f"{count:5} {place.function:64} {place.file}:{place.line}")


def self_test():
    where = {"a1": Place("a", 1, "a1"), "a2": Place("a", 2, "a2"), "b1": Place("b", 1, "b1"),
             "d1": Place("device/d", 1, "d1"), "d2": Place("device/d", 2, "d2"), "s": Place(None, 1, "s")}

    def walk(text):
        return frames_of(text.split(), where.get)

    # a1 calls the library's s, which calls b1, which calls the device; then a2, which calls nothing.
    root = walk("a1 s b1 d1 d2 < < < < a2 < <")
    assert figures(root) == {"calls": 2, "functions": 2, "files": 2}, figures(root)
    assert figures_of_all(root) == {"calls": 5, "functions": 5, "files": 3, "again": 1}
    assert [(depth, mark, place.function) for depth, mark, place in shown(root, False)] == [
        (0, "", "a1"), (1, "", "b1"), (2, ". ", "d1")]
    assert len(list(shown(root, True))) == 5
    twice = walk("a1 a2 < < a1 a2 < < s <")
    assert figures(twice) == {"calls": 2, "functions": 1, "files": 1}
    assert most_called(twice) == [(where["a1"], 2)]
    assert figures(walk("a1 s < <"))["calls"] == 0  # calls the library alone
    try:
        walk("a1 a2 <")
    except ValueError:
        pass
    else:
        assert False, "a walk that does not come back was taken"
    assert short("void tidepool::a<(anonymous namespace)::b>::f<1>(int)") == "a::f"
    lambda_in_f = ("auto tidepool::v0_3_0::detail::a::f(c<int>) const::{lambda(auto:1&)#1}"
                   "::operator()<b>(b&) const")
    assert short(lambda_in_f) == "a::f::lambda", short(lambda_in_f)
    assert short("tidepool::a::operator==(tidepool::a const&) const") == "a::operator=="
    assert short("tidepool::a::b(int) const &") == "a::b"

    good = {"commit": (1, root), "restore": (1, twice)}
    allowed = {"commit calls": 2, "commit files": 2, "restore calls": 2, "restore files": 1}
    assert judge(good, allowed) == []
    assert "commit calls 2; 1 at most" in judge(good, allowed | {"commit calls": 1})[0]
    assert "lower it" in judge(good, allowed | {"restore files": 2})[0]
    assert "nothing was looked at" in judge(good | {"commit": (1, walk("s d1 < <"))}, allowed)[0]
    assert "gave the device 0 copies" in judge(good | {"commit": (0, root)}, allowed)[0]


def main():
    program, *rest = sys.argv[1:] or [None]
    if program == "self-test":
        self_test()
        return 0
    if program is None or rest[1:] not in ([], ["--all"]) or rest and rest[0] not in CALLS:
        sys.exit(__doc__)
    walks = walks_of(program)
    if rest:
        print_walk(walks[rest[0]][1], rest[1:] == ["--all"])
        return 0
    print_figures(walks)
    errors = judge(walks, limits.read(HERE / "limits.txt", "walk"))
    for error in errors:
        print(f"walk: {error}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
