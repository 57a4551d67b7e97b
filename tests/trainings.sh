#!/usr/bin/env bash
# The trainings that bench/trainings.sh and the README name are ones that train_moe takes. None is
# trained: each rank gets a seed of its own, which is refused once all sizes have been looked at.
#
#   tests/trainings.sh TRAIN_MOE
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
if ! command -v mpirun >/dev/null; then
  echo "skipped: no mpirun"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/build/examples" "$work/build/bench"
: >"$work/build/bench/libkernel_log.so"
cat >"$work/build/examples/train_moe" <<EOF
#!/usr/bin/env bash
exec "$(realpath "$1")" "\${@/#cuda/virtual}" --seed "\$OMPI_COMM_WORLD_RANK"
EOF
chmod +x "$work/build/examples/train_moe"

failed=0 count=0
while read -r ranks cases; do
  for case in $cases; do
    rm -rf "$work/out"
    bench/trainings.sh "$work/build" "$work/out" "$ranks" "$case" >"$work/said" 2>&1 </dev/null
    count=$((count + 1))
    started=true
    for file in "$work"/out/*.txt; do
      grep -q -e '--seed=.* rank 0 has another' "$file" || started=false
    done
    $started && continue
    failed=1
    echo "bench/trainings.sh names $case on $ranks ranks, which does not start:"
    cat "$work/said"
  done
done < <(sed -nE 's/.*bench\/trainings\.sh build\/default out ([0-9]+)(( proxy| (pipeline|experts|[0-9]+x[0-9]+):[0-9A-Za-z:]+)+).*/\1\2/p' \
  bench/trainings.sh README.md | sort -u)
echo "$count trainings"
[ $count -gt 0 ] && exit $failed
