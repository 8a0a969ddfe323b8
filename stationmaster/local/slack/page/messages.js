// Messages: one, the list of a channel, the thread pane.

import { renderBlocks } from "/static/blocks.js";
import { h, icon, reconcile } from "/static/dom.js";
import { mrkdwn, plain } from "/static/mrkdwn.js";
import { inOrder, isReply, messagesOf, names, state } from "/static/state.js";

const GROUP_S = 5 * 60;
/** A person's avatar: initials on their colour, the signal for the app. */
export function avatar(userId, size = "") {
  const user = state.users.get(userId);
  if (user?.is_bot) {
    return h("span", { class: `avatar avatar-app ${size}` },
      h("img", { src: "/static/icon.svg", alt: "", draggable: "false" }));
  }
  return h("span", { class: `avatar ${size}`, "aria-hidden": "true", vars: { "--hue": user?.hue ?? 0 } },
    (user?.real_name || "?").slice(0, 1));
}

const clock = new Intl.DateTimeFormat([], { hour: "numeric", minute: "2-digit" });
const fullTime = new Intl.DateTimeFormat([], { dateStyle: "full", timeStyle: "medium" });
const day = new Intl.DateTimeFormat([], { weekday: "long", month: "long", day: "numeric" });

function at(ts) {
  return new Date(Number(ts) * 1000);
}

function dayName(date) {
  const today = new Date();
  if (date.toDateString() === today.toDateString()) return "Today";
  today.setDate(today.getDate() - 1);
  return date.toDateString() === today.toDateString() ? "Yesterday" : day.format(date);
}

function stamp(ts, className = "message-time") {
  return h("time", { class: className, datetime: at(ts).toISOString(), title: fullTime.format(at(ts)) },
    clock.format(at(ts)));
}

/** One message; `place` is "channel" or "thread". */
export function renderMessage(message, { isCompact, isFolded, place }) {
  const user = state.users.get(message.user);
  const hasReplies = place === "channel" && message.reply_count > 0;
  const classes = ["message"];
  if (isCompact) classes.push("message-compact");
  if (message.is_ephemeral) classes.push("message-ephemeral");
  if (isFolded) classes.push("message-folded");
  return h("article", {
    class: classes.join(" "),
    dataset: {
      testid: "message", ts: message.ts, channel: message.channel, user: message.user,
      ephemeral: message.is_ephemeral ? "true" : null, edited: message.edited ? "true" : null,
    },
    "aria-label": `${user?.real_name || message.user}, ${clock.format(at(message.ts))}`,
  },
    message.is_ephemeral && ephemeralLine(message, isFolded),
    message.subtype === "thread_broadcast" && place === "channel" &&
      h("div", { class: "message-note" }, icon("reply"), "replied to a thread"),
    h("div", { class: "message-gutter" }, isCompact ? stamp(message.ts, "gutter-time") : avatar(message.user)),
    h("div", { class: "message-body" },
      !isCompact && h("div", { class: "message-head" },
        h("span", { class: "message-author" }, user?.real_name || message.user),
        user?.is_bot && h("span", { class: "badge-app" }, "App"),
        stamp(message.ts),
        message.blocks?.length > 0 && editedMark(message)),
      content(message, isCompact),
      files(message),
      hasReplies && replyBar(message)),
    toolbar(message, place));
}

function ephemeralLine(message, isFolded) {
  return h("div", { class: "message-note", "data-testid": "ephemeral-note" }, icon("eye"),
    h("span", {}, "Only visible to you"),
    isFolded && h("span", { class: "message-folded-text" }, ...mrkdwn(message.text.split("\n", 1)[0], names)),
    isFolded && h("button", { class: "link-button", type: "button", dataset: { act: "expand" } }, "Show"),
    h("button", { class: "link-button", type: "button", dataset: { act: "dismiss", testid: "dismiss" } },
      "Dismiss"), h("span", { class: "sr-only" }, message.ts));
}

function editedMark(message) {
  return message.edited && h("span", {
    class: "edited", dataset: { testid: "edited" }, title: fullTime.format(at(message.edited.ts)),
  }, "(edited)");
}

function content(message, isCompact) {
  if (message.blocks?.length) {
    return h("div", { class: "message-content" }, renderBlocks(message), isCompact && editedMark(message));
  }
  if (!message.text) return null;
  const edited = editedMark(message);
  const isLong = message.text.length > state.shownText && !state.expanded.has(message.ts);
  const text = isLong ? `${message.text.slice(0, state.shownText)}…` : message.text;
  const nodes = message.mrkdwn === false ? plain(text) : mrkdwn(text, names);
  return h("div", { class: "message-content" },
    h("div", { class: "message-text", dataset: { testid: "text" } }, ...nodes, edited && " ", edited),
    isLong && h("button", { class: "link-button", type: "button", dataset: { act: "expand" } }, "Show more"));
}

function files(message) {
  if (!message.files?.length) return null;
  return h("div", { class: "files" }, ...message.files.map((file) => {
    const path = new URL(file.url_private).pathname;
    const name = h("div", { class: "file-name" }, file.title);
    if (!file.mimetype.startsWith("image/")) {
      return h("a", { class: "file-card", href: path, download: file.name }, name,
        h("span", { class: "file-size" }, `${Math.ceil(file.size / 1024)} kB`));
    }
    const description = file.alt_txt || file.title;
    return h("figure", { class: "file-image", dataset: { testid: "file", fileId: file.id } },
      h("figcaption", {}, name),
      h("button", { class: "image-button", type: "button", "aria-label": `Enlarge ${description}`,
        dataset: { lightbox: path, alt: description } },
        h("img", { src: path, alt: description, width: file.original_w, height: file.original_h })));
  }));
}

function replyBar(message) {
  const count = message.reply_count;
  const last = at(message.latest_reply);
  return h("button", { class: "reply-bar", type: "button", dataset: { act: "thread", testid: "reply-bar" } },
    h("span", { class: "reply-faces" },
      ...message.reply_users.slice(0, 3).map((id) => avatar(id, "avatar-small"))),
    h("span", { class: "reply-count" }, `${count} ${count === 1 ? "reply" : "replies"}`),
    h("span", { class: "reply-last" },
      h("span", { class: "reply-when" }, `Last reply ${dayName(last).toLowerCase()} at ${clock.format(last)}`),
      h("span", { class: "reply-view" }, "View thread")));
}

function toolbar(message, place) {
  if (message.is_ephemeral) return null;
  const button = (label, data, ...children) =>
    h("button", { class: "tool", type: "button", "aria-label": label, title: label, dataset: data }, ...children);
  return h("div", { class: "toolbar", role: "toolbar", "aria-label": "Message actions" },
    place === "channel" && button("Reply in thread", { act: "thread", testid: "reply" }, icon("reply")),
    button("Copy link", { act: "copy-link" }, icon("link")));
}

function itemsOf(messages, place) {
  const items = [];
  let before = null;
  const newestEphemeral = messages.findLast((message) => message.is_ephemeral);
  for (const message of messages) {
    const date = at(message.ts);
    const isNewDay = !before || at(before.ts).toDateString() !== date.toDateString();
    if (isNewDay && place === "channel") {
      const name = dayName(date);
      items.push({
        key: `day-${date.toDateString()}`, version: name,
        build: () => h("div", { class: "day" }, h("span", {}, name)),
      });
    }
    const isCompact = !isNewDay && before.user === message.user && !before.is_ephemeral &&
      !message.is_ephemeral && !before.reply_count && Number(message.ts) - Number(before.ts) < GROUP_S;
    // What only one person sees would bury the cards that everybody follows.
    const isFolded = message.is_ephemeral && message !== newestEphemeral && !state.expanded.has(message.ts);
    const busy = [...state.pending].filter((key) => key.includes(message.ts)).join();
    const wrong = [...state.failed].filter(([key]) => key.includes(message.ts)).join();
    items.push({
      key: message.ts,
      version: [isCompact, isFolded, busy, wrong, state.expanded.has(message.ts), state.me, JSON.stringify(message)].join("|"),
      build: () => renderMessage(message, { isCompact, isFolded, place }),
    });
    before = message;
  }
  return items;
}

const caches = { channel: new Map(), thread: new Map() };
let shownChannel = null;
let shownThread = null;

/** Draw the current channel; return whether anything but an edit came at its end. */
export function drawChannel(list, intro) {
  if (shownChannel !== state.channel) {
    caches.channel.clear();
    list.replaceChildren();
    shownChannel = state.channel;
  }
  const shown = inOrder(messagesOf(state.channel).values()).filter((message) =>
    (!isReply(message) || message.subtype === "thread_broadcast"));
  reconcile(list, [intro(shown.length === 0), ...itemsOf(shown, "channel")], caches.channel);
}

/** Draw the open thread into `list`. */
export function drawThread(list) {
  if (shownThread !== state.thread) {
    caches.thread.clear();
    list.replaceChildren();
    shownThread = state.thread;
  }
  const all = messagesOf(state.channel);
  const parent = all.get(state.thread);
  if (!parent) return;
  const replies = inOrder([...all.values()].filter((message) =>
    message.thread_ts === state.thread && message.ts !== state.thread));
  const count = replies.filter((message) => !message.is_ephemeral).length;
  const items = itemsOf([parent], "thread");
  if (replies.length) {
    const text = `${count} ${count === 1 ? "reply" : "replies"}`;
    items.push({
      key: "count", version: text,
      build: () => h("div", { class: "thread-count" }, h("span", {}, text)),
    });
  }
  reconcile(list, [...items, ...itemsOf(replies, "thread")], caches.thread);
}
