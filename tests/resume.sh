#!/usr/bin/env bash
# Interrupts a training, resumes it, and compares the bits of the losses with those of an unbroken
# run, without offload and with, also from one to the other; then files that must be refused.
#
#   tests/resume.sh TRAIN_MOE [option of train_moe]...     e.g. --device cuda
#
# Prints one line a case; exits 1 if any fails.
set -uo pipefail

train_moe=$1
shift
common=(--preset tiny --steps 6 "$@")
source "$(dirname "${BASH_SOURCE[0]}")/support/cases.sh"

run() { "$train_moe" "${common[@]}" "$@" >"$folder/output" 2>&1; }

# bits FILE [how many from the end]
bits() { grep -o '"bits": "[^"]*"' "$1" | tail -n "${2:-6}"; }

offload=(--offload-modules all --memory arena --device-budget 24MiB)
run --json "$folder/whole"
verdict 'an unbroken run'

for first in none all; do
  for second in none all; do
    with_first=() with_second=()
    [ $first = none ] || with_first=("${offload[@]}")
    [ $second = none ] || with_second=("${offload[@]}")
    run "${with_first[@]+"${with_first[@]}"}" --save "$folder/state" --save-step 2 \
      --json "$folder/head" &&
      run "${with_second[@]+"${with_second[@]}"}" --resume "$folder/state" --json "$folder/tail" \
        --save "$folder/end" &&
      [ "$(bits "$folder/head")" = "$(bits "$folder/whole" | head -n 2)" ] &&
      [ "$(bits "$folder/tail")" = "$(bits "$folder/whole" 4)" ]
    verdict "saved with offload of $first, resumed with $second"
  done
done

run --save "$folder/end_of_whole" && cmp "$folder/end" "$folder/end_of_whole" >"$folder/output" 2>&1
verdict 'both ends have the same state'
run --compare --resume "$folder/state" "${offload[@]}"
verdict 'a comparison resumes too'
mixed=(--dense-layers 1 --shared-experts 1 --mtp 1)
run "${mixed[@]}" --json "$folder/whole_mixed" &&
  run "${mixed[@]}" "${offload[@]}" --save "$folder/mixed" --save-step 2 &&
  run "${mixed[@]}" --resume "$folder/mixed" --json "$folder/tail" &&
  [ "$(bits "$folder/tail")" = "$(bits "$folder/whole_mixed" 4)" ]
verdict 'dense layers, shared experts and multi-token prediction'

# resumes NAME "OPTIONS OF BOTH" OPTION...: the bits of a run that neither stopped nor had OPTIONs,
# of the losses and, where there are any, of the evaluations after the second step
held_out() { sed -n '/"evaluations"/,/\]/p' "$1" | grep '"loss"' | tail -n "$2"; }
resumes() {
  local name=$1 both
  read -r -a both <<<"$2"
  shift 2
  run "${both[@]}" --json "$folder/whole_of_it" &&
    run "${both[@]}" "$@" --save "$folder/part" --save-step 2 &&
    run "${both[@]}" "$@" --resume "$folder/part" --json "$folder/tail" &&
    [ "$(bits "$folder/tail")" = "$(bits "$folder/whole_of_it" 4)" ] &&
    [ "$(held_out "$folder/tail" 2)" = "$(held_out "$folder/whole_of_it" 2)" ]
  verdict "$name"
}
resumes 'recomputation' '' --recompute-modules layernorm,moe_act,moe_permute \
  --offload-modules attn_norm,core_attn,mlp_norm,router
resumes 'slots' '' --offload-modules all --memory slots
resumes 'an expert capacity' '--expert-capacity 0.9' --offload-modules all
limited=$folder/limited
cp "$folder/part" "$limited"
resumes 'evaluation' '--eval-every 2' --offload-modules all
[ "$(held_out "$folder/tail" 9 | wc -l)" -eq 2 ]
verdict 'both evaluations after it took place'

# A plan goes from one run to the next, which then needs no warm-up: its first step moves what the
# others do.
planned=(--offload-modules all --memory arena --device-budget 24MiB)
run "${planned[@]}" --policy automatic --timed-step 2 --adopt-after 0 --save-plan "$folder/run" &&
  run "${planned[@]}" --plan "$folder/run" --json "$folder/planned" &&
  [ "$(bits "$folder/planned")" = "$(bits "$folder/whole")" ]
verdict 'a plan of an earlier run'

[ ! -e "$folder/state.partial" ]
verdict 'nothing unfinished is left'

# refuses NAME PATTERN OPTION...
refuses() {
  local name=$1 pattern=$2
  shift 2
  run "$@"
  [ $? -eq 2 ] && grep -q -- "$pattern" "$folder/output"
  verdict "refused: $name"
}

head -c 5000 "$folder/state" >"$folder/cut"
head -c 7 "$folder/state" >"$folder/stub"
printf 'something else altogether' >"$folder/foreign"
: >"$folder/empty"
{ head -c 16 "$folder/state"; printf '\007'; tail -c +18 "$folder/state"; } >"$folder/version"
{ head -c 30 "$folder/state"; printf '\007'; tail -c +32 "$folder/state"; } >"$folder/start"
{ head -c 3000 "$folder/state"; printf 'noise'; tail -c +3006 "$folder/state"; } >"$folder/noise"
refuses missing 'missing: cannot be read (No such file.*name a file' --resume "$folder/missing"
refuses truncated 'is cut off: 5000 of' --resume "$folder/cut"
refuses stub 'is cut off: 7 of' --resume "$folder/stub"
refuses foreign 'is no checkpoint' --resume "$folder/foreign"
refuses empty 'is no checkpoint' --resume "$folder/empty"
refuses folder 'is no regular file' --resume "$folder"
refuses version 'has version 7, and this program reads 5' --resume "$folder/version"
refuses damaged 'is damaged at its start' --resume "$folder/start"
refuses 'damaged weights' 'is damaged in embedding' --resume "$folder/noise"
refuses 'another model' '--layers=4, and this run has --layers=3; give' --layers 3 \
  --resume "$folder/state"
refuses 'another structure' '--dense-layers=0, and this run has --dense-layers=1' --dense-layers 1 \
  --resume "$folder/state"
refuses 'another capacity' '--expert-capacity=0.9, and this run has --expert-capacity=1.1; give' \
  --expert-capacity 1.1 --resume "$limited"
refuses 'no capacity' '--expert-capacity=0.9, and this run has no limit; give --expert-cap' \
  --resume "$limited"
refuses 'a capacity' 'saved without --expert-capacity, and this run has --expert-capacity=2; leave' \
  --expert-capacity 2 --resume "$folder/state"
refuses 'another schedule' '--lr=0.003, and this run has --lr=0.002' --lr 0.002 \
  --resume "$folder/state"
refuses 'another text' 'another text than' --data "$train_moe" --resume "$folder/state"
refuses 'nothing to do' 'nothing is left' --resume "$folder/end"
refuses 'an end before the start' 'above that' --resume "$folder/state" --save "$folder/x" \
  --save-step 2
refuses 'no folder' 'x: cannot be written (No such' --save "$folder/none/x"
mkdir "$folder/taken"
refuses 'a folder to save in the place of' 'taken: is no regular file' --save "$folder/taken"
mkfifo "$folder/pipe"
refuses 'a pipe to save in the place of' 'pipe: is no regular file' --save "$folder/pipe"
[ -p "$folder/pipe" ] && [ ! -e "$folder/taken.partial" ]
verdict 'both are as they were'
# What a run reads must not be lost to what it writes.
cp "$folder/state" "$folder/kept"
ln -s kept "$folder/link"
for option in --json --timeline --picture; do
  refuses "$option over the file of --resume" "=.*kept: would write to .*, the file of --resume=" \
    --resume "$folder/kept" "$option" "$folder/./kept"
done
refuses 'a link to the file of --resume' 'would write to .*link, the file of --resume=' \
  --resume "$folder/kept" --json "$folder/link"
refuses 'one file for two' 'picture=.*: would write to .*, the file of --json=' \
  --json "$folder/both" --picture "$folder/both"
mv "$folder/kept" "$folder/kept.partial"
refuses 'an unfinished file resumed and written' 'save=.*kept: would write to .*kept.partial, the' \
  --resume "$folder/kept.partial" --save "$folder/kept"
cmp "$folder/state" "$folder/kept.partial" >"$folder/output" 2>&1
verdict 'the file of --resume is as it was'
run --resume "$folder/state" --json /dev/null --picture /dev/null
verdict 'what keeps nothing may be named twice'
refuses 'a report on a full disk' "option --json is '/dev/full': it cannot be written; .* and has room" --json /dev/full
refuses 'save-step without save' 'save-step=3: nothing would be saved' --save-step 3
refuses 'save-step beyond' 'save-step=7: use 1 to --steps=6' --save "$folder/x" --save-step 7
refuses 'a plan that is not there' 'none.profile.json.*cannot be read' "${planned[@]}" --plan "$folder/none"
run "${planned[@]}" --plan "$folder/run" --layers 2
[ $? -eq 1 ] && grep -q 'in this place; plan a profile of these steps' "$folder/output"
verdict 'refused: a plan of another model'
refuses 'a plan in less memory' 'device_budget is 20971520; raise it' "${planned[@]}" \
  --device-budget 20MiB --plan "$folder/run"
refuses 'a plan for nothing' 'nothing may leave; add --offload-modules' --plan "$folder/run"
refuses 'no folder for a plan' 'there is no folder' "${planned[@]}" --policy automatic \
  --save-plan "$folder/none/x"
refuses 'no policy that plans' 'this policy makes no plan' "${planned[@]}" --save-plan "$folder/x"
refuses 'too few steps for a plan' 'no plan would be made' "${planned[@]}" --policy automatic --timed-step 9 \
  --save-plan "$folder/x"

[ "$failed" -eq 0 ]
