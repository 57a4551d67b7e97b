#!/usr/bin/env bash
# Trains without offload and with a neighbour's memory as a place, alone and before the host, and compares
# the bits of every loss.
#
#   tests/places.sh TRAIN_MOE [option of train_moe]...     e.g. --device virtual
#
# Prints one line a configuration; exits 1 if a loss differs, a run fails, or nothing went to the neighbour.
set -uo pipefail

train_moe=$1
shift
common=("$@")
checked=0
failed=0

# The first argument: the places to which bytes have to go.
check() {
  local places=$1
  shift
  checked=$((checked + 1))
  if ! output=$("$train_moe" --preset tiny --steps 3 --compare --summary --offload-modules all \
    --host-step 64KiB "${common[@]}" "$@" 2>&1); then
    failed=$((failed + 1))
    printf 'FAILED   %s\n%s\n' "$*" "$(tail -n 5 <<<"$output")"
    return
  fi
  for place in $places; do
    if ! grep -Eq "^offloaded to $place [^0-9]*[0-9.]*[1-9]" <<<"${output//peer 1/peer_1}"; then
      failed=$((failed + 1))
      printf 'FAILED   %s\nnothing went to %s\n' "$*" "$place"
      return
    fi
  done
  printf 'equal    %s\n' "$*"
}

for depth in 1 2 3; do
  check "peer_1 host" --places peer,host --peer-budget 2MiB --in-flight "$depth"
  check "peer_1" --places peer --peer-budget 64MiB --in-flight "$depth" --max-inflight 1
done
check "peer_1 host" --places peer,host --peer-budget 1MiB --memory arena --device-budget 24MiB \
  --in-flight 2 --eval-every 2
check "peer_1 host" --places peer host --peer-budget 512KiB --memory arena --device-budget 16MiB \
  --policy automatic
check "peer_1 host" --places=peer,host --peer-budget=2MiB --memory slots --in-flight 2 --mtp 1
check "peer_1" --places=host,peer --host-budget 1MiB --peer-budget 64MiB
if "$train_moe" "${common[@]}" --offload-modules all --places peer --peer-budget 1MiB \
  --peer-device 7 >/dev/null 2>&1; then
  failed=$((failed + 1))
  echo 'FAILED   a neighbour that is not there was taken'
fi
printf '%d configurations, %d failed\n' "$checked" "$failed"
[ "$failed" -eq 0 ]
