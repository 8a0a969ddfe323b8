// The frame around the conversation: top bar, sidebar, channel header.

import { h, icon } from "/static/dom.js";
import { avatar } from "/static/messages.js";
import { actAs } from "/static/server.js";
import { HOME, state } from "/static/state.js";

const CONNECTION = { connecting: "Connecting", connected: "Connected", reconnecting: "Reconnecting" };

function people() {
  return [...state.users.values()].filter((user) => !user.is_bot);
}

/** The groups that say what somebody may do. */
function groupsOf(user) {
  return [...state.groups.values()].filter((group) => group.users.includes(user.id));
}

function channelIcon(channel) {
  if (channel.is_archived) return "archive";
  return channel.is_private ? "lock" : "hash";
}

function replaceIfChanged(slot, version, build) {
  if (slot.dataset.version === version) return;
  slot.dataset.version = version;
  const focused = [...slot.querySelectorAll("button")].indexOf(document.activeElement);
  slot.replaceChildren(...build());
  slot.querySelectorAll("button")[focused]?.focus();
}

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** Choose the radio after or before one by its arrow keys; only the chosen one is a tab stop. */
function chooseBeside(event) {
  const step = STEPS[event.key];
  if (!step) return;
  event.preventDefault();
  const radios = [...event.currentTarget.parentElement.querySelectorAll('[role="radio"]')];
  const next = radios[(radios.indexOf(event.currentTarget) + step + radios.length) % radios.length];
  next.focus();
  next.click();
}

/** The top bar: team, connection, act-as switch. */
export function drawTopbar(page) {
  page.dataset.connection = state.connection;
  page.querySelector('[data-slot="team-name"]').textContent = state.teamName;
  page.querySelector('[data-slot="connection"]').textContent = CONNECTION[state.connection];
  const actAsSlot = page.querySelector('[data-testid="act-as"]');
  replaceIfChanged(actAsSlot, `${state.me} ${people().map((user) => user.id)}`, () => [
    h("span", { class: "act-as-label" }, "Act as"),
    ...people().map((user) =>
      h("button", {
        type: "button", role: "radio", "aria-checked": String(user.id === state.me),
        tabindex: user.id === state.me ? "0" : "-1",
        dataset: { userId: user.id }, onclick: () => actAs(user.id), onkeydown: chooseBeside,
      }, avatar(user.id, "avatar-tiny"), user.real_name,
        ...groupsOf(user).map((group) => h("span", { class: "act-as-group" }, `@${group.handle}`)))),
  ]);
}

/** The sidebar; `open(channel)` shows a channel. */
export function drawSidebar(sidebar, open) {
  const version = JSON.stringify([
    [...state.channels.values()], [...state.unread], state.channel, state.me, state.app.bot_name,
  ]);
  const entry = (channel, label, lead) => {
    const unread = state.unread.get(channel.id) || 0;
    return h("button", {
      class: `sidebar-item ${unread ? "sidebar-unread" : ""}`, type: "button",
      "aria-current": channel.id === state.channel ? "page" : null,
      dataset: { channel: channel.id, testid: "channel" },
      onclick: () => open(channel.id),
    }, lead, h("span", { class: "sidebar-name" }, label),
      unread > 0 && h("span", { class: "sidebar-badge", "aria-label": `${unread} unread` }, String(unread)));
  };
  const channels = [...state.channels.values()];
  replaceIfChanged(sidebar, version, () => [
    h("h2", { class: "sidebar-title" }, "Channels"),
    ...channels.filter((channel) => !channel.with_user && channel.id !== HOME)
      .map((channel) => entry(channel, channel.name, icon(channelIcon(channel)))),
    h("h2", { class: "sidebar-title" }, "Apps"),
    entry(state.channels.get(HOME), "Home", avatar(state.botUserId, "avatar-tiny")),
    ...channels.filter((channel) => channel.with_user)
      .map((channel) => entry(channel, state.app.bot_name, avatar(state.botUserId, "avatar-tiny"))),
    h("div", { class: "sidebar-foot" },
      avatar(state.me, "avatar-mid"),
      h("div", {},
        h("strong", {}, state.users.get(state.me)?.real_name || ""),
        h("span", {}, h("span", { class: "presence" }), "Active"))),
  ]);
}

/** The line above the messages. */
export function drawChannelHeader(header) {
  const channel = state.channels.get(state.channel);
  if (!channel) return;
  replaceIfChanged(header, JSON.stringify([channel, state.me]), () => [
    h("div", { class: "channel-title" },
      channel.with_user || channel.id === HOME ? avatar(state.botUserId, "avatar-tiny") : icon(channelIcon(channel)),
      h("h1", {}, channel.with_user ? state.app.bot_name : channel.name)),
    h("p", { class: "channel-topic" }, channel.topic),
    ...(channel.id === HOME ? [] : [h("div", { class: "channel-members", title: `${channel.members.length} members` },
      h("span", { class: "reply-faces" }, ...channel.members.map((id) => avatar(id, "avatar-small"))),
      h("span", {}, String(channel.members.length)))]),
  ]);
}

/** The title of the browser's tab. */
export function drawTitle() {
  const total = [...state.unread.values()].reduce((sum, count) => sum + count, 0);
  const channel = state.channels.get(state.channel);
  const name = channel ? (channel.with_user ? state.app.bot_name : `#${channel.name}`) : "";
  const title = [total ? `(${total}) ${name}` : name, state.teamName].filter(Boolean).join(" - ");
  if (document.title !== title) document.title = title;
}
