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

run --json "$folder/here" --save "$folder/end"
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
same 'an automatic plan' --offload-modules all --policy automatic --timed-step 2 --adopt-after 0 --memory arena \
  --device-budget 16MiB

# A file says nothing of where the moments are.
arena=(--offload-modules all --memory arena --device-budget 16MiB)
for first in device host; do
  for second in device host; do
    run --optimizer-state $first --save "$folder/state" --save-step 2 &&
      run --optimizer-state $second "${arena[@]}" --resume "$folder/state" --json "$folder/tail" \
        --save "$folder/end_of_tail" --summary &&
      [ "$(bits "$folder/tail" | wc -l)" -eq 4 ] &&
      [ "$(bits "$folder/tail")" = "$(bits "$folder/here" | tail -n 4)" ] &&
      { [ $second = device ] || grep -q 'host state fetched' "$folder/output"; } &&
      cmp "$folder/end" "$folder/end_of_tail" >"$folder/output" 2>&1
    verdict "saved with moments on the $first, resumed with moments on the $second"
  done
done
run --optimizer-state host --compare --resume "$folder/state" --offload-modules all
verdict 'a comparison resumes with moments on the host'

# resumes NAME OPTION...: an unbroken run has the moments on the device
resumes() {
  local name=$1
  shift
  run "$@" --json "$folder/whole" --save "$folder/end_of_whole" &&
    run "$@" --optimizer-state host --save "$folder/part" --save-step 3 &&
    run "$@" --optimizer-state host --resume "$folder/part" --json "$folder/tail" \
      --save "$folder/end_of_tail" &&
    [ "$(bits "$folder/tail")" = "$(bits "$folder/whole" | tail -n 3)" ] &&
    cmp "$folder/end_of_whole" "$folder/end_of_tail" >"$folder/output" 2>&1
  verdict "resumed with moments on the host, $name"
}
resumes 'dense layers, shared experts, multi-token prediction' --dense-layers 1 \
  --shared-experts 1 --mtp 1 "${arena[@]}"
resumes 'bf16 and recomputed norms' --precision bf16 --offload-modules expert_fc1 \
  --recompute-modules layernorm,moe_act
resumes 'fp16' --precision fp16 --offload-modules all --loss-scale-window 2
resumes 'an expert capacity' --expert-capacity 0.9

# refuses NAME PATTERN OPTION...
refuses() {
  local name=$1 pattern=$2
  shift 2
  run "$@"
  [ $? -eq 2 ] && grep -q -e "$pattern" "$folder/output"
  verdict "$name is refused"
}
refuses 'another place' '--optimizer-state=disk: use device or host' --optimizer-state disk
# In the middle is the state of some layer, at the end that of the last one's experts.
half=$(($(stat -c %s "$folder/state") / 2))
{ head -c $half "$folder/state"; printf 'noise'; tail -c +$((half + 6)) "$folder/state"; } >"$folder/noise"
head -c -5000 "$folder/state" >"$folder/cut"
refuses 'a damaged file' 'is damaged in layer[0-9]' --optimizer-state host --resume "$folder/noise"
refuses 'a file that is cut off' 'is cut off' --optimizer-state host --resume "$folder/cut"
refuses 'slots' 'has no slots for what visits' --optimizer-state host --memory slots \
  --offload-modules all
refuses 'a host budget that is too small' 'AdamW moments of .*host_budget' --optimizer-state host \
  --host-budget 100KiB

[ "$failed" -eq 0 ]
