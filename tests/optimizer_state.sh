#!/usr/bin/env bash
# Trains with AdamW's moments on the device and on the host, and compares the bits of the losses and
# what the device gives; then options that must be refused.
#
#   tests/optimizer_state.sh TRAIN_MOE [option of train_moe]...     e.g. --device cuda
#
# Prints one line a case; exits 1 if any fails.
set -uo pipefail

train_moe=$1
shift
common=(--preset tiny --steps 6 "$@")
source "$(dirname "${BASH_SOURCE[0]}")/support/cases.sh"

run() { "$train_moe" "${common[@]}" "$@" >"$folder/output" 2>&1; }
bits() { grep -o '"bits": "[^"]*"' "$1"; }

run --json "$folder/here"
verdict 'moments on the device'

# same NAME OPTION...: with the moments on the host
same() {
  local name=$1
  shift
  run --optimizer-state host "$@" --json "$folder/there" --summary &&
    [ "$(bits "$folder/here")" = "$(bits "$folder/there")" ] &&
    grep -q 'host state fetched' "$folder/output"
  verdict "moments on the host, $name"
}
same 'no offload'
same 'all offloaded' --offload-modules all
same 'an arena' --offload-modules all --memory arena --device-budget 16MiB
same 'three microbatches in flight' --offload-modules all --in-flight 3
same 'recomputed norms' --offload-modules expert_fc1 --recompute-modules layernorm,moe_act
same 'an automatic plan' --offload-modules all --policy automatic --memory arena \
  --device-budget 16MiB

# refuses NAME PATTERN OPTION...
refuses() {
  local name=$1 pattern=$2
  shift 2
  run "$@"
  [ $? -eq 2 ] && grep -q -e "$pattern" "$folder/output"
  verdict "$name is refused"
}
refuses 'another place' '--optimizer-state=disk: use device or host' --optimizer-state disk
refuses 'saving' '--save and --resume need' --optimizer-state host --save "$folder/state"
refuses 'slots' 'has no slots for what visits' --optimizer-state host --memory slots \
  --offload-modules all
refuses 'a host budget that is too small' 'AdamW moments of .*host_budget' --optimizer-state host \
  --host-budget 100KiB

[ "$failed" -eq 0 ]
