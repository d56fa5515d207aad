"use strict";
// A small chart: lines, marks and bands in SVG, with axes that may be logarithmic or of names, hover and arrow keys.

const NS = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, parent = null, text = null) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toLocaleString("en", {maximumFractionDigits: 2}) + " M";
  if (size >= 1e4) return (value / 1e3).toLocaleString("en", {maximumFractionDigits: 1}) + " k";
  if (size && size < 1e-3) return value.toExponential(1);
  return value.toLocaleString("en", {maximumFractionDigits: size < 10 ? 4 : 1});
}

function niceTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw) || raw || 1;
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) ticks.push(+tick.toPrecision(12));
  return ticks;
}

function logTicks(low, high) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) powers.push(10 ** power);
  const inside = (ticks) => ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  const fine = inside(powers.flatMap((power) => [power, 2 * power, 5 * power])), coarse = inside(powers);
  if (coarse.length > 3) return coarse;
  return fine.length > 1 ? fine : niceTicks(low, high, 4).filter((tick) => tick > 0);
}

// An axis from values to pixels. `names` makes it one of evenly spaced names.
function axis(values, from, to, {log = false, names = null, zero = false, room = 0.04} = {}) {
  if (names) {
    const step = (to - from) / Math.max(1, names.length), place = (value) => from + step * (value + 0.5);
    const every = Math.ceil(names.length / Math.max(2, Math.abs(to - from) / 34));
    return {place, ticks: names.map((_, i) => i).filter((i) => i % every === 0), text: (i) => names[i], lines: false};
  }
  let usable = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (!usable.length) usable = log ? [1, 10] : [0, 1];
  let low = Math.min(...usable), high = Math.max(...usable);
  if (zero && !log) low = Math.min(0, low);
  if (low === high) { const around = Math.abs(low) / 20 || 0.5; low = log ? low / 2 : low - around; high = log ? high * 2 : high + around; }
  const map = log ? Math.log10 : (value) => value;
  const extra = (map(high) - map(low)) * room, start = zero && !log ? low : map(low) - extra, end = map(high) + extra;
  const place = (value) => from + ((map(value) - start) / (end - start)) * (to - from);
  const ticks = log ? logTicks(low, high) : niceTicks(low, high, Math.abs(to - from) / (from > to ? 45 : 70));
  return {place, ticks: ticks.filter((tick) => place(tick) >= Math.min(from, to) - 1 && place(tick) <= Math.max(from, to) + 1), text: short, lines: true};
}

const SHAPES = {
  o: (x, y) => `M${x - 4},${y}a4,4 0 1,0 8,0a4,4 0 1,0 -8,0`,
  s: (x, y) => `M${x - 4},${y - 4}h8v8h-8z`,
  D: (x, y) => `M${x},${y - 5}l5,5l-5,5l-5,-5z`,
  d: (x, y) => `M${x},${y - 6}l3.5,6l-3.5,6l-3.5,-6z`,
  "^": (x, y) => `M${x},${y - 5}l5,9h-10z`,
  v: (x, y) => `M${x},${y + 5}l5,-9h-10z`,
  "<": (x, y) => `M${x - 5},${y}l9,-5v10z`,
  ">": (x, y) => `M${x + 5},${y}l-9,-5v10z`,
  P: (x, y) => `M${x - 1.5},${y - 5}h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z`,
  X: (x, y) => `M${x - 4},${y - 4}l8,8M${x + 4},${y - 4}l-8,8`,
  "*": (x, y) => {
    const corners = [...Array(10).keys()].map((i) => { const r = i % 2 ? 3.2 : 8, a = (Math.PI * i) / 5 - Math.PI / 2; return `${x + r * Math.cos(a)},${y + r * Math.sin(a)}`; });
    return `M${corners.join("L")}z`;
  },
};
for (const [marker, corners] of [["p", 5], ["h", 6], ["8", 8]]) {
  SHAPES[marker] = (x, y) => "M" + [...Array(corners).keys()].map((i) => { const a = (2 * Math.PI * i) / corners - Math.PI / 2; return `${x + 5.5 * Math.cos(a)},${y + 5.5 * Math.sin(a)}`; }).join("L") + "z";
}
const shape = (marker) => SHAPES[marker] || SHAPES.o;

function tint(node, line) {
  node.classList.add("tinted");
  node.style.setProperty("--light", line.colour);
  node.style.setProperty("--dark", line.dark || line.colour);
}

// spec: {label, lines: [{name, colour, dark, marker, dashed, star, points: [{x, y, low, high, note}]}], levels: [{name, colour, y, low, high}],
//        x: {label, log, names, text}, y: {label, log, zero}}
function drawChart(host, spec) {
  host.spec = spec;
  host.replaceChildren();
  const width = Math.max(260, host.clientWidth || 600), height = Math.min(420, Math.max(260, width * 0.5));
  const names = spec.x.names, slanted = names && names.some((name) => name.length > 4) && width / names.length < 90;
  const edge = {left: 58, right: 14, top: 10, bottom: slanted ? 86 : 44};
  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": spec.label + ". Arrow keys move from value to value."}, host);
  const all = spec.lines.flatMap((line) => line.points), levels = spec.levels || [];
  const ys = [...all.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]), ...levels.flatMap((l) => [l.y, l.low, l.high])];
  const x = axis(all.map((p) => p.x), edge.left, width - edge.right, {log: spec.x.log, names});
  const y = axis(ys, height - edge.bottom, edge.top, {log: spec.y.log, zero: spec.y.zero});
  if (spec.x.text) x.text = spec.x.text;
  if (spec.x.ticks && !names) x.ticks = spec.x.ticks;
  const bottom = height - edge.bottom;
  for (const tick of y.ticks) {
    make("line", {class: "grid", x1: edge.left, x2: width - edge.right, y1: y.place(tick), y2: y.place(tick)}, svg);
    make("text", {x: edge.left - 6, y: y.place(tick) + 4, "text-anchor": "end"}, svg, y.text(tick));
  }
  for (const tick of x.ticks) {
    const at = x.place(tick);
    if (x.lines) make("line", {class: "grid", x1: at, x2: at, y1: edge.top, y2: bottom}, svg);
    const place = slanted ? {x: at, y: bottom + 12, "text-anchor": "end", transform: `rotate(-45 ${at} ${bottom + 12})`} : {x: at, y: bottom + 17, "text-anchor": "middle"};
    make("text", place, svg, x.text(tick));
  }
  make("line", {class: "grid", x1: edge.left, x2: width - edge.right, y1: bottom, y2: bottom}, svg);
  make("text", {class: "name", x: (edge.left + width - edge.right) / 2, y: height - 6, "text-anchor": "middle"}, svg, spec.x.label);
  make("text", {class: "name", x: -(edge.top + bottom) / 2, y: 13, "text-anchor": "middle", transform: "rotate(-90)"}, svg, spec.y.label);
  const groups = [], spots = [];
  const shown = (p) => Number.isFinite(p.x) && Number.isFinite(p.y) && (!spec.x.log || p.x > 0) && (!spec.y.log || p.y > 0);
  for (const level of levels) {
    const group = make("g", {class: "series", "data-name": level.name}, svg);
    tint(group, level);
    if (!spec.y.log || level.low > 0) make("rect", {class: "band", x: edge.left, width: width - edge.left - edge.right, y: y.place(level.high), height: Math.max(0, y.place(level.low) - y.place(level.high))}, group);
    make("line", {class: "line dashed", x1: edge.left, x2: width - edge.right, y1: y.place(level.y), y2: y.place(level.y)}, group);
    groups.push(group);
    for (let part = 0; part <= 8; part++) spots.push({px: edge.left + ((width - edge.left - edge.right) * part) / 8, py: y.place(level.y), line: level, group, point: {y: level.y, low: level.low, high: level.high}});
  }
  for (const line of spec.lines) {
    const points = line.points.filter(shown), group = make("g", {class: "series", "data-name": line.name}, svg);
    tint(group, line);
    groups.push(group);
    const at = points.map((p) => [x.place(p.x), y.place(p.y)]);
    const spread = points.filter((p) => p.low !== undefined && p.low !== p.high && (!spec.y.log || p.low > 0));
    if (line.marker) {
      for (const p of spread) make("path", {class: "mark", d: `M${x.place(p.x)},${y.place(p.low)}V${y.place(p.high)}M${x.place(p.x) - 3},${y.place(p.low)}h6M${x.place(p.x) - 3},${y.place(p.high)}h6`}, group);
    } else if (spread.length > 1) {
      const up = spread.map((p) => `${x.place(p.x)},${y.place(p.high)}`), down = spread.map((p) => `${x.place(p.x)},${y.place(p.low)}`).reverse();
      make("path", {class: "band", d: `M${up.join("L")}L${down.join("L")}z`}, group);
    }
    if (!line.star && at.length) make("path", {class: line.dashed ? "line dashed" : "line", d: "M" + at.map((p) => p.map((v) => v.toFixed(1)).join(",")).join("L")}, group);
    if (line.marker || at.length < 3) for (const [px, py] of at) make("path", {class: line.star ? "star" : line.marker === "X" ? "line" : "dot", d: shape(line.marker)(px, py)}, group);
    points.forEach((point, i) => spots.push({px: at[i][0], py: at[i][1], line, group, point}));
  }
  if (!spots.length) make("text", {class: "name", x: width / 2, y: height / 2, "text-anchor": "middle"}, svg, "nothing to show with this choice");
  interact(svg, spots, groups, (spot) => describe(spot, spec, x, y));
}

function describe(spot, spec, x, y) {
  const {point, line} = spot, value = spec.y.format || short;
  const across = point.x === undefined ? "" : `${spec.x.label}: ${x.lines ? (spec.x.text || short)(point.x) : x.text(point.x)}`;
  const spread = point.low !== undefined && point.low !== point.high ? ` (${value(point.low)} to ${value(point.high)})` : "";
  return [line.name, across, `${spec.y.label}: ${value(point.y)}${spread}`, point.note || ""].filter(Boolean);
}

function interact(svg, spots, groups, describeSpot) {
  const ring = make("circle", {class: "ring", r: 6, visibility: "hidden"}, svg), tip = document.getElementById("tip");
  let current = null;
  function show(spot, say) {
    current = spot;
    const words = describeSpot(spot), box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    ring.setAttribute("cx", spot.px); ring.setAttribute("cy", spot.py); ring.setAttribute("visibility", "visible");
    for (const group of groups) group.classList.toggle("faded", group !== spot.group);
    const title = document.createElement("b");
    title.textContent = words[0];
    tip.replaceChildren(title, ...words.slice(1).flatMap((word) => [document.createTextNode(word), document.createElement("br")]));
    tip.hidden = false;
    tip.owner = svg;
    const left = box.left + spot.px * scale, top = box.top + spot.py * scale;
    tip.style.left = Math.max(4, Math.min(left + 14, innerWidth - tip.offsetWidth - 4)) + "px";
    tip.style.top = Math.max(4, top - tip.offsetHeight - 10) + "px";
    if (say) document.getElementById("live").textContent = words.join(", ");
  }
  function hide() {
    current = null;
    if (tip.owner === svg) tip.hidden = true;
    ring.setAttribute("visibility", "hidden");
    for (const group of groups) group.classList.remove("faded");
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const mx = (event.clientX - box.left) / scale, my = (event.clientY - box.top) / scale;
    let best = null, least = 60 ** 2;
    for (const spot of spots) {
      const far = (spot.px - mx) ** 2 + (spot.py - my) ** 2;
      if (far < least) { least = far; best = spot; }
    }
    if (best) show(best, false); else hide();
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { hide(); return; }
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key) || !spots.length) return;
    event.preventDefault();
    if (!current) { show(spots[0], true); return; }
    const step = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : -1;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const mine = spots.filter((spot) => spot.line === current.line), i = mine.indexOf(current) + step;
      show(mine[Math.max(0, Math.min(mine.length - 1, i))], true);
    } else {
      const lines = [...new Set(spots.map((spot) => spot.line))], next = lines[(lines.indexOf(current.line) + step + lines.length) % lines.length];
      const theirs = spots.filter((spot) => spot.line === next);
      show(theirs.reduce((best, spot) => (Math.abs(spot.px - current.px) < Math.abs(best.px - current.px) ? spot : best)), true);
    }
  });
}

// Stacked bars: a client each, its samples by class.
function drawHoldings(host, counts) {
  host.replaceChildren();
  const width = Math.max(260, host.clientWidth || 500), height = Math.min(340, Math.max(220, width * 0.6));
  const edge = {left: 52, right: 8, top: 8, bottom: 40}, classes = counts[0].length;
  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": `Samples of ${counts.length} clients by class. Arrow keys move from client to client.`}, host);
  const sums = counts.map((row) => row.reduce((a, b) => a + b, 0)), bottom = height - edge.bottom;
  const y = axis(sums, bottom, edge.top, {zero: true}), step = (width - edge.left - edge.right) / counts.length;
  for (const tick of y.ticks) {
    make("line", {class: "grid", x1: edge.left, x2: width - edge.right, y1: y.place(tick), y2: y.place(tick)}, svg);
    make("text", {x: edge.left - 6, y: y.place(tick) + 4, "text-anchor": "end"}, svg, short(tick));
  }
  const spots = [], groups = [];
  counts.forEach((row, client) => {
    let base = 0;
    const left = edge.left + client * step;
    row.forEach((count, name) => {
      if (!count) return;
      const top = y.place(base + count), size = y.place(base) - top;
      make("rect", {x: left + step * 0.07, width: step * 0.86, y: top, height: size, fill: viridis(classes > 1 ? name / (classes - 1) : 0)}, svg);
      spots.push({px: left + step / 2, py: top + size / 2, line: {name: `client ${client}`}, group: null, point: {name, count}});
      base += count;
    });
    if (counts.length <= 20 || client % 10 === 0) make("text", {x: left + step / 2, y: bottom + 16, "text-anchor": "middle"}, svg, client);
  });
  make("text", {class: "name", x: width / 2, y: height - 4, "text-anchor": "middle"}, svg, "client");
  interact(svg, spots, groups, (spot) => [spot.line.name, `class ${spot.point.name}: ${spot.point.count.toLocaleString("en")} samples`]);
}

const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
function viridis(part) {
  const at = part * (VIRIDIS.length - 1), i = Math.min(VIRIDIS.length - 2, Math.floor(at)), mix = at - i;
  return `rgb(${VIRIDIS[i].map((value, k) => Math.round(value + (VIRIDIS[i + 1][k] - value) * mix)).join(",")})`;
}
