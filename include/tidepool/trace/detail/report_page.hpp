/// The style and the script of every report's page.
#pragma once

#include <string_view>

namespace tidepool::inline v0_3_0::trace::detail {

inline constexpr std::string_view report_style = R"css(
:root { color-scheme: light; }
body { font: 14px/1.45 system-ui, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif;
       color: #24292f; margin: 24px auto; max-width: 1240px; padding: 0 20px; }
h1 { font-size: 20px; margin: 0; } h2 { font-size: 15px; margin: 26px 0 6px; }
p.where { color: #656d76; margin: 4px 0; overflow-wrap: anywhere; }
#advice { font-size: 16px; margin: 6px 0; padding: 6px 10px; border-left: 4px solid #b3191b; }
#advice.calm { border-color: #0a8260; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
th, td { padding: 3px 12px 3px 0; text-align: right; white-space: nowrap; border-bottom: 1px solid #e1e4e8; }
th { font-weight: 600; color: #656d76; } .name { text-align: left; }
tr[data-times] { cursor: pointer; } tr[data-times]:hover, tr.chosen { background: #fff1f0; }
#keys span { display: inline-block; margin-right: 12px; white-space: nowrap; }
#frame { border: 1px solid #d0d7de; cursor: grab; touch-action: pan-y; user-select: none; }
#frame > svg { display: block; width: 100%; } #frame .time * { vector-effect: non-scaling-stroke; }
#mark { fill: none; stroke: #b3191b; stroke-width: 2; pointer-events: none; }
.words, .captions { pointer-events: none; }
.captions text { font-size: 10px; paint-order: stroke; stroke: #fff; stroke-width: 3px; fill: #24292f; }
#zoom { margin: 6px 0; display: flex; flex-wrap: wrap; gap: 6px; color: #656d76; }
#zoom button { font: inherit; min-width: 32px; border: 1px solid #d0d7de; border-radius: 4px;
               background: #f6f8fa; cursor: pointer; }
pre { overflow-x: auto; font-size: 12px; } code { background: #f3f4f6; padding: 1px 5px;
       border-radius: 3px; margin-right: 4px; display: inline-block; overflow-wrap: anywhere; }
)css";

inline constexpr std::string_view report_buttons = R"html(<div id="zoom"><button id="in"
title="closer">+</button><button id="out" title="further">−</button><button id="all">all</button><span
id="factor"></span><span>Ctrl and wheel: zoom; drag: move; hover: what it is</span></div>
)html";

// Stretches the time of the picture alone: shapes lie in an inner picture whose view box moves, and
// words keep their size. Words in bars and the axis are written anew for what is seen.
inline constexpr std::string_view report_script = R"js(
"use strict";
const id = (name) => document.getElementById(name);
const frame = id("frame"), svg = frame.querySelector("svg");
const [drawn, left, right, from, to] = svg.dataset.axis.split(" ").map(Number);
const height = Number(svg.getAttribute("height"));
const put = (into, name, attributes, text = "") => {
  const made = into.appendChild(document.createElementNS(svg.namespaceURI, name));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
};
const words = svg.querySelector(".words"), pattern = id("tidepool-stall");
const grid = put(svg, "g", {}), time = put(svg, "svg", { x: left, height, preserveAspectRatio: "none" });
time.append(svg.querySelector(".time"));
const mark = put(time, "rect", { id: "mark", y: 1, height: height - 28, visibility: "hidden" });
const captions = put(svg, "g", { class: "captions" });
svg.append(words);
const number = (of, name) => Number(of.getAttribute(name));
const bars = [...time.querySelectorAll("rect > title")].map(({ parentElement: bar, textContent: about }) => ({
    x: number(bar, "x"), end: number(bar, "x") + number(bar, "width"), y: number(bar, "y"),
    height: number(bar, "height"), about: about.split("\n")[0], stall: about.startsWith("stall") }));
const nameOf = (word) => word.hasAttribute("cx") ? "cx" : "x";
const places = [...words.children].map((word) => ({ word, name: nameOf(word), x: number(word, nameOf(word)) }));
const pen = document.createElement("canvas").getContext("2d");
pen.font = "11px " + getComputedStyle(document.body).fontFamily;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
let view = [left, right], plot = 1;  // what is seen, in the units of the picture; its pixels
const seenAt = (x) => left + (x - view[0]) / (view[1] - view[0]) * plot;
function caption(bar) {  // in its longest piece that is seen and no stall covers
  let [at, best] = [Math.max(bar.x, view[0]), [0, 0]];
  const end = Math.min(bar.end, view[1]);
  const cuts = bar.stall ? [] : bars.filter((other) => other.stall && other.end > at && other.x < end &&
      other.y >= bar.y && other.y < bar.y + bar.height);
  for (const cut of [...cuts.sort((a, b) => a.x - b.x), { x: end, end }]) {
    if (cut.x - at > best[1] - best[0]) best = [at, cut.x];
    at = Math.max(at, cut.end);
  }
  const [, kind, waits, layer, pass] = bar.about.match(
      /^(?:(?:offload|reload|stall:) )?(.*?)(?:, waits for (.*?))?(?:, layer (\d+))?(?:, microbatch (\d+))?$/s);
  const [l, m] = [layer ? " L" + layer : "", pass ? " m" + pass : ""];
  const room = seenAt(best[1]) - seenAt(best[0]) - 4;
  const text = [kind + (waits ? " " + waits : "") + l + m, kind + l, (l + m).trim(), l.trim(), kind].find(
      (each) => each && pen.measureText(each).width <= room);
  if (text) put(captions, "text", { x: (seenAt(best[0]) + seenAt(best[1])) / 2, y: bar.y + bar.height / 2 + 3.5,
      "text-anchor": "middle" }, text);
}
function axis() {
  const timeAt = (x) => from + (x - left) / (right - left) * (to - from);
  const [first, last] = view.map(timeAt), rough = (last - first) / Math.max(plot / 95, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => rough <= each * power * 1.000001);
  const [size, unit] = [[1e6, "s"], [1e3, "ms"], [1, "µs"], [1e-3, "ns"]].find(
      ([each]) => last - first >= each) || [1e-3, "ns"];
  const digits = clamp(Math.ceil(-Math.log10(step / size) - 1e-9), 0, 9);
  for (let tick = Math.ceil(first / step - 1e-6); tick * step <= last + step * 1e-6; ++tick) {
    const x = seenAt(left + (tick * step - from) / (to - from) * (right - left));
    put(grid, "line", { x1: x, x2: x, y1: 8, y2: height - 21, stroke: "#e1e4e8" });
    put(grid, "text", { x, y: height - 7, "font-size": 11, fill: "#656d76", "text-anchor": "middle" },
        tick === 0 ? "0" : (tick * step / size).toFixed(digits) + " " + unit);
  }
}
function show(middle, width) {
  width = clamp(width, (right - left) / 64, right - left);
  const start = clamp(middle - width / 2, left, right - width);
  view = [start, start + width];
  plot = Math.max(frame.clientWidth - left - (drawn - right), 40);
  time.setAttribute("width", plot);
  time.setAttribute("viewBox", `${start} 0 ${width} ${height}`);
  pattern.setAttribute("patternTransform", `scale(${width / plot} 1) rotate(45)`);
  for (const { word, name, x } of places) {
    const pinned = x < left || x > right - 10;
    const at = x < left ? x : pinned ? x + left + plot - right : seenAt(x);
    word.setAttribute(name, at);
    if (name === "x") word.setAttribute("x", at - Math.max(0, word.getBBox().x + word.getBBox().width - frame.clientWidth));
    word.setAttribute("visibility", pinned || (at >= left && at <= left + plot) ? "visible" : "hidden");
  }
  captions.replaceChildren();
  grid.replaceChildren();
  axis();
  for (const bar of bars) if (seenAt(bar.end) - seenAt(bar.x) > 13 && bar.end > view[0] && bar.x < view[1]) caption(bar);
  svg.dataset.zoom = ((right - left) / width).toFixed(2);
  id("factor").textContent = svg.dataset.zoom + " x";
}
function zoom(factor, share = 0.5) {
  const width = clamp((view[1] - view[0]) / factor, (right - left) / 64, right - left);
  show(view[0] + share * (view[1] - view[0]) + (0.5 - share) * width, width);
}
frame.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;  // the page scrolls
  event.preventDefault();
  const share = (event.clientX - svg.getBoundingClientRect().left - left) / plot;
  zoom(event.deltaY < 0 ? 1.25 : 0.8, clamp(share, 0, 1));
}, { passive: false });
const buttons = { in: () => zoom(1.6), out: () => zoom(1 / 1.6), all: () => show(left, right - left) };
for (const [name, action] of Object.entries(buttons)) id(name).addEventListener("click", action);
frame.addEventListener("pointermove", (event) => {
  if (event.buttons === 1) show((view[0] + view[1]) / 2 - event.movementX / plot * (view[1] - view[0]), view[1] - view[0]);
});
for (const row of document.querySelectorAll("tr[data-times]")) {
  row.addEventListener("click", () => {  // the longest stall first, then the next
    const times = row.dataset.times.split(" "), next = Number(row.dataset.next || 0);
    const [x, end] = times[next].split(",").map(
        (each) => left + (Number(each) - from) / (to - from) * (right - left));
    row.dataset.next = (next + 1) % times.length;
    document.querySelector("tr.chosen")?.classList.remove("chosen");
    row.classList.add("chosen");
    show((x + end) / 2, (end - x) * 6);
    for (const [name, value] of Object.entries({ x, width: end - x, visibility: "visible" })) mark.setAttribute(name, value);
    frame.scrollIntoView({ block: "nearest" });
  });
}

new ResizeObserver(() => show((view[0] + view[1]) / 2, view[1] - view[0])).observe(frame);
buttons.all();
document.body.dataset.ready = "yes";
)js";

}  // namespace tidepool::trace::detail
