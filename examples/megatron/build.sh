#!/usr/bin/env bash
# Builds the extension tidepool_megatron beside the PyTorch of a Python, with its compiler flags and
# nothing else: `build.sh [FOLDER]`, then PYTHONPATH=FOLDER:examples/megatron. A second argument names
# another extension's source. `build.sh --check` only says what is missing, and ends with 77 then. The
# wheel of setup.py is built by this script, too.
#
# PYTHON names another Python, CXX another compiler, CXXFLAGS more options of it,
# CUDA_HOME the toolkit of a PyTorch with CUDA, NVCCFLAGS the GPUs that its nvcc compiles for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:-build/megatron}
source=${2:-examples/megatron/tidepool_megatron.cpp}
name=$(basename "$source" .cpp)
python=${PYTHON:-python3}
cuda=${CUDA_HOME:-/usr/local/cuda}

# Folders of headers and libraries, the suffix of modules, whether torch has CUDA, its C++ ABI.
mapfile -t of_torch < <("$python" - <<'PYTHON'
import os, sysconfig, torch
root = os.path.dirname(torch.__file__)
print(root)
print(sysconfig.get_paths()["include"])
print(sysconfig.get_config_var("EXT_SUFFIX"))
print("cuda" if torch.version.cuda else "cpu")
print(int(torch._C._GLIBCXX_USE_CXX11_ABI))
PYTHON
)
if [ ${#of_torch[@]} -ne 5 ]; then
  echo "build.sh: $python cannot import torch (Debian: python3-torch; PYTHON names another)" >&2
  exit 77
fi
root=${of_torch[0]}
if [ ! -e "$root/include/pybind11/pybind11.h" ] && [ ! -e /usr/include/pybind11/pybind11.h ]; then
  echo "build.sh: there are no headers of pybind11 (Debian: pybind11-dev)" >&2
  exit 77
fi
if [ ! -e "${of_torch[1]}/Python.h" ]; then
  echo "build.sh: there are no headers of $python (Debian: python3-dev)" >&2
  exit 77
fi

if [ "$out" = --check ]; then exit; fi
mkdir -p "$out"

flags=(-std=c++20 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra -Iinclude
  "-D_GLIBCXX_USE_CXX11_ABI=${of_torch[4]}" "-DTORCH_EXTENSION_NAME=$name"
  -isystem "$(realpath "$root/include")" -isystem "$root/include/torch/csrc/api/include"
  -isystem "${of_torch[1]}")
# A system's own folder stays where it is in the compiler's order.
if [ "$(realpath "$root/include/torch")" = /usr/include/torch ]; then
  flags=(-std=c++20 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra -Iinclude
    -isystem /usr/include/torch/csrc/api/include -isystem "${of_torch[1]}")
fi
# The C++ library stands first, so that its names are not taken from torch's libraries.
libraries=(-Wl,--no-as-needed -lstdc++ -Wl,--as-needed "-L$root/lib" -ltorch_python -ltorch -ltorch_cpu -lc10)
if [ "${of_torch[3]}" = cuda ]; then
  cudart=$(find -L "$cuda" -name 'libcudart.so' 2>/dev/null | head -n 1)
  flags+=(-DTIDEPOOL_TORCH_CUDA=1 -DTIDEPOOL_HAS_CUDA=1 -isystem "$cuda/include"
    -isystem "$cuda/include/cccl")
  libraries+=(-ltorch_cuda -lc10_cuda "$cudart" "-Wl,-rpath,$(dirname "$cudart")" -ldl)
  # The kernels of --pack, for the GPU of this machine; NVCCFLAGS names others.
  if [ -x "$cuda/bin/nvcc" ]; then
    read -r -a for_nvcc <<<"${NVCCFLAGS:--arch=native}"
    "$cuda/bin/nvcc" -std=c++20 -O2 "${for_nvcc[@]}" -Xcompiler=-fPIC -Iinclude \
      "-D_GLIBCXX_USE_CXX11_ABI=${of_torch[4]}" -c cmake/pack.cu -o "$out/pack.o" &
    kernels=$!
    flags+=(-DTIDEPOOL_COMPILED_PACK)
    libraries=("$out/pack.o" "${libraries[@]}")
  fi
else
  flags+=(-DTIDEPOOL_NO_CUDA)
fi

read -r -a more <<<"${CXXFLAGS:-}"
compile() { ${CXX:-g++} "${flags[@]}" "${more[@]+"${more[@]}"}" "$@"; }
compile -c "$source" -o "$out/$name.o"
if [ -n "${kernels:-}" ]; then wait "$kernels"; fi
compile "$out/$name.o" -o "$out/$name${of_torch[2]}" "${libraries[@]}" "-Wl,-rpath,$root/lib"
rm "$out/$name.o"
echo "$out/$name${of_torch[2]}"
