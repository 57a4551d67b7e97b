# shellcheck shell=bash
# Sourced by examples/demo.sh, tests/run.sh and .ci/run: brings in what a build needs and the machine lacks.
#
#   need <what>...     what of: compiler clang cmake generator objdump python openblas cli11 json doctest
#                      benchmark mpi spin doxygen awesome mkdocs torch pytorch pybind11 wheel
#                      chromium driver (large: only the tests of report pages and of the site ask for
#                      them, and are skipped without)
#
# Whether a thing is there is asked of the thing itself (a command, a header), not of the package
# manager. Installs Debian or Ubuntu packages, with sudo where it must. `missing` afterwards holds
# what is still not there, and each of it has been named on stderr.

missing=()

note() { printf '%s\n' "tidepool: $*" >&2; }

has_header() { printf '#include <%s>\n' "$1" | "${CXX:-c++}" -std=c++20 -E -x c++ - >/dev/null 2>&1; }

# there <what>
there() {
  case $1 in
    compiler) command -v "${CXX:-c++}" >/dev/null ;;
    clang) printf 'int main() {}' | clang++ -fsanitize=address,undefined -x c++ - -o /dev/null \
      2>/dev/null ;;
    cmake) command -v cmake >/dev/null ;;
    generator) command -v ninja >/dev/null || command -v make >/dev/null ;;
    objdump) command -v objdump >/dev/null ;;
    python) command -v python3 >/dev/null ;;
    openblas) compgen -G '/usr/lib/*/cmake/openblas/OpenBLASConfig.cmake' >/dev/null ||
      has_header openblas/openblas_config.h || has_header openblas_config.h ||
      [ -n "${OpenBLAS_DIR:-}" ] ;;
    cli11) has_header CLI/CLI.hpp ;;
    json) has_header nlohmann/json.hpp ;;
    doctest) has_header doctest/doctest.h ;;
    benchmark) has_header benchmark/benchmark.h ;;
    mpi) command -v mpicxx >/dev/null && command -v mpirun >/dev/null ;;
    spin) command -v spin >/dev/null ;;
    doxygen) command -v doxygen >/dev/null ;;
    awesome) [ -e /usr/share/doxygen-awesome-css/doxygen-awesome.css ] ;;
    mkdocs) command -v mkdocs >/dev/null && [ -d /usr/share/mkdocs/themes/material ] ;;
    torch) has_header torch/csrc/autograd/saved_variable_hooks.h || [ -n "${TIDEPOOL_TORCH_ROOT:-}" ] ;;
    # /usr/bin/python3 is the one that Debian's packages serve; another may come first in PATH.
    pytorch) python3 -c 'import torch' 2>/dev/null || /usr/bin/python3 -c 'import torch' 2>/dev/null ;;
    # PyTorch's own wheels bring pybind11.
    pybind11) python3 -c 'import torch' 2>/dev/null || { [ -e /usr/include/pybind11/pybind11.h ] &&
      compgen -G '/usr/include/python3*/Python.h' >/dev/null; } ;;
    wheel) /usr/bin/python3 -c 'import setuptools, wheel, ensurepip' 2>/dev/null &&
      /usr/bin/python3 -m pip --version >/dev/null 2>&1 ;;
    chromium) command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
      command -v google-chrome >/dev/null ;;
    driver) command -v chromedriver >/dev/null && /usr/bin/python3 -c 'import selenium' 2>/dev/null ;;
  esac
}

# package_of <what>
package_of() {
  case $1 in
    compiler) echo g++ ;;
    clang) echo clang libclang-rt-dev ;;
    cmake) echo cmake ;;
    generator) echo ninja-build make ;;  # the presets, run by hand, take make
    objdump) echo binutils ;;
    python) echo python3 ;;
    openblas) echo libopenblas-dev ;;
    cli11) echo libcli11-dev ;;
    json) echo nlohmann-json3-dev ;;
    doctest) echo doctest-dev ;;
    benchmark) echo libbenchmark-dev ;;
    mpi) echo libopenmpi-dev openmpi-bin ;;
    spin) echo spin ;;
    doxygen) echo doxygen ;;
    awesome) echo doxygen-awesome-css ;;
    mkdocs) echo mkdocs mkdocs-material ;;
    torch) echo libtorch-dev ;;
    pytorch) echo python3-torch ;;
    pybind11) echo pybind11-dev python3-dev ;;
    wheel) echo python3-pip python3-setuptools python3-wheel python3-venv ;;
    chromium) echo chromium ;;
    driver) echo chromium-driver python3-selenium ;;
  esac
}

need() {
  local what packages=() as_root=()
  for what in "$@"; do
    # shellcheck disable=SC2207  # one thing may be several packages
    there "$what" || packages+=($(package_of "$what"))
  done
  if [ ${#packages[@]} -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
    if ! command -v apt-get >/dev/null; then
      note "this is no Debian or Ubuntu; please install what these packages hold: ${packages[*]}"
    elif [ ${#as_root[@]} -gt 0 ] && ! command -v sudo >/dev/null; then
      note "neither root nor sudo; please have installed: ${packages[*]}"
    else
      note "installing ${packages[*]}"
      install_packages "${packages[@]}" || note "apt-get could not install all of: ${packages[*]}"
    fi
  fi
  missing=()
  for what in "$@"; do
    there "$what" || missing+=("$what")
  done
  for what in "${missing[@]+"${missing[@]}"}"; do
    note "missing: $what (Debian package $(package_of "$what"))"
  done
}

install_packages() {
  local package
  local apt=("${as_root[@]+"${as_root[@]}"}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
  local install=("${apt[@]}" install -y --no-install-recommends)
  # The lists may be absent or old; that is worth an update, but only once.
  "${install[@]}" "$@" >/dev/null 2>&1 && return
  "${apt[@]}" update >/dev/null || true
  "${install[@]}" "$@" >/dev/null && return
  # One unknown name keeps apt-get from installing the others.
  for package in "$@"; do "${install[@]}" "$package" >/dev/null 2>&1 || true; done
  return 1
}

is_missing() {
  local what
  for what in "${missing[@]+"${missing[@]}"}"; do [ "$what" = "$1" ] && return 0; done
  return 1
}

# stop_without <what>...: ends the script if one of them is missing.
stop_without() {
  local what
  for what in "$@"; do
    if is_missing "$what"; then
      note "cannot go on without $what"
      exit 1
    fi
  done
}

have_gpu() { [[ $(nvidia-smi -L 2>/dev/null) == *'GPU 0'* ]]; }

have_nvcc() { command -v "${CUDACXX:-nvcc}" >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }

jobs() { nproc 2>/dev/null || echo 2; }

# Ninja where it is there; a build tree that exists keeps its generator.
choose_generator() {
  if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then
    export CMAKE_GENERATOR=Ninja
  fi
}
