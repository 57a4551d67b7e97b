#!/usr/bin/env bash
# Builds and runs the tests.
#
#   tests/run.sh [preset] [option of ctest]...    preset: default (if not named), quick, no-cuda,
#                                               clang, asan, tsan
#
# With a GPU and the CUDA toolkit the GPU tests must run (TIDEPOOL_REQUIRE_GPU=1); else they are
# skipped visibly. TIDEPOOL_TEST_LENGTH=full runs every case: what it leaves out otherwise
# tests/README.md says. TIDEPOOL_CMAKE_ARGS holds further arguments for the configuration. The
# build folder keeps junit.xml and Ninja's log; what took longest is printed before CTest's summary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source cmake/prerequisites.sh

preset=default
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
  preset=$1
  shift
fi
case $preset in
  default | quick | no-cuda | clang | asan | tsan) ;;
  *)
    note "no preset \"$preset\"; there are default, quick, no-cuda, clang, asan, tsan"
    exit 2
    ;;
esac

arguments=()
case $preset in
  default | quick | no-cuda)
    need compiler cmake generator doctest objdump python openblas cli11 json benchmark mpi spin doxygen \
      awesome mkdocs torch pytorch pybind11 wheel
    stop_without compiler cmake generator doctest
    if is_missing openblas || is_missing cli11 || is_missing json; then
      note "the examples are left out, and with them their tests"
      arguments+=(-DTIDEPOOL_BUILD_EXAMPLES=OFF)
    fi
    if is_missing benchmark; then
      note "the benches are left out"
      arguments+=(-DTIDEPOOL_BUILD_BENCH=OFF)
    fi
    if is_missing mpi; then note "the trainer is built without ranks, and their tests are skipped"; fi
    if is_missing torch; then
      note "the adapter for libtorch is left out, and with it its trainer and their tests"
    fi
    if is_missing pytorch || is_missing pybind11; then
      note "the tests behind Megatron's call sites are skipped"
    elif is_missing wheel; then
      note "the wheel is not built, and its test skipped"
    fi
    if is_missing spin; then note "the formal model is skipped"; fi
    if is_missing doxygen || is_missing awesome || is_missing mkdocs; then
      note "the site of the documentation is not built, and its test skipped"
    fi
    ;;
  *)
    need compiler cmake generator doctest
    stop_without compiler cmake generator doctest
    ;;
esac
choose_generator

if [ "$preset" = default ] || [ "$preset" = quick ]; then
  if have_nvcc; then
    if have_gpu; then export TIDEPOOL_REQUIRE_GPU=1; fi
  else
    arguments+=(-DTIDEPOOL_CUDA=OFF)
    if have_gpu; then
      note "there is a GPU but no nvcc: the GPU tests are left out; the CUDA toolkit (12 or later)" \
        "comes from https://developer.nvidia.com/cuda-downloads"
    fi
  fi
fi

# Debian's OpenBLAS does not know processors of 2023, and gives them its slowest kernels (SSE3).
if [ -z "${OPENBLAS_CORETYPE:-}" ] && grep -qw avx2 /proc/cpuinfo 2>/dev/null; then
  export OPENBLAS_CORETYPE=Haswell
fi
# Tests make thousands of trainers: the heap keeps their memory instead of giving it back each time.
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-1073741824}
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-1073741824}

read -r -a more <<<"${TIDEPOOL_CMAKE_ARGS:-}"
arguments+=("-DTIDEPOOL_TEST_LENGTH=${TIDEPOOL_TEST_LENGTH:-short}")
cmake --preset "$preset" "${arguments[@]+"${arguments[@]}"}" "${more[@]+"${more[@]}"}"
cmake --build --preset "$preset" --parallel "$(jobs)"
# mawk, Debian's awk, reads a pipe by the block: progress would come late, and all at once.
line_by_line=()
if awk -W version </dev/null 2>&1 | grep -qi mawk; then line_by_line=(-W interactive); fi
ctest --preset "$preset" --parallel "$(jobs)" --output-junit "$PWD/build/$preset/junit.xml" "$@" |
  awk "${line_by_line[@]+"${line_by_line[@]}"}" -v ninja_log="build/$preset/.ninja_log" -f tests/support/times.awk
