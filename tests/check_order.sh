#!/usr/bin/env bash
# The trainer on a device that checks the order of accesses: its kernels say what they touch, and
# nothing is out of order, whatever it saves, moves and computes with.
#
#   tests/check_order.sh TRAIN_MOE [option of train_moe]...     e.g. --device cuda
#
# Prints one line a case; exits 1 if any fails.
set -uo pipefail

train_moe=$1
shift
source "$(dirname "${BASH_SOURCE[0]}")/support/cases.sh"

# check NAME OPTION...
check() {
  local name=$1
  shift
  "$train_moe" --preset tiny --steps "$steps" --check-order "$@" "${device[@]}" >"$folder/output" 2>&1 &&
    grep -q '^order: 0 mistakes found' "$folder/output"
  verdict "$name"
}

device=("$@")
steps=4
all=(--offload-modules all)
check 'no offload'
check 'all modules' "${all[@]}"
check 'compared with no offload' "${all[@]}" --compare
for cap in 0 1 4; do check "at most $cap offloads in flight" "${all[@]}" --max-inflight $cap; done
for depth in 1 3 4; do
  check "1F1B of depth $depth" "${all[@]}" --in-flight $depth --microbatches 8
done
check 'an arena' "${all[@]}" --memory arena --device-budget 24MiB
check 'slots' "${all[@]}" --memory slots
check 'half of each' "${all[@]}" --offload-fraction 0.5
check 'poison' "${all[@]}" --poison
check 'evaluation in between' "${all[@]}" --eval-every 2
check 'recomputation' --offload-modules core_attn --recompute-modules layernorm,moe_act
check 'moments on the host' "${all[@]}" --optimizer-state host
check 'a dense layer, shared experts, MTP' "${all[@]}" --dense-layers 1 --shared-experts 1 --mtp 1
check 'experts that drop tokens' "${all[@]}" --expert-capacity 1.0
for precision in bf16 fp16 fp8; do check "$precision" "${all[@]}" --precision $precision; done
check 'bf16, FP8 codec' "${all[@]}" --precision bf16 --codec fp8
check 'products of codes' "${all[@]}" --precision fp8 --fp8-gemm --fp8-scaling tensor
check 'products of codes in backward too' "${all[@]}" --precision fp8 --fp8-gemm=both --hidden 128 --ffn 128
check 'a trace' "${all[@]}" --timeline "$folder/timeline"
steps=6
check 'a plan' "${all[@]}" --policy automatic --timed-step 2 --adopt-after 0 --device-budget 20MiB

[ "$failed" -eq 0 ]
