// Slack's mrkdwn as DOM nodes, built from text only.

import { h } from "/static/dom.js";
import { EMOJI } from "/static/emoji.js";
import { drawn } from "/static/signs.js";

// A code span of nothing but block elements is a progress bar or a sparkline.
const METER = /^[\u2580-\u259f\u00b7 ]+$/;
const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">" };

// The earliest match wins; at the same place, the first of the list.
const INLINE = [
  [/`([^`\n]+)`/, (m) => h("code", { class: METER.test(m[1]) ? "meter" : null }, decode(m[1]))],
  [/<([^<>\n]+)>/, (m, names) => angle(m[1], names)],
  [/(?<![\p{L}\p{N}*])\*(?!\s)([^*\n]*[^\s*])\*(?![\p{L}\p{N}*])/u, wrap("strong")],
  [/(?<![\p{L}\p{N}_])_(?!\s)([^_\n]*[^\s_])_(?![\p{L}\p{N}_])/u, wrap("em")],
  [/(?<![\p{L}\p{N}~])~(?!\s)([^~\n]*[^\s~])~(?![\p{L}\p{N}~])/u, wrap("s")],
  [/:([a-z0-9_+-]+):/, (m) => emoji(m[1])],
  [/https?:\/\/[^\s<>]*[^\s<>.,;:!?)"'\]]/, (m) => link(decode(m[0]), decode(m[0]))],
];

/** Text with entities decoded, as Slack stores & < >. */
export function decode(text) {
  return text.replace(/&(?:amp|lt|gt);/g, (entity) => ENTITIES[entity]);
}

/** mrkdwn to nodes; `names` resolves user and channel ids. */
export function mrkdwn(text, names) {
  const nodes = [];
  text.split(/```/).forEach((part, index, parts) => {
    // An opening fence without its closing one is plain text.
    const isCode = index % 2 === 1 && index < parts.length - 1;
    if (isCode) nodes.push(h("pre", {}, h("code", {}, decode(part.replace(/^\n|\n$/g, "")))));
    else if (index % 2 === 1) nodes.push(...lines("```" + part, names));
    else {
      const trimmed = part.replace(index > 0 ? /^\n/ : /^$/, "");
      nodes.push(...lines(trimmed.replace(index < parts.length - 1 ? /\n$/ : /$^/, ""), names));
    }
  });
  return nodes;
}

/** plain_text to nodes: emoji only. */
export function plain(text, { withEmoji = true } = {}) {
  if (!withEmoji) return drawn(decode(text));
  return text.split(/(:[a-z0-9_+-]+:)/).filter(Boolean).flatMap((piece) => {
    const name = /^:([a-z0-9_+-]+):$/.exec(piece);
    return (name && emoji(name[1])) || drawn(decode(piece));
  });
}

/** A Block Kit text object to nodes. */
export function textObject(object, names) {
  if (object.type === "mrkdwn") return mrkdwn(object.text, names);
  return lines(object.text, null, (line) => plain(line, { withEmoji: object.emoji !== false }));
}

function lines(text, names, inlineOf = (line) => inline(line, names)) {
  const nodes = [];
  let group = null;
  let isFirstPlain = true;
  if (!text) return nodes;
  for (const line of text.split("\n")) {
    const quote = names && /^(?:&gt;|>) ?(.*)$/.exec(line);
    const bullet = names && /^\s*(?:[•◦▪]|[-*](?= )) ?(.+)$/.exec(line);
    const kind = quote ? "blockquote" : bullet ? "ul" : "plain";
    if (!group || group.kind !== kind) {
      group = { kind, node: kind === "plain" ? null : h(kind) };
      if (group.node) nodes.push(group.node);
      isFirstPlain = true;
    }
    if (kind === "ul") group.node.append(h("li", {}, ...inlineOf(bullet[1])));
    else {
      const content = inlineOf(quote ? quote[1] : line);
      const target = group.node;
      const pieces = isFirstPlain ? content : [h("br"), ...content];
      if (target) target.append(...pieces);
      else nodes.push(...pieces);
      isFirstPlain = false;
    }
  }
  return nodes;
}

function inline(text, names) {
  const nodes = [];
  let rest = text;
  let before = "";
  while (rest) {
    let best = null;
    for (const [pattern, make] of INLINE) {
      const match = pattern.exec(rest);
      if (match && (!best || match.index < best.match.index)) best = { match, make };
    }
    if (!best) break;
    const { match, make } = best;
    const node = make(match, names);
    if (node === null) {
      // Not something known, an emoji that does not exist for one: its first character is text.
      before += rest.slice(0, match.index + 1);
      rest = rest.slice(match.index + 1);
      continue;
    }
    before += rest.slice(0, match.index);
    nodes.push(...drawn(decode(before)));
    before = "";
    nodes.push(node);
    rest = rest.slice(match.index + match[0].length);
  }
  nodes.push(...drawn(decode(before + rest)));
  return nodes;
}

function wrap(tag) {
  return (match, names) => h(tag, {}, ...inline(match[1], names));
}

function emoji(name) {
  const character = EMOJI[name];
  if (!character) return null;
  return h("span", { class: "emoji", role: "img", "aria-label": name, title: `:${name}:` }, ...drawn(character));
}

function link(address, label) {
  if (!/^(https?:|mailto:)/i.test(address)) return decode(label);
  return h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, label);
}

function angle(content, names) {
  const bar = content.indexOf("|");
  const target = bar < 0 ? content : content.slice(0, bar);
  const label = bar < 0 ? "" : content.slice(bar + 1);
  if (target.startsWith("@")) {
    const id = target.slice(1);
    const isMe = names.isMe(id);
    return h("span", { class: isMe ? "mention mention-me" : "mention" }, `@${names.user(id) || label || id}`);
  }
  if (target.startsWith("#")) {
    return h("span", { class: "mention" }, `#${names.channel(target.slice(1)) || label}`);
  }
  if (target.startsWith("!date^")) return date(target, label);
  if (target.startsWith("!subteam^")) {
    const group = names.group(target.slice(9));
    const mine = group && group.users.some((id) => names.isMe(id));
    return h("span", { class: mine ? "mention mention-me" : "mention" }, `@${group?.handle || label || "group"}`);
  }
  if (target.startsWith("!")) {
    return h("span", { class: "mention mention-me" }, `@${label || target.slice(1)}`);
  }
  return link(decode(target), decode(label || target.replace(/^mailto:/, "")));
}

function date(target, fallback) {
  const [, seconds, format = ""] = target.split("^");
  const at = new Date(Number(seconds) * 1000);
  if (Number.isNaN(at.getTime())) return decode(fallback);
  const counts = format.includes("{ago}");
  return h("time", { datetime: at.toISOString(), dataset: { format: counts ? format : null } }, formatted(at, format));
}

function formatted(at, format) {
  return format.replace(/\{([a-z_]+)\}/g, (_, token) => {
    if (token === "ago") return ago((Date.now() - at.getTime()) / 1000);
    if (token.startsWith("time")) {
      return at.toLocaleTimeString([], { timeStyle: token === "time_secs" ? "medium" : "short" });
    }
    return at.toLocaleDateString([], { dateStyle: "medium" });
  });
}

const relative = new Intl.RelativeTimeFormat("en");

function ago(seconds) {
  const [size, unit] = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]]
    .find(([size]) => seconds >= size) || [1, "second"];
  return relative.format(-Math.max(0, Math.floor(seconds / size)), unit);
}

/** Count on in every date that says how long ago it is, as Slack's clients do. */
export function countOn() {
  for (const time of document.querySelectorAll("time[data-format]")) {
    const text = formatted(new Date(time.dateTime), time.dataset.format);
    if (time.textContent !== text) time.textContent = text;
  }
}
