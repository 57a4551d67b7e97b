# Passes on what ctest prints. Before its summary: what took longest, of the tests and, by Ninja's
# log, of the build.
#   ctest … | awk -v ninja_log=build/default/.ninja_log -f tests/support/times.awk

function print_longest(title, seconds, order, i, name, best, n) {
  n = 0
  for (name in seconds) ++n
  if (n == 0) return
  if (n > 15) n = 15
  print title
  for (i = 0; i < n; ++i) {
    best = ""
    for (name in seconds) if (best == "" || seconds[name] > seconds[best]) best = name
    printf "  %7.1f s  %s\n", seconds[best], best
    delete seconds[best]
  }
  print ""
}

# [12/84] Test #12: unit.engine ......   Passed   12.34 sec
/ Test +#[0-9]+: .* sec *$/ {
  name = $0
  sub(/^.* Test +#[0-9]+: /, "", name)
  sub(/ .*$/, "", name)
  tests[name] = $(NF - 1)
}

/^[0-9]+% tests passed/ {
  # start, end (ms), time of the file, output, hash
  while (ninja_log != "" && (getline line <ninja_log) > 0) {
    if (line ~ /^#/ || split(line, field, "\t") < 4) continue
    built[field[4]] = (field[2] - field[1]) / 1000
  }
  print_longest("The longest to build:", built)
  print_longest("The longest tests:", tests)
}

{
  print
  fflush()
}
