#!/usr/bin/env bash
# Runs a script beside the extension in FOLDER: `run.sh FOLDER SCRIPT [option]...`. SCRIPT `build`
# makes the wheel, and takes the extension out of it; `build SOURCE` makes another extension. `wheel`
# installs the wheel in a virtual environment of its own and trains there.
# Ends with 77 where no Python has torch, or the compiler takes no extension of that torch.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$1
script=$2
shift 2

for python in ${PYTHON:-python3 /usr/bin/python3}; do
  if "$python" -c 'import torch' 2>/dev/null; then found=$python; fi
done
if [ -z "${found:-}" ]; then
  echo "skipped: no python3 here has torch (Debian: python3-torch pybind11-dev)"
  exit 77
fi
if [ "$script" = build ]; then
  if [ $# -gt 0 ]; then PYTHON=$found exec "$root/examples/megatron/build.sh" "$out" "$@"; fi
  rm -rf "$out/wheel"
  if ! "$found" -c '
import setuptools, importlib.util as has
assert has.find_spec("pip")
assert has.find_spec("wheel") or int(setuptools.__version__.split(".")[0]) > 70' 2>/dev/null; then
    PYTHON=$found exec "$root/examples/megatron/build.sh" "$out"
  fi
  PYTHON=$found "$root/examples/megatron/build.sh" --check
  "$found" -m pip -q --disable-pip-version-check wheel --no-build-isolation --no-deps --no-index \
    --no-cache-dir --wheel-dir "$out/wheel" "$root"
  "$found" -m zipfile -e "$out"/wheel/*.whl "$out/unpacked"
  mv "$out"/unpacked/tidepool_megatron.*.so "$out"
  rm -r "$out/unpacked"
  exit
fi
if [ "$script" = wheel ]; then
  PYTHON=$found exec "$root/tests/megatron/wheel.sh" "$out" "$@"
fi
export PYTHONPATH=$out:$root/examples/megatron:$root/examples/torch_loop:$root/examples/torch_judge
export PYTHONDONTWRITEBYTECODE=1
exec "$found" "$root/$script" "$@"
