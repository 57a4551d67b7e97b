#!/usr/bin/env bash
# A pipeline on several ranks, without offload, with the host as the only place, and with memory that
# the last rank lends to the first: time of a step, memory of each rank, bits of the losses.
#
#   bench/lend.sh BUILD OUT RANKS LEND ROUNDS [option of train_moe]...
#   bench/lend.sh build/default out 2 4GiB 4                           two GPUs
#   bench/lend.sh build/default out 2 1MiB 2 --device virtual --preset tiny --layers 8
#
# The three run in turns, ROUNDS times. Prints a row a run: the median of its steps, MiB on the device
# of each rank, and what went to which place from rank 0. Then the medians of the rounds. Each run
# leaves its output in OUT. Exits 1 if a run fails, losses differ, or nothing went to what was lent.
set -uo pipefail

if [ $# -lt 5 ] || ! [ "$3" -gt 1 ] || ! [ "$5" -gt 0 ]; then
  echo "usage: bench/lend.sh BUILD OUT RANKS LEND ROUNDS [option of train_moe]..., with two RANKS or more" >&2
  exit 2
fi
build=$1 out=$2 ranks=$3 lend=$4 rounds=$5
shift 5
mkdir -p "$out" || exit
given=("$@")
[ $# -gt 0 ] || given=(--device cuda --preset large --hidden 2048 --ffn 2048 --layers 8 --experts 8
  --seq 2048 --batch 4 --microbatches 8 --precision bf16 --steps 12)
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

rm -f "$out"/{none,host,lend}.[0-9]*
failed=0
# train NAME OPTION...: one run, and its row
train() {
  local name=$1 file
  shift
  file=$out/$name
  if ! mpirun -np "$ranks" "$build/examples/train_moe" --pipeline --summary "${given[@]}" "$@" \
    --json "$file.json" >"$file.txt" 2>&1; then
    failed=1
    printf '%-10s failed: %s\n' "$name" "$(tail -n 1 "$file.txt")"
    return
  fi
  grep '"bits"' "$file.json" >"$file.bits"
  awk -v name="$name" '
    /^step [0-9.]+ ms, / { ms = $2 }
    /^rank [0-9]+: / { match($0, /[0-9.]+ MiB on the device/); split(substr($0, RSTART), w, " "); mb = mb sprintf(" %9.1f", w[1]) }
    /^offloaded to / { sub(/^offloaded to /, ""); places = places "  " $0 }
    END { printf "%-10s %10.3f ms %s MiB %s\n", name, ms, mb, places }' "$file.txt" | tee "$file.row"
}

printf '%-10s %13s  MiB on the device of each rank; where groups of rank 0 went\n' run 'a step'
for ((round = 1; round <= rounds; ++round)); do
  train "none.$round"
  train "host.$round" --offload-modules all
  train "lend.$round" --offload-modules all --lend "$lend"
  for kind in none host lend; do
    if ! cmp -s "$out/none.1.bits" "$out/$kind.$round.bits" || ! [ -s "$out/$kind.$round.bits" ]; then
      failed=1
      echo "$kind.$round: losses are not those of none.1"
    fi
  done
  if ! grep -Eq '^offloaded to peer, rank [0-9]+ .* [0-9.]*[1-9][0-9.]* [KMG]iB +peak' "$out/lend.$round.txt"; then
    failed=1
    echo "lend.$round: nothing went to what was lent"
  fi
done

# median KIND
median() {
  cat "$out/$1".[0-9]*.row | awk '{ print $2 }' | sort -n |
    awk '{ v[NR] = $1 } END { print NR == 0 ? 0 : NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}
none=$(median none)
for kind in none host lend; do
  awk -v kind="$kind" -v ms="$(median $kind)" -v none="$none" \
    'BEGIN { printf "median of %s: %.3f ms, %+.2f %% over none\n", kind, ms, (none > 0 ? 100 * (ms / none - 1) : 0) }'
done
exit $failed
