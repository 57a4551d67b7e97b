#!/usr/bin/env bash
# What a call costs beside 10,000 chunks, groups, storages or views is what it costs beside 10, and
# what a step costs behind 10,000 others what it costs behind 10: every `alive/` and `steps/` row of
# bench_engine, at most three times as much, since other programs run beside tests.
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
  if ! timeout 60 "$engine" --benchmark_filter='^(alive|steps)/' --benchmark_min_time=0.05 \
    --benchmark_format=csv 2>/dev/null >>"$seen"; then
    echo "scaling: attempt $attempt did not end within a minute, or failed"
    exit 1
  fi
  if awk -F, -v most=$most '
    /^"(alive|steps)\// {
      split(substr($1, 2, length($1) - 2), name, "/")
      row = name[1] "/" name[2]
      each = $4 / (name[1] == "alive" ? name[3] : 1)  # of CPU time
      if (!((row, name[3]) in least) || each < least[row, name[3]]) least[row, name[3]] = each
      rows[row] = 1
    }
    END {
      for (row in rows) {
        ++count
        few = least[row, 10]
        many = least[row, 10000]
        grows = !(few > 0 && many > 0 && many <= most * few)
        bad += grows
        printf "%-35s %8.1f ns with 10 %10.1f ns with 10,000%s\n", row, few, many,
               grows ? "  GROWS" : ""
      }
      exit count == 0 || bad > 0
    }' "$seen"; then
    exit 0
  fi
done
echo "scaling: the cost of a call grows with what is alive, or with the steps"
exit 1
