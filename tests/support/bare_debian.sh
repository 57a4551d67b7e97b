# shellcheck shell=bash
# Sourced by scripts that try something on a bare Debian 12. They need root, debootstrap and a network.
# TIDEPOOL_MIRROR names another mirror of Debian.

# can_make_debian: says on stderr what is missing.
can_make_debian() {
  [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null && return
  echo "tidepool: $0 needs root and debootstrap" >&2
  return 1
}

# make_debian ROOT [PACKAGES]: with PACKAGES (a,b,c) beside those that Debian cannot do without
make_debian() {
  local include=()
  if [ -n "${2:-}" ]; then include=("--include=$2"); fi
  if ! debootstrap --variant=minbase "${include[@]+"${include[@]}"}" bookworm "$1" \
    "${TIDEPOOL_MIRROR:-http://deb.debian.org/debian}" >"$1.log" 2>&1; then
    tail -n 3 "$1.log" >&2
    return 1
  fi
  cp /etc/resolv.conf /etc/hosts "$1/etc/"
}

# in_debian ROOT COMMAND...: only the devices that a program expects, and no process that outlives this.
in_debian() {
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
    chroot "$1" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
      "${@:2}"' bash "$@"
}
