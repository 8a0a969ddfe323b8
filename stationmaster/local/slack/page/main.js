// Starts the page: builds its fixed parts, connects, and draws after every change.

import { listen } from "/static/actions.js";
import { drawChannelHeader, drawSidebar, drawTitle, drawTopbar } from "/static/chrome.js";
import { createComposer } from "/static/composer.js";
import { drawViews } from "/static/dialogs.js";
import { h, icon } from "/static/dom.js";
import { drawChannel, drawThread } from "/static/messages.js";
import { countOn } from "/static/mrkdwn.js";
import { createRunPane, runOf } from "/static/run.js";
import { act, connect } from "/static/server.js";
import { HOME, changed, messagesOf, onChange, state } from "/static/state.js";

const NEAR_BOTTOM_PX = 80;
const page = document.querySelector(".app");
const part = (testid) => page.querySelector(`[data-testid="${testid}"]`);
const scroller = part("scroller");
const jump = part("jump");
const threadPane = part("thread");

const isArchived = () => state.channel === HOME || Boolean(state.channels.get(state.channel)?.is_archived);

const composer = createComposer({
  testid: "composer",
  target: () => ({ channel: state.channel }),
  sends: () => { isAtBottom = true; },
  isClosed: isArchived,
  placeholder: () => {
    const channel = state.channels.get(state.channel);
    if (!channel) return "";
    if (state.channel === HOME) return "Nobody writes in Home";
    if (channel.is_archived) return `#${channel.name} is archived: nobody can post here any more`;
    return channel.with_user ? `Message ${state.app.bot_name}` : `Message #${channel.name}, or type / for commands`;
  },
});
document.getElementById("composer-main").append(composer.element);

const threadComposer = createComposer({
  testid: "thread-composer",
  target: () => ({ channel: state.channel, thread_ts: state.thread }),
  sends: () => { isThreadAtBottom = true; },
  isClosed: isArchived,
  placeholder: () => "Reply",
});
const threadList = h("div", { class: "messages", "data-testid": "thread-messages", role: "log", "aria-live": "off" });
const threadScroller = h("div", { class: "scroller" }, threadList);
const threadName = h("p", {});
const runPane = createRunPane();
const threadSlot = h("div", { class: "composer-slot" }, threadComposer.element);
const tab = (name) => h("button", { class: "tab", type: "button", "data-testid": `tab-${name}`, onclick: () => {
  state.tab = name;
  changed();
} }, name === "run" ? "Run" : "Thread");
const tabs = { thread: tab("thread"), run: tab("run") };
threadPane.append(
  h("header", {}, h("h2", { class: "sr-only" }, "Thread"), tabs.thread, tabs.run, threadName,
    h("button", { class: "tool", type: "button", "aria-label": "Close thread", "data-testid": "thread-close",
      onclick: closeThread }, icon("close"))),
  threadScroller,
  runPane.element,
  threadSlot);

let isAtBottom = true;
let isThreadAtBottom = true;
let lastTs = "";
let linked = /^\/archives\/(\w+)\/p(\d+)(\d{6})$/.exec(location.pathname);

function openChannel(id) {
  if (state.channel !== id) state.thread = null;
  state.channel = id;
  state.unread.delete(id);
  isAtBottom = true;
  lastTs = "";
  changed();
  composer.input.focus();
  if (id === HOME) act("home", {});
}

function openThread(ts) {
  state.thread = ts;
  state.tab = "thread";
  isThreadAtBottom = true;
  changed();
  requestAnimationFrame(() => threadComposer.input.focus()); // drawn by then
}

function closeThread() {
  state.thread = null;
  changed();
  composer.input.focus();
}

function intro(isEmpty) {
  const channel = state.channels.get(state.channel);
  const samples = channel.with_user || channel.members.includes(state.botUserId) ? state.app.sample_commands : [];
  const title = channel.with_user || channel.id === HOME ? state.app.bot_name : `Welcome to #${channel.name}`;
  return {
    key: "intro",
    version: JSON.stringify([channel, isEmpty, samples]),
    build: () => h("section", { class: `intro ${isEmpty ? "intro-empty" : ""}`, "data-testid": "intro" },
      h("img", { src: "/static/icon.svg", alt: "", width: 56, height: 56 }),
      h("h2", {}, title),
      h("p", {}, isEmpty && samples.length ? state.app.tagline || channel.topic : channel.topic || state.app.tagline),
      isEmpty && samples.length > 0 && h("div", { class: "samples" },
        ...samples.map((sample) =>
          h("button", { class: "sample", type: "button", dataset: { testid: "sample", sample: sample.text } },
            h("code", {}, sample.text), h("span", {}, sample.description))))),
  };
}

function draw() {
  drawTopbar(page);
  drawTitle();
  const announcer = part("announcer");
  if (announcer.textContent !== state.announcement) announcer.textContent = state.announcement;
  if (!state.channels.size) return;
  followLink();
  drawSidebar(part("sidebar"), openChannel);
  drawChannelHeader(part("channel-header"));
  drawChannel(part("messages"), intro);
  threadPane.hidden = !state.thread;
  page.classList.toggle("has-thread", Boolean(state.thread));
  if (state.thread) {
    const channel = state.channels.get(state.channel);
    threadName.textContent = channel.with_user ? state.app.bot_name : `#${channel.name}`;
    drawThread(threadList);
  }
  drawRun();
  drawViews();
  composer.update();
  threadComposer.update();
  scroll();
}

function drawRun() {
  const run = state.thread && runOf(messagesOf(state.channel).get(state.thread));
  const isShown = Boolean(run) && state.tab === "run";
  tabs.run.hidden = !run;
  tabs.thread.setAttribute("aria-pressed", String(!isShown));
  tabs.run.setAttribute("aria-pressed", String(isShown));
  threadScroller.hidden = threadSlot.hidden = isShown;
  runPane.show(isShown ? run : null);
}

function scroll() {
  const newest = [...messagesOf(state.channel).keys()].reduce((a, b) => (a > b ? a : b), "");
  if (isAtBottom) scroller.scrollTop = scroller.scrollHeight;
  else if (newest > lastTs) jump.hidden = false;
  lastTs = newest;
  if (state.thread && isThreadAtBottom) threadScroller.scrollTop = threadScroller.scrollHeight;
}

function followLink() {
  if (!linked) return;
  const [, channel, seconds, micros] = linked;
  linked = null;
  const message = state.channels.has(channel) && messagesOf(channel).get(`${seconds}.${micros}`);
  if (!message) return;
  state.channel = channel;
  if (message.thread_ts) state.thread = message.thread_ts;
  isAtBottom = false;
  requestAnimationFrame(() => {
    const node = page.querySelector(`[data-ts="${message.ts}"]`);
    node?.scrollIntoView({ block: "center" });
    node?.classList.add("message-linked");
  });
}

const isNear = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_BOTTOM_PX;
scroller.addEventListener("scroll", () => {
  isAtBottom = isNear(scroller);
  if (isAtBottom) jump.hidden = true;
});
threadScroller.addEventListener("scroll", () => {
  isThreadAtBottom = isNear(threadScroller);
});
// Images and a growing composer change heights after drawing.
const resized = new ResizeObserver(() => state.channel && scroll());
for (const box of [part("messages"), scroller, threadList, threadScroller]) resized.observe(box);
jump.addEventListener("click", () => {
  isAtBottom = true;
  scroll();
});
part("messages").addEventListener("click", (event) => {
  const sample = event.target.closest("[data-sample]");
  if (sample) composer.submit(sample.dataset.sample);
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) state.unread.delete(state.channel);
  changed();
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, dialog");
  if (event.key === "Escape" && state.thread && !document.querySelector("dialog[open]")) closeThread();
  else if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    composer.input.focus();
    composer.input.value = "/";
    composer.input.dispatchEvent(new Event("input"));
  } else if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
    event.preventDefault();
    const ids = [...state.channels.keys()];
    const step = event.key === "ArrowDown" ? 1 : -1;
    openChannel(ids[(ids.indexOf(state.channel) + step + ids.length) % ids.length]);
  }
});

setInterval(countOn, 1000);
listen({ openThread });
onChange(draw);
connect();
composer.input.focus();
