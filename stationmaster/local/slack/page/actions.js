// One listener for every click on a message: what its data attributes ask for.

import { actionKey } from "/static/blocks.js";
import { confirm, lightbox, toast } from "/static/dialogs.js";
import { act } from "/static/server.js";
import { HOME, changed, isReply, messagesOf, state } from "/static/state.js";

/** Listen on the page for clicks and choices; `openThread(ts)` shows a thread. */
export function listen({ openThread }) {
  document.addEventListener("click", (event) => {
    const image = event.target.closest("[data-lightbox]");
    if (image) {
      lightbox(image.dataset.lightbox, image.dataset.alt);
      return;
    }
    const message = messageAt(event.target);
    if (!message) return;
    const element = event.target.closest("[data-action-id]");
    if (element && element.tagName === "BUTTON") {
      press(message, element);
      return;
    }
    const tool = event.target.closest("[data-act]");
    if (tool) ACTS[tool.dataset.act](message, tool, openThread);
  });
  document.addEventListener("change", (event) => {
    const message = messageAt(event.target);
    const element = event.target.closest("[data-action-id]");
    if (message && element && event.target.value) deliver(message, element, event.target.value);
  });
}

const ACTS = {
  thread: (message, _tool, openThread) => openThread(isReply(message) ? message.thread_ts : message.ts),
  dismiss: (message) => act("dismiss", { channel: message.channel, ts: message.ts }),
  expand: (message) => {
    state.expanded.add(message.ts);
    changed();
  },
  "copy-link": (message) =>
    navigator.clipboard
      .writeText(`${location.origin}/archives/${message.channel}/p${message.ts.replace(".", "")}`)
      .then(() => toast("Link copied"), () => toast("The browser did not allow copying")),
};

function messageAt(node) {
  const article = node.closest("[data-ts][data-channel]");
  return article && messagesOf(article.dataset.channel).get(article.dataset.ts);
}

function find(message, { dataset, parentElement }) {
  const { actionId } = dataset;
  const { blockId } = parentElement.closest("[data-block-id]").dataset;
  for (const block of message.blocks || []) {
    if (block.block_id !== blockId) continue;
    const elements = [...(block.elements || []), block.accessory, block.element];
    const found = elements.find((element) => element?.action_id === actionId);
    if (found) return found;
  }
  return null;
}

function press(message, button) {
  const element = find(message, button);
  if (!element) return;
  if (element.url) window.open(element.url, "_blank", "noopener,noreferrer");
  deliver(message, button, null);
}

async function deliver(message, node, value) {
  const actionId = node.dataset.actionId;
  const element = find(message, node);
  const { blockId } = node.closest("[data-block-id]").dataset;
  if (element?.confirm && !(await confirm(element.confirm))) return;
  const key = actionKey(message, actionId);
  if (state.pending.has(key)) return;
  state.pending.add(key);
  state.failed.delete(key);
  changed();
  const option = element?.options?.find((each) => each.value === value);
  const values = option ? { [blockId]: { [actionId]: { selected_option: option } } } : {};
  const answer = message.channel === HOME ? await act("enter", { block_id: blockId, action_id: actionId, values }) : await act("click", { channel: message.channel, ts: message.ts, action_id: actionId, value });
  state.pending.delete(key);
  if (!answer.ok) state.failed.set(key, answer.error);
  changed();
}
