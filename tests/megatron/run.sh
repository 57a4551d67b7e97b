#!/usr/bin/env bash
# Builds an extension in FOLDER (`run.sh FOLDER build [SOURCE]`), and runs a script with it:
# `run.sh FOLDER SCRIPT [option]...`.
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
  PYTHON=$found exec "$root/examples/megatron/build.sh" "$out" "$@"
fi
export PYTHONPATH=$out:$root/examples/megatron:$root/examples/torch_loop:$root/examples/torch_judge
export PYTHONDONTWRITEBYTECODE=1
exec "$found" "$root/$script" "$@"
