// Block Kit as DOM nodes. What a click does is decided in actions.js, from the data attributes.

import { chartBlock } from "/static/chart.js";
import { h, icon } from "/static/dom.js";
import { mrkdwn, plain, textObject } from "/static/mrkdwn.js";
import { drawn } from "/static/signs.js";
import { names, state } from "/static/state.js";

/** The blocks of a message. */
export function renderBlocks(message) {
  const blocks = message.blocks.map((block) => {
    const draw = BLOCKS[block.type];
    const content = draw ? draw(block, message) : h("em", {}, `[${block.type}]`);
    content.dataset.blockId = block.block_id || "";
    return content;
  });
  return h("div", { class: "blocks", "data-testid": "blocks" }, ...blocks);
}

const BLOCKS = {
  section: (block, message) =>
    h("div", { class: "bk-section" },
      h("div", { class: "bk-section-main" },
        block.text && h("div", { class: "bk-text" }, ...textObject(block.text, names)),
        block.fields && h("div", { class: "bk-fields" },
          ...block.fields.map((field) =>
            h("div", { class: "bk-field" }, ...textObject(field, names))))),
      block.accessory && h("div", { class: "bk-accessory" }, renderElement(block.accessory, message))),
  header: (block) => h("h3", { class: "bk-header" }, ...textObject(block.text, names)),
  context: (block) =>
    h("div", { class: "bk-context" },
      ...block.elements.map((element) =>
        h("span", { class: "bk-context-text" }, ...textObject(element, names)))),
  data_visualization: chartBlock,
  plan: (block) =>
    h("div", { class: "bk-plan", "data-testid": "plan" },
      h("strong", {}, ...plain(block.title)), ...(block.tasks || []).map(taskCard)),
  table: (block) =>
    h("table", { class: "bk-table", "data-testid": "table" },
      ...block.rows.map((row, index) =>
        h("tr", {}, ...row.map((cell) => h(index ? "td" : "th", {}, drawn(cell.text)))))),
  divider: () => h("hr", { class: "bk-divider" }),
  actions: (block, message) =>
    h("div", { class: "bk-actions" },
      ...block.elements.map((element) => renderElement(element, message))),
  input: (block, message) =>
    h("label", { class: "bk-input" },
      h("span", { class: "bk-input-label" }, ...plain(block.label.text)),
      renderElement(block.element, message)),
};

/** The key of an element of a message in state.pending and state.failed. */
export function actionKey(message, actionId) {
  return `${message.channel}/${message.ts}/${actionId}`;
}

/** An interactive element. */
export function renderElement(element, message) {
  const key = actionKey(message, element.action_id);
  const isPending = state.pending.has(key);
  const error = state.failed.get(key);
  const data = { actionId: element.action_id, elementType: element.type };
  if (element.type === "button") {
    return h("span", { class: "bk-button-slot" },
      h("button", {
        class: `bk-button ${element.style ? `bk-${element.style}` : ""}`,
        type: "button",
        disabled: isPending,
        "aria-busy": isPending ? "true" : null,
        dataset: data,
      }, isPending && h("span", { class: "spinner" }), h("span", {}, ...plain(element.text.text))),
      error && h("span", { class: "bk-error", role: "alert", title: error }, drawn(`⚠ ${error}`)));
  }
  if (element.options || element.type.endsWith("_select")) return select(element, isPending, data);
  return h("input", {
    class: "bk-field-input",
    type: element.type === "datepicker" ? "date" : "text",
    disabled: isPending,
    dataset: data,
  });
}

function select(element, isPending, data) {
  const options = element.options || entities(element.type);
  return h("select", { class: "bk-select", disabled: isPending, dataset: data },
    h("option", { value: "" }, element.placeholder?.text || "Choose"),
    ...options.map((option) =>
      h("option", {
        value: option.value,
        selected: element.initial_option?.value === option.value,
      }, ...plain(option.text.text).map((node) => node.textContent ?? node))));
}

function entities(kind) {
  const source = kind.startsWith("users") ? state.users : state.channels;
  return [...source.values()].map((item) => ({
    value: item.id, text: { text: item.real_name || `#${item.name}` },
  }));
}

const TASK_MARKS = { complete: "\u2713", in_progress: "\u25cf", error: "\u2717" };

/** A task of a plan; what has succeeded is collapsed. */
function taskCard(task) {
  const mark = h("span", { class: `bk-task-${task.status}`, "aria-label": task.status || "pending" },
    TASK_MARKS[task.status] || "\u25cb");
  const head = [mark, " ", ...plain(task.title)];
  if (!task.details) return h("div", { class: "bk-task" }, ...head);
  return h("details", { class: "bk-task", open: task.status === "complete" ? null : "" },
    h("summary", {}, ...head), ...task.details.elements.map(richText));
}

function richText(element) {
  const inner = (element.elements || []).map((piece) =>
    piece.type.startsWith("rich_text") ? richText(piece) : richPiece(piece));
  const tags = {
    rich_text_preformatted: "pre", rich_text_quote: "blockquote", rich_text_section: "div",
  };
  if (element.type === "rich_text_list") {
    return h(element.style === "ordered" ? "ol" : "ul", {}, ...inner.map((item) => h("li", {}, item)));
  }
  return h(tags[element.type] || "div", {}, ...inner);
}

function richPiece(piece) {
  if (piece.type === "link") {
    return h("a", { href: piece.url, target: "_blank", rel: "noopener noreferrer" }, piece.text || piece.url);
  }
  if (piece.type === "date") {
    return h("span", {}, ...mrkdwn(`<!date^${piece.timestamp}^${piece.format}|${piece.fallback}>`, names));
  }
  if (piece.type === "emoji") return h("span", {}, ...plain(`:${piece.name}:`));
  if (piece.type === "user") return h("span", { class: "mention" }, `@${names.user(piece.user_id)}`);
  if (piece.type === "channel") {
    return h("span", { class: "mention" }, `#${names.channel(piece.channel_id)}`);
  }
  const style = piece.style || {};
  const tag = style.code ? "code" : style.bold ? "strong" : style.italic ? "em" : style.strike ? "s" : "span";
  return h(tag, {}, drawn(piece.text || ""));
}
