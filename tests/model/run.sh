#!/usr/bin/env bash
# Explores the formal model: as it is, where there must be no error, and with each of the rules that
# lanes.pml lists left out, where there must be one.
#
#   tests/model/run.sh [short|full]      full: one call more in most programs
#
# Needs spin and a C compiler; ends with 77 without them. Prints a table of all runs, and on an
# unexpected end what the search said.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
length=${1:-short}

for tool in spin "${CC:-cc}"; do
  if ! command -v "$tool" >/dev/null; then
    echo "skipped: $tool is missing (Debian: spin, gcc)"
    exit 77
  fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# build <name> <model> <option>...
build() {
  mkdir "$work/$1"
  cd "$work/$1"
  spin "${@:3}" -a "$here/$2.pml" >spin.txt || { cat spin.txt && exit 1; }
  # Optimised more, it takes longer to compile than to run.
  "${CC:-cc}" -O1 -w -DSAFETY -DNOCLAIM -DMEMLIM=4096 -o pan pan.c
}

# What an assertion of the model says, in words.
in_words() {
  case $1 in
    *holds* | *needs*) echo "wrong bytes" ;;
    *flying*) echo "more copies than the cap" ;;
    *before.eager*) echo "a launch on what has gone" ;;
    *origin*'>='*) echo "a stream not joined back" ;;
    *known*'<='* | *'>=until'*) echo "held for joined, and is not" ;;
    *written* | *touched*) echo "a race" ;;
    *recorded*) echo "a wait for what nobody records" ;;
    *inside* | *capture*) echo "a wait or work across a capture's border" ;;
    *may*) echo "no way out" ;;
    *) echo "$1" ;;
  esac
}

# explore <name> <calls> <rule> <its number> [capped]: one line of the table. Rule "-": none is left
# out; `capped`: with a cap of one group.
explore() {
  cd "$work/$1"
  if [[ $3 = cap* ]] || [ "${5:-}" = capped ]; then export CAPPED=1; else unset CAPPED; fi
  BREAK=$4 CALLS=$2 ./pan -m10000 -w22 >out.txt 2>&1 || true
  local states found verdict=right
  states=$(awk '/states, stored/ {print $1}' out.txt)
  found=$(sed -n 's/^pan:[0-9]*: assertion violated //p' out.txt | head -n 1)
  if [ "$3" = - ]; then
    # A search that ended early has proved nothing.
    if ! grep -q 'errors: 0$' out.txt || grep -qE 'not completed|depth too small|out of memory' out.txt; then
      verdict=WRONG
    fi
    found=
  elif [ -z "$found" ]; then
    verdict="NOT FOUND"
  fi
  printf '%-9s %5s  %-19s %9s  %-9s  %s\n' "$1" "$2" "${5:-$3}" "$states" "$verdict" \
    "$([ -z "$found" ] || in_words "$found")"
  if [ "$verdict" != right ]; then
    failed=1
    cat out.txt
  fi
}

build ring ring
build order order
build places order -DPLACES=2 -DLANES=5 # a neighbour's memory beside the host's; one stream
build capture capture
build capture_2 capture -DDEVICE=2 # two device blocks
more=0
if [ "$length" = full ]; then more=1; fi

printf '%-9s %5s  %-19s %9s  %-9s  %s\n' model calls "rule left out" states verdict "found as"
explore ring $((10 + more)) - 0
explore order $((7 + more)) - 0
explore order $((7 + more)) - 0 capped
explore places $((7 + more)) - 0
explore places $((7 + more)) - 0 capped
explore capture $((9 + more)) - 0
explore capture_2 $((7 + more)) - 0

broken=0
while read -r _ rule number _ model _; do
  calls=9
  if [ "$model" = order: ] || [ "$model" = places: ]; then calls=7; fi
  explore "${model%:}" $calls "$rule" "$number"
  broken=$((broken + 1))
done < <(grep -E '^#define [a-z_]+ +[0-9]+ +/\* (ring|order|places|capture): ' "$here/lanes.pml")

if [ "$broken" -ne "$(grep -cE '^#define [a-z_]+ +[1-9][0-9]* ' "$here/lanes.pml")" ]; then
  echo "a rule of lanes.pml does not say which model misses it"
  failed=1
fi
echo "$broken rules left out, each alone"
exit $failed
