#!/usr/bin/env bash
# Installs the wheel of FOLDER in a bare virtual environment that sees the system's torch, and trains
# with it there: `PYTHON=... wheel.sh FOLDER`. Ends with 77 where there is no wheel, or no venv.
set -euo pipefail
: "${PYTHON:?}"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$1
shift
wheel=("$out"/wheel/*.whl)
if [ ! -e "${wheel[0]}" ]; then
  echo "skipped: $PYTHON has no pip, setuptools and wheel (Debian: python3-pip python3-setuptools python3-wheel)"
  exit 77
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
if ! "$PYTHON" -m venv --system-site-packages "$place/venv" >/dev/null 2>&1; then
  echo "skipped: $PYTHON makes no virtual environment (Debian: python3-venv)"
  exit 77
fi
python=$place/venv/bin/python
unset PYTHONPATH
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# A torch that lies in a virtual environment itself is not among the system's packages.
if ! "$python" -c "import torch" 2>/dev/null; then
  "$PYTHON" -c "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))" \
    >"$("$python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")/torch.pth"
fi
"$python" -m pip -q install --no-index --no-deps "${wheel[0]}"

version=$(sed -n 's/#define TIDEPOOL_VERSION_[A-Z]* //p' "$root/include/tidepool/version.hpp" |
  paste -sd.)
shown=$("$python" -m pip show --files tidepool-megatron)
# Versions of setuptools lay the licence into a folder of its own, or not.
for line in "Name: tidepool-megatron" "Version: $version" "License: Apache-2.0" \
  "  tidepool_megatron-$version.dist-info/(licenses/)?LICENSE" "  tidepool_offload.py" \
  "  tidepool_loop.py"; do
  if ! grep -qxE -- "$line" <<<"$shown"; then
    printf 'pip show has no line "%s":\n%s\n' "$line" "$shown"
    exit 1
  fi
done

# The folders of the tree also have the wheel's modules, so only the model and tests are taken from it.
cp "$root/examples/megatron/model.py" "$root/tests/megatron/training_test.py" \
  "$root/tests/torch_loop/loop_test.py" "$place"
cd "$place"
"$python" -c "
import sys, tidepool_loop, tidepool_megatron, tidepool_offload
for each in (tidepool_loop, tidepool_megatron, tidepool_offload):
    assert each.__file__.startswith(sys.prefix), each.__file__"
"$python" loop_test.py Loops.test_twenty_steps_in_every_order
"$python" training_test.py Training.test_bits_are_equal_in_every_order "$@"
