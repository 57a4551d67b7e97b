#!/usr/bin/env bash
# Trains without offload and with a neighbour's memory or a file as a place, alone and beside the host, and
# compares the bits of every loss.
#
#   tests/places.sh TRAIN_MOE [option of train_moe]...     e.g. --device virtual
#
# Prints one line a configuration; exits 1 if a loss differs, a run fails, or nothing went to a place.
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
  --policy automatic --timed-step 2 --adopt-after 0
check "peer_1 host" --places=peer,host --peer-budget=2MiB --memory slots --in-flight 2 --mtp 1
check "peer_1" --places=host,peer --host-budget 1MiB --peer-budget 64MiB

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
small_ring=(--file-budget 256MiB --file-ring 256KiB)
for depth in 1 2 3; do
  check "host file" --places "host,file:$folder" --host-budget 2MiB "${small_ring[@]}" --in-flight "$depth"
  check "file" --places "file:$folder" --file-budget 256MiB --in-flight "$depth" --max-inflight 1
done
check "peer_1 host file" --places "peer,host,file:$folder/new" --peer-budget 1MiB --host-budget 1MiB \
  "${small_ring[@]}" --memory arena --device-budget 24MiB --in-flight 2 --eval-every 2
check "file host" --places "file:$folder" host --file-budget 2MiB --file-ring 64KiB --memory arena \
  --device-budget 16MiB --policy automatic --timed-step 2 --adopt-after 0
if [ -n "$(ls -A "$folder")" ]; then
  failed=$((failed + 1))
  echo 'FAILED   a file was left behind'
fi
if "$train_moe" "${common[@]}" --offload-modules all --places "file:$folder/no/such" \
  --file-budget 1MiB >"$folder/said" 2>&1 ||
  ! grep -q 'cannot be made: No such file' "$folder/said"; then
  failed=$((failed + 1))
  echo 'FAILED   a file that cannot be made was taken, or not refused by name'
fi
# No file may have more than 8 MiB: the rest goes to the host.
limit=$(ulimit -f)
ulimit -S -f 8192
check "file host" --places "file:$folder,host" "${small_ring[@]}" --in-flight 2
ulimit -S -f "$limit"
if "$train_moe" "${common[@]}" --offload-modules all --places peer --peer-budget 1MiB \
  --peer-device 7 >/dev/null 2>&1; then
  failed=$((failed + 1))
  echo 'FAILED   a neighbour that is not there was taken'
fi
printf '%d configurations, %d failed\n' "$checked" "$failed"
[ "$failed" -eq 0 ]
