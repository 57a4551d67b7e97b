#!/usr/bin/env bash
# Builds the trainer and runs it twice, without offload and with, and prints the comparison.
# On a GPU if there is one and the CUDA toolkit too, else on the virtual device.
#
#   examples/demo.sh [option of train_moe]...     e.g. --preset small --steps 50
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

if [ -n "${TIDEPOOL_DEMO_BUILD:-}" ]; then
  build=$TIDEPOOL_DEMO_BUILD
else
  # One process runs it, so that ranks need not be built.
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DTIDEPOOL_CUDA="$cuda" -DTIDEPOOL_MPI=OFF \
    -DTIDEPOOL_BUILD_TESTS=OFF -DTIDEPOOL_BUILD_BENCH=OFF
fi
cmake --build "$build" --target train_moe --parallel "$(jobs)"

# What the caller names goes before the demo's own choice.
options=(--compare)
[[ " $*" == *" --preset"* ]] || options+=(--preset tiny)
[[ " $*" == *" --offload-modules"* ]] || options+=(--offload-modules all)
"$build/examples/train_moe" "${options[@]}" "$@"
