// The run pane: a run's figures, curve, pods and log lines, asked for each second while it is seen.

import { chartBlock } from "/static/chart.js";
import { h, morph } from "/static/dom.js";
import { act } from "/static/server.js";
import { state } from "/static/state.js";

const EVERY_MS = 1000;

/** The id of the run whose card a message is, from the values of its buttons; null for others. */
export function runOf(message) {
  for (const element of (message?.blocks || []).flatMap((block) => block.elements || [])) {
    try {
      const { run_id: id } = JSON.parse(element.value);
      if (id) return id;
    } catch {
      // The value of another app's button.
    }
  }
  return null;
}

/** Build the pane; `show(run)` shows a run, `show(null)` none. */
export function createRunPane() {
  let content = h("div", {}, "Looking at the run…");
  const element = h("section", { class: "run scroller", "aria-label": "Run", tabindex: "0",
    "data-testid": "run-pane" }, content);
  let shown = null;
  let timer = null;

  async function look(key, run) {
    const isHidden = document.hidden;
    const answer = isHidden ? { is_live: true } : await act("run", { channel: state.channel, value: run });
    if (shown !== key) return;
    if (!isHidden) content = morph(content, draw(answer));
    if (!answer.ok || answer.is_live) timer = setTimeout(look, EVERY_MS, key, run);
  }

  return {
    element,
    show(run) {
      element.hidden = !run;
      const key = run && `${state.me} ${state.channel} ${run}`;
      if (shown === key) return;
      clearTimeout(timer);
      shown = key;
      if (run) look(key, run);
    },
  };
}

function draw(run) {
  if (!run.ok) return h("div", { role: "alert" }, `The run cannot be shown: ${run.error}`);
  const { progress, points } = run;
  return h("div", {},
    h("h3", {}, run.title),
    h("dl", { class: "run-figures" },
      figure("Status", run.phase),
      figure("Step", progress ? `${progress.step} of ${progress.total_steps}` : "none yet"),
      figure("Loss", progress?.loss_nats?.toFixed(3) ?? "none yet"),
      figure(run.is_live ? "Cost so far" : "Cost", `$${run.cost_usd.toFixed(4)}${run.is_emulated ? " emulated" : ""}`)),
    points.length > 1 && chartBlock({ title: "Loss", chart: curve(points) }),
    h("h4", {}, "Pods"),
    run.pods.length ? h("ul", { class: "run-pods" }, run.pods.map(pod)) : h("p", {}, "None yet"),
    h("h4", {}, "Newest log lines"),
    run.logs.length ? run.logs.map(lines) : h("p", {}, "None yet"));
}

function figure(label, value) {
  return h("div", {}, h("dt", {}, label), h("dd", {}, value));
}

function curve(points) {
  const data = points.map(([step, value]) => ({ label: String(step), value }));
  return {
    type: "line",
    series: [{ name: "training", data }],
    axis_config: { categories: data.map((point) => point.label), x_label: "step", y_label: "loss in nats" },
  };
}

function pod({ name, phase, node, reason, restarts }) {
  const more = [reason, node && `on ${node}`, restarts > 0 && `restarts: ${restarts}`].filter(Boolean).join(", ");
  return h("li", { dataset: { testid: "pod" } },
    h("span", { class: `run-phase run-phase-${phase.toLowerCase()}` }, phase), h("code", {}, name),
    h("span", { class: "run-more" }, more));
}

function lines(tail) {
  return h("details", { open: true }, h("summary", {}, tail.pod),
    h("pre", { tabindex: "0", "aria-label": `Log of ${tail.pod}` }, tail.lines.map(readable).join("\n")));
}

// What says of every line the same, or nothing to a reader.
const LEFT_OUT = ["stationmaster", "run_id", "seq", "at"];

/** A line of the log; of one that is JSON its pairs, as far as they say something. */
function readable(line) {
  const start = line.indexOf("{");
  try {
    const pairs = Object.entries(JSON.parse(line.slice(start)))
      .filter(([key, value]) => value !== null && !LEFT_OUT.includes(key))
      .map(([key, value]) => `${key} ${typeof value === "number" ? Number(value.toPrecision(4)) : value}`);
    return line.slice(0, start) + pairs.join(", ").replace(/^kind /, "");
  } catch {
    return line;
  }
}
