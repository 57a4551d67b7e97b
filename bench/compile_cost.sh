#!/usr/bin/env bash
# What including Tidepool costs a compiler: user seconds for one file, the median of some rounds in
# turns, beside a file that parses and writes JSON by nlohmann/json.
#
#   bench/compile_cost.sh [--compiler g++]... [--level -O2]... [--rounds 5] [--only PATTERN] [--no-cu]
#                         [--against CHECKOUT]
#
#   empty             a main and nothing else
#   json              nlohmann/json: parse and dump
#   engine, DEVICE    an offloader on one device, with one step: what the engine costs by itself
#   planner           the same on the virtual device, with a planner
#   readme            README.md's program, as it stands there
#   src.hpp           what `compiled` leaves to one file
#   cu, empty         a .cu file with an empty main, by nvcc
#   cu, minimal       the same with one offloader
#   cu, cuda_first    examples/cuda_first.cu, as it stands there
#
# A second pair of columns has each file with -DTIDEPOOL_COMPILED. Behind each median stand the least and
# the most. --against has a second line for each row of Tidepool: the same with the headers of another
# checkout, its README's program and its cuda_first.cu, in the same rounds; a third line says how many
# times that one's seconds this one takes. Several compilers and levels make a table each. A quiet
# machine gives figures; ccache is not asked. Rows of CUDA are left out where there is no toolkit;
# CUDA_HOME says where it is. --only takes an extended regular expression.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cuda=${CUDA_HOME:-/usr/local/cuda}
compilers=() levels=() rounds=5 with_cu=1 only=. against=
usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit "$1"
}
while [ $# -gt 0 ]; do
  case $1 in
    --compiler | --level | --rounds | --only | --against) [ $# -gt 1 ] || usage 2 >&2 ;;&
    --compiler) compilers+=("$2") && shift 2 ;;
    --level) levels+=("$2") && shift 2 ;;
    --rounds) rounds=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --against) against=$(cd "$2" && pwd) && shift 2 ;;
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
trees=("$root" ${against:+"$against"})

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
# Of each tree its own.
for tree in "${!trees[@]}"; do
  mkdir "$work/$tree"
  awk '/^## A program/ { here = 1 } here && /^```$/ { exit } here && code { print }
       here && /^```cpp$/ { code = 1 }' "${trees[tree]}/README.md" >"$work/$tree/readme.cpp"
  grep -q 'int main' "$work/$tree/readme.cpp" ||
    { echo "compile_cost: ${trees[tree]}/README.md has no program" >&2; exit 1; }
  cp "${trees[tree]}/examples/cuda_first.cu" "$work/$tree"
  cp -R "${trees[tree]}/examples/tools" "$work/$tree"
done
echo '#include "tidepool/src.hpp"' >"$work/src.cpp"

# --- the rows: a name, a file, and whether it includes Tidepool, and `compiled` is asked of it

rows=()
row() { if [[ $1 =~ $only ]]; then rows+=("$1|$2|$3"); fi; }
row empty empty.cpp none
row json json.cpp none
row "engine, null" null.cpp both
row "engine, virtual" virtual.cpp both
if [ -e "$cuda/include/cuda_runtime_api.h" ]; then row "engine, cuda" cuda.cpp both; fi
row planner planner.cpp both
row readme readme.cpp both
row src.hpp src.cpp headers
if [ $with_cu = 1 ] && [ -x "$cuda/bin/nvcc" ]; then
  row "cu, empty" empty.cu none
  row "cu, minimal" minimal.cu both
  row "cu, cuda_first" cuda_first.cu both
fi
[ ${#rows[@]} -gt 0 ] || { echo "compile_cost: no row is called like '$only'" >&2; exit 2; }

# seconds COMPILER LEVEL TREE FILE [FLAG]...
seconds() {
  local compiler=$1 level=$2 tree=$3 file=$4 TIMEFORMAT=%U
  shift 4
  if [ -e "$work/$tree/$file" ]; then file=$tree/$file; fi
  local -a command=("$compiler" -std=c++20 "$level" "$@" "-I${trees[tree]}/include" -c "$work/$file"
    -o "$work/out.o")
  case $file in
    *.cu) command=("$cuda/bin/nvcc" -ccbin "$compiler" -arch=sm_90 "${command[@]:1}") ;;
    cuda.cpp) command+=("-I$cuda/include") ;;
  esac
  { time "${command[@]}" 2>"$work/errors" >&2; } 2>&1 || {
    echo "compile_cost: ${command[*]}" >&2
    cat "$work/errors" >&2
    return 1
  }
}
# median FILE: and the least and the most
median() {
  sort -n "$1" | awk '{ v[NR] = $1 } END {
    printf "%.1f %.1f..%.1f\n", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2, v[1], v[NR] }'
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0 && a != "") printf "%.2f", a / b; else printf "-" }'; }

# line NAME HEADERS SPREAD COMPILED SPREAD JSON
line() {
  printf '%-18s %8s %12s %7s %9s %12s %7s\n' "$1" "$2" "$3" "$(ratio "$2" "$6")" "${4:--}" "${5:--}" \
    "$(ratio "$4" "$6")"
}

# table COMPILER LEVEL
table() {
  local round entry name file asked tree
  for ((round = 0; round < rounds; ++round)); do
    for entry in "${rows[@]}"; do
      IFS='|' read -r name file asked <<<"$entry"
      for tree in "${!trees[@]}"; do
        if [ "$tree" = 0 ] || [ "$asked" != none ]; then
          seconds "$1" "$2" "$tree" "$file" >>"$work/$tree/headers $name"
        fi
        if [ "$asked" = both ]; then
          seconds "$1" "$2" "$tree" "$file" -DTIDEPOOL_COMPILED >>"$work/$tree/compiled $name"
        fi
      done
    done
  done
  printf '\n%s %s: user seconds, median of %d\n' "$("$1" --version | head -1)" "$2" "$rounds"
  printf '%-18s %8s %12s %7s %9s %12s %7s\n' "" headers spread "/ json" compiled spread "/ json"
  local json=0 mine spread theirs also
  if [ -e "$work/0/headers json" ]; then read -r json _ < <(median "$work/0/headers json"); fi
  for entry in "${rows[@]}"; do
    IFS='|' read -r name file asked <<<"$entry"
    local -a before=()
    for tree in "${!trees[@]}"; do
      [ -e "$work/$tree/headers $name" ] || continue
      read -r mine spread < <(median "$work/$tree/headers $name")
      theirs='' also=''
      if [ "$asked" = both ]; then read -r theirs also < <(median "$work/$tree/compiled $name"); fi
      if [ "$tree" = 0 ]; then
        line "$name" "$mine" "$spread" "$theirs" "$also" "$json"
        before=("$mine" "$theirs")
      else
        line "  against" "$mine" "$spread" "$theirs" "$also" "$json"
        printf '%-18s %8s %30s\n' "  times" "$(ratio "${before[0]}" "$mine")" "$(ratio "${before[1]}" "$theirs")"
      fi
    done
  done
  rm -f "$work"/*/headers* "$work"/*/compiled*
}

for compiler in "${compilers[@]}"; do
  for level in "${levels[@]}"; do table "$compiler" "$level"; done
done
