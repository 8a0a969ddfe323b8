// Draws the report of one run, or of two, from the data in the page; Plotly draws the charts.
// Everything becomes text of an element, never markup, so nothing that others wrote can act here.
"use strict";

const { runs, differs } = JSON.parse(document.getElementById("data").textContent);
const COLORS = ["#0072b2", "#d55e00"]; // told apart by people who see few colours (Okabe and Ito, 2008)
const DASHES = ["solid", "dash"];
const MOST_ROWS = 500;
const MOST_LETTERS = 600;

// ---- text

const number = (value) => (value >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4)));
const percent = (part) => `${(100 * part).toFixed(1)} %`;
const moment = (at) => `${at.slice(0, 19).replace("T", " ")} UTC`;
const dollars = (run, usd) => `$${usd < 1 ? usd.toFixed(4) : usd.toFixed(2)}${run.run.emulated_speed ? " emulated" : ""}`;
const words = (name) => name.replaceAll("_", " ");

function span(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function median(run, key, write) {
  const known = run.points.map((point) => point[key]).filter(Number.isFinite).sort((a, b) => a - b);
  return known.length ? write((known[Math.floor((known.length - 1) / 2)] + known[Math.floor(known.length / 2)]) / 2) : "";
}

const said = (fields) => Object.entries(fields)
  .filter(([name, value]) => !["event_id", "run_id", "at", "type"].includes(name) && value !== null && value !== "" && JSON.stringify(value).length > 2)
  .map(([name, value]) => `${words(name)} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");

// ---- elements

function element(tag, text, ...children) {
  const made = document.createElement(tag);
  made.textContent = text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS)}...` : text;
  made.append(...children);
  return made;
}

function table(heads, rows) {
  const lines = [["th", heads], ...rows.slice(0, MOST_ROWS).map((row) => ["td", row])];
  const made = element("div", "", element("table", "", ...lines.map(
    ([tag, cells]) => element("tr", "", ...cells.map((cell) => element(tag, cell))))));
  made.className = "table";
  if (rows.length > MOST_ROWS) made.append(element("p", `${rows.length - MOST_ROWS} more`));
  return made;
}

const section = (title, ...content) => element("details", "", element("summary", title), ...content);
const listed = (title, heads, rows) => (rows.length ? [section(title, table(heads, rows))] : []);

// ---- the figures of a run

const endOf = (run) => run.over_at ?? run.made_at;
const since = (run, at) => (Date.parse(at) - Date.parse(run.run.requested_at)) / 1000;

const FIGURES = {
  "outcome": ({ run }) => words(run.phase) + (run.reason ? `: ${run.reason}` : ""),
  "command": ({ run }) => run.request.command,
  "machines": (each) => each.machines,
  "requested": ({ run }) => moment(run.requested_at),
  "from request to the end of the teardown": (each) => span(since(each, endOf(each))) + (each.over_at ? "" : " so far"),
  "steps": ({ run }) => (run.progress ? `${run.progress.step} of ${run.progress.total_steps}` : ""),
  "loss": ({ run }) => (run.progress?.has_loss ? (run.progress.loss_nats === null ? "not finite" : `${number(run.progress.loss_nats)} nats`) : ""),
  "held-out loss": ({ run }) => (run.evaluation?.loss_nats ? `${number(run.evaluation.loss_nats)} nats` : ""),
  "tokens per second, median": (each) => median(each, "tokens_per_s", number),
  "samples per second, median": (each) => median(each, "samples_per_s", number),
  "MFU, median": (each) => median(each, "mfu", percent),
  "cost": (each) => dollars(each, each.cost_usd),
  "cost per million tokens": (each) => (each.usd_per_million_tokens ? dollars(each, each.usd_per_million_tokens) : ""),
  "goodput": ({ paid }) => (Object.keys(paid).length ? percent((paid.training ?? 0) / Object.values(paid).reduce((a, b) => a + b)) : ""),
  "paid time": ({ paid }) => Object.entries(paid).sort((a, b) => b[1] - a[1]).map(([cause, seconds]) => `${cause} ${span(seconds)}`).join(", "),
  "attempts": ({ run }) => String(run.attempts.length || ""),
  "setbacks": ({ run }) => String(run.recoveries.length || ""),
};

// ---- charts: a unit on each axis, one size of letters, a legend where there are several lines

const AXIS = { showline: true, linecolor: "#595959", ticks: "outside", gridcolor: "#e5e5e5", zeroline: false, automargin: true };
const of = (key, factor = 1) => (run) => run.points.map((point) => [point.step, point[key] === null ? null : factor * point[key]]);
const OF_STEPS = [
  ["loss", "Loss", "loss (nats)", of("loss_nats")],
  ["tokens", "Tokens per second", "tokens/s", of("tokens_per_s")],
  ["samples", "Samples per second", "samples/s", of("samples_per_s")],
  ["mfu", "Model FLOP utilisation", "MFU (% of bf16 peak)", of("mfu", 100)],
  ["gpu", "Use of the idlest GPU", "time in kernels (%)", of("gpu_use", 100)],
  ["memory", "Peak memory of a rank", "memory (GiB)", of("memory_gib")],
  ["gradient", "Gradient norm", "L2 norm", of("grad_norm")],
];

function line(run, index, pairs, more = {}) {
  const known = pairs.filter(([, y]) => Number.isFinite(y));
  return {
    type: "scatter", mode: known.length > 1 ? "lines" : "markers", name: run.run.run_id,
    x: known.map(([x]) => x), y: known.map(([, y]) => y),
    line: { color: COLORS[index], dash: DASHES[index], width: 2 }, marker: { color: COLORS[index], size: 8 }, ...more,
  };
}

function heldOut(run, index) {
  const pairs = run.events.filter((each) => each.type === "training.evaluated").map((each) => [each.step, each.loss_nats]);
  const marker = { color: COLORS[index], symbol: ["circle", "square"][index], size: 9 };
  return line(run, index, pairs, { mode: "markers", name: `${run.run.run_id}, held-out`, marker });
}

const resumed = (run, index) => run.events.filter((each) => each.type === "training.resumed").map((each) => ({
  type: "line", yref: "paper", x0: each.step, x1: each.step, y0: 0, y1: 1,
  line: { color: COLORS[index], dash: "dot", width: 1.5 }, label: { text: "resumed", font: { size: 12 } },
}));

function phasesOf(run) {
  const entered = run.run.phases.filter(([phase]) => !["succeeded", "failed", "stopped"].includes(phase));
  const ended = run.run.ended_at ?? run.made_at;
  const spans = entered.map(([phase, at], place) => [phase, at, entered[place + 1]?.[1] ?? ended]);
  return run.run.ended_at && run.cluster ? [...spans, ["teardown", ended, endOf(run)]] : spans;
}

function bars(run, index, unit, unitS) {
  const spans = phasesOf(run).map(([phase, from, to]) => [words(phase), since(run, from) / unitS, since(run, to) / unitS]);
  return {
    type: "bar", orientation: "h", name: run.run.run_id, hovertemplate: `%{y}: %{x:.2f} ${unit}<extra></extra>`,
    y: spans.map(([phase]) => phase), base: spans.map(([, from]) => from), x: spans.map(([, from, to]) => to - from),
    marker: { color: COLORS[index], pattern: { shape: ["", "/"][index] }, line: { color: COLORS[index], width: 1 } },
  };
}

// Makes room for a chart; what it returns draws it, once all others have theirs.
function chart(id, title, x, y, lines, more = {}) {
  const data = lines.filter((each) => each.x.length);
  if (!data.length) return () => {};
  const place = element("div", "");
  place.id = id;
  place.className = "chart";
  document.getElementById("charts").append(place);
  const { yaxis, ...layout } = more;
  const legend = data.length > 1 ? 22 * Math.ceil(data.length / (innerWidth > 600 ? 2 : 1)) : 0;
  return () => Plotly.newPlot(place, data, {
    title: { text: title, font: { size: 17 }, x: 0, xref: "paper" },
    font: { family: "Helvetica, Arial, sans-serif", size: 14, color: "#1a1a1a" },
    xaxis: { title: { text: x }, ...AXIS }, yaxis: { title: { text: y }, ...AXIS, ...yaxis },
    margin: { l: 70, r: 20, t: 44, b: 56 + legend }, hovermode: "closest", showlegend: data.length > 1,
    legend: { orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom" }, ...layout,
  }, { responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg", filename: id } });
}

function charts() {
  const hasTokens = runs.some((run) => run.points.some((point) => point.tokens_per_s));
  const made = OF_STEPS.filter(([id]) => id !== "samples" || !hasTokens).map(([id, title, unit, pairs]) => {
    const lines = runs.map((run, index) => line(run, index, pairs(run)));
    const isLoss = id === "loss";
    return chart(id, title, "step", unit, isLoss ? [...lines, ...runs.map(heldOut)] : lines, isLoss ? { shapes: runs.flatMap(resumed) } : {});
  });
  const isLong = runs.some((run) => since(run, endOf(run)) > 3 * 3600);
  const [unit, unitS] = isLong ? ["hours", 3600] : ["minutes", 60];
  const costs = runs.map((run, index) => line(run, index, run.costs.map(([at, usd]) => [since(run, at) / unitS, usd])));
  const phases = runs.map((run, index) => bars(run, index, unit, unitS));
  return [...made, chart("cost", "Cost", `${unit} since the request`, "cost (US dollars)", costs),
    chart("phases", "Phases", `${unit} since the request`, "", phases, { barmode: "group", yaxis: { autorange: "reversed", type: "category" } })];
}

// ---- the rest of a run

function sections({ run, cluster, diagnosis, events, manifest, no_manifest }) {
  const made = [element("h2", run.run_id)];
  if (diagnosis.length) made.push(element("h3", "Why it failed"), ...diagnosis.map((each) => element("p", each)));
  made.push(...listed("Setbacks", ["why", "at step", "resumed at", "repeated", "time lost", "cost", "losses equal"], run.recoveries.map(
    (each) => [each.why, `${each.step}`, `${each.resumed_step}`, `${each.repeated_steps}`, span(each.lost_s), `$${each.lost_usd.toFixed(3)}`, `${each.equal} of ${each.compared}`])));
  made.push(...listed("Checks of the cluster", ["check", "verdict", "found"], (cluster?.checks ?? []).map(
    (each) => [each.name, each.passed ? "passed" : "failed", each.detail])));
  made.push(...listed("Events", ["time", "event", "what it says"], events.map((each) => [moment(each.at), each.type, said(each)])));
  if (!manifest) return [...made, section("Manifest", element("p", no_manifest))];
  const { image, seed, data, versions, files } = manifest;
  made.push(...listed("Environment", ["", ""], Object.entries({ image, seed, data, ...versions })
    .filter(([, value]) => value !== null && value !== "").map(([name, value]) => [name, `${value}`])));
  made.push(...listed("Manifest", ["file", "bytes", "SHA-256"], files.map((each) => [each.path, number(each.num_bytes), each.sha256])));
  return made;
}

const names = runs.map((run) => run.run.run_id);
const title = runs.map((run) => run.title).join(" and ");
const emulated = runs.some((run) => run.run.emulated_speed) ? " The machines are emulated: their costs and times are no measurements." : "";
document.title = title;
document.getElementById("summary").append(
  element("h1", title),
  element("p", `Made ${moment(runs[0].made_at)} by Stationmaster.${emulated}`),
  table(["", ...names], Object.entries(FIGURES).map(([name, figure]) => [name, ...runs.map(figure)]).filter(([, ...values]) => values.some(Boolean))),
);
const differing = differs.length ? [table(["", ...names], differs)] : [element("p", "Nothing that is known.")];
document.getElementById("sections").append(
  ...(runs.length > 1 ? [element("h2", "What differs"), ...differing] : []), ...runs.flatMap(sections));
for (const draw of charts()) draw();
