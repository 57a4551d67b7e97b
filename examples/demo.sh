#!/usr/bin/env bash
# Builds the trainer and runs it twice, without offload and with, and prints the comparison.
# On a GPU if there is one and the CUDA toolkit too, else on the virtual device.
#
#   examples/demo.sh [option of train_moe]...     e.g. --preset tiny --steps 50
#
# TIDEPOOL_DEMO_BUILD names a build folder that has the trainer already, as CI's tests leave one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source cmake/prerequisites.sh

need compiler cmake generator openblas cli11 json
stop_without "${missing[@]+"${missing[@]}"}"
choose_generator

cuda=OFF
build=build/demo
if have_gpu; then
  if have_nvcc; then
    cuda=ON
    build=build/demo-cuda
  else
    note "there is a GPU but no nvcc, so the virtual device runs the demo; the CUDA toolkit (12 or" \
      "later) comes from https://developer.nvidia.com/cuda-downloads"
  fi
fi

# quietly COMMAND...: what it prints goes to a file, which is shown where it fails.
quietly() {
  "$@" >>"$log" 2>&1 && return
  cat "$log" >&2
  note "this failed: $*"
  exit 1
}

if [ -n "${TIDEPOOL_DEMO_BUILD:-}" ]; then
  build=$TIDEPOOL_DEMO_BUILD
fi
mkdir -p "$build"
log=$build/demo.log
: >"$log"
if [ -z "${TIDEPOOL_DEMO_BUILD:-}" ]; then
  # One process runs it, so that ranks need not be built.
  quietly cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DTIDEPOOL_CUDA="$cuda" \
    -DTIDEPOOL_MPI=OFF -DTIDEPOOL_BUILD_TESTS=OFF -DTIDEPOOL_BUILD_BENCH=OFF
fi
note "building train_moe; the first time takes a minute or two ($log)"
quietly cmake --build "$build" --target train_moe --parallel "$(jobs)"

# What the caller names goes before the demo's own choice.
options=(--compare)
given=" $*"
choose() { [[ $given == *" $1"* ]] || options+=("$@"); }
choose --offload-modules all
choose --picture "$build/step.svg"
if [[ $given == *" --preset"* ]]; then
  :
elif [ $cuda = ON ]; then
  # Layers wide enough to hide their copies, and a model that fits a card of 16 GB.
  options+=(--preset medium)
  choose --layers 4
  choose --hidden 2048
  choose --ffn 2048
  choose --experts 4
  choose --seq 2048
  choose --steps 12
  choose --microbatches 2
  choose --in-flight 1
else
  # Groups are large enough to hide their copies, and the CPU computes a step in a second. LICENSE
  # does not change, and so README.md has the same figures.
  options+=(--preset small)
  choose --data LICENSE
  choose --steps 6
  choose --microbatches 2
  choose --in-flight 1
fi
note "training without offload, then with"
"$build/examples/train_moe" "${options[@]}" "$@"
