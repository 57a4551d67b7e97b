#!/usr/bin/env bash
# What a call costs beside 10,000 chunks, groups, storages or views is what it costs beside 10: every
# `alive/` row of bench_engine, at most three times as much, since other programs run beside tests.
#
#   tests/scaling.sh BENCH_ENGINE
#
# Prints one line a row; exits 1 if any grows.
set -euo pipefail

engine=$1
most=3
attempts=5
seen=$(mktemp)
trap 'rm -f "$seen"' EXIT

# The least of a few attempts is what a busy machine disturbs least.
for ((attempt = 1; attempt <= attempts; ++attempt)); do
  if ! timeout 60 "$engine" --benchmark_filter='^alive/' --benchmark_min_time=0.05 \
    --benchmark_format=csv 2>/dev/null >>"$seen"; then
    echo "scaling: attempt $attempt did not end within a minute, or failed"
    exit 1
  fi
  if awk -F, -v most=$most '
    /^"alive\// {
      split(substr($1, 2, length($1) - 2), name, "/")
      each = $4 / name[3]  # of CPU time
      if (!((name[2], name[3]) in least) || each < least[name[2], name[3]]) {
        least[name[2], name[3]] = each
      }
      rows[name[2]] = 1
    }
    END {
      for (row in rows) {
        ++count
        few = least[row, 10]
        many = least[row, 10000]
        grows = !(few > 0 && many > 0 && many <= most * few)
        bad += grows
        printf "%-28s %8.1f ns beside 10 %10.1f ns beside 10,000%s\n", row, few, many,
               grows ? "  GROWS" : ""
      }
      exit count == 0 || bad > 0
    }' "$seen"; then
    exit 0
  fi
done
echo "scaling: the cost of a call grows with what is alive"
exit 1
