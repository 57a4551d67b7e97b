#!/usr/bin/env bash
# Everything at full length, which takes hours: what `.ci/run` runs, with every case (see
# tests/README.md for what it leaves out), and the tests built by clang++.
#
#   tests/nightly.sh [--mutation]     with mutants of the engine as well (tests/mutation/mutate.py)
#
# A part that fails keeps none of the others from running. Prints a summary at the end, and ends
# with 1 if any part failed. What each part printed is in build/nightly/.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source cmake/prerequisites.sh

mutation=false
case ${1:-} in
  '') ;;
  --mutation) mutation=true ;;
  *)
    note "tests/nightly.sh knows --mutation alone, not \"$1\""
    exit 2
    ;;
esac

need clang
mkdir -p build/nightly
export TIDEPOOL_TEST_LENGTH=full
summary=()
failed=0

# part NAME COMMAND...
part() {
  local name=$1 since=$SECONDS status verdict=passed
  shift
  printf '\n=== %s\n' "$name"
  "$@" 2>&1 | tee "build/nightly/${name// /-}.log"
  status=${PIPESTATUS[0]}
  if [ "$status" -ne 0 ]; then
    verdict="FAILED ($status)"
    failed=$((failed + 1))
  fi
  summary+=("$(printf '%-12s %7d s  %s' "$verdict" $((SECONDS - since)) "$name")")
  # What CTest counted, and what it did not run.
  local line
  while read -r line; do summary+=("                        $line"); done < <(
    grep -E '^[0-9]+% tests passed|\*\*\*(Failed|Skipped|Timeout|Exception)|- .*\((Failed|Timeout|SEGFAULT)\)' \
      "build/nightly/${name// /-}.log")
}

part demo examples/demo.sh
part 'all tests' tests/run.sh
if is_missing clang; then
  summary+=('left out               no clang++: its tests, and the sanitizers with it')
  part 'AddressSanitizer and UndefinedBehaviorSanitizer' tests/run.sh asan
else
  part 'AddressSanitizer and UndefinedBehaviorSanitizer' env CXX=clang++ tests/run.sh asan
  part 'tests by clang++' tests/run.sh clang
fi
part 'ThreadSanitizer' tests/run.sh tsan
if $mutation; then
  # What an earlier night says of other headers is no answer.
  rm -f build/nightly/mutants.txt
  part 'mutants' tests/mutation/mutate.py --jobs "$(jobs)" --report build/nightly/mutants.txt
else
  summary+=('left out               mutants of the engine (--mutation)')
fi

printf '\n=== tests/nightly.sh on %s\n' "$(git log -1 --format='%h %s' 2>/dev/null || echo 'no commit')"
printf '%s\n' "${summary[@]}"
[ "$failed" -eq 0 ]
