#!/usr/bin/env bash
# One command for owners of a GH200, GB200 or GB300, and a file to send back: what the link gives in
# each direction from each NUMA node, and a whole MLP offloaded against the same recomputed.
#
#   bench/grace.sh [BUILD [OUT]]                   build/default and grace-HOST.txt unless given
#   bench/grace.sh build/default grace.txt
#
# Runs on any machine with a GPU; takes about ten minutes. Builds what is missing. Exits 1
# if a part fails; the file then says which. Please attach it to an issue of Tidepool.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
build=${1:-build/default}
out=$(realpath "${2:-grace-$(hostname -s).txt}")
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "bench/grace.sh: no GPU here; run it on the machine that has it" >&2
  exit 2
fi
if ! [ -x "$build/bench/bench_link" ] || ! [ -x "$build/bench/bench_step" ]; then
  { cmake --preset default -B "$build" && cmake --build "$build" -j --target bench_link bench_step; } || exit
fi

failed=0
# part NAME COMMAND...: its output under its name, in the file and here
part() {
  local name=$1
  shift
  printf '\n## %s\n$%s\n' "$name" "$(printf ' %q' "$@")"
  "$@" 2>&1
  local status=$?
  [ $status -eq 0 ] || { failed=1 && echo "FAILED with status $status: $name"; }
}

# nodes: those with CPUs and memory, which pinned memory can come from; Grace shows the GPU's own
# memory as nodes without CPUs.
nodes() {
  local node
  for node in /sys/devices/system/node/node[0-9]*; do
    [ -n "$(cat "$node/cpulist")" ] && grep -q 'MemTotal: *[1-9]' "$node/meminfo" && echo "${node##*node}"
  done
}

everything() {
  echo "# bench/grace.sh of Tidepool $(git describe --always --dirty 2>/dev/null), $(date -u +%F)"
  part machine uname -mr
  part gpu nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,pci.bus_id --format=csv
  part topology nvidia-smi topo -m
  part cpus lscpu
  part 'nodes of memory' grep -H MemTotal /sys/devices/system/node/node*/meminfo

  local list node
  list=$(nodes)
  for node in $list; do
    if [ "$(wc -w <<<"$list")" -eq 1 ]; then
      part "link, the only node" "$build/bench/bench_link"
    elif command -v numactl >/dev/null; then
      part "link, node $node" numactl --cpunodebind="$node" --membind="$node" "$build/bench/bench_link"
    else
      # Where the threads run decides where fresh pages lie, but for a full node.
      part "link, node $node" taskset -c "$(cat "/sys/devices/system/node/node$node/cpulist")" \
        "$build/bench/bench_link"
    fi
  done

  local gpus
  gpus=$(nvidia-smi -L | wc -l)
  if [ "$gpus" -gt 1 ]; then part "link, $gpus GPUs at once" "$build/bench/bench_link" --gpus "$gpus"; fi

  # A whole MLP: what the experts read and what their activation reads. Case "recompute" computes it again.
  local mlp=--offload-modules=expert_fc1,moe_act
  for depth in 2 1; do
    part "a whole MLP, offloaded or recomputed, $depth in flight" "$build/bench/bench_step" --depth $depth \
      --pairs 2 --steps 3 --no-by-hand --case "whole MLP: $mlp --max-inflight=2" \
      --case "plan at half: $mlp --memory=arena --device-budget=50% --policy=automatic" \
      --case "expert_fc1: --offload-modules=expert_fc1 --max-inflight=2"
  done
  [ $failed -eq 0 ]
}

everything | tee "$out"
status=${PIPESTATUS[0]}
echo
echo "Please send $out: attach it to an issue of Tidepool."
exit "$status"
