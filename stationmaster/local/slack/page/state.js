// What the page knows: the server's snapshot, the changes since, and where the reader is.

export const state = {
  connection: "connecting",
  me: localStorage.getItem("act-as") || "U000OPERATOR",
  app: { bot_name: "", tagline: "", commands: [], sample_commands: [] },
  botUserId: "",
  teamName: "",
  shownText: 4000,
  users: new Map(),
  groups: new Map(),
  channels: new Map(),
  messages: new Map(), // channel id -> Map of ts -> message
  views: new Map(),
  channel: null,
  thread: null, // ts of the parent whose thread is open
  tab: "thread", // what the pane beside the channel shows of it: thread or run
  unread: new Map(), // channel id -> count
  pending: new Set(), // "channel/ts/action_id" of clicks under way
  failed: new Map(), // the same key -> error, until the next click
  expanded: new Set(), // ts of long messages shown whole
  announcement: "", // what a screen reader is told of the newest message
};

/** The app's Home, shown as a channel with one message. */
export const HOME = "home";

const listeners = new Set();
let isScheduled = false;

/** Call `listener` after changes, at most once a frame. */
export function onChange(listener) {
  listeners.add(listener);
}

export function changed() {
  if (isScheduled) return;
  isScheduled = true;
  const flush = () => {
    if (!isScheduled) return;
    isScheduled = false;
    for (const listener of listeners) listener();
  };
  // Frames stop in a hidden tab; its title must go on counting.
  if (document.hidden) setTimeout(flush, 50);
  else requestAnimationFrame(flush);
}

export const names = {
  user: (id) => state.users.get(id)?.real_name,
  channel: (id) => state.channels.get(id)?.name,
  group: (id) => state.groups.get(id),
  isMe: (id) => id === state.me,
};

export function messagesOf(channel) {
  if (!state.messages.has(channel)) state.messages.set(channel, new Map());
  return state.messages.get(channel);
}

export function isReply(message) {
  return Boolean(message.thread_ts) && message.thread_ts !== message.ts;
}

export function inOrder(messages) {
  return [...messages].sort((a, b) => (a.ts < b.ts ? -1 : a.ts > b.ts ? 1 : 0));
}

/** Apply one message from the server. */
export function apply({ kind, payload }) {
  APPLY[kind]?.(payload);
  changed();
}

const APPLY = {
  snapshot(payload) {
    state.me = payload.user;
    state.app = payload.app;
    state.botUserId = payload.bot_user_id;
    state.teamName = payload.team_name;
    state.shownText = payload.shown_text;
    state.users = new Map(payload.users.map((user) => [user.id, user]));
    state.groups = new Map(payload.groups.map((group) => [group.id, group]));
    state.channels = new Map(payload.channels.map((channel) => [channel.id, channel]));
    state.messages = new Map();
    for (const message of payload.messages) messagesOf(message.channel).set(message.ts, message);
    state.views = new Map(payload.views.map((view) => [view.id, view]));
    state.channels.set(HOME, { id: HOME, name: "Home", topic: "What is yours, and what waits for you", members: [] });
    if (payload.home) APPLY.home(payload.home);
    if (!state.channels.has(state.channel)) state.channel = payload.channels[0].id;
    if (state.thread && !messagesOf(state.channel).has(state.thread)) state.thread = null;
    state.connection = "connected";
  },
  message(message) {
    const known = messagesOf(message.channel);
    const isNew = !known.has(message.ts);
    known.set(message.ts, message);
    if (isNew && message.user !== state.me) {
      state.announcement = `${names.user(message.user)}: ${message.text.slice(0, 160)}`;
    }
    const isSeen = message.channel === state.channel && !document.hidden;
    if (isNew && message.user !== state.me && !isSeen && !isReply(message)) {
      state.unread.set(message.channel, (state.unread.get(message.channel) || 0) + 1);
    }
  },
  deleted({ channel, ts }) {
    messagesOf(channel).delete(ts);
    if (state.thread === ts) state.thread = null;
  },
  channel(channel) {
    state.channels.set(channel.id, channel);
  },
  home(view) {
    const [before] = messagesOf(HOME).values();
    const ts = before?.ts || (Date.now() / 1000).toFixed(6);
    messagesOf(HOME).set(ts, { ts, channel: HOME, user: state.botUserId, text: "", blocks: view.blocks });
  },
  view(view) {
    state.views.set(view.id, view);
  },
  view_closed({ id }) {
    state.views.delete(id);
  },
};
