#!/usr/bin/env bash
# Trains without offload and with, for every module alone and all of them, every cap, depth and kind
# of memory, and compares the bits of every loss.
#
#   tests/loss_bits.sh TRAIN_MOE [option of train_moe]...     e.g. --device cuda --steps 20
#
# Prints one line a configuration; exits 1 if any loss differs or any run fails. With
# TIDEPOOL_TEST_SHARD=I/N every N-th of them runs alone.
set -uo pipefail

train_moe=$1
shift
shard=${TIDEPOOL_TEST_SHARD:-0/1}
seen=0
checked=0
failed=0
common=("$@")
text=$(dirname "${BASH_SOURCE[0]}")/../LICENSE

device=auto
for ((i = 0; i < ${#common[@]}; ++i)); do
  [ "${common[i]}" != --device ] || device=${common[i + 1]}
done

check() {
  output=
  seen=$((seen + 1))
  [ $(((seen - 1) % ${shard#*/})) -eq "${shard%/*}" ] || return 0
  checked=$((checked + 1))
  if output=$("$train_moe" --preset tiny --compare "${common[@]}" "$@" 2>&1); then
    printf 'equal    %s\n' "$*"
  else
    failed=$((failed + 1))
    printf 'FAILED   %s\n%s\n' "$*" "$(tail -n 5 <<<"$output")"
  fi
}

modules=(attn_norm qkv_linear core_attn mlp_norm router expert_fc1 moe_act expert_fc2
  fused_group_mlp final_norm)

for module in "${modules[@]}" core_attn,attn_proj; do
  check --offload-modules "$module" --in-flight 2
done
for cap in none 0 1 2 8; do
  for depth in 1 2 3 4; do
    check --offload-modules all --max-inflight "$cap" --in-flight "$depth"
  done
done
for depth in 1 2 3 4; do
  check --offload-modules all --in-flight "$depth" --memory arena --device-budget 24MiB
  check --offload-modules all --in-flight "$depth" --memory arena --device-budget 24MiB \
    --policy automatic --timed-step 2 --adopt-after 0
  check --offload-modules all --in-flight "$depth" --memory slots
done
# Many small tensors whose sizes change: what the plan keeps must not leave the arena in pieces.
for budget in 900KB 1200KB 1600KB; do
  check --hidden 32 --heads 2 --seq 32 --batch 2 --layers 8 --in-flight 2 --memory arena \
    --device-budget "$budget" --offload-modules all --policy automatic --timed-step 2 --adopt-after 0
done
# The same in hardly more than a step needs: a fifth of it is one tensor. A GPU's own times make other
# plans, and it needs some more. The text is fixed, since the experts' sizes are those of its words:
# with a text that wants more in a later step than in those that were recorded, it is refused.
least=320KB
[ "$device" = virtual ] || least=400KB
for layers in 4 8; do
  for depth in 1 2; do
    check --hidden 32 --heads 2 --seq 32 --batch 2 --layers "$layers" --in-flight "$depth" \
      --eval-every 2 --memory arena --device-budget "$least" --offload-modules all \
      --policy automatic --timed-step 2 --adopt-after 0 --data "$text"
  done
done
check --offload-modules all --no-margin --reload-ahead 0
check --offload-modules all --reload-ahead 8 --offload-fraction 0.5
check --offload-modules all --offload-layers 1,2 --max-inflight-bytes 1MiB
check --offload-modules all --eval-every 2
check --offload-modules all --eval-every 2 --memory slots
check --recompute-modules layernorm,moe_act --memory slots \
  --offload-modules attn_norm,core_attn,mlp_norm,expert_fc1
kept=(attn_norm core_attn mlp_norm expert_fc1)
check --recompute-modules layernorm,moe_act,moe_permute --offload-modules router
for module in "${kept[@]}"; do
  check --recompute-modules layernorm,moe_act --offload-modules "$module" --in-flight 2
done
check --recompute-modules layernorm,moe_act,moe_permute --in-flight 3 --memory arena \
  --device-budget 24MiB --offload-modules attn_norm,core_attn,mlp_norm,router --eval-every 2
check --recompute-modules layernorm,moe_act --in-flight 2 --memory arena --device-budget 24MiB \
  --offload-modules attn_norm,core_attn,mlp_norm,expert_fc1 --policy automatic --timed-step 2 --adopt-after 0
# Sizes that stay the same, and residuals that outlive what is saved of them: the plan leaves room.
for budget in 14MiB 16MiB 18MiB; do
  check --expert-capacity 2 --offload-modules all --memory arena --device-budget "$budget" \
    --policy automatic --timed-step 2 --adopt-after 0
done
check --expert-capacity 1.5 --row-classes 6 --offload-modules all --memory arena \
  --device-budget 24MiB --policy automatic --timed-step 2 --adopt-after 0
check --row-classes 3 --in-flight 2 --memory slots
# What is cheaper to compute again than to move: the plan says so, and the bits are the same. The text
# is fixed, so that the sizes of the experts' tensors are.
recomputing() {
  check --policy automatic --timed-step 2 --adopt-after 0 --memory arena --data "$text" --summary "$@"
  if [ -n "$output" ] && [ "$device" = virtual ] && ! grep -q 'are recomputed; ' <<<"$output"; then
    failed=$((failed + 1))
    printf 'FAILED   %s\nnothing was recomputed by plan\n' "$*"
  fi
}
for budget in 4500KB 4300KB; do
  recomputing --offload-modules all --device-budget "$budget"
done
recomputing --offload-modules all --device-budget 4500KB --eval-every 2
recomputing --offload-modules all --device-budget 4500KB --dense-layers 1 --shared-experts 1
recomputing --offload-modules all --device-budget 2000KB --precision fp8
recomputing --offload-modules all --device-budget 2000KB --precision bf16 --codec fp8
# Dense layers, and shared experts beside the routed ones.
mixed=(--dense-layers 1 --shared-experts 1)
for module in mlp_fc1 mlp_act mlp_fc2 shared_act shared_fc2; do
  check "${mixed[@]}" --offload-modules "$module" --in-flight 2
done
check "${mixed[@]}" --offload-modules all --memory arena --device-budget 24MiB --eval-every 2
check "${mixed[@]}" --offload-modules all --memory arena --device-budget 24MiB --policy automatic --timed-step 2 --adopt-after 0
check "${mixed[@]}" --offload-modules all --memory slots --in-flight 3
check "${mixed[@]}" --dense-ffn 96 --recompute-modules layernorm,moe_act,mlp_act,shared_act \
  --offload-modules core_attn,router,attn_norm,mlp_norm --in-flight 2
check --dense-layers 4 --offload-modules all --memory slots
# Multi-token prediction: what its projection reads is the head's as well.
for modules in mtp_proj final_norm mtp_proj,final_norm all; do
  check --mtp 2 --offload-modules "$modules" --in-flight 2
done
check --mtp 1 --offload-modules all --memory arena --device-budget 24MiB --eval-every 2
check --mtp 1 "${mixed[@]}" --offload-modules all --memory arena --device-budget 24MiB \
  --policy automatic --timed-step 2 --adopt-after 0
for modules in mtp_proj final_norm all; do
  check --mtp 2 --offload-modules "$modules" --memory slots --in-flight 3
done
check --layers 1 --mtp 8 --offload-modules qkv_linear,router --memory slots --in-flight 4
check --mtp 2 --recompute-modules layernorm,moe_act,moe_permute --in-flight 2 \
  --offload-modules attn_norm,core_attn,mlp_norm,router,mtp_proj

printf '%d configurations, %d failed\n' "$checked" "$failed"
[ "$failed" -eq 0 ]
