#!/usr/bin/env bash
# The trainer on ranks, under a launcher: the bits of every loss against those of one process, what
# is refused, and how a failing rank ends the others.
#
#   tests/ranks.sh bits|experts|grid|lending|checkpoints|refusals|endings|starts TRAIN_MOE [LAUNCHER [DEVICE]]
#
# LAUNCHER is mpirun; or, with DEVICE cuda, torchrun or srun, which need no MPI. Prints one line a
# case; exits 1 if any fails, 77 without a launcher. On GPUs each rank needs one: cases of more ranks
# than that are named and left out. "starts" is a short part: a little of each of the others, and
# ranks that no launcher but this script started.
set -uo pipefail

part=$1
train_moe=$2
launcher=${3:-}
device=${4:-virtual}
if [ -z "$launcher" ] || ! command -v "$launcher" >/dev/null; then
  echo "skipped: no launcher"
  exit 77
fi

# Put before a number of ranks and a command. torchrun ends with 1 whatever its ranks end with.
start=("$launcher" -np)
refused=2
case ${launcher##*/} in
  torchrun)
    start=("$launcher" --no-python --nproc-per-node)
    refused=1
    ;;
  srun)
    export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
    start=("$launcher" --mpi=none --kill-on-bad-exit=1 -n)
    ;;
esac

# Open MPI: more ranks than cores, ranks that wait leave theirs to others, no rank bound to a core that
# others use too, root in containers, and copies through shared memory, where a container forbids those
# between processes.
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none

source "$(dirname "${BASH_SOURCE[0]}")/support/cases.sh"
text=$(dirname "${BASH_SOURCE[0]}")/../LICENSE
small=(--hidden 32 --heads 2 --seq 32 --batch 2 --data "$text")

# options OPTION...: those and the usual ones, without naming any twice
options() {
  given=("${small[@]}" "$@")
  [[ " $* " == *' --steps '* ]] || given+=(--steps 3)
  [[ " $* " == *' --device '* ]] || given+=(--device "$device")
}

most=4
[ "$device" != cuda ] || most=$(nvidia-smi -L | wc -l)

# size BYTES: so many, or a page of a GPU
size() { [ "$device" = cuda ] && echo 2MiB || echo "$1"; }

# enough RANKS CASE: there are, or the case is named as left out; with TIDEPOOL_TEST_SHARD every N-th
# case runs alone, where that is enough or several parts run at once. A check of what a case has left
# asks `has_run`.
runs=false
has_run() { $runs; }
enough() {
  runs=false
  in_shard || return
  [ "$1" -le "$most" ] && runs=true && return
  printf 'skipped  %s ranks: %s\n' "$1" "$2"
  return 1
}

alone() {
  options "$@"
  "$train_moe" "${given[@]}" >"$folder/output" 2>&1
}

# on RANKS OPTION...: spread as $how says
how=--pipeline
on() {
  local ranks=$1
  shift
  options "$@"
  timeout 120 "${start[@]}" "$ranks" "$train_moe" "$how" "${given[@]}" >"$folder/output" 2>&1
}

# bits FILE: of the losses of the steps, and the held-out losses
bits() { grep -E '"bits"|"(step|loss|mtp_loss)": [0-9.]+,?$' "$1"; }

# moved FILE: the bytes that all modules offloaded in the last step
moved() { grep -o '"step_bytes": [0-9]*' "$1" | awk '{ sum += $2 } END { print sum + 0 }'; }

# something_left OPTION...: if modules are named, groups of theirs left the device
something_left() {
  [[ " $* " != *' --offload-modules '* ]] || grep -q '"step_bytes": [1-9]' "$folder/ranks"
}

# same_bits RANKS "OPTIONS OF BOTH" OPTION...: with RANKS ranks as with one process
same_bits() {
  local ranks=$1 both
  read -r -a both <<<"$2"
  shift 2
  enough "$ranks" "${both[*]} $*" || return
  alone "${both[@]}" --json "$folder/alone" &&
    on "$ranks" "${both[@]}" "$@" --json "$folder/ranks" &&
    [ "$(bits "$folder/ranks" | wc -l)" -gt 3 ] &&
    [ "$(bits "$folder/alone")" = "$(bits "$folder/ranks")" ] &&
    [ "$(grep -c '"rank": ' "$folder/ranks")" -eq "$ranks" ] &&
    something_left "$@"
  verdict "$ranks ranks: ${both[*]} $*"
}

# near A B: of two lists of losses, one a line, the first is the same and the others are near
near() {
  paste <(printf '%s\n' "$1") <(printf '%s\n' "$2") |
    awk '{ a = $2 + 0; b = $4 + 0; apart = a < b ? b - a : a - b
           if (a == 0 || apart > 1e-6 * a || (NR == 1 && a != b)) bad = 1 }
         END { exit bad || NR < 3 }'
}

# recomputed RANKS: in the run before, the plan of some rank had groups computed again
recomputed() {
  has_run && [ "$device" = virtual ] || return  # elsewhere that depends on what was measured
  grep -q 'are recomputed; ' "$folder/output"
  verdict "$1 ranks: the plan had groups computed again"
}

# as_one_process RANKS "OPTIONS OF BOTH" OPTION...: the loss of the first step has the bits of one
# process. Gradients of several ranks are added up in another order, and so the later losses may
# differ in their last digits.
as_one_process() {
  local ranks=$1 both
  read -r -a both <<<"$2"
  shift 2
  enough "$ranks" "${both[*]} $*" || return
  alone "${both[@]}" --json "$folder/alone" &&
    on "$ranks" "${both[@]}" "$@" --json "$folder/ranks" &&
    near "$(grep '"loss":' "$folder/alone")" "$(grep '"loss":' "$folder/ranks")" &&
    [ "$(grep -A2 '"choices"' "$folder/alone")" = "$(grep -A2 '"choices"' "$folder/ranks")" ] &&
    [ "$(grep -c '"rank": ' "$folder/ranks")" -eq "$ranks" ] &&
    something_left "$@"
  verdict "$ranks ranks: ${both[*]} $*"
}

# with_and_without RANKS OPTION...: the same bits without offload and with it
with_and_without() {
  local ranks=$1
  shift
  enough "$ranks" "$* --compare" || return
  on "$ranks" "$@" --compare --json "$folder/ranks" &&
    grep -q 'equal to the bit: \([0-9]*\) of \1 steps' "$folder/output" &&
    something_left "$@"
  verdict "$ranks ranks: $* --compare"
}

# refuses RANKS PATTERN OPTION...: exit status 2, and the message once
refuses() {
  local ranks=$1 pattern=$2
  shift 2
  enough "$ranks" "$*" || return
  on "$ranks" "$@"
  [ $? -eq $refused ] && [ "$(grep -c 'train_moe: ' "$folder/output")" -eq 1 ] &&
    grep -q -- "$pattern" "$folder/output"
  verdict "$ranks ranks refuse: $*"
}

# by_hand RANKS OPTION...: as srun would start them, were it here
by_hand() {
  local ranks=$1 ids=() status=0 rank id
  shift
  options "$@"
  for ((rank = 0; rank < ranks; ++rank)); do
    SLURM_STEP_NUM_TASKS=$ranks SLURM_PROCID=$rank SLURM_LOCALID=$rank timeout 120 \
      "$train_moe" "$how" "${given[@]}" >"$folder/output.$rank" 2>&1 &
    ids+=($!)
  done
  for id in "${ids[@]}"; do wait "$id" || status=$?; done
  cat "$folder"/output.[0-9]* >"$folder/output"
  return $status
}

leaves=(--offload-modules all)
case $part in
  starts)
    enough 2 'all of this part' || exit 77
    same_bits 2 '--layers 4 --eval-every 2' "${leaves[@]}" --max-inflight 1
    same_bits 2 '--layers 4 --mtp 1' --virtual-stages 2 "${leaves[@]}" --memory slots
    same_bits 2 '--layers 4 --precision fp16' "${leaves[@]}"
    same_bits 2 '--layers 8' "${leaves[@]}" --memory arena --device-budget 1MB --policy automatic --timed-step 2 --adopt-after 0
    same_bits 4 '--layers 8' --virtual-stages 2 "${leaves[@]}"
    same_bits 2 '--layers 4' --expert-parallel=1 "${leaves[@]}"
    as_one_process 4 '--layers 4' --expert-parallel=2 --virtual-stages 2 "${leaves[@]}"
    on 2 --layers 4 --steps 6 --json "$folder/whole" &&
      on 2 --layers 4 --steps 6 --save "$folder/state" --save-step 2 &&
      on 2 --layers 4 --steps 6 --resume "$folder/state" --json "$folder/tail" &&
      [ "$(grep -c '"bits"' "$folder/tail")" -eq 4 ] &&
      [ "$(grep '"bits"' "$folder/tail")" = "$(grep '"bits"' "$folder/whole" | tail -n 4)" ]
    verdict '2 ranks: saved and resumed'
    refuses 2 'virtual-stages=0: use 1' --layers 4 --virtual-stages 0
    refuses 2 "option --json is .*: it cannot be written" --layers 4 --json "$folder/none/x"
    on 2 --help && [ "$(grep -c 'virtual-stages' "$folder/output")" -eq 1 ]
    verdict '2 ranks print one help'
    how=--expert-parallel
    for ranks in 2 4; do
      as_one_process $ranks '--layers 3 --expert-capacity 0.9 --eval-every 2' "${leaves[@]}"
      with_and_without $ranks --layers 3 "${leaves[@]}" --memory arena --device-budget 1500KB
    done
    how=--pipeline
    if [ "$device" = cuda ]; then
      # Ranks that only their environment knows of.
      alone --layers 4 --json "$folder/alone" &&
        MASTER_ADDR=localhost MASTER_PORT=29610 by_hand 2 --layers 4 "${leaves[@]}" \
          --json "$folder/ranks" &&
        [ "$(bits "$folder/ranks" | wc -l)" -gt 3 ] &&
        [ "$(bits "$folder/alone")" = "$(bits "$folder/ranks")" ]
      verdict '2 ranks with the environment of srun'
      NCCL_COMM_ID=127.0.0.1:29620 by_hand 2 --layers 4 --json "$folder/ranks" &&
        [ "$(bits "$folder/alone")" = "$(bits "$folder/ranks")" ]
      verdict '2 ranks that meet at NCCL_COMM_ID'
      by_hand 2 --layers 4
      [ $? -eq 2 ] &&
        [ "$(grep -c 'STEP_NUM_TASKS=2: srun .*export MASTER_ADDR' "$folder/output")" -eq 2 ]
      verdict '2 ranks refuse: no place to meet'
      MASTER_ADDR=nowhere.invalid MASTER_PORT=29610 by_hand 2 --layers 4
      [ $? -eq 1 ] && grep -q 'the ranks meet at NCCL_COMM_ID=nowhere.invalid:29611' "$folder/output"
      verdict '2 ranks fail: a place that is not there'
    fi
    by_hand 2 --layers 4 --device virtual
    [ $? -eq 2 ] && grep -q 'STEP_NUM_TASKS=2: srun .*with mpirun\|has no MPI' "$folder/output"
    verdict '2 ranks refuse: the environment of srun, on virtual devices'
    ;;
  experts)
    how=--expert-parallel
    same_bits 1 '--layers 3' "${leaves[@]}"
    same_bits 1 '--layers 3 --microbatches 3 --expert-capacity 0.8' --in-flight 3
    same_bits 1 '--layers 3' "${leaves[@]}" --row-classes 16
    for ranks in 2 4; do
      as_one_process $ranks '--layers 3 --microbatches 8 --steps 12'
      as_one_process $ranks '--layers 3 --row-classes 8' "${leaves[@]}"
      if has_run; then
        classes=$(moved "$folder/ranks")
        on $ranks --layers 3 "${leaves[@]}" --json "$folder/ranks" &&
          [ "$classes" -gt "$(moved "$folder/ranks")" ]
        verdict "$ranks ranks: rows in classes take more"
      fi
      as_one_process $ranks '--layers 3 --expert-capacity 0.9 --eval-every 2' "${leaves[@]}"
      if has_run; then
        grep -q 'capacity: [1-9][0-9]* of 4608 choices' "$folder/output"
        verdict "$ranks ranks: what is over capacity is counted"
      fi
      if enough $ranks 'a capacity makes all steps alike'; then
        on $ranks --layers 3 --steps 6 "${leaves[@]}" --expert-capacity 1.25 --memory arena \
          --device-budget 2MB --policy automatic --timed-step 4 --adopt-after 0 --save-plan "$folder/alike" &&
          [ "$(grep -l '"shapes_vary": false' "$folder"/alike.*.profile.json | wc -l)" -eq $ranks ]
        verdict "$ranks ranks: a capacity makes all steps alike"
      fi
      as_one_process $ranks '--layers 3 --dense-layers 1 --shared-experts 1 --mtp 1' "${leaves[@]}"
      for cap in 0 1 none; do
        with_and_without $ranks --layers 3 --microbatches 8 "${leaves[@]}" --max-inflight $cap
      done
      with_and_without $ranks --layers 3 --microbatches 8 --in-flight 1 "${leaves[@]}"
      with_and_without $ranks --layers 3 "${leaves[@]}" --memory arena --device-budget 1500KB
      with_and_without $ranks --layers 3 "${leaves[@]}" --memory arena --device-budget 1MB \
        --policy automatic --timed-step 2 --adopt-after 0
      with_and_without $ranks --layers 3 --optimizer-state host "${leaves[@]}"
      with_and_without $ranks --layers 3 --recompute-modules layernorm,moe_act \
        --offload-modules attn_norm,core_attn,mlp_norm,expert_fc1
      with_and_without $ranks --layers 3 --offload-modules fused_group_mlp,router
    done
    for precision in bf16 fp16; do
      with_and_without 2 --layers 3 --precision $precision "${leaves[@]}" --max-inflight 1
      with_and_without 2 --layers 3 --precision $precision --recompute-modules layernorm,moe_act \
        --dense-layers 1 --shared-experts 1 --offload-modules core_attn,expert_fc1,router
    done
    # Rows become codes where they arrive: at 160 wide with two scales, the second for 32 numbers.
    fp8='--layers 3 --precision fp8'
    for ranks in 2 4; do
      as_one_process $ranks "$fp8 --ffn 160" "${leaves[@]}"
      as_one_process $ranks "$fp8 --expert-capacity 0.9 --microbatches 8"
      with_and_without $ranks $fp8 --microbatches 8 "${leaves[@]}" --max-inflight 1
      with_and_without $ranks $fp8 "${leaves[@]}" --memory arena --device-budget 1500KB
      with_and_without $ranks $fp8 --recompute-modules layernorm,moe_act \
        --dense-layers 1 --shared-experts 1 --mtp 1 --offload-modules core_attn,expert_fc1,router
      with_and_without $ranks $fp8 --offload-modules fused_group_mlp,router
    done
    with_and_without 2 --layers 3 --steps 12 --precision fp16 --initial-loss-scale 67108864 \
      "${leaves[@]}"
    # Codes that are multiplied, in sizes that cuBLASLt takes. Every expert takes every token: a
    # token that changes its expert over the last digit of a weight would change the loss.
    small=(--hidden 128 --ffn 128 --heads 2 --seq 32 --batch 2 --data "$text")
    for ranks in 2 4; do
      as_one_process $ranks "$fp8 --fp8-gemm --top-k 4" "${leaves[@]}"
      # A digit more or less in a sum may give another code, so weights hardly move.
      as_one_process $ranks "$fp8 --fp8-gemm=both --top-k 4 --lr 1e-5" "${leaves[@]}"
      with_and_without $ranks $fp8 --fp8-gemm --recompute-modules layernorm,moe_act \
        --offload-modules core_attn,expert_fc1,router
    done
    # Rows packed where they arrive.
    codec='--layers 3 --precision bf16 --codec fp8'
    for ranks in 2 4; do
      as_one_process $ranks "$codec --top-k 4" "${leaves[@]}"
      with_and_without $ranks $codec --expert-capacity 0.9 --microbatches 8 "${leaves[@]}"
      with_and_without $ranks $codec --recompute-modules layernorm,moe_act --dense-layers 1 \
        --shared-experts 1 --mtp 1 --offload-modules core_attn,expert_fc1,router
      with_and_without $ranks $codec --offload-modules fused_group_mlp,router
    done
    # Widths in which a block is parts of several rows, all of one expert.
    small=(--hidden 48 --ffn 80 --heads 2 --seq 32 --batch 2 --data "$text")
    for ranks in 2 4; do as_one_process $ranks "$codec --top-k 4" "${leaves[@]}"; done
    # Two tokens, of which each chooses one expert of four: some ranks get no rows.
    small=(--hidden 32 --heads 2 --seq 2 --batch 1 --data "$text")
    as_one_process 4 '--layers 2 --top-k 1' "${leaves[@]}"
    with_and_without 4 --layers 2 --top-k 1 --precision fp8 "${leaves[@]}"
    with_and_without 4 --layers 2 --top-k 1 "${leaves[@]}"
    small=(--hidden 128 --heads 2 --ffn 128 --seq 2 --batch 1 --data "$text")
    with_and_without 4 --layers 2 --top-k 1 --precision bf16 --codec fp8 "${leaves[@]}"
    ;;
  bits)
    same_bits 1 '--layers 4'
    same_bits 2 '--layers 4'
    same_bits 4 '--layers 4'
    same_bits 2 '--layers 4 --microbatches 1'
    same_bits 2 '--layers 4 --microbatches 5'
    same_bits 2 '--layers 5'
    same_bits 4 '--layers 6'
    same_bits 2 '--layers 4' --layers-per-rank 3,1
    same_bits 2 '--layers 4' --layers-per-rank 1,3 "${leaves[@]}" --memory arena --device-budget 1MB
    same_bits 1 '--layers 4' --virtual-stages 3
    same_bits 2 '--layers 4' --virtual-stages 2
    same_bits 2 '--layers 7' --virtual-stages 3
    same_bits 2 '--layers 4 --microbatches 2' --virtual-stages 2
    same_bits 4 '--layers 8' --virtual-stages 2
    same_bits 4 '--layers 8 --microbatches 8' --virtual-stages 2
    same_bits 2 '--layers 4 --eval-every 2' "${leaves[@]}"
    same_bits 2 '--layers 4 --eval-every 1' --virtual-stages 2 "${leaves[@]}"
    for ranks in 2 4; do
      for stages in 1 2; do
        for cap in 0 1 none; do
          same_bits $ranks '--layers 8' --virtual-stages $stages "${leaves[@]}" --max-inflight $cap
        done
        same_bits $ranks '--layers 8' --virtual-stages $stages "${leaves[@]}" \
          --memory arena --device-budget 1MB
        same_bits $ranks '--layers 8' --virtual-stages $stages "${leaves[@]}" --memory slots
        same_bits $ranks '--layers 8' --virtual-stages $stages "${leaves[@]}" \
          --memory arena --device-budget 1MB --policy automatic --timed-step 2 --adopt-after 0
      done
    done
    for stages_and_budget in '1 450KB' '2 500KB'; do
      read -r stages budget <<<"$stages_and_budget"
      same_bits 2 '--layers 8 --eval-every 2' --virtual-stages "$stages" "${leaves[@]}" \
        --memory arena --device-budget "$budget" --policy automatic --timed-step 2 --adopt-after 0
      recomputed 2
    done
    again=(--recompute-modules layernorm,moe_act,moe_permute)
    same_bits 2 '--layers 4 --eval-every 2' "${again[@]}"
    same_bits 2 '--layers 4' --virtual-stages 2 "${again[@]}" \
      --offload-modules attn_norm,core_attn,mlp_norm,router
    same_bits 2 '--layers 4' --optimizer-state host
    same_bits 4 '--layers 8' --virtual-stages 2 --optimizer-state host "${leaves[@]}"
    mixed='--layers 4 --dense-layers 1 --shared-experts 2'
    same_bits 2 "$mixed --eval-every 2" "${leaves[@]}"
    same_bits 4 "$mixed" "${leaves[@]}" --memory slots
    same_bits 2 "$mixed --dense-ffn 48" --virtual-stages 2 --recompute-modules mlp_act,shared_act
    same_bits 2 "$mixed" --optimizer-state host "${leaves[@]}" --memory arena --device-budget 2MB
    if has_run; then
      [ "$(grep -c 'moved no byte' "$folder/output")" -eq 0 ]
      verdict '2 ranks: no complaint about a module that the other rank has'
    fi
    for precision in bf16 'bf16 --codec fp8' fp16 fp8; do
      same_bits 2 "--layers 4 --precision $precision" "${leaves[@]}"
      same_bits 2 "--layers 4 --precision $precision" --virtual-stages 2 "${leaves[@]}"
    done
    codes='--layers 4 --precision fp8 --fp8-scaling tensor --fp8-gemm'
    same_bits 2 "$codes" "${leaves[@]}"
    same_bits 2 "$codes" --virtual-stages 2 "${leaves[@]}"
    same_bits 2 "$codes=both" --virtual-stages 2 "${leaves[@]}"
    same_bits 2 "$codes --dense-layers 2"  # the first rank has no experts
    # A gradient that overflows on one rank stops the update on all.
    same_bits 4 '--layers 4 --steps 12 --precision fp16 --initial-loss-scale 67108864 --lr 0.001'
    if has_run; then
      [ "$(grep -o '"skipped_steps": [0-9]*' "$folder/alone")" = \
        "$(grep -o '"skipped_steps": [0-9]*' "$folder/ranks")" ] &&
        ! grep -q '"skipped_steps": 0' "$folder/ranks"
      verdict '4 ranks: as many steps are skipped as in one process'
    fi
    # The embedding, and its copy on the rank with the head, get the sum of both gradients.
    same_bits 2 '--layers 4 --expert-capacity 0.25 --dense-layers 1 --shared-experts 1 --mtp 1'
    limited='--layers 4 --expert-capacity 0.9'
    same_bits 2 "$limited --eval-every 2" --virtual-stages 2 "${leaves[@]}" --memory slots
    same_bits 2 "$limited" --optimizer-state host --recompute-modules layernorm,moe_act,moe_permute
    mtp='--layers 4 --dense-layers 1 --mtp 2'
    same_bits 1 "$mtp" --virtual-stages 2
    same_bits 2 "$mtp --eval-every 2" "${leaves[@]}"
    same_bits 2 "$mtp" --virtual-stages 2 "${leaves[@]}" --memory slots
    same_bits 4 "$mtp" "${leaves[@]}" --memory slots
    same_bits 4 "$mtp" "${leaves[@]}" --memory arena --device-budget 1500KB
    same_bits 2 "$mtp" --recompute-modules layernorm,moe_act --optimizer-state host \
      --offload-modules attn_norm,core_attn,mtp_proj
    on 2 --layers 4 --virtual-stages 2 --compare "${leaves[@]}" &&
      grep -q 'equal to the bit: \([0-9]*\) of \1 steps' "$folder/output"
    verdict '2 ranks: --compare'
    ;;
  grid)
    # gridded STAGES EXPERTS "OPTIONS OF BOTH" OPTION...: with STAGES x EXPERTS ranks the bits of
    # EXPERTS ranks that share experts alone; and of one process, or of a pipeline, where that is 1
    gridded() {
      local stages=$1 experts=$2 both
      read -r -a both <<<"$3"
      shift 3
      local ranks=$((stages * experts)) name="$stages x $experts ranks: ${both[*]} $*"
      enough "$ranks" "$name" || return
      how=--expert-parallel
      on "$experts" "${both[@]}" --json "$folder/experts" || { verdict "$name" && return; }
      how=--pipeline=$stages
      on "$ranks" "--expert-parallel=$experts" "${both[@]}" "$@" --json "$folder/ranks" &&
        [ "$(bits "$folder/ranks" | wc -l)" -gt 3 ] &&
        [ "$(bits "$folder/experts")" = "$(bits "$folder/ranks")" ] &&
        [ "$(grep -A2 '"choices"' "$folder/experts")" = "$(grep -A2 '"choices"' "$folder/ranks")" ] &&
        [ "$(grep -c '"rank": ' "$folder/ranks")" -eq "$ranks" ] &&
        something_left "$@"
      verdict "$name"
    }
    gridded 2 2 '--layers 4'
    if has_run; then
      grep -q '^rank 3: layers 2-3, experts 2-3, ' "$folder/output"
      verdict '2 x 2 ranks: each says its layers and experts'
      alone --layers 4 --json "$folder/alone" &&
        near "$(grep '"loss":' "$folder/alone")" "$(grep '"loss":' "$folder/ranks")"
      verdict '2 x 2 ranks: the first loss is that of one process, the others are near'
    fi
    gridded 2 2 '--layers 4 --eval-every 2' "${leaves[@]}"
    gridded 2 2 '--layers 4 --microbatches 8' "${leaves[@]}" --max-inflight 1 --in-flight 2
    gridded 2 2 '--layers 4 --microbatches 8' --virtual-stages 2
    gridded 2 2 '--layers 4 --microbatches 8 --eval-every 2' --virtual-stages 2 "${leaves[@]}" \
      --memory arena --device-budget 1500KB
    gridded 2 2 '--layers 5' --virtual-stages 2 --in-flight 1 "${leaves[@]}"
    mtp='--layers 4 --dense-layers 1 --shared-experts 1 --mtp 1'
    gridded 2 2 "$mtp" "${leaves[@]}"
    gridded 2 2 "$mtp --expert-capacity 0.9 --microbatches 8" --virtual-stages 2 \
      --recompute-modules layernorm,moe_act --offload-modules attn_norm,core_attn,mlp_norm,expert_fc1
    gridded 2 2 '--layers 4 --microbatches 8 --steps 5' "${leaves[@]}" --memory arena \
      --device-budget 1MB --policy automatic --timed-step 2 --adopt-after 0
    if has_run; then
      grep -q 'plan predicted' "$folder/output"
      verdict '2 x 2 ranks: each has a plan'
    fi
    gridded 2 2 '--layers 4 --microbatches 8 --steps 5' --virtual-stages 2 "${leaves[@]}" --memory \
      arena --device-budget 1MB --policy automatic --timed-step 2 --adopt-after 0
    gridded 2 2 '--layers 4' --layers-per-rank 3,1 --optimizer-state host "${leaves[@]}"
    gridded 2 2 "$mtp" --shard-optimizer "${leaves[@]}"
    gridded 2 2 '--layers 4 --microbatches 8' "${leaves[@]}" --lend "$(size 1MiB)" --summary
    for precision in bf16 fp16 fp8; do
      gridded 2 2 "--layers 4 --precision $precision" "${leaves[@]}"
    done
    gridded 2 2 '--layers 4 --precision bf16 --codec fp8' --virtual-stages 2 "${leaves[@]}"
    gridded 1 2 '--layers 4' "${leaves[@]}"
    gridded 1 2 '--layers 4' --virtual-stages 2
    gridded 2 1 '--layers 4' "${leaves[@]}"
    gridded 4 1 '--layers 4' --in-flight 2
    gridded 1 1 '--layers 4' "${leaves[@]}"
    gridded 2 1 '--layers 4 --microbatches 8' --virtual-stages 2 "${leaves[@]}" --lend "$(size 64KiB)"
    gridded 2 1 "$mtp" --shard-optimizer "${leaves[@]}"
    gridded 1 4 '--layers 4 --microbatches 8' "${leaves[@]}"
    if enough 4 '2 x 2 ranks, --compare'; then
      how=--pipeline=2
      on 4 --expert-parallel=2 --layers 4 --virtual-stages 2 --compare "${leaves[@]}" &&
        grep -q 'equal to the bit: \([0-9]*\) of \1 steps' "$folder/output"
      verdict '2 x 2 ranks: --compare'
      # Saved by the grid, and gone on with by the grid and by others, equal to the bit.
      many=(--layers 4 --mtp 1 --steps 6 --microbatches 8)
      grid=("${many[@]}" --expert-parallel=2)
      on 4 "${grid[@]}" --json "$folder/whole" --save "$folder/end" &&
        on 4 "${grid[@]}" "${leaves[@]}" --save "$folder/state" --save-step 2 &&
        on 4 "${grid[@]}" --virtual-stages 2 --resume "$folder/state" --json "$folder/tail" \
          --save "$folder/end_of_tail" &&
        [ "$(bits "$folder/tail")" = "$(bits "$folder/whole" | tail -n 12)" ] &&
        cmp "$folder/end" "$folder/end_of_tail" >"$folder/output" 2>&1
      verdict '2 x 2 ranks: saved and resumed'
      how=--expert-parallel
      on 2 "${many[@]}" --resume "$folder/state" --save "$folder/end_of_2" &&
        cmp "$folder/end" "$folder/end_of_2" >"$folder/output" 2>&1
      verdict 'saved by 2 x 2 ranks, resumed by 2 that share experts'
    fi
    ;;
  lending)
    # went_to PLACE: in the run before, groups of the first rank did
    went_to() {
      grep -Eq "^offloaded to $1 .* [0-9.]*[1-9][0-9.]* [KM]iB +peak" "$folder/output"
    }
    # count_of RANK NAME: of that rank, in the run before
    count_of() {
      awk -v rank="\"rank\": $1," -v name="\"$2\"" 'index($0, rank) { here = 1 }
        here && index($0, name) { gsub(/[^0-9]/, ""); print; exit }' "$folder/ranks"
    }
    # lent RANKS "OPTIONS OF BOTH" OPTION...: the same bits, and groups in the last rank's memory
    lent() {
      same_bits "$@" --summary
      has_run || return
      went_to "peer, rank $(($1 - 1))"
      verdict "$1 ranks: the last one's memory was used"
    }
    for ranks in 2 4; do
      lent $ranks '--layers 8' "${leaves[@]}" --lend "$(size 64KiB)"
      if has_run; then
        [ "$(count_of $((ranks - 1)) bytes_offloaded)" = 0 ] && [ "$(count_of 0 bytes_offloaded)" -gt 0 ]
        verdict "$ranks ranks: the one that lends offloads nothing"
      fi
      lent $ranks '--layers 8 --eval-every 2' "${leaves[@]}" --lend 16MiB --max-inflight 1,core_attn:2
      lent $ranks '--layers 8' --virtual-stages 2 "${leaves[@]}" --lend "$(size 1MiB)"
    done
    lent 2 '--layers 8' "${leaves[@]}" --lend "$(size 256KiB)" --memory arena --device-budget 1MB
    lent 2 '--layers 8' "${leaves[@]}" --lend "$(size 256KiB)" --memory slots
    lent 2 '--layers 8 --steps 5' "${leaves[@]}" --lend "$(size 128KiB)" --memory arena \
      --device-budget 420KB --policy automatic --timed-step 2 --adopt-after 0
    if has_run && [ "$device" = virtual ]; then
      grep -Eq '^rank 0: plan: .* \([1-9][0-9]* to the neighbour\)' "$folder/output"
      verdict "2 ranks: the first one's plan counts on what the last one lends"
      peak=$(count_of 1 device_peak_bytes)
      [ "$peak" -le $((420000 - 131072)) ] && [ "$peak" -gt 0 ]
      verdict '2 ranks: what the last one holds and lends is within its budget'
    fi
    lent 2 '--layers 8' "${leaves[@]}" --lend "$(size 256KiB)" --places host,file:"$folder" --file-budget 16MiB
    with_and_without 2 --layers 4 "${leaves[@]}" --lend "$(size 1MiB)"
    same_bits 2 '--layers 4 --microbatches 1' "${leaves[@]}" --lend "$(size 1MiB)" --summary
    if has_run; then
      ! went_to peer
      verdict '2 ranks: where both hold as much, nobody lends'
    fi
    refuses 2 'lend=1MiB: nothing is offloaded' --layers 4 --lend 1MiB
    refuses 2 "lend=1MiB: .* out of --places" --layers 4 "${leaves[@]}" --lend 1MiB \
      --places peer,host --peer-budget 1MiB
    refuses 2 'lend=1MiB: comes out of --device-budget=1MiB' --layers 4 "${leaves[@]}" --lend 1MiB \
      --memory arena --device-budget 1MiB
    refuses 2 'lend: device memory for .* is not there; .*Lend less' --layers 4 "${leaves[@]}" \
      --lend 1TiB
    alone --layers 4 "${leaves[@]}" --lend 1MiB --device virtual
    [ $? -eq 2 ] && grep -q 'add --pipeline' "$folder/output"
    verdict 'one process refuses --lend'
    ;;
  checkpoints)
    common=(--layers 4 --steps 6)
    alone "${common[@]}" --json "$folder/whole" --save "$folder/end"
    verdict 'an unbroken run of one process'
    on 2 "${common[@]}" --virtual-stages 2 "${leaves[@]}" --save "$folder/state" --save-step 2 &&
      on 4 "${common[@]}" --resume "$folder/state" --json "$folder/tail" --save "$folder/end_of_4" &&
      [ "$(bits "$folder/tail")" = "$(bits "$folder/whole" | tail -n 8)" ]
    verdict 'saved by 2 ranks, resumed by 4'
    cmp "$folder/end" "$folder/end_of_4" >"$folder/output" 2>&1
    verdict 'the state at the end is that of one process'
    alone "${common[@]}" --resume "$folder/state" --json "$folder/tail" &&
      [ "$(bits "$folder/tail")" = "$(bits "$folder/whole" | tail -n 8)" ]
    verdict 'saved by 2 ranks, resumed by one process'
    mtp=(--layers 2 --mtp 1 --steps 6)
    alone "${mtp[@]}" --json "$folder/whole" --save "$folder/end"
    on 2 "${mtp[@]}" "${leaves[@]}" --save "$folder/state" --save-step 2 &&
      on 2 "${mtp[@]}" --resume "$folder/state" --json "$folder/tail" --save "$folder/end_of_2" &&
      [ "$(bits "$folder/tail")" = "$(bits "$folder/whole" | tail -n 12)" ] &&
      cmp "$folder/end" "$folder/end_of_2" >"$folder/output" 2>&1
    verdict 'multi-token prediction, saved and resumed by 2 ranks'
    host=(--optimizer-state host)
    alone "${common[@]}" --json "$folder/whole" --save "$folder/end"
    on 2 "${common[@]}" --virtual-stages 2 "${host[@]}" --save "$folder/state" --save-step 2 &&
      on 4 "${common[@]}" "${host[@]}" "${leaves[@]}" --resume "$folder/state" \
        --json "$folder/tail" --save "$folder/end_of_4" &&
      [ "$(bits "$folder/tail")" = "$(bits "$folder/whole" | tail -n 8)" ] &&
      cmp "$folder/end" "$folder/end_of_4" >"$folder/output" 2>&1
    verdict 'moments on the host, saved by 2 ranks, resumed by 4'
    alone "${common[@]}" --resume "$folder/state" --save "$folder/end_of_1" &&
      cmp "$folder/end" "$folder/end_of_1" >"$folder/output" 2>&1
    verdict 'moments on the host, saved by 2 ranks, resumed by one process with its on the device'

    # Experts over ranks. "one" is one process.
    how=--expert-parallel
    spread() {  # spread RANKS OPTION...
      local ranks=$1
      shift
      if [ "$ranks" = one ]; then alone "$@"; else on "$ranks" "$@"; fi
    }
    # unbroken RANKS OPTION...: equal to the bit, with other options of the library on both sides
    unbroken() {
      local ranks=$1
      shift
      enough "$ranks" "experts, $*" || return
      on "$ranks" --steps 6 "$@" --json "$folder/whole" --save "$folder/end" &&
        on "$ranks" --steps 6 "$@" "${leaves[@]}" --save "$folder/state" --save-step 2 &&
        on "$ranks" --steps 6 "$@" --resume "$folder/state" --json "$folder/tail" \
          --save "$folder/end_of_tail" --memory arena --device-budget 4MiB "${leaves[@]}" &&
        [ "$(grep -c '"bits"' "$folder/tail")" -eq 4 ] &&
        [ "$(grep '"bits"' "$folder/tail")" = "$(grep '"bits"' "$folder/whole" | tail -n 4)" ] &&
        cmp "$folder/end" "$folder/end_of_tail" >"$folder/output" 2>&1
      verdict "experts on $ranks ranks, resumed, equal to the bit: $*"
    }
    # sharded RANKS OPTION...: losses and file are those of ranks that keep all moments each, with
    # the optimizer sharded before an interruption, after it and on both sides; the device holds less, where moments
    # are on it
    sharded() {
      local ranks=$1 split=--shard-optimizer
      shift
      enough "$ranks" "$split, $*" || return
      on "$ranks" --steps 6 "$@" --json "$folder/whole" --save "$folder/end" &&
        on "$ranks" --steps 6 "$@" $split "${leaves[@]}" --json "$folder/ranks" \
          --save "$folder/end_of_shards" &&
        [ "$(bits "$folder/ranks")" = "$(bits "$folder/whole")" ] &&
        cmp "$folder/end" "$folder/end_of_shards" >"$folder/output" 2>&1 &&
        on "$ranks" --steps 6 "$@" $split --save "$folder/state" --save-step 2 &&
        on "$ranks" --steps 6 "$@" --resume "$folder/state" --save "$folder/end_of_tail" &&
        cmp "$folder/end" "$folder/end_of_tail" >"$folder/output" 2>&1 &&
        on "$ranks" --steps 6 "$@" $split --resume "$folder/state" --json "$folder/tail" \
          --save "$folder/end_of_tail" &&
        cmp "$folder/end" "$folder/end_of_tail" >"$folder/output" 2>&1 &&
        { [[ $* == *host* ]] || [ "$(driver_peak "$folder/tail")" -lt "$(driver_peak "$folder/whole")" ]; }
      verdict "experts on $ranks ranks, the optimizer sharded: $*"
    }
    driver_peak() { grep -o -m1 '"driver_peak_bytes": [0-9]*' "$1" | grep -o '[0-9]*$'; }
    mixed=(--dense-layers 1 --shared-experts 1 --mtp 1 --expert-capacity 0.9)
    for ranks in 2 4; do
      sharded $ranks --layers 3
      sharded $ranks --layers 3 "${host[@]}"
    done
    sharded 2 --layers 3 "${mixed[@]}" --precision fp16
    for ranks in 2 4; do
      unbroken $ranks --layers 3
      unbroken $ranks --layers 3 --microbatches 8 "${mixed[@]}" --eval-every 2
      unbroken $ranks --layers 3 "${host[@]}"
    done
    unbroken 2 --layers 3 "${mixed[@]}" "${host[@]}" --precision bf16
    unbroken 2 --layers 3 --precision fp16
    unbroken 2 --layers 3 --precision fp8
    # A file of one rank is that of one process.
    alone --layers 3 --save "$folder/end" &&
      on 1 --layers 3 --save "$folder/end_of_1" &&
      cmp "$folder/end" "$folder/end_of_1" >"$folder/output" 2>&1
    verdict 'experts on 1 rank: the file is that of one process'
    # goes_on FROM TO OPTION...: the first step after the interruption has the bits of FROM's
    # unbroken run; the gradients of it, and so what follows, are added up in TO's order.
    goes_on() {
      local from=$1 to=$2
      shift 2
      for ranks in "$from" "$to"; do
        [ "$ranks" = one ] || enough "$ranks" "experts, from $from to $to: $*" || return
      done
      spread "$from" --steps 8 "$@" --json "$folder/whole" &&
        spread "$from" --steps 8 "$@" --save "$folder/state" --save-step 3 &&
        spread "$to" --steps 8 "$@" --resume "$folder/state" --json "$folder/tail" &&
        near "$(grep '"loss":' "$folder/whole" | tail -n 5)" "$(grep '"loss":' "$folder/tail")"
      verdict "experts saved by $from, resumed by $to: $*"
    }
    for pair in '4 2' '4 1' '4 one' '2 4' '1 4' 'one 4' 'one 2' '2 one'; do
      goes_on $pair --layers 3 --microbatches 8
    done
    goes_on 4 2 --layers 3 --dense-layers 1 --shared-experts 1 --expert-capacity 0.9 "${host[@]}"
    goes_on one 4 --layers 3 --dense-layers 1 --shared-experts 1 "${host[@]}"

    # What is wrong with a file. At its end are the last tensor's variance and the hashes of its
    # four experts.
    if enough 4 'damaged files'; then
      on 4 --layers 3 --save "$folder/state" --save-step 2
      size=$(stat -c %s "$folder/state")
      # damaged BYTES_BEFORE_THE_END PATTERN NAME: the rank that holds it says so, and no other
      damaged() {
        { head -c $((size - $1)) "$folder/state"; printf 'noise'; tail -c $(($1 - 5)) "$folder/state"; } \
          >"$folder/noise"
        on 4 --layers 3 --resume "$folder/noise"
        [ $? -eq $refused ] && [ "$(grep -c 'train_moe: ' "$folder/output")" -eq 1 ] &&
          grep -q -- "$2" "$folder/output"
        verdict "4 ranks refuse: $3"
      }
      damaged 40 'rank 3: .*is damaged in layer2.fc2 of expert 3; take' 'a damaged expert'
      damaged 16 'rank 2: .*is damaged in layer2.fc2 of expert 2; take' 'a damaged hash'
      head -c $((size - 40)) "$folder/state" >"$folder/cut"
      on 4 --layers 3 --resume "$folder/cut"
      [ $? -eq $refused ] && [ "$(grep -c 'train_moe: ' "$folder/output")" -eq 1 ] &&
        grep -q "is cut off: $((size - 40)) of $size" "$folder/output"
      verdict '4 ranks refuse: a file that is cut off'
      on 4 --layers 3 --resume "$folder/state" --expert-capacity 1
      [ $? -eq $refused ] && [ "$(grep -c 'train_moe: ' "$folder/output")" -eq 1 ] &&
        grep -q 'was saved without --expert-capacity, and this run has --expert-capacity=1; leave' \
          "$folder/output"
      verdict '4 ranks refuse: another capacity'

      # Rank 3 cannot write: the disk is full where its experts begin.
      cat >"$folder/one_full" <<'SCRIPT'
#!/usr/bin/env bash
if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${RANK:-${SLURM_PROCID:-0}}}}" = 3 ]; then trap '' XFSZ && ulimit -f 20; fi
exec "$TRAIN_MOE" "$@"
SCRIPT
      chmod +x "$folder/one_full"
      cp "$folder/state" "$folder/kept"
      options --layers 3 --save "$folder/kept"
      TRAIN_MOE=$train_moe timeout 60 "${start[@]}" 4 "$folder/one_full" $how "${given[@]}" \
        >"$folder/output" 2>&1
      [ $? -eq $refused ] && grep -q 'rank 3: --save=.*cannot be written (File too large)' "$folder/output" &&
        cmp "$folder/state" "$folder/kept" >>"$folder/output" 2>&1
      verdict '4 ranks: a rank that cannot write leaves the file of before as it is'
      on 4 --layers 3 --steps 4 --save "$folder/kept" && [ ! -e "$folder/kept.partial" ] &&
        ! cmp -s "$folder/state" "$folder/kept"
      verdict '4 ranks: the next save replaces it, and nothing unfinished is left'
    fi
    ;;
  refusals)
    refuses 4 '4 stages, more than --layers=3; start fewer' --layers 3
    refuses 2 '8 stages, more than --layers=4' --layers 4 --virtual-stages 4
    refuses 2 'microbatches=3: with --virtual-stages=2 it must be a multiple of the 2 ranks; give 4' \
      --layers 4 --virtual-stages 2 --microbatches 3
    refuses 2 'virtual-stages=0: use 1' --layers 4 --virtual-stages 0
    refuses 2 'in-flight=2: the schedule of --pipeline decides' --layers 4 --in-flight 2
    [ -e /dev/nvidia0 ] || refuses 2 'device=cuda: .*rank' --layers 4 --device cuda
    refuses 2 'layers-per-rank=2,1: makes 3 layers, not --layers=4' --layers 4 --layers-per-rank 2,1
    refuses 2 'layers-per-rank=4: names 1 ranks, but there are 2' --layers 4 --layers-per-rank 4
    refuses 2 'layers-per-rank=4,0: each rank needs a layer' --layers 4 --layers-per-rank 4,0
    refuses 2 'layers-per-rank=3,1: is for one stage' --layers 4 --layers-per-rank 3,1 \
      --virtual-stages 2
    refuses 2 "option --json is .*: it cannot be written" --layers 4 --json "$folder/none/x"
    refuses 2 'save=.*: cannot be written' --layers 4 --save "$folder/none/x"

    refuses 2 'expert-parallel: with --pipeline one of them must say' --layers 4 --expert-parallel
    refuses 2 'expert-parallel=3: does not make up the 2 ranks' --layers 4 --expert-parallel=3
    refuses 2 'expert-parallel=two: must be a number of ranks' --layers 4 --expert-parallel=two
    refuses 4 'in-flight=3: the schedule of --pipeline decides it; with --expert-parallel give 2' \
      --layers 4 --expert-parallel=2 --in-flight 3
    refuses 4 'microbatches=2: with --virtual-stages=2 it must be a multiple of the 4 ranks' \
      --layers 4 --expert-parallel=2 --virtual-stages 2 --microbatches 2
    refuses 4 '2 stages, more than --layers=1; start fewer' --layers 1 --expert-parallel=2
    how=--expert-parallel
    refuses 3 'experts=4: with --expert-parallel it must be a multiple of the 3 ranks; give 6'
    refuses 2 'fp8-scaling=tensor: with --expert-parallel the losses' --precision fp8 \
      --fp8-scaling tensor
    refuses 2 'ffn=40: with --codec=fp8 and --expert-parallel it must be a multiple of 16, .*; give 48' \
      --precision bf16 --codec fp8 --ffn 40
    refuses 2 'microbatches=3: with --expert-parallel it must be a multiple of the 2 ranks; give 4' \
      --microbatches 3
    refuses 2 'in-flight=3: is more than the 2 microbatches of each rank' --in-flight 3
    refuses 2 'virtual-stages=2: is for the ranks of a pipeline' --virtual-stages 2
    refuses 2 'resume=.*none: cannot be read' --resume "$folder/none"
    refuses 2 'memory=slots: with --expert-parallel' --memory slots "${leaves[@]}"
    refuses 2 'recompute-modules=moe_permute: with --expert-parallel' \
      --recompute-modules moe_permute
    refuses 2 'row-classes=-1: use 0 to 4096' --row-classes -1
    refuses 2 'expert-capacity=-1.*: must be a number above 0' --expert-capacity -1
    how=--pipeline=3
    refuses 2 'pipeline=3: does not make up the 2 ranks' --layers 4
    refuses 2 'parallel=1431655766: does not make up the 2 ranks' --layers 4 --expert-parallel=1431655766
    how=--pipeline

    # Ranks that would miss each other's messages, or train on another text each.
    cat >"$folder/apart" <<'SCRIPT'
#!/usr/bin/env bash
own=$OF_OTHERS
if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${RANK:-${SLURM_PROCID:-0}}}}" = 1 ]; then own=$OF_RANK_1; fi
read -r -a own <<<"$own"
exec "$TRAIN_MOE" "$@" "${own[@]}"
SCRIPT
    chmod +x "$folder/apart"
    # apart PATTERN "OPTIONS OF RANK 1" "OPTIONS OF THE OTHERS"
    apart() {
      enough 2 "only rank 1 has $2" || return
      TRAIN_MOE=$train_moe OF_RANK_1=$2 OF_OTHERS=$3 timeout 60 "${start[@]}" 2 "$folder/apart" \
        --hidden 32 --heads 2 --seq 32 --batch 2 --device "$device" >"$folder/output" 2>&1
      [ $? -eq $refused ] && [ "$(grep -c 'train_moe: ' "$folder/output")" -eq 1 ] &&
        grep -q -- "train_moe: --$1: on rank 1, and rank 0 has another" "$folder/output"
      verdict "2 ranks refuse: only rank 1 has $2"
    }
    spread="--pipeline --data $text --steps 3"
    apart "data=$0" "--pipeline --data $0 --steps 3" "$spread"
    apart 'steps=4' "--pipeline --data $text --steps 4" "$spread"
    apart 'pipeline=false' "--expert-parallel --data $text --steps 3" "$spread"
    apart 'compare=true' "$spread --compare" "$spread"
    apart 'eval-every=1' "$spread --eval-every 1" "$spread"
    apart 'save=a file' "$spread --save $folder/apart.state" "$spread"
    experts="--expert-parallel --data $text --steps 3"
    apart 'shard-optimizer=true' "$experts --shard-optimizer" "$experts"
    leaving="$spread --offload-modules all --memory arena --device-budget 4MB"
    apart 'policy=automatic' "$leaving --policy automatic --timed-step 2 --adopt-after 0" "$leaving"

    # alone_refuses PATTERN OPTION...
    alone_refuses() {
      local pattern=$1
      shift
      alone "$@"
      [ $? -eq 2 ] && grep -q -- "$pattern" "$folder/output"
      verdict "one process refuses: $*"
    }
    alone_refuses 'virtual-stages=2: .*add --pipeline' --virtual-stages 2
    alone_refuses 'layers-per-rank: .*add --pipeline' --layers-per-rank 3,1
    alone_refuses 'expert-capacity=1.*: is for experts, and --dense-layers=4 leaves no layer' \
      --dense-layers 4 --expert-capacity 1
    alone_refuses 'row-classes=8: is for experts, and --dense-layers=4 leaves no layer' \
      --dense-layers 4 --row-classes 8
    alone_refuses 'shard-optimizer: .*add --expert-parallel' --shard-optimizer
    WORLD_SIZE=2 alone_refuses '[^_]RANK is not set, though torchrun' --expert-parallel
    RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 alone_refuses 'WORLD_SIZE=2: torchrun started' \
      --expert-parallel
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 \
      alone_refuses 'SLURM_STEP_NUM_TASKS=2: srun started' --pipeline
    timeout 120 "${start[@]}" 2 "$train_moe" --steps 3 >"$folder/output" 2>&1
    [ $? -eq $refused ] && grep -q '\(mpirun\|torchrun\|srun\) started 2 ranks' "$folder/output"
    verdict '2 ranks refuse: no --pipeline'
    on 2 --help && [ "$(grep -c 'virtual-stages' "$folder/output")" -eq 1 ]
    verdict '2 ranks print one help'
    ;;
  endings)
    # Rank 0 has three of four layers: the budget is too small for it and enough for rank 1, which
    # is waiting for rank 0 when that gives up.
    on 2 --layers 4 --layers-per-rank 3,1 --memory arena --device-budget 800KB
    status=$?
    [ $status -eq $refused ] && grep -q 'train_moe: rank 0: .*device-budget' "$folder/output"
    verdict 'a budget that is too small for rank 0 ends both ranks'

    # A file that one rank cannot read.
    cat >"$folder/one_blind" <<'SCRIPT'
#!/usr/bin/env bash
if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${RANK:-${SLURM_PROCID:-0}}}}" = 1 ]; then set -- "$@" --data /nowhere; fi
exec "$TRAIN_MOE" "$@"
SCRIPT
    chmod +x "$folder/one_blind"
    TRAIN_MOE=$train_moe timeout 60 "${start[@]}" 2 "$folder/one_blind" --pipeline --layers 2 \
      >"$folder/output" 2>&1
    [ $? -eq $refused ] && [ "$(grep -c 'train_moe: ' "$folder/output")" -eq 1 ] &&
      grep -q '/nowhere: cannot be read' "$folder/output"
    verdict 'a text that one rank cannot read ends both, with one message'

    # Each rank leaves its process id, and training goes on for ever.
    cat >"$folder/with_id" <<'SCRIPT'
#!/usr/bin/env bash
echo $$ >"$FOLDER/id.${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${RANK:-${SLURM_PROCID:-0}}}}"
exec "$TRAIN_MOE" "$@"
SCRIPT
    chmod +x "$folder/with_id"
    lives() { grep -q '^State:' "/proc/$1/status" && ! grep -q '^State:.Z' "/proc/$1/status"; } \
      2>/dev/null
    for end in --pipeline:0 --pipeline:1 --pipeline:3 --expert-parallel:0 --expert-parallel:2 \
      --pipeline=$((most / 2)):2; do
      how=${end%:*} victim=${end#*:}
      enough $((victim + 1)) "$how, rank $victim is killed" || continue
      rm -f "$folder"/id.*
      also=()
      [[ $how != *=* ]] || also=(--expert-parallel)
      TRAIN_MOE=$train_moe FOLDER=$folder timeout 90 "${start[@]}" "$most" "$folder/with_id" "$how" "${also[@]}" \
        "${small[@]}" --device "$device" --layers 4 --steps 10000000 >"$folder/output" 2>&1 &
      launched=$!
      for ((i = 0; i < 300; ++i)); do  # until the ranks train
        [ "$(cat "$folder"/id.* 2>/dev/null | wc -l)" -eq "$most" ] && grep -q 'step ' "$folder/output" &&
          break
        sleep 0.1
      done
      mapfile -t ids < <(cat "$folder"/id.*)
      kill -9 "$(cat "$folder/id.$victim")"
      killed=$?
      since=$SECONDS
      wait $launched
      status=$?
      for ((i = 0; i < 600; ++i)); do
        left=0
        for id in "${ids[@]}"; do lives "$id" && left=$((left + 1)); done
        [ $left -eq 0 ] && break
        sleep 0.1
      done
      [ $killed -eq 0 ] && [ ${#ids[@]} -eq "$most" ] && [ $status -ne 0 ] &&
        [ $status -ne 124 ] && [ "$left" -eq 0 ]
      verdict "$how: rank $victim is killed, and the others end within $((SECONDS - since)) s (status $status)"
    done
    ;;
  *)
    echo "no part \"$part\""
    exit 2
    ;;
esac

[ "$failed" -eq 0 ]
