// The signs that the app writes, drawn: a machine may have no font with emoji. Other emoji are left to its fonts.

import { h, svg } from "/static/dom.js";

const INK = "currentcolor";
const DARK = "#37424c";
const RED = "#d9304c";
const AMBER = "#f2b01e";
const GREEN = "#2ea05f";
const BLUE = "#3b82c4";
const GREY = "#8793a0";
const PALE = "#f4f1e8";
const BROWN = "#b07a43";

const disc = (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;

// Of each sign its shapes in a square of 16: colour, path, and for a line its width.
const SIGNS = {
  "⚠": [[AMBER, "M8 1.2 15.6 14.8H.4z"], [DARK, "M7.1 5.8h1.8l-.4 5h-1zM7.1 11.7h1.8v1.7H7.1z"]],
  "🛑": [[RED, "M5 1h6l4 4v6l-4 4H5l-4-4V5z"], [PALE, "M4 7h8v2.2H4z"]],
  "💾": [[BLUE, "M1.5 1.5h10.6l2.4 2.4v10.6h-13z"], [PALE, "M4 1.5h7v4.2H4zM4 9h8v5.5H4z"], [DARK, "M8.4 2.2H10V5H8.4z"]],
  "✋": [[AMBER, "M3.2 9V4.4q0-.8.8-.8t.8.8V7.4h.7V2.6q0-.8.8-.8t.8.8v4.6h.7V2q0-.8.8-.8t.8.8v5.2h.7V3q0-.8.8-.8t.8.8v6.2l1-1.5q.6-.7 1.3-.2.5.4.2 1L12.4 13q-1 2-3.4 2H8q-4.8 0-4.8-6z"]],
  "♻": [[GREEN, "M8 2.4a5.6 5.6 0 1 1-5.4 4", 2], [GREEN, "M.6 3.2 2 8.4l4-3.4z"]],
  "🚂": [[INK, "M1 2.5h6V4h-.5v2.8H10V4H9.2V2.4h3.6V4H12v2.8h1q1.8 0 1.8 2.2v2.4H1.5V4H1z"], [AMBER, "M2.8 4.4H5v2.4H2.8z"],
    [RED, disc(4, 12.4, 2) + disc(8.4, 12.9, 1.5) + disc(12.4, 12.9, 1.5)]],
  "❌": [[RED, "M3 3l10 10M13 3 3 13", 2.8]],
  "🗑": [[GREY, "M3 5h10l-.9 10H3.9zM2 2.9h4V1.6h4v1.3h4v1.4H2z"], [PALE, "M6 7v6M8 7v6M10 7v6", 0.9]],
  "🧾": [[GREY, "M2.5.7l1.9 1.4L6.2.9 8 2.1 9.8.9l1.8 1.2L13.5.7v14.6l-1.9-1.4-1.8 1.2L8 13.9l-1.8 1.2-1.8-1.2-1.9 1.4z"],
    [PALE, "M5 5.2h6M5 8h6M5 10.8h3.6", 1.2]],
  "📨": [[BLUE, "M1 3h14v10H1z"], [PALE, "M1.4 3.8 8 9l6.6-5.2", 1.2]],
  "⏳": [[BROWN, "M3 .8h10v1.8H3zM3 13.4h10v1.8H3z"], ["#c4dcef", "M4 2.6h8c0 3-2.8 4-2.8 5.4s2.8 2.4 2.8 5.4H4C4 10.4 6.8 9.4 6.8 8S4 5.6 4 2.6z"],
    [AMBER, "M5 5h6c-.8 1.4-2.4 1.8-3 3-.6-1.2-2.2-1.6-3-3zM5 13.4c.5-1.8 2-2 3-2.6 1 .6 2.5.8 3 2.6z"]],
  "🏗": [[AMBER, "M4 15V2.2h9.5M4 5.5 7.6 2.2M13 2.2V7", 1.6], [INK, "M11.2 7h3.6v3.4h-3.6zM1 13.8h6.4v1.4H1z"]],
  "🔍": [[BLUE, disc(6.4, 6.4, 4.4), 1.8], [INK, "M9.8 9.8l4.4 4.4", 2.4]],
  "📦": [[BROWN, "M1.2 4.4 8 1.4l6.8 3v7.2L8 14.6l-6.8-3z"], ["#8a5d30", "M8 7.4l6.8-3v7.2L8 14.6z"], [PALE, "M4.6 2.9 11.4 6v2.6", 1.2]],
  "📥": [[GREY, "M1.5 9h3.6l1 2h3.8l1-2h3.6v5.8h-13z"], [BLUE, "M8 1.2V7M5 4.8l3 3 3-3", 1.8]],
  "🚧": [[AMBER, "M.8 3.6h14.4v5.2H.8z"], [DARK, "M3 3.6h2.6L3.2 8.8H.8V8.4zM8 3.6h2.6L8.2 8.8H5.6zM13 3.6h2.2v.8l-2 4.4h-2.6z"], [GREY, "M3 8.8h1.6v6.4H3zM11.4 8.8H13v6.4h-1.6z"]],
  "✅": [[GREEN, "M3 .8h10q2.2 0 2.2 2.2v10q0 2.2-2.2 2.2H3Q.8 15.2.8 13V3Q.8.8 3 .8z"], ["#fff", "M4.2 8.2 7 11l5-6", 2]],
  "🟢": [[GREEN, disc(8, 8, 6.4)]],
  "⚫": [[GREY, disc(8, 8, 6.4)]],
  "🤗": [[AMBER, disc(8, 8, 7)], [DARK, disc(5.6, 6.4, 1) + disc(10.4, 6.4, 1)], [DARK, "M4.6 9.4q3.4 3.4 6.8 0", 1.4]],
  "📏": [[AMBER, "M.8 5h14.4v6H.8z"], [DARK, "M3 5v2.4M5.5 5v3.4M8 5v2.4M10.5 5v3.4M13 5v2.4", 1]],
  "🏁": [[GREY, "M1.4.8H3v14.4H1.4z"], ["#fff", "M3 1.6h12v8.4H3z"], [DARK, "M3 1.6h3v2.8H3zM9 1.6h3v2.8H9zM6 4.4h3v2.8H6zM12 4.4h3v2.8h-3zM3 7.2h3V10H3zM9 7.2h3V10H9z"]],
};
const WRITTEN = new RegExp(`(${Object.keys(SIGNS).join("|")})\ufe0f?`, "u");

/** The text as nodes, with its signs drawn; who reads or copies it has them as characters. */
export function drawn(text) {
  return text.split(WRITTEN).filter(Boolean).map((piece) => (SIGNS[piece] ? sign(piece) : piece));
}

function sign(character) {
  const shapes = SIGNS[character].map(([colour, d, width]) => svg("path", width
    ? { d, fill: "none", stroke: colour, "stroke-width": width }
    : { d, fill: colour }));
  return h("span", { class: "emoji" }, svg("svg", { viewBox: "0 0 16 16", class: "sign", "aria-hidden": "true" }, shapes),
    h("span", { class: "sr-only" }, character));
}
