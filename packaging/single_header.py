#!/usr/bin/env python3
"""Writes tidepool.hpp and all that it includes into one file, for trying Tidepool out.

    packaging/single_header.py FILE        e.g. tidepool_single.hpp

The file needs nothing but a compiler and Linux. It has the virtual device and no CUDA.
"""
import pathlib
import re
import sys

INCLUDE = pathlib.Path(__file__).resolve().parents[1] / "include"
# What the conditions of the headers ask, where all is compiled and CUDA is left out.
KNOWN = {"defined(TIDEPOOL_NO_CUDA)": 1, "defined(TIDEPOOL_HAS_CUDA)": 0, "defined(NVTX_DISABLE)": 1,
         "defined(TIDEPOOL_COMPILED)": 0, "defined(TIDEPOOL_SOURCE)": 0, "TIDEPOOL_DEFINITIONS": 1,
         "TIDEPOOL_DETAIL_PROFILER": 0, "TIDEPOOL_DETAIL_NVTX": 0, "__has_include(<cuda_profiler_api.h>)": 0,
         "__has_include(<cuda_runtime_api.h>)": 0, "__has_include(<nvtx3/nvtx3.hpp>)": 0}
# The standard library, and POSIX.
SYSTEM = re.compile(r"[a-z_]+|(fcntl|poll|pthread|signal|unistd|sys/\w+)\.h")
HEAD = """\
// Tidepool {version} in one file: the virtual device alone, which needs no GPU. For trying the library out.
// SPDX-License-Identifier: Apache-2.0 (https://www.apache.org/licenses/LICENSE-2.0)
//
// Made by packaging/single_header.py from include/tidepool/tidepool.hpp: change the headers there, not this file.
// No other header of Tidepool may be included beside this file.
//
//   g++ -std=c++20 program.cpp        where program.cpp has: #include "tidepool_single.hpp"
#ifndef TIDEPOOL_SINGLE_HPP
#define TIDEPOOL_SINGLE_HPP
#if defined(TIDEPOOL_DEFINITIONS) || defined(TIDEPOOL_COMPILED)
#error "tidepool: tidepool_single.hpp is compiled alone: without TIDEPOOL_COMPILED and other headers of Tidepool"
#endif

"""


def truth(condition):
    """True, False, or None where only the compiler knows."""
    for text, value in KNOWN.items():
        condition = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", str(value), condition)
    if not re.fullmatch(r"[01!&|() ]+", condition):
        return None
    return bool(eval(condition.replace("&&", " and ").replace("||", " or ").replace("!", " not ")))


class Single:
    def __init__(self):
        self.seen, self.system, self.body = set(), set(), []

    def add(self, name):
        """Appends a header once, behind what it includes."""
        if name in self.seen:
            return
        self.seen.add(name)
        self.body += ["", f"// --- {name}"]
        opened = []  # of each open condition: True, False, or None for one that stays in the text
        for number, line in enumerate((INCLUDE / name).read_text().splitlines(), 1):
            directive = re.match(r"#\s*(\w+)\s*(.*?)\s*(?://.*)?$", line)
            word, rest = directive.groups() if directive else ("", "")
            if word == "if":
                opened.append(truth(rest))
            elif word == "endif":
                if opened.pop() is not None:
                    continue
            elif word in ("else", "elif", "ifdef", "ifndef") and (word != "else" or opened[-1] is not None):
                if word != "else":
                    raise SystemExit(f"{name}:{number}: #{word} is not understood here")
                opened[-1] = not opened[-1]
                continue
            if False in opened or word == "pragma" and rest == "once" or word == "if" and opened[-1] is not None:
                continue
            if word == "include":
                self.include(rest, None in opened, line, f"{name}:{number}")
            elif line or self.body[-1]:  # no gap where directives stood
                self.body.append(line)

    def include(self, what, conditional, line, where):
        target = what[1:-1]
        if target.startswith("tidepool/"):
            if conditional:
                raise SystemExit(f"{where}: {target} is included under a condition that only the compiler knows")
            self.add(target)
        elif not SYSTEM.fullmatch(target):
            raise SystemExit(f"{where}: {what} is neither of the standard library nor of POSIX")
        elif conditional:
            self.body.append(line)
        else:
            self.system.add(target)

    def text(self, version):
        includes = "".join(f"#include <{name}>\n" for name in sorted(self.system))
        return HEAD.format(version=version) + includes + "\n".join(self.body) + "\n\n#endif\n"


def main(arguments):
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    numbers = re.findall(r"#define TIDEPOOL_VERSION_\w+ (\d+)", (INCLUDE / "tidepool/version.hpp").read_text())
    single = Single()
    single.add("tidepool/tidepool.hpp")
    text = single.text(".".join(numbers))
    pathlib.Path(arguments[0]).write_text(text)
    print(f"{arguments[0]}: {len(single.seen)} headers, {text.count(chr(10))} lines, {len(text.encode()) // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
