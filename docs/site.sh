#!/usr/bin/env bash
# Builds the site of pages and reference, searchable, which needs no server.
#
#   docs/site.sh [folder]    folder: build/site (if not named); open its index.html
#
# Beside the pages, the folder has warnings.txt and names.xml, which docs/site_check.py reads. It
# needs Doxygen (Debian: doxygen) and python3, and takes seconds. Without Doxygen it ends with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for tool in doxygen python3; do
  if ! command -v "$tool" >/dev/null; then
    echo "tidepool: docs/site.sh needs $tool; install the package $tool" >&2
    exit 77
  fi
done

folder=${1:-build/site}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if [ -n "$(ls -A "$folder")" ] && [ ! -e "$folder/names.xml" ]; then
  echo "tidepool: docs/site.sh: $folder is not empty and no site; name another folder" >&2
  exit 2
fi
number() { sed -n "s/^#define TIDEPOOL_VERSION_$1 //p" include/tidepool/version.hpp; }
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT

find "$folder" -mindepth 1 -delete
touch "$folder/names.xml"
python3 docs/site/pages.py "$pages" "$folder"
cp docs/site/namespaces.dox "$pages"
{
  cat docs/site/Doxyfile
  echo "INPUT += \"$pages\" include/tidepool/engine/group.hpp \
    include/tidepool/device/detail/operation.hpp"
  echo "STRIP_FROM_PATH = \"$pages\" \"$PWD/include\" \"$PWD\""
  echo "USE_MDFILE_AS_MAINPAGE = \"$pages/index.md\""
  echo "PROJECT_NUMBER = $(number MAJOR).$(number MINOR).$(number PATCH)"
  echo "OUTPUT_DIRECTORY = \"$folder\""
  echo "HTML_OUTPUT = ."
  echo "GENERATE_TAGFILE = \"$folder/names.xml\""
  echo "WARN_LOGFILE = \"$folder/warnings.txt\""
} | doxygen -
python3 docs/site/mend.py "$folder"
# The same words on every machine.
sed -i "s|$pages/||; s|$PWD/||" "$folder/warnings.txt"
sed -i "s|$pages/||; s|$PWD/||" "$folder/names.xml"
echo "$folder/index.html"
