#!/usr/bin/env python3
"""How many files a call passes through on its way to the device.

    tests/house/files_entered.py PROGRAM    the program of files_entered.cpp, built without PIE
    tests/house/files_entered.py self-test

A file is entered when a function of it is called from a function of another; it is entered again
when that happens a second time in one call. Functions of the standard library count for nothing, and
none of the device, to which the call is on its way. `passed` are the files among them from which the
call goes on into another; the rest are looks at data, such as the clock of a lane. files_entered.txt holds the most that may be seen today. It may
only shrink: a figure that is not reached any more is refused as well.
"""
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def walk(events, file_of):
    """[(file, function, whether it calls others)] of each file entered, in order. `events` are
    functions, and `<` for a return."""
    stack, path = [], []
    for event in events:
        if event == "<":
            if stack:
                stack.pop()
            continue
        file = file_of(event)
        above = next((frame for frame in reversed(stack) if frame["file"]), None)
        frame = {"file": file, "function": event, "calls": False}
        frame["entry"] = frame  # by which its file was entered
        stack.append(frame)
        # A caller that is no step itself still is of its file.
        if file and above and above["file"] == file:
            frame["entry"] = above["entry"]
        elif file:
            path.append(frame)
            if above:
                above["entry"]["calls"] = True
    return [(frame["file"], frame["function"], frame["calls"]) for frame in path]


def figures(path):
    entered = [file for file, _, _ in path]
    passed = [file for file, _, calls in path if calls]
    return {"files": len(set(entered)), "again": len(entered) - len(set(entered)),
            "passed": len(set(passed)), "passed_again": len(passed) - len(set(passed))}


def read_limits(text):
    """`commit files 9 again 3`, a line a call."""
    limits = {}
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if words:
            limits[words[0]] = {key: int(value) for key, value in zip(words[1::2], words[2::2])}
    return limits


def judge(worst, limits):
    errors = []
    for call in ("commit", "restore"):
        if call not in worst:
            errors.append(f"no {call} came to the device: nothing was looked at")
            continue
        for what, most in limits[call].items():
            have = worst[call][what]
            if have > most:
                errors.append(f"{call}: {what} {have}; {most} at most")
            elif have < most:
                errors.append(f"{call}: {what} {have}, and files_entered.txt says {most}: lower it")
    return errors


def short(function):
    """Without the types of templates and parameters."""
    text = function.replace("(anonymous namespace)::", "").replace("operator()", "operator call")
    text = re.sub(r"operator(<=>|<<|>>|<=|>=|->|<|>)", "operator", text)
    while re.search(r"<[^<>]*>", text):
        text = re.sub(r"<[^<>]*>", "", text)
    text = text.split("(")[0].replace("tidepool::", "").replace("detail::", "")
    return text if "operator" in text else text.split(" ")[-1]


def names_of(program, addresses):
    """{address: (file below include/tidepool or None, function)}"""
    asked = subprocess.run(["addr2line", "-f", "-C", "-e", program], input="\n".join(addresses),
                           check=True, capture_output=True, text=True).stdout.splitlines()
    known = {}
    for address, function, place in zip(addresses, asked[::2], asked[1::2]):
        file = place.rpartition(":")[0]
        if "??" in place:
            sys.exit(f"files_entered: {program} does not say where {function} comes from; build it with -g1")
        inside = file.rpartition("include/tidepool/")
        counts = inside[1] and not inside[2].startswith("device/")
        known[address] = (inside[2] if counts else None, short(function))
    return known


def main():
    program = sys.argv[1]
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    calls = [line.split() for line in lines]
    addresses = sorted({word for call in calls for word in call[1:] if word not in ("<", "nothing")})
    known = names_of(program, addresses)
    worst, shown = {}, {}
    for name, *events in calls:
        if events == ["nothing"]:
            continue
        path = walk(events, lambda address: known[address][0])
        seen = figures(path)
        functions = sum(1 for event in events if event != "<" and known[event][0])
        best = worst.setdefault(name, dict.fromkeys(seen, 0))
        if (seen["files"], seen["again"]) >= (best["files"], best["again"]):
            shown[name] = (path, functions)
        worst[name] = {key: max(best[key], seen[key]) for key in seen}
    for name, (path, functions) in shown.items():
        print(f"{name}: " + ", ".join(f"{what} {count}" for what, count in worst[name].items()) +
              f"; {functions} calls")
        before = set()
        for file, address, calls in path:
            print(f"  {'again' if file in before else '':5} {'' if calls else '(data) '}{file}:"
                  f" {known[address][1]}")
            before.add(file)
    errors = judge(worst, read_limits((HERE / "files_entered.txt").read_text()))
    for error in errors:
        print(f"files_entered: {error}")
    return 1 if errors else 0


def self_test():
    where = {"a1": "a", "a2": "a", "b1": "b", "s": None, "c1": "c"}
    # a1 calls a2, and the library's s, which calls b1; then b1 by itself, and b1 that calls c1.
    path = walk("a1 a2 < s b1 < < b1 < b1 c1".split(), where.get)
    assert path == [("a", "a1", True), ("b", "b1", False), ("b", "b1", False), ("b", "b1", True),
                    ("c", "c1", False)], path
    assert figures(path) == {"files": 3, "again": 2, "passed": 2, "passed_again": 0}
    back = figures(walk("a1 b1 a2".split(), where.get))
    assert back == {"files": 2, "again": 1, "passed": 2, "passed_again": 0}, back
    assert short("void tidepool::a<(anonymous namespace)::b>::f<1>(int)") == "a::f"
    limits = read_limits("# most\ncommit files 3 again 1\nrestore files 2 again 0\n")
    good = {"commit": {"files": 3, "again": 1}, "restore": {"files": 2, "again": 0}}
    assert judge(good, limits) == []
    assert "commit: files 4; 3" in judge(good | {"commit": {"files": 4, "again": 1}}, limits)[0]
    assert "lower it" in judge(good | {"commit": {"files": 3, "again": 0}}, limits)[0]
    assert "no restore" in judge({"commit": good["commit"]}, limits)[0]
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(self_test() if sys.argv[1] == "self-test" else main())
