#!/usr/bin/env bash
# The single header alone: in a folder that has no other file of Tidepool, without a warning, two files of one
# program that include it, and each of them prints what it prints with the headers (README, MINIMAL: programs).
#
#   tests/consumer/single_header.sh FOLDER README MINIMAL COMPILER...
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$1
rm -rf "$folder"
mkdir -p "$folder"
{ "$2" && "$3"; } >"$folder.expected.txt"
shift 3
cd "$folder"
flags=(-std=c++20 -Wall -Wextra -Wconversion -Wshadow -Werror)

"$source/packaging/single_header.py" tidepool_single.hpp
awk '/^```cpp$/ { on = 1; next } /^```/ { on = 0 } on' "$source/README.md" >readme.cpp
cp "$source/examples/minimal/main.cpp" minimal.cpp
sed -i 's|#include <tidepool/tidepool.hpp>|#include "tidepool_single.hpp"|' readme.cpp minimal.cpp
cat >both.cpp <<'END'
extern "C" int readme();
extern "C" int minimal();
int main() { return readme() + minimal(); }
END

for compiler in "$@"; do
  for program in readme minimal; do
    since=$(date +%s.%N)
    "$compiler" "${flags[@]}" -c $program.cpp
    echo "$compiler: $program.cpp took $(awk "BEGIN { printf \"%.1f\", $(date +%s.%N) - $since }") s"
    objcopy --redefine-sym main=$program $program.o
  done
  "$compiler" both.cpp readme.o minimal.o -o both
  ./both >printed.txt
  diff "$folder.expected.txt" printed.txt
done
echo "printed is the same: $(wc -l <printed.txt) lines, by $*"
