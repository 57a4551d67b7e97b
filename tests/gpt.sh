#!/usr/bin/env bash
# Trains a dense GPT with plain arrays, and then with Tidepool: nothing, everything and each module
# offloaded, under caps and budgets. All losses must have the same bits, and other bits if the wait for
# reloads is left out.
#
#   tests/gpt.sh GPT [option of gpt]...     e.g. --device cuda
#
# Prints one line a case; exits 1 if any fails.
set -uo pipefail

gpt=$1
shift
common=(--steps 24 --data "$(dirname "${BASH_SOURCE[0]}")/../LICENSE" "$@")
source "$(dirname "${BASH_SOURCE[0]}")/support/cases.sh"

bits() { grep -o '"bits": "[^"]*"' "$1" | head -n 24; }
moved() { grep -o '"step_bytes_offloaded": [0-9]*' "$1" | tail -n 1 | grep -o '[0-9]*$'; }
run() { "$gpt" "${common[@]}" --json "$folder/run" "$@" >"$folder/output" 2>&1; }

# plain OPTION...: losses of plain arrays, with which the next cases are compared
plain() {
  run --compare "$@" && mv "$folder/run" "$folder/plain" && [ "$(bits "$folder/plain" | wc -l)" -eq 24 ]
  verdict "plain, kept, offloaded: $*"
}
# equal OPTION...: bytes leave, and no bit differs
equal() {
  run "$@" && [ "$(moved "$folder/run")" -gt 0 ] &&
    [ "$(bits "$folder/run")" = "$(bits "$folder/plain")" ]
  verdict "$*"
}

plain --precision bf16 --offload-modules=all
equal --precision bf16 --offload-modules=mlp_act,core_attn --max-inflight=1
plain --offload-modules=all
run && [ "$(moved "$folder/run")" -eq 0 ] && [ "$(bits "$folder/run")" = "$(bits "$folder/plain")" ]
verdict 'nothing offloaded'
for module in attn_norm qkv_linear core_attn mlp_norm mlp_fc1 mlp_act mlp_fc2; do
  equal --offload-modules="$module"
done
for cap in 0 1 2; do
  equal --offload-modules=all --max-inflight="$cap"
done
equal --offload-modules=all --max-inflight-bytes=1MiB
equal --offload-modules=all --offload-layers=0,2 --reload-ahead=0
equal --offload-modules=all --offload-fraction=0.5 --no-margin
equal --offload-modules=all --poison
equal --offload-modules=all --memory=arena --device-budget=3MiB
equal --offload-modules=all --memory=arena --device-budget=4MiB --policy=automatic --timed-step=2 --adopt-after=0

# The model learns: 24 steps lower the loss by more than a nat.
loss() { grep -o '"loss": [0-9.]*' "$folder/plain" | sed -n "$1p" | grep -o '[0-9.]*$'; }
awk "BEGIN { exit !($(loss 24) < $(loss 1) - 1) }"
verdict 'the loss falls'

case " ${common[*]} " in
  *" cuda "*) ;;  # a GPU leaves out no join
  *)
    run --offload-modules=core_attn --mistake && [ "$(bits "$folder/run")" != "$(bits "$folder/plain")" ]
    verdict 'a layer that is read before its reload has other losses'
    ! run --compare --offload-modules=all --mistake && grep -q DIFFER "$folder/output"
    verdict '--compare finds it'
    ;;
esac

[ "$failed" -eq 0 ]
