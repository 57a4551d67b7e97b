#!/usr/bin/env bash
# Builds the site of pages and reference, with a search, which needs neither a server nor the network.
#
#   docs/site.sh [folder]    folder: build/site (if not named); open its index.html
#
# MkDocs makes the pages, Doxygen the reference (Debian: mkdocs-material doxygen doxygen-awesome-css).
# Their warnings are errors: of a dead link, or of a public name without words. The build takes some ten
# seconds. Without these tools it ends with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source cmake/prerequisites.sh

for what in doxygen awesome mkdocs; do
  if ! there "$what"; then
    note "docs/site.sh needs the package $(package_of "$what")"
    exit 77
  fi
done
folder=$(realpath -m "${1:-build/site}")
if [ -n "$(ls -A "$folder" 2>/dev/null)" ] && [ ! -e "$folder/search/offline.js" ]; then
  note "docs/site.sh: $folder is not empty and no site; name another folder"
  exit 2
fi

number() { sed -n "s/^#define TIDEPOOL_VERSION_$1 //p" include/tidepool/version.hpp; }
export TIDEPOOL_SITE_VERSION TIDEPOOL_SITE_COPYRIGHT PYTHONDONTWRITEBYTECODE=1
TIDEPOOL_SITE_VERSION=$(number MAJOR).$(number MINOR).$(number PATCH)
TIDEPOOL_SITE_COPYRIGHT="Tidepool $TIDEPOOL_SITE_VERSION, Apache License 2.0"
export TIDEPOOL_SITE_WORK
TIDEPOOL_SITE_WORK=$(mktemp -d)
trap 'rm -rf "$TIDEPOOL_SITE_WORK"' EXIT

# Doxygen's own header and layout, with the switch of colours, copy buttons and the way back to the pages.
(
  cd "$TIDEPOOL_SITE_WORK"
  doxygen -w html header.html footer.html style.css
  sed -i '/<\/head>/e cat' header.html <<'END'
<script src="$relpath^doxygen-awesome-darkmode-toggle.js"></script>
<script src="$relpath^doxygen-awesome-fragment-copy-button.js"></script>
<script>DoxygenAwesomeDarkModeToggle.init(); DoxygenAwesomeFragmentCopyButton.init()</script>
END
  doxygen -l layout.xml
  sed -i 's|<navindex>|&<tab type="user" url="../index.html" title="Pages"/>|' layout.xml
)
doxygen docs/site/Doxyfile
python3 docs/site/parameters.py "$TIDEPOOL_SITE_WORK/xml"
# Doxygen 1.9.4 links to a list of nested classes even if all of them are private and the list is absent.
grep --files-without-match 'name="nested-classes"' "$TIDEPOOL_SITE_WORK"/reference/*.html |
  xargs sed -i 's|<a href="#nested-classes">Classes</a> &#124;||'

mkdocs build --strict --config-file docs/site/mkdocs.yml --site-dir "$folder"
mv "$TIDEPOOL_SITE_WORK/reference" "$folder"
echo "$folder/index.html"
