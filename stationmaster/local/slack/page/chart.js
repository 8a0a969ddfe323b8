// A chart block as SVG: lines over their categories, with the axes' ends and each newest value.

import { h, svg } from "/static/dom.js";

const WIDTH = 520;
const HEIGHT = 190;
const LEFT = 58;
const RIGHT = WIDTH - 64;
const TOP = 12;
const BOTTOM = HEIGHT - 36;

/** A `data_visualization` block of lines. */
export function chartBlock(block) {
  const { chart, title } = block;
  return h("figure", { class: "bk-chart", "data-testid": "chart", role: "img", "aria-label": said(title, chart) },
    h("figcaption", {}, title), lines(chart));
}

function lines({ series, axis_config: axes }) {
  const values = series.flatMap((each) => each.data.map((point) => point.value));
  const low = Math.min(...values);
  const high = Math.max(...values);
  const last = Math.max(1, axes.categories.length - 1);
  const x = (index) => LEFT + (index / last) * (RIGHT - LEFT);
  const y = (value) => (high === low ? (TOP + BOTTOM) / 2 : BOTTOM - ((value - low) / (high - low)) * (BOTTOM - TOP));
  const ticks = high === low ? [low] : [low, (low + high) / 2, high];
  const middle = Math.floor(axes.categories.length / 2);
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "bk-chart-plot", "aria-hidden": "true" },
    ticks.map((value) => [
      svg("line", { x1: LEFT, x2: RIGHT, y1: y(value), y2: y(value), class: "bk-chart-rule" }),
      label(LEFT - 8, y(value) + 4, short(value), "end"),
    ]),
    [...new Set([0, middle, axes.categories.length - 1])].map((index) =>
      label(x(index), BOTTOM + 16, axes.categories[index], "middle")),
    label((LEFT + RIGHT) / 2, HEIGHT - 4, [axes.x_label, axes.y_label].filter(Boolean).join(" · "), "middle"),
    series.map((each, number) => {
      const at = new Map(each.data.map((point) => [point.label, point.value]));
      const points = axes.categories.map((name, index) => [x(index), y(at.get(name))]);
      const [endX, endY] = points[points.length - 1];
      return svg("g", { class: `bk-chart-series bk-chart-series-${number % 4}` },
        svg("polyline", { points: points.map((point) => point.join(",")).join(" ") }),
        svg("circle", { cx: endX, cy: endY, r: 4 }),
        label(endX + 9, endY + 4, series.length > 1 ? each.name : short(at.get(axes.categories.at(-1))), "start"));
    }));
}

function label(x, y, text, anchor) {
  return svg("text", { x, y, "text-anchor": anchor }, text);
}

function said(title, chart) {
  const parts = chart.series.map(({ name, data }) =>
    `${name} from ${short(data[0].value)} to ${short(data[data.length - 1].value)}`);
  return [title, ...parts].join(", ");
}

function short(value) {
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e5 || size < 1e-3) ? value.toExponential(1) : String(Number(value.toPrecision(4)));
}
