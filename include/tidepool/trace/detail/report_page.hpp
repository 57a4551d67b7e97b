/// What every report's page has: its style and its script.
#pragma once

#include <string_view>

namespace tidepool::inline v0_3_0::trace::detail {

inline constexpr std::string_view report_style = R"css(
:root { color-scheme: light; }
body { font: 14px/1.45 system-ui, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif;
       color: #24292f; margin: 24px auto; max-width: 1240px; padding: 0 20px; }
h1 { font-size: 20px; margin: 0; }
h2 { font-size: 15px; margin: 26px 0 6px; }
p.where { color: #656d76; margin: 4px 0 14px; }
table { border-collapse: collapse; }
th, td { padding: 3px 12px 3px 0; text-align: right; border-bottom: 1px solid #e1e4e8; }
th { font-weight: 600; color: #656d76; }
th:first-child, td:first-child { text-align: left; }
#stalls :is(th, td):is(:nth-child(2), :nth-child(3), :nth-child(7)) { text-align: left; }
tr[data-find] { cursor: pointer; }
tr[data-find]:hover, tr.chosen { background: #fff1f0; }
#frame { border: 1px solid #d0d7de; overflow: hidden; cursor: grab; position: relative; }
#frame.held { cursor: grabbing; }
#frame svg { display: block; width: 100%; height: auto; }
#frame svg.marked [data-about] { opacity: .3; }
#frame svg.marked [data-about].hit { opacity: 1; stroke: #b3191b; stroke-width: 1.5; }
#tip { position: fixed; background: #24292f; color: #fff; padding: 5px 8px; border-radius: 4px;
       font-size: 12px; white-space: pre-line; pointer-events: none; max-width: 420px; }
#tip[hidden] { display: none; }
#zoom { margin: 6px 0; display: flex; gap: 6px; align-items: center; color: #656d76; }
#zoom button { font: inherit; min-width: 32px; border: 1px solid #d0d7de; border-radius: 4px;
               background: #f6f8fa; cursor: pointer; }
code { background: #f3f4f6; padding: 1px 5px; border-radius: 3px; margin-right: 4px;
       display: inline-block; }
)css";

// Titles become hover texts; the wheel zooms about the pointer, dragging moves; a row of the stalls
// marks its bars.
inline constexpr std::string_view report_script = R"js(
"use strict";
const frame = document.getElementById("frame");
const svg = frame.querySelector("svg");
const tip = document.getElementById("tip");
const whole = svg.viewBox.baseVal;
const full = { x: whole.x, y: whole.y, width: whole.width, height: whole.height };
for (const title of svg.querySelectorAll("title")) {
  const parent = title.parentElement;
  if (parent === svg) continue;
  parent.dataset.about = title.textContent;
  title.remove();
}
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
function show(x, y, width) {
  width = clamp(width, full.width / 60, full.width);
  const height = width * full.height / full.width;
  whole.width = width;
  whole.height = height;
  whole.x = clamp(x, full.x, full.x + full.width - width);
  whole.y = clamp(y, full.y, full.y + full.height - height);
  svg.dataset.zoom = (full.width / width).toFixed(2);
  document.getElementById("factor").textContent = svg.dataset.zoom + " x";
}
function zoom(factor, at) {
  const box = svg.getBoundingClientRect();
  const u = at ? (at.clientX - box.left) / box.width : 0.5;
  const v = at ? (at.clientY - box.top) / box.height : 0.5;
  const width = clamp(whole.width / factor, full.width / 60, full.width);
  const height = width * full.height / full.width;
  show(whole.x + u * (whole.width - width), whole.y + v * (whole.height - height), width);
}
frame.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(event.deltaY < 0 ? 1.25 : 0.8, event);
}, { passive: false });
document.getElementById("in").addEventListener("click", () => zoom(1.6));
document.getElementById("out").addEventListener("click", () => zoom(1 / 1.6));
document.getElementById("all").addEventListener("click", () => show(full.x, full.y, full.width));
let held = null;
frame.addEventListener("pointerdown", (event) => {
  held = { x: event.clientX, y: event.clientY, left: whole.x, top: whole.y };
  frame.classList.add("held");
});
window.addEventListener("pointerup", () => {
  held = null;
  frame.classList.remove("held");
});
frame.addEventListener("pointermove", (event) => {
  if (held) {
    const scale = whole.width / svg.getBoundingClientRect().width;
    show(held.left - (event.clientX - held.x) * scale, held.top - (event.clientY - held.y) * scale,
         whole.width);
  }
  const over = event.target.closest("[data-about]");
  tip.hidden = !over || held !== null;
  if (tip.hidden) return;
  tip.textContent = over.dataset.about;
  tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + "px";
});
frame.addEventListener("pointerleave", () => { tip.hidden = true; });
for (const row of document.querySelectorAll("tr[data-find]")) {
  row.addEventListener("click", () => {
    const again = row.classList.contains("chosen");
    for (const other of document.querySelectorAll("tr.chosen")) other.classList.remove("chosen");
    for (const bar of svg.querySelectorAll(".hit")) bar.classList.remove("hit");
    svg.classList.toggle("marked", !again);
    if (again) return;
    row.classList.add("chosen");
    for (const bar of svg.querySelectorAll("[data-about]")) {
      const about = bar.dataset.about.split("\n")[0];
      if (about === row.dataset.find || about.startsWith(row.dataset.find + ",")) {
        bar.classList.add("hit");
      }
    }
  });
}
show(full.x, full.y, full.width);
document.body.dataset.ready = "yes";
)js";

}  // namespace tidepool::trace::detail
