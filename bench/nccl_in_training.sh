#!/usr/bin/env bash
# How long NCCL's kernels take in a training, without offload and with it, in one process a rank.
#
#   bench/nccl_in_training.sh KERNEL_LOG LOGS COMMAND...
#   bench/nccl_in_training.sh build/default/bench/libkernel_log.so /tmp/log \
#     mpirun -np 2 train_moe --expert-parallel --compare ...
#
# KERNEL_LOG is the library of bench/kernel_log.cpp, LOGS the base of the files that it writes. Of
# both runs of --compare the last third of the kernels counts: no warm-up. A kernel of NCCL waits
# for the other ranks' before it moves anything; what the last rank to come needs is the transfer
# itself. Kernels of different ranks belong together if they are the same one, in the order of the
# same stream, in the order in which streams are first used: true of all-to-all on any number of
# ranks, and of the two neighbours that a pipeline of two ranks has.
set -uo pipefail

library=$(realpath -e "$1") || exit
logs=$2
shift 2
rm -f "$logs".[0-9]*
CUDA_INJECTION64_PATH=$library TIDEPOOL_KERNEL_LOG=$logs "$@" || exit
echo
for file in "$logs".[0-9]*; do
  # Meetings of the ranks are not the same in both runs.
  grep -v AllGather "$file" | sort -n >"$file.kernels"
  # half, stream in the order of first use, number in it, how many it has, µs, NCCL's name for it
  awk -v all="$(wc -l <"$file.kernels")" '
    { part = NR > all / 2; key = part " " $3 }
    !(key in order) { order[key] = ++streams[part] }
    {
      at[NR] = part " " order[key]; number[NR] = ++count[key]; of[NR] = key; took[NR] = $2
      name[NR] = match($4, /ncclDevKernel_[A-Za-z]+/) ? substr($4, RSTART + 14, RLENGTH - 14) : "other"
    }
    { ++kinds[name[NR], part] }
    END {
      for (i = 1; i <= NR; ++i) {
        if (kinds[name[i], 0] == kinds[name[i], 1]) continue
        print FILENAME ": the two runs differ in their kernels " name[i] ": which is whose is a guess" >"/dev/stderr"
        break
      }
      for (i = 1; i <= NR; ++i) print at[i], number[i], count[of[i]], took[i], name[i]
    }' "$file.kernels" >"$file.times"
done
awk '
  FNR == 1 { ++ranks }
  $3 > $4 * 2 / 3 {
    sum[ranks, $1] += $5; ++kernels[ranks, $1]
    key = $1 " " $2 " " $3 " " $6
    if (!(key in least) || $5 < least[key]) least[key] = $5
    ++seen[key]
  }
  END {
    for (key in least) {
      split(key, word, " ")
      if (seen[key] != ranks) continue
      transfer[word[4], word[1]] += least[key]; ++matched[word[4], word[1]]; names[word[4]]
    }
    printf "%-46s %12s %12s %9s\n", "kernels of NCCL, ms", "no offload", "offload", "longer"
    for (r = 1; r <= ranks; ++r) row("rank " r - 1 ", all of them", kernels, sum, r)
    for (name in names) row(name ", after the last rank came", matched, transfer, name)
  }
  function row(what, number, times, key,   a, b) {
    a = times[key, 0]; b = times[key, 1]
    printf "%-46s %12.2f %12.2f %+8.2f%%\n", what " (" number[key, 0] "; " number[key, 1] ")", a / 1000,
           b / 1000, (a > 0 ? 100 * (b / a - 1) : 0)
  }' "$logs".[0-9]*.times
