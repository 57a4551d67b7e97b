#!/usr/bin/env bash
# Opens a report of `plan` in a headless browser, clicks in it, and looks at what became of the page.
#
#   tests/trace/report_in_browser.sh PLAN
#
# Exit status 77, with a note, where there is no Chromium.
set -euo pipefail
plan=$1
browser=
for name in chromium chromium-browser google-chrome; do
  browser=${browser:-$(command -v "$name" || true)}
done
if [ -z "$browser" ]; then
  echo "no Chromium (Debian: chromium): the report was not opened"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$plan" --set layers=2 --set microbatches=2 --budget 1.6GiB --report "$work/report.html" \
  >"$work/out" || { cat "$work/out"; exit 1; }
grep -q "^wrote " "$work/out"
if sed 's/http:..www.w3.org.2000.svg//' "$work/report.html" | grep -nE 'https?://|src=|<link'; then
  echo "the page asks for another file"
  exit 1
fi

# What somebody would do, and what they would see.
cat >"$work/clicks.js" <<'END'
const seen = {};
const bar = () => [...svg.querySelectorAll("[data-about]")].find(
    (each) => each.dataset.about.startsWith("stall: "));
const over = (what) => what.dispatchEvent(new PointerEvent("pointermove",
    { bubbles: true, clientX: 200, clientY: 200 }));
seen.ready = document.body.dataset.ready;
seen.titles = svg.querySelectorAll(":scope title").length;
over(bar());
seen.hover = !tip.hidden && tip.textContent === bar().dataset.about;
seen.zoomBefore = svg.dataset.zoom;
document.getElementById("in").click();
seen.zoomButton = svg.dataset.zoom;
const box = svg.getBoundingClientRect();
frame.dispatchEvent(new WheelEvent("wheel", { deltaY: -1, cancelable: true,
    clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 }));
seen.zoomWheel = svg.dataset.zoom;
document.getElementById("all").click();
seen.zoomAll = svg.dataset.zoom;
const row = document.querySelector("tr[data-find]");
row.click();
seen.hits = svg.querySelectorAll(".hit").length;
seen.rowCount = Number(row.children[3].textContent);
seen.marked = svg.classList.contains("marked") && row.classList.contains("chosen");
row.click();
seen.unmarked = !svg.classList.contains("marked") && svg.querySelectorAll(".hit").length === 0;
seen.sections = [...document.querySelectorAll("section")].map((each) => each.id).join(" ");
document.body.innerHTML = "";
for (const [name, value] of Object.entries(seen)) document.body.append(`${name}=${value};\n`);
END
sed -i '/<\/body>/{
s/.*/<script>/
r '"$work/clicks.js"'
a </script></body>
}' "$work/report.html"
timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
  --user-data-dir="$work/profile" --window-size=1300,1000 --dump-dom "file://$work/report.html" \
  >"$work/dom" 2>"$work/errors" || { cat "$work/errors"; exit 1; }

failed=0
expect() {
  grep -qE "^($1);" <(sed 's/.*<body[^>]*>//' "$work/dom") || { echo "not seen: $1"; failed=1; }
}
expect 'ready=yes'
expect 'titles=1'  # of the picture itself; all others are hover texts
expect 'hover=true'
expect 'zoomBefore=1.00'
expect 'zoomButton=1.60'
expect 'zoomWheel=2.00'
expect 'zoomAll=1.00'
expect 'marked=true'
expect 'unmarked=true'
expect 'sections=stalls modules plan options'
value() { sed -nE "s/.*$1=([0-9]+);.*/\1/p" "$work/dom"; }
hits=$(value hits)
count=$(value rowCount)
if [ -z "$hits" ] || [ "$hits" -lt 1 ] || [ "$hits" -gt "$count" ]; then
  echo "a click marks ${hits:-no} stalls of $count"
  failed=1
fi
[ "$failed" = 0 ] || cat "$work/dom"
exit "$failed"
