#!/usr/bin/env bash
# The steps of packaging/Dockerfile without Docker: its lines WORKDIR, COPY . . and RUN, in a bare Debian 12.
#
#   packaging/in_chroot.sh FOLDER [cmd]     FOLDER: where the system is, or where debootstrap makes one
#                                           cmd: at the end also the line CMD, which takes half an hour or more
#
# Ends with 77 where it cannot run: it needs root, debootstrap and a network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/bare_debian.sh

root=$(realpath -m "${1:?a folder for the system}")
can_make_debian || exit 77
if [ ! -d "$root" ]; then
  echo "=== $(date +%T) debootstrap"
  make_debian "$root" || exit 77
fi

# The image of the line FROM is this system.
grep -qx 'ARG BASE=debian:12' packaging/Dockerfile

folder=/
# step WHAT COMMAND: in the folder of the latest WORKDIR, by the shell that Docker takes
step() {
  local since=$SECONDS
  echo "=== $(date +%T) $1"
  in_debian "$root" /bin/sh -c "cd '$folder' && $2" </dev/null
  echo "=== $(date +%T) took $((SECONDS - since)) s"
}

while IFS= read -r line; do
  words=${line#* }
  case $line in
    '' | '#'* | 'ARG '* | 'FROM '*) ;;
    'WORKDIR '*)
      folder=$words
      mkdir -p "$root$folder"
      ;;
    'COPY . .')
      echo "=== $(date +%T) $line"
      # .dockerignore has folders at the top: a leading and a closing slash.
      tar -c --exclude-from <(sed -n 's|^/\(.*\)/$|./\1|p' .dockerignore) . | tar -x --no-same-owner -C "$root$folder"
      ;;
    'RUN '*) step "$line" "$words" ;;
    'CMD ["'*'"]')
      command=${words#'["'}
      if [ "${2:-}" = cmd ]; then step "$line" "${command%'"]'}"; else echo "=== left out: $line"; fi
      ;;
    *)
      echo "tidepool: $0 does not understand: $line" >&2
      exit 1
      ;;
  esac
done < <(sed -e ':more' -e '/\\$/{N; s/\\\n */ /; b more' -e '}' packaging/Dockerfile)
