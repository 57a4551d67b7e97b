#!/usr/bin/env bash
# What a newcomer meets: a clone of HEAD on a bare Debian 12, and each command of README.md as it is printed,
# in order, by a user who has sudo. Prints a transcript with the time of each command.
#
#   tests/first_contact.sh [command to leave out]...        e.g. tests/run.sh, which takes the most time
#
# Ends with 1 where a command fails, or where Git sees a change afterwards; with 77 where it cannot run: it
# needs root, debootstrap and a network. TIDEPOOL_MIRROR names another mirror of Debian.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source tests/support/bare_debian.sh

can_make_debian || exit 77
work=$(mktemp -d)
# Its mounts are in a namespace that has gone by then.
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root

echo "=== $(date +%T) debootstrap"
make_debian "$root" ca-certificates,git,sudo || exit 77
git bundle create -q "$root/srv/tidepool.bundle" HEAD
chroot "$root" useradd --create-home --shell /bin/bash newcomer
echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/newcomer"
printf '%s\n' "$@" >"$root/srv/left_out"

cat >"$root/srv/newcomer.sh" <<'END'
set -uo pipefail
cd && git -c advice.detachedHead=false clone -q /srv/tidepool.bundle tidepool && cd tidepool || exit 1
git log -1 --format='=== %h %s'
failed=0
awk '/^```cpp$/ { on = 1; next } /^```/ { on = 0 } on' README.md >program.cpp
while IFS= read -r line <&3; do
  command=${line%%#*}
  command=${command%"${command##*[! ]}"}
  if [ -z "$command" ]; then continue; fi
  if grep -qxF -- "$command" /srv/left_out; then echo "=== left out: $command"; continue; fi
  echo "=== $(date +%T) \$ $line"
  since=$SECONDS
  bash -c "$line" </dev/null
  status=$?
  echo "=== $(date +%T) ended with $status after $((SECONDS - since)) s: $command"
  [ "$status" -eq 0 ] || failed=1
done 3< <(awk '/^```sh$/ { on = 1; next } /^```/ { on = 0 } on' README.md)
changed=$(git status --porcelain)
echo "=== git status --porcelain: ${changed:-nothing}"
[ -z "$changed" ] && exit "$failed"
exit 1
END

in_debian "$root" sudo -u newcomer -H bash /srv/newcomer.sh
