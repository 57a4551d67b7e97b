#!/usr/bin/env bash
# Trains in every precision: losses near those of fp32 and equal to the bit with offload, bytes that
# leave, products of codes, the scale of the loss under fp16, resuming; then options that must be
# refused.
#
#   tests/precision.sh TRAIN_MOE [option of train_moe]...     e.g. --device cuda
#
# Prints one line a case; exits 1 if any fails. With TIDEPOOL_TEST_SHARD=I/N every N-th of the
# comparisons with and without offload runs alone, and losses are compared after 20 steps, not 40.
set -uo pipefail

train_moe=$1
shift
common=(--preset tiny "$@")
source "$(dirname "${BASH_SOURCE[0]}")/support/cases.sh"

trained=40
[ -z "${TIDEPOOL_TEST_SHARD:-}" ] || trained=20

run() { "$train_moe" "${common[@]}" "$@" >"$folder/output" 2>&1; }

# value NAME FILE: the last number of that name
value() { grep -o "\"$1\": [0-9.e+-]*" "$2" | tail -n 1 | grep -o '[0-9.e+-]*$'; }

# module_bytes MODULE FILE: what it offloaded
module_bytes() { grep -A 10 "\"$1\": {" "$2" | grep -o '"bytes_offloaded": [0-9]*' | grep -o '[0-9]*$'; }

# holds EXPRESSION: of awk
holds() {
  awk "BEGIN { exit !($1) }" && return
  echo "not so: $1" >>"$folder/output"
  return 1
}
bits() { grep -o '"bits": "[^"]*"' "$1"; }
options_of() {  # options_of PRECISION; codes are multiplied in sizes that cuBLASLt takes
  case $1 in
    fp8_tensor) echo '--precision fp8 --fp8-scaling tensor' ;;
    bf16_codec) echo '--precision bf16 --codec fp8' ;;
    fp8_codes) echo '--precision fp8 --fp8-gemm --hidden 128 --ffn 128' ;;
    fp8_tensor_codes) echo '--precision fp8 --fp8-scaling tensor --fp8-gemm' ;;
    fp8_both) echo '--precision fp8 --fp8-gemm=both --hidden 128 --ffn 128' ;;
    fp8_tensor_both) echo '--precision fp8 --fp8-scaling tensor --fp8-gemm=both' ;;
    *) echo "--precision $1" ;;
  esac
}

# The band of each is several times what was found, and far below what a wrong operand costs.
for kind in fp32:0 bf16:0.01 bf16_codec:0.01 fp16:0.005 fp8:0.03 fp8_tensor:0.03; do
  precision=${kind%:*}
  read -r -a options <<<"$(options_of "$precision")"
  run --steps "$trained" "${options[@]}" --offload-modules all --json "$folder/$precision" &&
    holds "$(value final_loss "$folder/$precision") - $(value final_loss "$folder/fp32") <= ${kind#*:}" &&
    holds "$(value final_loss "$folder/fp32") - $(value final_loss "$folder/$precision") <= ${kind#*:}"
  verdict "$precision: the loss after $trained steps is that of fp32, give or take ${kind#*:}"
done
# Of all steps: the last losses of two may have the same bits by chance, as those of fp16 and fp8 had.
[ "$(for p in fp32 bf16 fp16 fp8; do bits "$folder/$p" | cksum; done | sort -u | wc -l)" -eq 4 ]
verdict 'each precision has losses of its own'
[ "$(bits "$folder/bf16_codec" | head -n 1)" = "$(bits "$folder/bf16" | head -n 1)" ] &&
  [ "$(bits "$folder/bf16_codec" | tail -n 1)" != "$(bits "$folder/bf16" | tail -n 1)" ]
verdict 'bf16_codec: forward multiplies what bf16 does, backward does not'

# Codes that are multiplied, against bf16 of the same sizes; stale codes of weights would cost most.
run --steps "$trained" --precision bf16 --hidden 128 --ffn 128 --json "$folder/bf16_wide" &&
  run --steps 1 --precision fp8 --hidden 128 --ffn 128 --json "$folder/fp8_wide"
verdict 'bf16 and fp8 in the sizes of codes that are multiplied'
for kind in fp8_codes:bf16_wide:fp8_wide fp8_tensor_codes:bf16:fp8_tensor \
  fp8_both:bf16_wide:fp8_codes fp8_tensor_both:bf16:fp8_tensor_codes; do
  IFS=: read -r precision exact saved <<<"$kind"
  read -r -a options <<<"$(options_of "$precision")"
  run --steps "$trained" "${options[@]}" --offload-modules all --json "$folder/$precision" &&
    holds "$(value final_loss "$folder/$precision") - $(value final_loss "$folder/$exact") <= 0.02" &&
    holds "$(value final_loss "$folder/$exact") - $(value final_loss "$folder/$precision") <= 0.02"
  verdict "$precision: the loss after $trained steps is that of bf16, give or take 0.02"
  [[ $precision == *both ]] && continue
  [ "$(bits "$folder/$precision" | head -n 1)" != "$(bits "$folder/$saved" | head -n 1)" ] &&
    grep -q '"fp8_gemm": "forward"' "$folder/$precision" && grep -q '"fp8_gemm": "none"' "$folder/$saved"
  verdict "$precision: not the loss of codes that are saved and no more"
done
for kind in fp8_both:fp8_codes fp8_tensor_both:fp8_tensor_codes; do
  IFS=: read -r both forward <<<"$kind"
  [ "$(bits "$folder/$both" | head -n 1)" = "$(bits "$folder/$forward" | head -n 1)" ] &&
    [ "$(bits "$folder/$both" | sed -n 2p)" != "$(bits "$folder/$forward" | sed -n 2p)" ] &&
    grep -q '"fp8_gemm": "both"' "$folder/$both"
  verdict "$both: forward multiplies what $forward does, backward does not"
done

# What routing decides differs a little from precision to precision, and so do rows of experts.
ratio() {  # ratio MODULE A B LEAST MOST
  holds "$(module_bytes "$1" "$folder/$2") > 0" &&
    holds "$(module_bytes "$1" "$folder/$2") >= $4 * $(module_bytes "$1" "$folder/$3")" &&
    holds "$(module_bytes "$1" "$folder/$2") <= $5 * $(module_bytes "$1" "$folder/$3")"
  verdict "$1 offloads $4 to $5 times as much in $2 as in $3"
}
for precision in bf16 fp16; do
  ratio qkv_linear $precision fp32 0.5 0.5
  ratio core_attn $precision fp32 0.5 0.51
  for module in expert_fc1 moe_act expert_fc2; do ratio $module $precision fp32 0.49 0.51; done
done
for module in expert_fc1 expert_fc2; do
  ratio $module fp8_tensor bf16 0.49 0.51
  ratio $module bf16_codec bf16 0.51 0.52
  ratio $module fp8 bf16 0.52 0.54  # a scale for each row of 64 codes, which a block is here
done
for precision in bf16_codec fp8; do ratio moe_act $precision bf16 0.98 1.02; done

for precision in bf16 bf16_codec fp16 fp8 fp8_tensor fp8_codes fp8_tensor_codes fp8_both fp8_tensor_both; do
  read -r -a options <<<"$(options_of $precision)"
  for how in '--in-flight 3' '--memory arena --device-budget 24MiB --eval-every 2' '--memory slots' \
    '--offload-modules expert_fc1,moe_act,expert_fc2 --max-inflight 1' \
    '--offload-modules fused_group_mlp --optimizer-state host' \
    '--offload-modules attn_norm,mlp_norm,router --recompute-modules layernorm,moe_act,moe_permute' \
    '--mtp 1 --dense-layers 1 --shared-experts 1 --memory slots'; do
    in_shard || continue
    read -r -a rest <<<"$how"
    [[ " ${rest[*]} " == *' --offload-modules '* ]] || rest+=(--offload-modules all)
    run --steps 4 --compare "${options[@]}" "${rest[@]}"
    verdict "$precision: the same bits without offload and with, ${rest[*]}"
  done
done

for precision in bf16 bf16_codec; do
  read -r -a options <<<"$(options_of $precision)"
  run --steps 2 "${options[@]}" --offload-modules all --memory slots --json "$folder/slots_$precision"
done
holds "$(value device_peak_bytes "$folder/slots_bf16_codec") < 0.95 * $(value device_peak_bytes "$folder/slots_bf16")"
verdict 'slots are as large as what the codec packs'

# The scale of the loss: too high a one costs steps and no more, and a good one grows.
high=(--precision fp16 --initial-loss-scale 4294967296 --loss-scale-window 4)
run --steps 24 "${high[@]}" --json "$folder/high" && run --steps 24 --precision fp16 --json "$folder/good" &&
  holds "$(value skipped_steps "$folder/high") >= 4" &&
  holds "$(value skipped_steps "$folder/good") == 0" &&
  holds "$(value loss_scale "$folder/high") < 4294967296" &&
  holds "$(value final_loss "$folder/high") < $(value final_loss "$folder/good") + 1" &&
  ! grep -q nan "$folder/high"
verdict 'steps that overflow are skipped, and training goes on'
run --steps 9 --precision fp16 --initial-loss-scale 1 --loss-scale-window 4 --json "$folder/low" &&
  [ "$(value loss_scale "$folder/low")" = 4.0 ] && [ "$(value skipped_steps "$folder/low")" = 0 ]
verdict 'the scale doubles after each four good steps'
run --steps 4 --precision fp16 --initial-loss-scale 1024 --json "$folder/scale_a" &&
  run --steps 4 --precision fp16 --initial-loss-scale 4096 --json "$folder/scale_b" &&
  [ "$(bits "$folder/scale_a" | head -n 1)" = "$(bits "$folder/scale_b" | head -n 1)" ]
verdict 'the loss itself is reported without the scale'
run --steps 12 "${high[@]}" --compare --offload-modules all
verdict 'skipped steps are the same with offload'

for precision in bf16 bf16_codec fp16 fp8 fp8_tensor_codes fp8_tensor_both; do
  read -r -a first <<<"$(options_of $precision)"
  second=("${first[@]}")
  # Five steps are in the middle of those that the scale costs; the file knows where it was.
  [ $precision = fp16 ] && first=("${high[@]}") && second+=(--loss-scale-window 4)
  run --steps 12 "${first[@]}" --json "$folder/whole" --save "$folder/end_of_whole" &&
    run --steps 12 "${first[@]}" --save "$folder/state_$precision" --save-step 5 &&
    run --steps 12 "${second[@]}" --offload-modules all --resume "$folder/state_$precision" --json "$folder/tail" \
      --save "$folder/end" &&
    [ "$(bits "$folder/tail")" = "$(bits "$folder/whole" | tail -n 7)" ] &&
    cmp "$folder/end" "$folder/end_of_whole" >>"$folder/output" 2>&1
  verdict "$precision: resumed, the same bits as unbroken"
done

# refuses NAME PATTERN OPTION...
refuses() {
  local name=$1 pattern=$2
  shift 2
  run --steps 12 "$@"
  [ $? -eq 2 ] && grep -q -- "$pattern" "$folder/output"
  verdict "refused: $name"
}
refuses 'an unknown precision' 'precision=fp4: use one of fp32, bf16, fp16, fp8' --precision fp4
refuses 'an unknown scaling' 'fp8-scaling=row: use one of tensor, block' --precision fp8 --fp8-scaling row
refuses 'scaling without codes' 'has no effect with --precision=bf16; add --precision=fp8' \
  --precision bf16 --fp8-scaling tensor
refuses 'a scale without fp16' 'has no effect with --precision=fp32; add --precision=fp16' \
  --initial-loss-scale 4
refuses 'a window without fp16' 'has no effect with --precision=fp8' --precision fp8 --loss-scale-window 4
refuses 'a scale that is no power of two' 'use a power of two' --precision fp16 --initial-loss-scale 3
refuses 'no window' 'loss-scale-window=0: use 1 or more' --precision fp16 --loss-scale-window 0
refuses 'another precision' '--precision=fp8, and this run has --precision=bf16; give' \
  --precision bf16 --resume "$folder/state_fp8"
refuses 'another scaling' '--fp8-scaling=block, and this run has --fp8-scaling=tensor; give' \
  --precision fp8 --fp8-scaling tensor --resume "$folder/state_fp8"
refuses 'a scale beside that of the file' 'goes on with the scale of the file' \
  --precision fp16 --initial-loss-scale 4 --resume "$folder/state_fp8"
for products in none both; do
  refuses "codes multiplied in forward or in $products" \
    "with --fp8-gemm=forward, and this run has --fp8-gemm=$products; give --fp8-gemm=forward" \
    --precision fp8 --fp8-scaling tensor --fp8-gemm=$products --resume "$folder/state_fp8_tensor_codes"
done
refuses 'products that are no such' 'fp8-gemm=backward: use one of none, forward, both' \
  --precision fp8 --fp8-gemm=backward
refuses 'another codec' '--codec=fp8, and this run has --codec=none; give' \
  --precision bf16 --resume "$folder/state_bf16_codec"
refuses 'an unknown codec' 'codec=fp4: use one of none, fp8' --precision bf16 --codec fp4
refuses 'a codec for fp32' 'takes bf16, and --precision=fp32 saves none; add --precision=bf16' --codec fp8
refuses 'a codec for codes' '--precision=fp8 saves codes already' --precision fp8 --codec fp8
refuses 'a codec without experts' 'dense-layers=4 leaves no layer with any; lower that' \
  --precision bf16 --codec fp8 --dense-layers 4
refuses 'products of codes without codes' \
  'precision=bf16 saves none; add --precision=fp8, or leave it out' --precision bf16 --fp8-gemm
refuses 'products of codes without experts' 'dense-layers=4 leaves no layer with any; lower that' \
  --precision fp8 --fp8-scaling tensor --fp8-gemm --dense-layers 4
refuses 'a width that is no multiple of 16' \
  'ffn=72: with --fp8-gemm and --fp8-scaling=tensor it must be a multiple of 16; give 80$' \
  --precision fp8 --fp8-scaling tensor --fp8-gemm --ffn 72
refuses 'a width that is no multiple of a block' \
  'hidden=64: .*scaling=block it must be a multiple of 128; give 128, or take --fp8-scaling=tensor' \
  --precision fp8 --fp8-gemm
refuses 'another width that is no multiple of a block' 'ffn=136: .* multiple of 128; give 256$' \
  --precision fp8 --fp8-gemm --hidden 128 --ffn 136

[ "$failed" -eq 0 ]
