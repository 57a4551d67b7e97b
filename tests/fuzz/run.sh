#!/usr/bin/env bash
# Builds the fuzz targets with clang++ and libFuzzer, and runs each over so many inputs.
#
#   tests/fuzz/run.sh [runs] [target]...    runs: inputs of each target; all targets if none is named
#
# TIDEPOOL_FUZZ_PLAIN=1 leaves the sanitizers out, for many inputs. TIDEPOOL_FUZZ_DIR is where it
# builds (build/fuzz); what was found lies there in findings/, and is an input to the target's
# binary. Ends with 77 where there is no libFuzzer, with 1 on a finding.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

runs=${1:-2000}
if ! [[ $runs =~ ^[1-9][0-9]*$ ]]; then
  echo "tests/fuzz/run.sh: \"$runs\" is no number of inputs" >&2
  exit 2
fi
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for source in tests/fuzz/*.cpp; do targets+=("$(basename "$source" .cpp)"); done
fi

clang=${TIDEPOOL_CLANG:-clang++}
folder=${TIDEPOOL_FUZZ_DIR:-build/fuzz}
if ! command -v "$clang" >/dev/null; then
  echo "tests/fuzz: skipped, there is no $clang (Debian package clang)" >&2
  exit 77
fi
mkdir -p "$folder/findings"

if [ -n "${TIDEPOOL_FUZZ_PLAIN:-}" ]; then
  kind=plain
  flags=(-O2 -fsanitize=fuzzer)
else
  # Few inputs run sooner than an optimiser does.
  kind=checked optimised=-O1
  if [ "$runs" -le 5000 ]; then kind=few optimised=-O0; fi
  flags=("$optimised" -g1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
    -D_GLIBCXX_ASSERTIONS)
fi
if ! printf 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }\n' |
  "$clang" -x c++ "${flags[@]}" - -o "$folder/probe" 2>"$folder/probe.log"; then
  echo "tests/fuzz: skipped, $clang has no libFuzzer (Debian package libclang-rt-dev)" >&2
  sed 's/^/  /' "$folder/probe.log" >&2
  exit 77
fi

# build <target>: unless it is newer than all that it is made of.
build() {
  local binary=$folder/$1.$kind
  if [ ! -x "$binary" ] ||
    [ -n "$(find include examples/plan tests/fuzz -type f -newer "$binary" ! -path '*/corpus/*' -print -quit)" ]; then
    "$clang" -std=c++20 "${flags[@]}" -DTIDEPOOL_NO_CUDA=1 -Iinclude -Itests/fuzz -Wall -Wextra \
      "tests/fuzz/$1.cpp" -o "$binary"
  fi
}
export -f build
export clang folder kind
export flags_text="${flags[*]}"
printf '%s\n' "${targets[@]}" | xargs -P "${TIDEPOOL_FUZZ_JOBS:-$(nproc)}" -I{} \
  bash -c 'set -euo pipefail; read -r -a flags <<<"$flags_text"; build {}'

total=0
crashes=0
for target in "${targets[@]}"; do
  log=$folder/$target.$kind.log
  found=0
  # What libFuzzer adds goes to a folder of its own; the seeds are only read.
  work=$(mktemp -d "$folder/$target.XXXXXX")
  "$folder/$target.$kind" -runs="$runs" -seed=1 -max_len=256 -timeout=30 -rss_limit_mb=4096 \
    -dict=tests/fuzz/tidepool.dict -artifact_prefix="$folder/findings/$target-" \
    -print_final_stats=1 "$work" "tests/fuzz/corpus/$target" >"$log" 2>&1 || found=1
  rm -r "$work"
  inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  # The final statistics are missing where the process was killed.
  inputs=${inputs:-0}
  if [ "$found" -eq 0 ] && [ "$inputs" -lt "$runs" ]; then found=1; fi
  echo "$target: $inputs inputs, $found crashes"
  if [ "$found" -ne 0 ]; then
    echo "  the end of $log:"
    # Without libFuzzer's lines of progress.
    grep -v '^#' "$log" | tail -n 60 | sed 's/^/  /'
  fi
  total=$((total + inputs))
  crashes=$((crashes + found))
done
echo "total: $total inputs, $crashes crashes ($kind)"
[ "$crashes" -eq 0 ]
