"use strict";
// The page: which environment, which methods, and everything that is drawn from them.

let DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const state = {place: 0, hidden: new Set(), sort: null, down: false};
const place = () => DATA.environments[state.place];
const visible = (series) => series.filter((one) => !state.hidden.has(one.method));
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const fixed = (digits) => (value) => value.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
// Accuracy with a fixed number of digits, other measures with as many as count.
const number = (value, digits = 4) => (value === null || value === undefined || Number.isNaN(value) ? "–" : place().measure === "accuracy" && Math.abs(value) <= 1 ? fixed(digits)(value) : String(+value.toPrecision(digits)));
const runsOf = (one) => one.runs.map((i) => place().runs[i]);
const complete = (one) => runsOf(one).filter((run) => run.complete);

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => Object.assign(document.createElement("option"), {value, textContent: text, selected: value === chosen})));
}

function setup() {
  $("theme").addEventListener("click", turnTheme);
  $("environment").addEventListener("change", () => { state.place = +$("environment").value; choose(); });
  for (const id of ["sparsity-x-log", "sparsity-y-log"]) $(id).addEventListener("change", drawSparsity);
  for (const id of ["rounds-set", "rounds-x", "rounds-y", "rounds-x-log", "rounds-y-log"]) $(id).addEventListener("change", drawRounds);
  $("rounds-at").addEventListener("change", () => { drawRounds(); drawLayers(); });
  $("layers-log").addEventListener("change", drawLayers);
  $("theorem-run").addEventListener("change", drawTheorem);
  $("clients-run").addEventListener("change", showClients);
  $("views-run").addEventListener("change", () => { fillMetrics(); drawViews(); });
  $("views-metric").addEventListener("change", drawViews);
  $("run").addEventListener("change", showConfig);
  $("copy").addEventListener("click", copyConfig);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width && DATA.environments.length) { width = innerWidth; drawAll(); } });
  show();
  if (DATA.live) follow();
}

// Everything that depends on the values.
function show() {
  document.title = document.querySelector("h1").textContent = DATA.title;
  $("foot").textContent = `Made by fedsparsify ${DATA.version} from ${DATA.sources}. ${DATA.paper}`;
  const runs = DATA.environments.reduce((count, one) => count + one.runs.length, 0);
  $("lead").textContent = `${runs.toLocaleString("en")} ${runs === 1 ? "run" : "runs"} in ${DATA.environments.length} ${DATA.environments.length === 1 ? "environment" : "environments"}.`;
  $("notes").hidden = !DATA.notes.length;
  $("notes").querySelector("ul").replaceChildren(...DATA.notes.map(item));
  showNow();
  $("shown").hidden = !DATA.environments.length;
  if (!DATA.environments.length) return;
  fill($("environment"), DATA.environments.map((one, i) => [String(i), one.title]), String(state.place));
  $("environment").closest("label").hidden = DATA.environments.length === 1;
  choose();
}

const item = (text) => Object.assign(document.createElement("li"), {textContent: text});

// ——— a run that is still going: its server is asked for new values

function showNow(lost) {
  const live = DATA.live;
  $("now").hidden = !live;
  if (!live) return;
  $("now").classList.toggle("lost", Boolean(lost));
  const parts = [live.round === undefined ? "No round has ended yet" : `Round ${live.round.toLocaleString("en")}${live.rounds ? ` of ${live.rounds.toLocaleString("en")}` : ""}`];
  if (live.clients !== undefined) parts.push(`${live.clients} ${live.clients === 1 ? "client" : "clients"}${live.leftOut ? `, ${live.leftOut} left out` : ""}`, `${live.seconds} s`);
  $("now-state").textContent = `${lost ? "No answer: the command has ended, or cannot be reached" : live.state}. ${DATA.environments.length > 1 || DATA.environments[0]?.runs.length > 1 ? "" : `${parts.join(" · ")}.`}`;
  Object.assign($("now-progress"), {max: live.rounds || 1, value: live.round || 0, hidden: !live.rounds});
  $("now-left").replaceChildren(...(live.left || []).map(item));
  $("now-left-title").hidden = !live.left?.length;
}

async function follow() {
  for (;;) {
    await new Promise((done) => setTimeout(done, 2000));
    let next = null;
    try {
      const answer = await fetch("data.json", {cache: "no-store"});
      if (answer.ok) next = await answer.json();
    } catch { /* shown below */ }
    if (!next) { showNow(true); continue; }
    const changed = next.live.version !== DATA.live.version;
    if (changed) renew(next); else showNow();
  }
}

// New values, with everything that the reader has chosen.
function renew(next) {
  const slug = DATA.environments.length ? place().slug : null, scrolled = scrollY;
  const chosen = ["rounds-set", "rounds-x", "rounds-at", "run", "theorem-run"].map((id) => [$(id), $(id).selectedOptions[0]?.text]);
  DATA = next;
  state.place = Math.max(0, DATA.environments.findIndex((one) => one.slug === slug));
  show();
  for (const [select, text] of chosen) {
    const same = [...select.options].find((option) => option.text === text);
    if (same) select.value = same.value;
  }
  if (DATA.environments.length) { drawAll(); showConfig(); }
  scrollTo(0, scrolled);
}

function turnTheme() {
  const next = {undefined: "dark", dark: "light", light: undefined}[document.documentElement.dataset.theme];
  if (next) document.documentElement.dataset.theme = next; else delete document.documentElement.dataset.theme;
  $("theme").setAttribute("aria-label", `Colours: ${next || "as the system has them"}`);
}

// Everything that depends on the environment.
function choose() {
  const methods = [...new Map(place().series.map((one) => [one.method, one])).values()];
  state.hidden = new Set([...state.hidden].filter((method) => methods.some((one) => one.method === method)));
  $("methods").replaceChildren(...methods.map((one) => {
    const button = Object.assign(document.createElement("button"), {type: "button"});
    button.append(swatch(one), one.method);
    button.setAttribute("aria-pressed", String(!state.hidden.has(one.method)));
    button.addEventListener("click", () => {
      if (state.hidden.has(one.method)) state.hidden.delete(one.method); else state.hidden.add(one.method);
      button.setAttribute("aria-pressed", String(!state.hidden.has(one.method)));
      drawAll();
    });
    return button;
  }));
  fill($("rounds-set"), Object.keys(place().sets).map((name) => [name, name]), "methods");
  $("rounds-set").closest("label").hidden = Object.keys(place().sets).length < 2;
  const costs = [["round", "round"], ["mbit", "Mbit sent, the paper's count"], ["sent", "values sent, millions"]];
  if (place().runs.some((run) => run.bytes)) costs.push(["bytes", "MB really sent"]);
  if (place().runs.some((run) => run.epsilon)) costs.push(["epsilon", "ε spent"]);
  fill($("rounds-x"), costs, "round");
  const levels = place().levels, usual = levels.includes(0.9) ? 0.9 : levels.at(-1);
  fill($("rounds-at"), levels.map((level) => [String(level), String(level)]), String(usual));
  $("rounds-at").closest("label").hidden = levels.length < 2;
  const measures = [["accuracy", place().measure], ...[...new Set(place().runs.flatMap((run) => Object.keys(run.metrics)))].map((name) => [`metrics.${name}`, name])];
  if (place().runs.some((run) => run.took)) measures.push(["took", "seconds per round"]);
  fill($("rounds-y"), [...measures, ["nonzero", "parameters left"]], "accuracy");
  $("sparsity-title").textContent = `${place().measure[0].toUpperCase()}${place().measure.slice(1)} against sparsity`;
  fill($("run"), place().runs.map((run, i) => [String(i), run.name]), "0");
  const diagnosed = place().runs.map((run, i) => [String(i), run.name]).filter(([i]) => Object.keys(place().runs[i].diagnosis).length);
  $("theorem-figure").hidden = !diagnosed.length;
  fill($("theorem-run"), diagnosed, diagnosed[0]?.[0]);
  const recorded = place().runs.map((run, i) => [String(i), run.name]).filter(([i]) => place().runs[i].clients.length);
  $("clients").hidden = !recorded.length;
  fill($("clients-run"), recorded, recorded[0]?.[0]);
  const viewed = place().runs.map((run, i) => [String(i), run.name]).filter(([i]) => Object.keys(place().runs[i].views).length);
  $("views-figure").hidden = !viewed.length;
  fill($("views-run"), viewed, viewed[0]?.[0]);
  fillMetrics();
  showSummary();
  showConfig();
  drawAll();
}

function swatch(one) {
  const dot = document.createElement("i");
  tint(dot, one);
  return dot;
}

function showSummary() {
  const rows = [["data set", place().data], ["split", place().split], ["clients", place().clients], ["network", `${place().network}${place().total ? `, ${place().total.toLocaleString("en")} parameters` : ""}`], ["rounds", String(place().rounds)]];
  if (place().runs.length === 1) {
    const run = place().runs[0], last = run.nonzero.at(-1);
    rows.push(["method", place().series[0].label], [place().measure, number(run.accuracy.at(-1))], ...Object.entries(run.metrics).map(([name, values]) => [name, number(values.at(-1))]), ["parameters left", last.toLocaleString("en") + (place().total ? ` (${((100 * last) / place().total).toFixed(1)} %)` : "")]);
    if (run.stopped) rows.push(["stopped early", `after round ${run.round.at(-1)}: ${run.stopped}`]);
    const view = viewOf([run]);
    if (view.worst !== undefined) rows.push(["worst client", number(view.worst)], ["spread over clients", number(view.spread)]);
    if (run.modelBytes) rows.push(["model file", `${run.modelBytes.toLocaleString("en")} bytes`]);
    if (run.bytes) rows.push(["sent", `${fixed(1)(run.bytes.at(-1))} MB`]);
    if (run.epsilon) rows.push(["privacy", `ε = ${short(run.epsilon.at(-1))}`]);
    rows.push(["time", `${fixed(0)(run.seconds)} s`]);
  } else {
    const best = place().series.filter((one) => complete(one).length && one.sparsity >= 0.9).sort((a, b) => (place().higher ? 1 : -1) * (final(b) - final(a)))[0];
    rows.push(["runs", String(place().runs.length)]);
    if (best) rows.push(["best at 0.9 or sparser", `${best.label} ${best.sparsity}: ${fixed(3)(final(best))}`]);
  }
  $("summary").replaceChildren(...rows.map(([name, value]) => {
    const box = document.createElement("div");
    if (value.length > 18) box.className = "long";
    box.append(Object.assign(document.createElement("dt"), {textContent: name}), Object.assign(document.createElement("dd"), {textContent: value}));
    return box;
  }));
}

const final = (one) => mean(complete(one).map((run) => run.accuracy.at(-1)));

function drawAll() { drawSparsity(); drawRounds(); drawLayers(); drawData(); drawViews(); drawTheorem(); showTable(); showClients(); }

function drawSparsity() {
  const done = visible(place().sets.methods.map((i) => place().series[i])).filter((one) => complete(one).length);
  const alone = place().runs.length < 2 && !place().paper.length; // one mark says no more than the summary
  $("sparsity-figure").hidden = alone || !place().levels.length || !place().runs.some((run) => run.complete);
  const log = $("sparsity-x-log").checked, levels = place().levels, across = (s) => (log ? 1 - s : levels.indexOf(s));
  const lines = new Map(), flat = [];
  for (const one of done) {
    const finals = complete(one).map((run) => run.accuracy.at(-1)), low = Math.min(...finals), high = Math.max(...finals);
    const seeds = `${finals.length} ${finals.length === 1 ? "seed" : "seeds"}`;
    if (one.sparsity === null) { flat.push({name: one.label, ...look(one), y: mean(finals), low, high}); continue; }
    if (!lines.has(one.label)) lines.set(one.label, {name: one.label, ...look(one), points: []});
    lines.get(one.label).points.push({x: across(one.sparsity), y: mean(finals), low, high, note: seeds});
  }
  const theirs = place().paper.filter((row) => levels.includes(row.sparsity));
  if (theirs.length && !state.hidden.has(DATA.looks["fedsparsify-global"].label)) lines.set("*", {name: "the paper's FedSparsify-Global", ...DATA.looks["fedsparsify-global"], marker: "*", star: true, points: theirs.map((row) => ({x: across(row.sparsity), y: row.accuracy}))});
  const x = log ? {label: "sparsity", log: true, text: (left) => +(1 - left).toFixed(4), ticks: levels.map((s) => 1 - s)} : {label: "sparsity", names: levels.map(String)};
  drawChart($("sparsity-chart"), {label: `Final ${place().measure} against sparsity, ${place().title}`, lines: [...lines.values()], levels: flat, x, y: {label: place().measured, log: $("sparsity-y-log").checked, format: number}});
}

const columnOf = (run, key) => (key.startsWith("metrics.") ? run.metrics[key.slice(8)] : run[key]);
const look = (one) => ({colour: one.colour, dark: one.dark, marker: one.marker});
function atLevel() {
  const level = $("rounds-at").value === "" ? null : +$("rounds-at").value, usual = place().sets.methods.map((i) => place().series[i]);
  const chosen = usual.filter((one) => one.sparsity === null || one.sparsity === level);
  return visible(chosen.length ? chosen : usual);
}

function drawRounds() {
  const xKey = $("rounds-x").value, yKey = $("rounds-y").value, names = Object.fromEntries([...$("rounds-x").options].map((o) => [o.value, o.text]));
  const set = $("rounds-set").value, tuned = (one, i) => ({...one, colour: DATA.sequence[i % DATA.sequence.length], dark: DATA.sequenceDark[i % DATA.sequence.length]});
  const shown = set === "methods" || !place().sets[set] ? atLevel() : place().sets[set].map((i) => place().series[i]).map(tuned);
  const lines = shown.map((one) => {
    const at = new Map();
    for (const run of runsOf(one)) {
      if (!run[xKey]) continue;
      const column = columnOf(run, yKey);
      if (!column) continue;
      run.round.forEach((t, i) => { if (!at.has(t)) at.set(t, []); at.get(t).push([run[xKey][i], column[i], run.nonzero[i]]); });
    }
    const points = [...at.keys()].sort((a, b) => a - b).map((t) => {
      const values = at.get(t).map((pair) => pair[1]).filter((value) => value !== null);
      return values.length ? {x: mean(at.get(t).map((pair) => pair[0])), y: mean(values), low: Math.min(...values), high: Math.max(...values), note: [xKey === "round" ? "" : `round ${t}`, yKey === "took" && place().total ? `sparsity ${(1 - mean(at.get(t).map((row) => row[2])) / place().total).toFixed(3)}` : ""].filter(Boolean).join(", ")} : null;
    }).filter(Boolean);
    return {name: one.label, colour: one.colour, dark: one.dark, points};
  });
  const measured = yKey !== "nonzero" && yKey !== "took", name = yKey === "accuracy" ? place().measure : yKey.replace("metrics.", ""), other = yKey === "took" ? "seconds per round" : "parameters left";
  drawChart($("rounds-chart"), {label: `${measured ? name : other} against ${names[xKey]}, ${place().title}`, lines, x: {label: names[xKey], log: $("rounds-x-log").checked}, y: {label: measured ? yKey === "accuracy" ? place().measured : `test ${name}` : other, log: $("rounds-y-log").checked, zero: !measured, format: measured ? number : yKey === "took" ? short : fixed(0)}});
}

function drawLayers() {
  const known = atLevel().filter((one) => runsOf(one)[0].layers.length);
  $("layers-figure").hidden = !place().runs.some((run) => run.layers.length);
  if (!known.length) { $("layers-chart").replaceChildren("Nothing to show with this choice."); return; }
  const dead = known.filter((one) => runsOf(one)[0].empty.length).map((one) => `${one.label}: ${runsOf(one)[0].empty.join(", ")}`);
  $("layers-empty").hidden = !dead.length;
  $("layers-empty").textContent = `No weight is left in these tensors, which a log axis cannot show. ${dead.join("; ")}.`;
  const names = runsOf(known[0])[0].layers.map((layer) => layer[0]);
  const lines = known.map((one) => ({name: one.label, ...look(one), points: runsOf(one)[0].layers.map(([, kept, size], i) => ({x: i, y: kept / size, note: `${kept.toLocaleString("en")} of ${size.toLocaleString("en")}`}))}));
  drawChart($("layers-chart"), {label: `Density of each layer, ${place().title}`, lines, x: {label: "layer", names}, y: {label: "share kept", log: $("layers-log").checked, zero: true}});
}

function drawData() {
  $("data-figure").hidden = !place().partition;
  if (!place().partition) return;
  const shown = place().partition.length, all = place().holders;
  $("data-about").textContent = "Samples of each client, by class." + (all > shown ? ` The first ${shown} of ${all.toLocaleString("en")} clients.` : "");
  drawHoldings($("data-chart"), place().partition);
}

function fillMetrics() {
  if ($("views-figure").hidden) return;
  const known = Object.keys(place().runs[+$("views-run").value].views), now = $("views-metric").value;
  fill($("views-metric"), known.map((name) => [name, name]), known.includes(now) ? now : known[0]);
}

function drawViews() {
  if ($("views-figure").hidden) return;
  const run = place().runs[+$("views-run").value], metric = $("views-metric").value, view = run.views[metric];
  const points = (column) => view[column].map((y, i) => ({x: run.round[i], y, spread: view.spread[i] ?? 0})).filter((p) => p.y !== null);
  const lines = [
    {name: "mean over clients", colour: DATA.sequence[0], dark: DATA.sequenceDark[0], points: points("mean").map((p) => ({...p, low: p.y - p.spread, high: p.y + p.spread, note: `± ${fixed(4)(p.spread)}`}))},
    {name: "worst client", colour: DATA.sequence[1], dark: DATA.sequenceDark[1], dashed: true, points: points("worst")},
  ];
  drawChart($("views-chart"), {label: `${metric} at the clients, ${run.name}`, lines, x: {label: "round"}, y: {label: metric, format: fixed(4)}});
}

function drawTheorem() {
  if ($("theorem-figure").hidden) return;
  const run = place().runs[+$("theorem-run").value], names = {purged_norm: "thrown away by the purge", purge_bound: "bound: ‖w‖·√(share that went)", paper_bound: "the paper's bound: ‖w‖·(s(t) − s(t−1))", gradient_norm: "masked gradient", probe_loss: "loss on the probe"};
  const lines = Object.entries(run.diagnosis).map(([key, values], i) => ({name: names[key] || key, colour: DATA.sequence[i], dark: DATA.sequenceDark[i], points: values.map((value, t) => ({x: run.round[t], y: value})).filter((p) => p.y)}));
  drawChart($("theorem-chart"), {label: `The terms of Theorem 1, ${run.name}`, lines, x: {label: "round"}, y: {label: "norm (log)", log: true}});
}

// ——— the table

const cell = (value, text) => ({value, text: value === null || value === undefined || Number.isNaN(value) ? "–" : text});
const times = (factor) => (factor && Number.isFinite(factor) ? ` (×${fixed(2)(factor)})` : "");

const COLUMNS = [
  ["Method", (row) => cell(row.label, row.label)],
  ["Sparsity", (row) => cell(row.sparsity ?? 0, row.sparsity !== null ? String(row.sparsity) : row.dense ? "dense" : "free")],
  ["Accuracy", (row) => cell(row.accuracy, row.accuracy === null ? "" : number(row.accuracy) + (row.low < row.high ? ` [${number(row.low, 3)}–${number(row.high, 3)}]` : ""))],
  ["Seeds", (row) => cell(row.seeds, String(row.seeds))],
  ["Params", (row) => cell(row.params, fixed(0)(row.params ?? 0))],
  ["Size, MB", (row) => cell(row.size, fixed(3)(row.size ?? 0) + times(row.sizeTimes))],
  ["C.C., paper's", (row) => cell(row.paper, fixed(1)(row.paper ?? 0) + times(row.paperTimes))],
  ["C.C., sent", (row) => cell(row.sent, fixed(1)(row.sent ?? 0) + times(row.sentTimes))],
  ["ε", (row) => cell(row.epsilon, short(row.epsilon ?? 0))],
  ["MB sent", (row) => cell(row.bytes, fixed(1)(row.bytes ?? 0) + times(row.bytesTimes))],
  ["Latency, ms", (row) => cell(row.latency, short(row.latency ?? 0) + times(row.latencyTimes))],
  ["Items/s", (row) => cell(row.speed, fixed(0)(row.speed ?? 0) + times(row.speedTimes))],
];
const VIEW_COLUMNS = [
  ["Worst client", (row) => cell(row.worst, number(row.worst ?? 0))],
  ["Spread", (row) => cell(row.spread, number(row.spread ?? 0))],
];

// Worst client and spread after the last round, mean over seeds.
function viewOf(runs) {
  const known = runs.map((run) => run.views[place().measure]).filter((view) => view && view.worst.at(-1) !== null);
  return known.length ? {worst: mean(known.map((view) => view.worst.at(-1))), spread: mean(known.map((view) => view.spread.at(-1)))} : {};
}

const columns = () => {
  const shown = COLUMNS.filter(([name]) => name !== "ε" || place().runs.some((run) => run.epsilon));
  return place().runs.some((run) => run.views[place().measure]) ? [...shown.slice(0, 3), ...VIEW_COLUMNS, ...shown.slice(3)] : shown;
};

function tableRows() {
  const rows = [], dense = place().dense === null ? null : runsOf(place().series[place().dense])[0];
  for (const one of visible(place().series)) {
    const runs = complete(one).length ? complete(one) : runsOf(one), run = runs[0], finals = runs.map((r) => r.accuracy.at(-1)), other = run !== dense && dense;
    const all = place().total ? (run.exchanges * place().total) / 1e6 : null;
    rows.push({
      ...look(one), label: one.label + (complete(one).length ? "" : ` (${DATA.live ? "at round" : "stopped at"} ${run.round.at(-1)})`), sparsity: one.sparsity, dense: one.dense, seeds: runs.length, accuracy: mean(finals), low: Math.min(...finals), high: Math.max(...finals),
      ...viewOf(runs), epsilon: run.epsilon?.at(-1), params: run.nonzero.at(-1), size: run.modelBytes && run.modelBytes / 1e6, sizeTimes: other && dense.modelBytes / run.modelBytes,
      paper: run.paper, paperTimes: other && all / run.paper, sent: run.sent.at(-1), sentTimes: other && all / run.sent.at(-1), bytes: run.bytes?.at(-1), bytesTimes: other && run.bytes && (4 * all) / run.bytes.at(-1),
      latency: run.timing?.latency_ms, latencyTimes: other && run.timing && dense.timing && dense.timing.latency_ms / run.timing.latency_ms, speed: run.timing?.items_per_second, speedTimes: other && run.timing && dense.timing && run.timing.items_per_second / dense.timing.items_per_second,
    });
    const theirs = place().paper.find((row) => (one.label === DATA.looks["fedsparsify-global"].label && row.sparsity === one.sparsity) || (place().series[place().dense] === one && row.sparsity === 0));
    if (theirs) rows.push({theirs: true, label: "the paper", sparsity: theirs.sparsity || null, dense: true, seeds: 1, accuracy: theirs.accuracy, params: theirs.params, size: theirs.size_mb, paper: theirs.cost_mm, latency: theirs.latency_ms, speed: theirs.throughput});
  }
  return rows;
}

function showTable() {
  const shown = columns(), head = $("table").querySelector("thead tr"), body = $("table").querySelector("tbody");
  head.replaceChildren(...shown.map(([name], i) => {
    const th = document.createElement("th"), button = Object.assign(document.createElement("button"), {type: "button", textContent: name === "Accuracy" ? (place().measure !== "accuracy" ? place().measure : name) : name});
    th.scope = "col";
    if (state.sort === name) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    button.addEventListener("click", () => {
      state.down = state.sort === name ? !state.down : i > 1;
      state.sort = name;
      showTable();
      $("table").querySelectorAll("thead button")[i].focus();
    });
    th.append(button);
    return th;
  }));
  const rows = tableRows();
  const sorting = shown.find(([name]) => name === state.sort);
  if (sorting) {
    const value = (row) => sorting[1](row).value, sign = state.down ? -1 : 1;
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)], lacks = (v) => v === null || v === undefined || Number.isNaN(v);
      if (lacks(x) || lacks(y)) return lacks(x) - lacks(y);
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  }
  body.replaceChildren(...rows.map((row) => {
    const tr = document.createElement("tr");
    if (row.theirs) tr.className = "theirs";
    columns().forEach(([, make], i) => {
      const td = Object.assign(document.createElement("td"), {textContent: make(row).text});
      if (!i && !row.theirs) td.prepend(swatch(row));
      tr.append(td);
    });
    return tr;
  }));
}

// ——— clients

const CLIENT_COLUMNS = [
  ["Client", (row) => row.name],
  ["Stood out", (row) => row.notes.join("; ") || "–"],
  ["Rounds", (row) => String(row.rounds)],
  ["Samples", (row) => row.samples.toLocaleString("en")],
  ["Norm, medians", (row) => row.norm === null ? "–" : short(row.norm)],
  ["Cosine", (row) => row.cosine === null ? "–" : fixed(3)(row.cosine)],
  ["Training loss", (row) => row.loss === null ? "–" : short(row.loss)],
];

function showClients() {
  if ($("clients").hidden) return;
  const run = place().runs[+$("clients-run").value], cells = (kind, texts) => texts.map((text) => Object.assign(document.createElement(kind), {textContent: text}));
  $("clients").querySelector("thead tr").replaceChildren(...cells("th", CLIENT_COLUMNS.map(([name]) => name)));
  $("clients").querySelector("tbody").replaceChildren(...run.clients.map((row) => {
    const tr = document.createElement("tr");
    tr.append(...cells("td", CLIENT_COLUMNS.map(([, text]) => text(row))));
    return tr;
  }));
  const shown = run.clients.length, rest = run.allClients > shown ? ` The first ${shown} of ${run.allClients.toLocaleString("en")} clients.` : "";
  $("clients-about").textContent = "Those that stood out come first. Norm: length of a client's update, in medians of its round. Cosine: to the merged update, mean over the rounds; −1 pulls the other way." + rest;
}

// ——— settings

function showConfig() {
  const run = place().runs[+$("run").value], table = {...place().settings, ...run.settings};
  const line = ([, value]) => value, entries = place().keys.concat(Object.keys(run.settings)).filter((key, i, all) => key in table && all.indexOf(key) === i).map((key) => [key, table[key]]);
  const plain = entries.filter(([key]) => !key.startsWith("method.")), method = entries.filter(([key]) => key.startsWith("method."));
  $("toml").textContent = [...plain.map(line), "", "[method]", ...method.map(line)].join("\n") + "\n";
}

async function copyConfig() {
  try {
    await navigator.clipboard.writeText($("toml").textContent);
    $("live").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren($("toml"));
    $("live").textContent = "Selected; copy with Ctrl-C.";
  }
}

setup();
