#!/usr/bin/env bash
# Trainings of a proxy of DeepSeek-V3's width over the GPUs of one machine, each without offload and
# with it: time of a step, memory of the fullest rank, bits of the losses, transfers of NCCL.
#
#   bench/trainings.sh BUILD OUT RANKS CASE...    CASE: pipeline|experts:TOKENS:BUDGET[:LAYERS]
#   bench/trainings.sh build/default out 2 pipeline:4096:10800MiB experts:4096:39GiB
#   bench/trainings.sh build/default out 4 pipeline:4096:30GiB:8 experts:2048:17GiB
#
# TOKENS are those of a sequence, BUDGET is what saved tensors may take of each rank's device, LAYERS
# are 4 unless given. Experts of four ranks take 2048 TOKENS at most: train_moe refuses messages of
# 2^31 numbers, and RANKS x 4 sequences x TOKENS x 8 experts of a token x 7168 would be more. Each case leaves its output in OUT/CASE.txt and prints a row; steps are medians
# of the last five. Exits 1 if a case fails or losses differ.
set -uo pipefail

if [ $# -lt 4 ] || ! [ "$3" -gt 1 ]; then
  echo "usage: bench/trainings.sh BUILD OUT RANKS CASE..., with two RANKS or more" >&2
  exit 2
fi
build=$1 out=$2 ranks=$3
shift 3
here=$(dirname "${BASH_SOURCE[0]}")
mkdir -p "$out" || exit
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

proxy=(--preset large --device cuda --hidden 7168 --heads 56 --experts 16 --top-k 8 --ffn 2048
  --expert-capacity 1.25 --batch 4 --microbatches $((4 * ranks)) --precision bf16 --lr 1e-5
  --data "$here/../LICENSE" --steps 14 --compare --offload-modules all --memory arena
  --policy automatic --timed-step 8 --adopt-after 0)

# row FILE NAME
row() {
  awk -v name="$2" '
    function median(run,   i, j, swap, last) {
      if (steps[run] < 5) return 0
      for (i = 0; i < 5; ++i) last[i] = ms[run, steps[run] - i]
      for (i = 1; i < 5; ++i) {
        for (j = i; j > 0 && last[j - 1] > last[j]; --j) { swap = last[j]; last[j] = last[j - 1]; last[j - 1] = swap }
      }
      return last[2]
    }
    /^  step +[0-9]+\// {
      at = index($0, " ms ")
      split($0, word)
      number = word[2]
      sub(/\/.*/, "", number)
      if (number + 0 == 1) ++runs
      n = split(substr($0, 1, at - 1), word)
      ms[runs, ++steps[runs]] = word[n]
    }
    /^device peak, MiB/ { none = $(NF - 1); with = $NF }
    /^losses equal to the bit/ { bits = $6 " of " $8 }
    /after the last rank came/ { transfers = transfers (transfers == "" ? "" : ", ") $NF }
    END {
      a = median(1); b = median(2)
      if (a == 0 || b == 0 || none == 0) { printf "%-28s no result\n", name; exit 1 }
      printf "%-28s %9.1f %9.1f %+7.2f%% %9.1f %9.1f %+7.1f%%  %-9s %s\n", name, a, b, 100 * (b / a - 1),
             none / 1024, with / 1024, 100 * (with / none - 1), bits, transfers
    }' "$1"
}

failed=0
printf '%-28s %9s %9s %8s %9s %9s %8s  %-9s %s\n' "$ranks ranks" 'ms' 'offload' '' 'GiB' 'offload' '' \
  'bits' 'NCCL'
for case in "$@"; do
  IFS=: read -r kind tokens budget layers <<<"$case"
  case $kind in
    pipeline) spread=(--pipeline) ;;
    experts) spread=(--expert-parallel) ;;
    *)
      echo "$case: begins with neither pipeline nor experts" >&2
      exit 2
      ;;
  esac
  command=(mpirun -np "$ranks" "$build/examples/train_moe" "${spread[@]}" "${proxy[@]}"
    --layers "${layers:-4}" --seq "$tokens" --device-budget "$budget")
  file=$out/${case//:/-}.txt
  echo "# ${command[*]}" >"$file"
  "$here/nccl_in_training.sh" "$build/bench/libkernel_log.so" "$logs/log" "${command[@]}" \
    >>"$file" 2>&1 || failed=1
  row "$file" "$case" || { failed=1 && grep -m 1 '^train_moe: ' "$file"; }
  rm -f "$logs"/log*
done
exit $failed
