"use strict";
// Tables that sort, curves that answer to the pointer, a switch for the theme. Nothing else.

const charts = JSON.parse(document.getElementById("data").textContent);
const svgNs = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, parent = null, text = null) {
  const node = document.createElementNS(svgNs, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

// A film begins with next to nothing: at rest it shows its end.
for (const film of document.querySelectorAll("video"))
  film.addEventListener("loadedmetadata", () => { film.currentTime = Math.max(0, film.duration - 0.05); }, { once: true });

// ---------------------------------------------------------------- theme
const root = document.documentElement;
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
try { const kept = localStorage.getItem("uhm-theme"); if (kept) root.dataset.theme = kept; } catch { /* private window */ }
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  try { localStorage.setItem("uhm-theme", root.dataset.theme); } catch { /* private window */ }
});

// --------------------------------------------------------------- tables
function sortBy(head) {
  const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
  const numeric = head.classList.contains("number");
  const before = head.getAttribute("aria-sort");
  const down = before ? before === "ascending" : numeric; // numbers begin with the largest
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = (row) => row.cells[column].dataset.v.replaceAll(",", "").replace("−", "-");
  const compare = numeric ? (a, b) => a - b : (a, b) => a.localeCompare(b, "en", { numeric: true });
  const empty = (text) => text === "" || text === "–";
  const rows = [...body.rows].map((row) => [value(row), row]);
  rows.sort(([a], [b]) => {
    if (empty(a) || empty(b)) return empty(a) - empty(b); // what is missing stays at the end
    return down ? compare(b, a) : compare(a, b);
  });
  body.append(...rows.map(([, row]) => row));
}
for (const button of document.querySelectorAll(".sort")) button.addEventListener("click", () => sortBy(button.closest("th")));
for (const box of document.querySelectorAll(".unfold"))
  box.addEventListener("change", () => document.getElementById(box.dataset.for).classList.toggle("fold", !box.checked));
for (const box of document.querySelectorAll(".idlers")) {
  const apply = () => document.getElementById(box.dataset.for).classList.toggle("slim", !box.checked);
  box.addEventListener("change", apply);
  if (innerWidth < 640) { box.checked = false; apply(); } // a phone has no room for what was not run
}

// --------------------------------------------------------------- curves
const margin = { left: 40, right: 12, top: 18, bottom: 34 };
const short = (x) => (Math.abs(x) >= 1e6 ? `${+(x / 1e6).toFixed(2)}M` : Math.abs(x) >= 1e3 ? `${+(x / 1e3).toFixed(1)}k` : `${+x.toPrecision(4)}`);

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || 1;
  const found = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-6; t += step) found.push(+t.toPrecision(12));
  return found;
}

function scales(chart, curves, width, height) {
  const xs = curves.flatMap((c) => c.x), ys = curves.flatMap((c) => [...c.y, ...(c.high || []), ...(c.low || [])]);
  const x0 = 0, x1 = Math.max(...xs, 1e-9) * (chart.percent ? 1 : 1.04);
  let y0 = Math.min(0, ...ys) * (chart.percent ? 1 : 1.08), y1 = Math.max(0, ...ys) * 1.08 || (y0 < 0 ? 0 : 1);
  if (chart.percent) y1 = 100;
  if (!chart.zero) { // only what there is, and a little room
    const low = Math.min(...ys), high = Math.max(...ys), room = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
    [y0, y1] = [low - room, high + room];
  }
  const inner = [margin.left, width - margin.right, height - margin.bottom, margin.top];
  return {
    x: (v) => inner[0] + ((v - x0) / (x1 - x0)) * (inner[1] - inner[0]),
    y: (v) => inner[2] + ((v - y0) / (y1 - y0)) * (inner[3] - inner[2]),
    xTicks: ticks(x0, x1, Math.max(3, Math.min(6, width / 75))),
    yTicks: chart.percent ? [0, 25, 50, 75, 100] : ticks(y0, y1, chart.zero ? 4 : 6),
    inner,
  };
}

function draw(plot, chart, panel, hidden) {
  const width = plot.clientWidth, height = plot.clientHeight;
  const curves = panel.curves.filter((c) => !hidden.has(c.label));
  plot.replaceChildren();
  if (!width) return;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${chart.title}, ${panel.title}` });
  plot.append(svg);
  const s = scales(chart, panel.curves, width, height), [left, right, bottom] = s.inner;
  for (const t of s.yTicks) {
    element("line", { class: "grid", x1: left, x2: right, y1: s.y(t), y2: s.y(t) }, svg);
    element("text", { x: left - 7, y: s.y(t) + 4, "text-anchor": "end" }, svg, short(t));
  }
  for (const t of s.xTicks) element("text", { x: s.x(t), y: bottom + 15, "text-anchor": "middle" }, svg, short(t));
  element("text", { x: 0, y: 8 }, svg, chart.y);
  element("text", { x: right, y: height - 3, "text-anchor": "end" }, svg, chart.x);
  const path = (xs, ys) => xs.map((x, i) => `${i ? "L" : "M"}${s.x(x).toFixed(1)},${s.y(ys[i]).toFixed(1)}`).join("");
  for (const c of curves) {
    if (!c.low) continue;
    const area = path(c.x, c.high) + path([...c.x].reverse(), [...c.low].reverse()).replace("M", "L") + "Z";
    element("path", { d: area, fill: c.colour, "fill-opacity": 0.17 }, svg);
  }
  for (const c of curves) {
    const dash = c.dashed ? { "stroke-dasharray": "5 4" } : {};
    element("path", { d: path(c.x, c.y), fill: "none", stroke: c.colour, "stroke-width": 2, "stroke-linejoin": "round", ...dash }, svg);
    if (c.x.length === 1) element("circle", { cx: s.x(c.x[0]), cy: s.y(c.y[0]), r: 3, fill: c.colour }, svg);
  }
  hover(plot, svg, chart, curves, s);
}

function hover(plot, svg, chart, curves, s) {
  const all = [...new Set(curves.flatMap((c) => c.x))].sort((a, b) => a - b);
  const layer = element("g", {}, svg), tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  plot.append(tip);
  const leave = () => { layer.replaceChildren(); tip.hidden = true; };
  const move = (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const x = all.reduce((best, v) => (Math.abs(s.x(v) - at) < Math.abs(s.x(best) - at) ? v : best), all[0]);
    layer.replaceChildren();
    element("line", { class: "rule", x1: s.x(x), x2: s.x(x), y1: s.inner[3], y2: s.inner[2] }, layer);
    const here = curves.filter((c) => c.x.includes(x)).map((c) => ({ c, i: c.x.indexOf(x) })).sort((a, b) => b.c.y[b.i] - a.c.y[a.i]);
    for (const { c, i } of here) element("circle", { class: "ring", cx: s.x(x), cy: s.y(c.y[i]), r: 4, fill: c.colour }, layer);
    tip.replaceChildren(Object.assign(document.createElement("small"), { textContent: `${chart.x === "horizon n" ? "n =" : "step"} ${x.toLocaleString("en")}` }));
    for (const { c, i } of here) tip.append(line(chart, c, i));
    tip.hidden = false;
    const at_right = s.x(x) + 12, at_left = s.x(x) - tip.offsetWidth - 12, room = plot.clientWidth - tip.offsetWidth;
    const beside = at_right <= room ? at_right : at_left >= 0 ? at_left : null; // or below, not on the curves
    tip.style.left = `${beside ?? Math.max(0, Math.min(s.x(x) - tip.offsetWidth / 2, room))}px`;
    tip.style.top = beside === null ? `${s.inner[2] + 6}px` : "4px";
  };
  if (all.length) {
    svg.addEventListener("pointermove", move);
    svg.addEventListener("pointerdown", move);
    svg.addEventListener("pointerleave", leave);
  }
}

function line(chart, curve, index) {
  const digits = (v) => (chart.percent ? v.toFixed(1) : (+v.toPrecision(3)).toString());
  const row = document.createElement("div"), swatch = document.createElement("i");
  swatch.style.background = curve.colour;
  const label = Object.assign(document.createElement("span"), { textContent: curve.label });
  const range = curve.low ? ` [${digits(curve.low[index])}, ${digits(curve.high[index])}]` : "";
  const value = Object.assign(document.createElement("b"), { textContent: digits(curve.y[index]) });
  if (range) value.append(Object.assign(document.createElement("small"), { textContent: range }));
  row.append(swatch, label, value);
  return row;
}

for (const figure of document.querySelectorAll(".chart")) {
  const chart = charts[figure.dataset.chart], hidden = new Set();
  const plots = [...figure.querySelectorAll(".plot")];
  const redraw = (plot) => draw(plot, chart, chart.panels[plot.dataset.panel], hidden);
  const watcher = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach((e) => redraw(e.target))));
  plots.forEach((plot) => watcher.observe(plot));
  for (const button of figure.querySelectorAll(".legend button"))
    button.addEventListener("click", () => {
      const off = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!off));
      hidden[off ? "add" : "delete"](button.dataset.label);
      plots.forEach(redraw);
    });
}
