#!/usr/bin/env bash
# Builds the trainer and the tests of the adapter with the PyTorch that python3 has, without CMake,
# and runs them on its GPU: for machines that have PyTorch, a CUDA toolkit and little else.
#
#   tests/torch/with_pytorch.sh [FOLDER] [option of torch_trainer]...
#
# TIDEPOOL_TORCH_ROOT (and TIDEPOOL_TORCH_LIB, if not its lib) names another libtorch, CUDA_HOME the
# toolkit. Without a libtorch for CUDA all runs on the virtual device. The tests are left out without
# doctest. TIDEPOOL_SANITIZER=compute-sanitizer runs the GPU tests under its memcheck;
# TIDEPOOL_SOAK_STEPS says how long the soak is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:-build/with_pytorch}
if [ $# -gt 0 ]; then shift; fi
root=${TIDEPOOL_TORCH_ROOT:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')}
lib=${TIDEPOOL_TORCH_LIB:-$root/lib}
cuda=${CUDA_HOME:-/usr/local/cuda}
mkdir -p "$out"

flags=(-std=c++20 -O1 -Iinclude -DTIDEPOOL_COMPILED "-DTIDEPOOL_SOURCE_DIR=\"$PWD\""
  -isystem "$root/include/torch/csrc/api/include")
# A system's own folder stays where it is in the compiler's order.
if [ "$root" != /usr ]; then flags+=(-isystem "$root/include"); fi
libraries=("-L$lib" "-Wl,-rpath,$lib" -ltorch -ltorch_cpu -lc10)
device=virtual
if [ -e "$lib/libtorch_cuda.so" ]; then
  device=cuda
  flags+=(-DTIDEPOOL_TORCH_CUDA=1 -DTIDEPOOL_HAS_CUDA=1 -isystem "$cuda/include"
    -isystem "$cuda/include/cccl")
  cudart=$(find -L "$cuda" -name 'libcudart.so' 2>/dev/null | head -n 1)
  libraries+=("-Wl,--no-as-needed" -ltorch_cuda -lc10_cuda "-Wl,--as-needed" "$cudart"
    "-Wl,-rpath,$(dirname "$cudart")")
else
  flags+=(-DTIDEPOOL_NO_CUDA)
fi

objects=()
compile() {  # compile <source> [flag]...
  local object
  object=$out/$(basename "$1" .cpp).o
  ${CXX:-g++} "${flags[@]}" "${@:2}" -c "$1" -o "$object" &
  objects+=("$object")
}
link() { ${CXX:-g++} "${@:2}" "$out/tidepool.o" -o "$out/$1" "${libraries[@]}" -ldl -lpthread; }

compile cmake/tidepool.cpp
compile examples/torch_trainer/main.cpp
compile tests/torch/soak.cpp -Itests/torch -Iexamples/torch_trainer
wait
link torch_trainer "$out/main.o"
link torch_soak "$out/soak.o"
objects=()
tests=
if printf '#include <doctest/doctest.h>\n' | ${CXX:-g++} "${flags[@]}" -E -x c++ - >/dev/null 2>&1; then
  tests=yes
  cp tests/support/main.cpp "$out/test_main.cpp"
  own=(-Itests/support -Itests/torch -Iexamples/torch_trainer -O0)
  for source in "$out/test_main.cpp" tests/torch/*_test.cpp; do compile "$source" "${own[@]}"; done
  wait
  link torch_tests "${objects[@]}"
fi

export CUBLAS_WORKSPACE_CONFIG=:4096:8
"$out/torch_trainer" --device=$device --compare --min-tensor-elements=1 --offload-modules=all "$@"
"$out/torch_trainer" --device=$device --check-order --min-tensor-elements=1 --offload-modules=all
"$out/torch_soak" --device=$device --min-tensor-elements=1 --offload-modules=all --poison \
  --steps="${TIDEPOOL_SOAK_STEPS:-100}"
if [ -n "$tests" ]; then
  "$out/torch_tests" -tse=gpu
  ${TIDEPOOL_SANITIZER:-} "$out/torch_tests" -ts=gpu || [ $? -eq 77 ]
else
  echo "doctest is not here: the tests are left out"
fi
