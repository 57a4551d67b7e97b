#!/usr/bin/env python3
"""Whether a file is a trace in the trace event format, as Perfetto reads it.

    tests/trace/check_timeline.py FILE       a file that is there
    tests/trace/check_timeline.py COMMAND... the file that COMMAND writes where it says OUT
    tests/trace/check_timeline.py self-test  each rule is broken, and must be found
"""
import collections
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

NEEDS = {"M": ("name", "args"), "X": ("name", "ts", "dur", "tid"), "i": ("name", "ts", "tid", "s"),
         "C": ("name", "ts", "args"), "s": ("name", "cat", "id", "ts", "tid"),
         "f": ("name", "cat", "id", "ts", "tid", "bp")}


def nanoseconds(value):
    return round(value * 1000)


def mistakes_of(document):
    found = []
    for key in ("tidepool", "device"):
        if not document.get("metadata", {}).get(key):
            found.append(f"no {key} in the metadata")
    slices, flows, named, last = collections.defaultdict(list), collections.defaultdict(list), set(), {}
    for event in document["traceEvents"]:
        missing = [key for key in NEEDS.get(event.get("ph"), ("ph",)) if key not in event]
        if missing:
            found.append(f"{event}: without {missing}")
            continue
        if event["ph"] == "M" and event["name"] == "thread_name":
            named.add(event["tid"])
        elif event["ph"] == "X":
            if event["dur"] <= 0 or event["ts"] < 0:
                found.append(f"{event}: no time")
            start = nanoseconds(event["ts"])
            slices[event["tid"]].append((start, start + nanoseconds(event["dur"]), event["name"]))
        elif event["ph"] in "sf":
            flows[event["cat"], event["id"]].append(event)
        elif event["ph"] == "C":
            if event["ts"] < last.get(event["name"], 0):
                found.append(f"{event}: the counter goes back in time")
            last[event["name"]] = event["ts"]
            if not all(isinstance(value, (int, float)) and value >= 0 for value in event["args"].values()):
                found.append(f"{event}: no number")
    for thread, all_of in slices.items():
        if thread not in named:
            found.append(f"thread {thread} has no name")
        open_until = []
        for start, end, name in sorted(all_of, key=lambda each: (each[0], -each[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            if open_until and end > open_until[-1]:
                found.append(f"thread {thread}: '{name}' at {start} ns ends after the slice around it")
            open_until.append(end)
    for key, ends in flows.items():
        if [end["ph"] for end in ends] != ["s", "f"] or ends[0]["name"] != ends[1]["name"]:
            found.append(f"flow {key}: its ends are {[(end['ph'], end['name']) for end in ends]}")
        elif ends[0]["ts"] > ends[1]["ts"]:
            found.append(f"flow {key}: it arrives before it leaves")
        for end in ends:
            at = nanoseconds(end["ts"])
            if not any(start <= at < stop for start, stop, _ in slices[end["tid"]]):
                found.append(f"flow {key}: no slice at its end {end}")
    names = {event.get("name", "").split(":")[0] for event in document["traceEvents"]}
    categories = {event.get("cat") for event in document["traceEvents"]}
    for wanted, among in (("comes back", names), ("on the device", names), ("pass", categories)):
        if wanted not in among:
            found.append(f"nothing named '{wanted}'")
    return found


def self_test():
    good = {"metadata": {"tidepool": "1", "device": "d"}, "traceEvents": [
        {"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "a"}},
        {"ph": "X", "name": "forward", "cat": "pass", "ts": 0, "dur": 5, "tid": 1},
        {"ph": "X", "name": "inner", "ts": 1, "dur": 2, "tid": 1},
        {"ph": "C", "name": "on the device: x", "ts": 0, "args": {"bytes": 1}},
        {"ph": "s", "name": "comes back", "cat": "flow", "id": 1, "ts": 1, "tid": 1},
        {"ph": "f", "name": "comes back", "cat": "flow", "id": 1, "ts": 2, "tid": 1, "bp": "e"}]}
    breaks = {"an id": (5, "id", 2), "an order": (4, "ts", 3), "a slice": (4, "ts", -9), "a length": (1, "dur", 0),
              "an overlap": (2, "dur", 7), "a name": (0, "tid", 2), "a number": (3, "args", {"bytes": -1}),
              "a key": (5, "bp", None)}
    missed = ["the good one is refused"] if mistakes_of(good) else []
    for what, (event, key, value) in breaks.items():
        bad = copy.deepcopy(good)
        if value is None:
            del bad["traceEvents"][event][key]
        else:
            bad["traceEvents"][event][key] = value
        if not mistakes_of(bad):
            missed.append(f"{what} is not found")
    return missed


def main():
    if sys.argv[1:] == ["self-test"]:
        found = self_test()
    elif len(sys.argv) == 2:
        found = mistakes_of(json.loads(pathlib.Path(sys.argv[1]).read_text()))
    else:
        with tempfile.TemporaryDirectory() as work:
            out = pathlib.Path(work, "timeline.json")
            subprocess.run([str(out) if word == "OUT" else word for word in sys.argv[1:]], check=True,
                           stdout=subprocess.DEVNULL)
            found = mistakes_of(json.loads(out.read_text()))
    print("\n".join(found[:20]) or "as the format has it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
