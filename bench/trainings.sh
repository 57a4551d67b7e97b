#!/usr/bin/env bash
# Trainings of a proxy of DeepSeek-V3's width over the GPUs of one machine, each without offload and
# with it: time of a step, memory of the fullest rank, bits of the losses, transfers of NCCL.
#
#   bench/trainings.sh BUILD OUT RANKS CASE...    CASE: pipeline|experts|STAGESxEXPERTS:TOKENS:BUDGET[:LAYERS], or proxy
#   bench/trainings.sh build/default out 2 pipeline:4096:10800MiB experts:4096:39GiB
#   bench/trainings.sh build/default out 4 pipeline:4096:30GiB:8 experts:2048:17GiB
#   bench/trainings.sh build/default out 4 2x2:4096:30GiB:8
#   bench/trainings.sh build/default out 2 proxy
#   bench/trainings.sh build/default out 4 proxy
#
# TOKENS are those of a sequence, BUDGET is what saved tensors may take of each rank's device, LAYERS
# are 4 unless given. 2x2 is a grid of two stages by two ranks that share experts. Experts of four ranks
# take 2048 TOKENS at most: train_moe refuses messages of 2^31 numbers, and RANKS x 4 sequences x TOKENS
# x 8 experts of a token x 7168 would be more. Each case leaves its output in OUT/CASE.txt and prints a
# row; steps are medians of the last five. "proxy" stands for cases that fit two or four GPUs of 140 GB,
# and prints Megatron-LM's published rows beside them. Exits 1 if a case fails or losses differ.
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
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
as_root=()
if [ "$(id -u)" -eq 0 ] && mpirun --version 2>/dev/null | grep -qiE 'open ?mpi|open-mpi|prte'; then
  as_root=(--allow-run-as-root)  # also where a wrapper drops the environment
fi

cases=()
published=false
for case in "$@"; do
  if [ "$case" != proxy ]; then
    cases+=("$case")
    continue
  fi
  published=true
  case $ranks in
    2) cases+=(pipeline:4096:10800MiB experts:4096:39GiB) ;;
    4) cases+=(pipeline:4096:30GiB:8 experts:2048:17GiB 2x2:4096:30GiB:8) ;;
    *)
      echo "proxy: has cases for 2 and 4 ranks, not $ranks; name cases of your own" >&2
      exit 2
      ;;
  esac
done

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

# beside_published ROWS: TFLOP/s of each GPU and MB of the fullest, as Megatron-LM's pull request has them.
beside_published() {
  printf '\n%-48s %9s %9s %8s %9s %9s %8s\n' 'a GPU' 'TFLOP/s' 'offload' '' 'MB' 'offload' ''
  awk -v ranks="$ranks" '
    function line(name, a, b, none, with) {
      printf "%-48s %9.0f %9.0f %+7.1f%% %9.0f %9.0f %+7.1f%%\n", name, a, b, 100 * (b / a - 1), none, with,
             100 * (with / none - 1)
    }
    BEGIN {
      line("Megatron-LM 1913, DeepSeek-V3 proxy, H100", 321, 315, 74306, 61046)
      line("Megatron-LM 1913, DeepSeek-V3, GB200", 945, 930, 169094, 151054)
    }
    NF >= 7 && $2 + 0 > 0 {
      n = split($1, part, ":")
      seq = part[2]; layers = n > 3 ? part[4] : 4
      # Products of a token in forward: attention, half of its square, router, experts, head.
      layer = 8 * 7168 * 7168 + 2 * seq * 7168 + 2 * 7168 * 16 + 8 * 6 * 7168 * 2048
      step = 3 * (layers * layer + 2 * 7168 * 256) * 4 * seq * 4 * ranks
      line("here, " $1, step / $2 / 1e9 / ranks, step / $3 / 1e9 / ranks, $5 * 1024, $6 * 1024)
    }' "$1"
  cat <<'END'
Theirs: the proxy has 14 layers of DeepSeek-V3's width, all with experts, in TP1 PP4 EP16 VPP1.
Here: 4 or 8 layers of that width, ordinary attention with 56 heads, 16 experts, a vocabulary of 256 bytes,
AdamW in fp32. Products are counted as if no expert were over its capacity, and without those computed again.
END
}

failed=0
printf '%-28s %9s %9s %8s %9s %9s %8s  %-9s %s\n' "$ranks ranks" 'ms' 'offload' '' 'GiB' 'offload' '' \
  'bits' 'NCCL'
for case in "${cases[@]}"; do
  IFS=: read -r kind tokens budget layers <<<"$case"
  case $kind in
    pipeline) spread=(--pipeline) ;;
    experts) spread=(--expert-parallel) ;;
    [1-9]*x[1-9]*) spread=(--pipeline="${kind%x*}" --expert-parallel="${kind#*x}") ;;
    *)
      echo "$case: begins with neither pipeline, experts nor STAGESxEXPERTS" >&2
      exit 2
      ;;
  esac
  command=(mpirun "${as_root[@]}" -np "$ranks" "$build/examples/train_moe" "${spread[@]}" "${proxy[@]}"
    --layers "${layers:-4}" --seq "$tokens" --device-budget "$budget")
  file=$out/${case//:/-}.txt
  echo "# ${command[*]}" >"$file"
  # Transfers of more than two ranks in a line are not told apart.
  measure=("$here/nccl_in_training.sh" "$build/bench/libkernel_log.so" "$logs/log")
  [[ $kind != *x* ]] || measure=()
  "${measure[@]}" "${command[@]}" >>"$file" 2>&1 || failed=1
  row "$file" "$case" >"$logs/row" || { failed=1 && grep -m 1 '^train_moe: ' "$file"; }
  cat "$logs/row"
  cat "$logs/row" >>"$logs/rows"
  grep -h '^the plan predicted' "$file" | sed 's/^/  /'
  rm -f "$logs"/log*
done
if $published; then beside_published "$logs/rows"; fi
exit $failed
