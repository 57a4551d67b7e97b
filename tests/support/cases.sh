# For test scripts, to be sourced: cases, each a line, and a folder that goes with the script. The
# output of a case belongs into "$folder/output". End with: [ "$failed" -eq 0 ]
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

verdict() {  # verdict NAME: of the command before it
  if [ $? -eq 0 ]; then
    printf 'good     %s\n' "$1"
  else
    failed=$((failed + 1))
    printf 'FAILED   %s\n%s\n' "$1" "$(tail -n 5 "$folder/output")"
  fi
}

# in_shard: the next case is one of those to run. TIDEPOOL_TEST_SHARD=I/N is every N-th alone.
shard=${TIDEPOOL_TEST_SHARD:-0/1}
number=0
in_shard() {
  number=$((number + 1))
  [ $((number % ${shard#*/})) -eq "${shard%/*}" ]
}
