#!/usr/bin/env bash
# What including Tidepool costs a compiler: user seconds for one file, the median of some rounds in
# turns, beside a file that parses and writes JSON by nlohmann/json.
#
#   bench/compile_cost.sh [--compiler g++]... [--level -O2]... [--rounds 3] [--only PATTERN] [--no-cu]
#
#   empty             a main and nothing else
#   json              nlohmann/json: parse and dump
#   engine, DEVICE    an offloader on one device, with one step: what the engine costs by itself
#   planner           the same on the virtual device, with a planner
#   readme            README.md's program, as it stands there
#   src.hpp           what `compiled` leaves to one file (once there is that header)
#   cu, empty         a .cu file with an empty main, by nvcc
#   cu, minimal       the same with one offloader
#
# Where there is `tidepool/src.hpp`, a second column has each file with -DTIDEPOOL_COMPILED. Several
# compilers and levels make a table each. A quiet machine gives figures; ccache is not asked. Rows of
# CUDA are left out where there is no toolkit; CUDA_HOME says where it is. --only takes an extended
# regular expression.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cuda=${CUDA_HOME:-/usr/local/cuda}
compilers=() levels=() rounds=3 with_cu=1 only=.
usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit "$1"
}
while [ $# -gt 0 ]; do
  case $1 in
    --compiler | --level | --rounds | --only) [ $# -gt 1 ] || usage 2 >&2 ;;&
    --compiler) compilers+=("$2") && shift 2 ;;
    --level) levels+=("$2") && shift 2 ;;
    --rounds) rounds=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --no-cu) with_cu=0 && shift ;;
    --help) usage 0 ;;
    *) usage 2 >&2 ;;
  esac
done
[ ${#compilers[@]} -gt 0 ] || compilers=(g++)
[ ${#levels[@]} -gt 0 ] || levels=(-O2)
[[ $rounds =~ ^[1-9][0-9]*$ ]] || usage 2 >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compiled=0
[ -e "$root/include/tidepool/src.hpp" ] && compiled=1

# --- the files

echo 'int main() {}' | tee "$work/empty.cpp" >"$work/empty.cu"
cat >"$work/json.cpp" <<'END'
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

int main(int, char** arguments) {
  const auto text = nlohmann::json::parse(std::string(arguments[1]));
  std::cout << text.dump(2) << '\n';
}
END
# step FILE HEADER DEVICE [PARTS [HEADER]]
step() {
  cat >"$work/$1" <<END
#include "tidepool/device/$2.hpp"
#include "tidepool/offloader.hpp"
${5:+#include \"$5\"}

int main() {
  tidepool::$3 dev;
  const auto compute = dev.make_stream();
  const auto stream = compute.ref();
  tidepool::options options;
  options.offload_modules = {"expert_fc1"};
  tidepool::offloader<tidepool::$3, tidepool::modules<"expert_fc1">> off(dev, options${4:+, $4});
  auto saved = off.allocate<float>(1 << 20, stream);
  auto chunk = off.begin();
  chunk.commit<"expert_fc1">(0, stream, saved);
  chunk.end_forward();
  chunk.restore<"expert_fc1">(0, stream, saved);
  saved.reset(stream);
  chunk.finish();
  off.end_step();
}
END
  sed -i 's/\\"/"/g' "$work/$1"
}
step null.cpp null null_device
step virtual.cpp virtual virtual_device
step cuda.cpp cuda cuda_device
step planner.cpp virtual virtual_device '{.planner = tidepool::planner()}' tidepool/plan.hpp
step minimal.cu cuda cuda_device
awk '/^## A program/ { here = 1 } here && /^```$/ { exit } here && code { print }
     here && /^```cpp$/ { code = 1 }' "$root/README.md" >"$work/readme.cpp"
grep -q 'int main' "$work/readme.cpp" || { echo "compile_cost: README.md has no program" >&2; exit 1; }
echo '#include "tidepool/src.hpp"' >"$work/src.cpp"

# --- the rows: a name, a file, and whether `compiled` is asked of it

rows=()
row() { if [[ $1 =~ $only ]]; then rows+=("$1|$2|$3"); fi; }
row empty empty.cpp no
row json json.cpp no
row "engine, null" null.cpp yes
row "engine, virtual" virtual.cpp yes
if [ -e "$cuda/include/cuda_runtime_api.h" ]; then row "engine, cuda" cuda.cpp yes; fi
row planner planner.cpp yes
row readme readme.cpp yes
if [ $compiled = 1 ]; then row src.hpp src.cpp no; fi
cu_rows=()
if [ $with_cu = 1 ] && [ -x "$cuda/bin/nvcc" ] && [[ cu =~ $only ]]; then
  cu_rows=("cu, empty|empty.cu|no" "cu, minimal|minimal.cu|yes")
fi

# seconds COMPILER LEVEL FILE [FLAG]...
seconds() {
  local compiler=$1 level=$2 file=$3 TIMEFORMAT=%U
  shift 3
  local -a command=("$compiler" -std=c++20 "$level" "$@" -I"$root/include" -c "$work/$file" -o "$work/out.o")
  case $file in
    *.cu) command=("$cuda/bin/nvcc" -ccbin "$compiler" -arch=sm_90 "${command[@]:1}") ;;
    cuda.cpp) command+=(-I"$cuda/include") ;;
  esac
  { time "${command[@]}" 2>"$work/errors" >&2; } 2>&1 || {
    echo "compile_cost: ${command[*]}" >&2
    cat "$work/errors" >&2
    return 1
  }
}
median() { sort -n | awk '{ v[NR] = $1 } END { printf "%.1f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

# table COMPILER LEVEL
table() {
  local round entry name file also
  for ((round = 0; round < rounds; ++round)); do
    for entry in "${rows[@]}" "${cu_rows[@]}"; do
      IFS='|' read -r name file also <<<"$entry"
      seconds "$1" "$2" "$file" >>"$work/times $name"
      if [ $compiled = 1 ] && [ "$also" = yes ]; then
        seconds "$1" "$2" "$file" -DTIDEPOOL_COMPILED >>"$work/compiled $name"
      fi
    done
  done
  printf '\n%s %s: user seconds, median of %d\n' "$("$1" --version | head -1)" "$2" "$rounds"
  printf '%-18s %8s %8s %9s %8s\n' "" headers "/ json" compiled "/ json"
  local json=0 empty=0 mine theirs
  if [ -e "$work/times json" ]; then json=$(median <"$work/times json"); fi
  ratio() { awk -v a="$1" -v b="$json" 'BEGIN { if (b > 0 && a != "") printf "%.2f", a / b; else printf "-" }'; }
  for entry in "${rows[@]}" "${cu_rows[@]}"; do
    IFS='|' read -r name file also <<<"$entry"
    mine=$(median <"$work/times $name") theirs=
    if [ -e "$work/compiled $name" ]; then theirs=$(median <"$work/compiled $name"); fi
    case $name in
      "cu, empty") empty=$mine && printf '%-18s %8s\n' "$name" "$mine" ;;
      cu,*) printf '%-18s %8s %8s %9s %8s\n' "$name" "$mine" "" "${theirs:--}" "" &&
        awk -v a="$mine" -v b="$empty" -v c="$theirs" 'BEGIN {
          printf "%-18s %8.1f %8s %9s\n", "cu, gain", a - b, "", c == "" ? "-" : sprintf("%.1f", c - b) }' ;;
      *) printf '%-18s %8s %8s %9s %8s\n' "$name" "$mine" "$(ratio "$mine")" "${theirs:--}" "$(ratio "$theirs")" ;;
    esac
  done
  rm -f "$work"/times* "$work"/compiled*
}

for compiler in "${compilers[@]}"; do
  for level in "${levels[@]}"; do table "$compiler" "$level"; done
done
