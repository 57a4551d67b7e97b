#!/usr/bin/env bash
# Runs a command where there is a GPU; else says so and exits with 77, which CTest reads as skipped,
# or with 1 under TIDEPOOL_REQUIRE_GPU=1.
if [[ $(nvidia-smi -L 2>/dev/null) != *'GPU 0'* ]]; then
  echo "skipped: no GPU"
  [ "${TIDEPOOL_REQUIRE_GPU:-0}" = 0 ] && exit 77
  exit 1
fi
exec "$@"
