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

if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
  echo "tidepool: tests/first_contact.sh needs root and debootstrap" >&2
  exit 77
fi
work=$(mktemp -d)
# Its mounts are in a namespace that has gone by then.
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root

echo "=== $(date +%T) debootstrap"
if ! debootstrap --variant=minbase --include=ca-certificates,git,sudo bookworm "$root" \
  "${TIDEPOOL_MIRROR:-http://deb.debian.org/debian}" >"$work/debootstrap.log" 2>&1; then
  tail -n 3 "$work/debootstrap.log" >&2
  exit 77
fi
cp /etc/resolv.conf /etc/hosts "$root/etc/"
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

# Only the devices that a program expects, and no process that outlives this.
# shellcheck disable=SC2016  # the inner shell expands it
unshare --mount --pid --fork --kill-child bash -euc '
  mount -t proc proc "$1/proc"
  mount -t tmpfs tmpfs "$1/dev"
  mknod -m 666 "$1/dev/null" c 1 3
  mknod -m 666 "$1/dev/zero" c 1 5
  mknod -m 666 "$1/dev/full" c 1 7
  mknod -m 666 "$1/dev/random" c 1 8
  mknod -m 666 "$1/dev/urandom" c 1 9
  mkdir "$1/dev/shm" "$1/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=666 devpts "$1/dev/pts"
  ln -s pts/ptmx "$1/dev/ptmx"
  ln -s /proc/self/fd "$1/dev/fd"
  chroot "$1" env -i PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 TERM=dumb \
    sudo -u newcomer -H bash /srv/newcomer.sh' bash "$root"
