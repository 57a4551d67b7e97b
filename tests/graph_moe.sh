#!/usr/bin/env bash
# Trains a mixture of experts eagerly and as one CUDA graph, without offloads and with them. Steps in
# which experts have more rows than planned are planted. All losses must have the same bits, and other
# bits if such a step is not repeated.
#
#   tests/graph_moe.sh GRAPH_MOE [option of graph_moe]...     e.g. --device cuda
#
# Prints one line a case; exits 1 if any fails.
set -uo pipefail

graph_moe=$1
shift
common=(--data "$(dirname "${BASH_SOURCE[0]}")/../LICENSE" "$@")
[[ " $* " = *" cuda "* ]] && simulated=no || simulated=yes
source "$(dirname "${BASH_SOURCE[0]}")/support/cases.sh"

run() { "$graph_moe" "${common[@]}" "$@" >"$folder/output" 2>&1; }
# column N TRAINING: of the table
column() { grep "^$2  .*0x" "$folder/output" | sed "s/^$2 *//" | awk "{ print \$$1 }"; }
# equal OPTION...: two steps of each graph overflow, bytes leave, and no bit differs
equal() {
  run --steps 12 --skewed 5 "$@" && [ "$(column 5 'graph, offloads')" = 2 ] && [ "$(column 5 graph)" = 2 ] &&
    [ "$(column 3 'graph, offloads')" != 0.0 ] && grep -q 'had 512 rows, planned were' "$folder/output"
  verdict "equal: $*"
}

equal
equal --precision bf16
equal --poison
equal --offload-modules=moe_act --max-inflight=1
equal --no-margin --reload-ahead=0
equal --room 1.9 --plan 1.4
equal --memory=arena --device-budget=16MiB

# A plan keeps more than the rule does. Its arena has no room for the larger repeat of an overflow.
by_plan=(--skewed 0 --memory=arena --policy=automatic --timed-step=2 --adopt-after=0)
run --skewed 0 --memory=arena --device-budget=3200KiB && moved=$(column 3 'graph, offloads') &&
  run "${by_plan[@]}" --device-budget=3200KiB &&
  awk -v by_plan="$(column 3 'graph, offloads')" -v by_rule="$moved" \
    'BEGIN { exit !(0 < by_plan && by_plan < by_rule) }'
verdict 'a plan is captured, and moves less than the rule'
# Within 6 %; the steps with exact sizes vary.
predicted() {
  for budget in 3200KiB 3600KiB 4MiB 5MiB; do
    run "${by_plan[@]}" --device-budget=$budget && [ "$(grep -c predicted "$folder/output")" = 2 ] || return 1
    ! grep predicted "$folder/output" | grep -E '\([+-]([1-9][0-9]|[6-9])[0-9]*\.[0-9]+ %\); computing' || return 1
  done
}
if [ "$simulated" = yes ]; then  # steps of a few microseconds are not predicted on a GPU
  predicted
  verdict 'steps take as long as their plans say'
fi
! run --skewed 0 --steps 6 --policy=automatic --timed-step=6 && grep -q 'no plan came in 6' "$folder/output"
verdict 'a plan that comes too late is refused'

run --skewed 0 && [ "$(column 5 'graph, offloads')" = 0 ]
verdict 'nothing overflows that is not planted'
! run --steps 12 --skewed 5 --mistake && [ "$(grep -c DIFFER "$folder/output")" = 3 ]
verdict 'a step that is not repeated has other losses'
orders() {
  for seed in $(seq 1 40); do
    run --steps 5 --skewed 5 --order "$seed" && [ "$(column 5 'graph, offloads')" = 1 ] || return 1
  done
}
if [ "$simulated" = yes ]; then  # the order of a GPU cannot be chosen
  orders
  verdict 'in forty orders of the device'
fi

[ "$failed" -eq 0 ]
