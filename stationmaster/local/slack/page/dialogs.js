// What comes over the page: confirm dialogs, the lightbox, modal views.

import { renderElement } from "/static/blocks.js";
import { h, icon, reconcile } from "/static/dom.js";
import { mrkdwn, plain, textObject } from "/static/mrkdwn.js";
import { act } from "/static/server.js";
import { names, state } from "/static/state.js";

function open(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  // A click on the backdrop lands on the dialog itself.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.showModal();
  return dialog;
}

/** Ask what a Block Kit confirm object asks; resolve to whether the answer was yes. */
export function confirm(question) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { class: "dialog", "data-testid": "confirm", "aria-labelledby": "confirm-title" },
      h("div", { class: "dialog-body" },
        h("h2", { id: "confirm-title" }, ...plain(question.title.text)),
        h("div", { class: "dialog-text" }, ...textObject(question.text, names)),
        h("div", { class: "dialog-buttons" },
          h("button", { class: "bk-button", type: "button", "data-testid": "confirm-deny",
            onclick: () => dialog.close("") }, ...plain(question.deny?.text || "Cancel")),
          h("button", { class: `bk-button bk-${question.style || "primary"}`, type: "button",
            "data-testid": "confirm-yes", autofocus: true,
            onclick: () => dialog.close("yes") }, ...plain(question.confirm?.text || "Yes")))));
    open(dialog).addEventListener("close", () => resolve(dialog.returnValue === "yes"));
  });
}

/** Show an image as large as it fits. */
export function lightbox(source, alt) {
  const dialog = h("dialog", { class: "lightbox", "data-testid": "lightbox", "aria-label": alt },
    h("header", {},
      h("span", {}, alt),
      h("a", { class: "tool", href: source, download: true, "aria-label": "Download", title: "Download" }, "↓"),
      h("button", { class: "tool", type: "button", "aria-label": "Close", autofocus: true,
        onclick: () => dialog.close() }, icon("close"))),
    h("img", { src: source, alt }));
  open(dialog);
}

/** Say something briefly at the foot of the page. */
export function toast(text) {
  document.querySelector(".toast")?.remove();
  const note = h("div", { class: "toast", role: "status" }, text);
  document.body.append(note);
  setTimeout(() => note.remove(), 2500);
}

const shown = new Map();

/** Keep one dialog open for each modal view that the server has open for this person. */
export function drawViews() {
  for (const [id, entry] of shown) {
    const view = state.views.get(id);
    if (view) {
      if (view.hash !== entry.view.hash) drawView(entry, view);
      continue;
    }
    shown.delete(id);
    entry.isTakenDown = true;
    entry.dialog.close();
  }
  for (const view of state.views.values()) {
    if (!shown.has(view.id)) shown.set(view.id, openView(view));
  }
}

function openView(view) {
  const entry = { view, cache: new Map(), isTakenDown: false };
  entry.form = h("form", { class: "dialog-body view", method: "dialog" });
  entry.form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(entry);
  });
  // Slack tells the app of a choice at once, and of what is typed once Enter is pressed.
  entry.form.addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT") enter(entry, event.target);
  });
  entry.form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || event.target.tagName !== "INPUT") return;
    event.preventDefault();
    enter(entry, event.target);
  });
  drawView(entry, view);
  entry.dialog = h("dialog", { class: "dialog", "data-testid": "view", dataset: { viewId: view.id } }, entry.form);
  open(entry.dialog).addEventListener("close", () => {
    if (!entry.isTakenDown) act("close", { view_id: view.id });
  });
  entry.form.querySelector("select, input, textarea")?.focus();
  return entry;
}

/** Draw a view, or what is another one in its place; a field that is the same keeps its value. */
function drawView(entry, view) {
  entry.view = view;
  if (!entry.form.querySelector(".view-blocks")) {
    entry.form.append(h("h2", {}), h("div", { class: "view-blocks" }),
      h("p", { class: "view-error", role: "alert", hidden: true }), h("div", { class: "dialog-buttons" }));
  }
  const [title, blocks, problem, buttons] = entry.form.children;
  title.replaceChildren(...plain(view.title.text));
  problem.hidden = true;
  for (const slot of blocks.querySelectorAll("[data-error-for]")) slot.textContent = "";
  reconcile(blocks, view.blocks.map((block, index) => ({
    key: block.type === "input" ? block.block_id : `${index}`,
    version: JSON.stringify(block),
    build: () => viewBlock(block),
  })), entry.cache);
  buttons.replaceChildren(
    h("button", { class: "bk-button", type: "button", onclick: () => entry.dialog.close() },
      ...plain(view.close?.text || "Cancel")),
    view.submit ? h("button", { class: "bk-button bk-primary", type: "submit" },
      ...plain(view.submit.text)) : "");
}

async function submit(entry) {
  const { view, form } = entry;
  const button = form.querySelector('[type="submit"]');
  button.disabled = true;
  const answer = await act("submit", { view_id: view.id, values: valuesOf(view, form) });
  button.disabled = false;
  const problem = form.querySelector(":scope > .view-error");
  problem.hidden = answer.ok && !answer.error;
  problem.textContent = answer.error ? `This did not work: ${answer.error}` : "";
  if (entry.view !== view) return;
  for (const slot of form.querySelectorAll("[data-error-for]")) {
    slot.textContent = answer.errors?.[slot.dataset.errorFor] || "";
  }
}

function enter({ view, form }, field) {
  const blockId = field.closest("[data-block-id]")?.dataset.blockId;
  const block = view.blocks.find((candidate) => candidate.block_id === blockId);
  if (!block?.dispatch_action) return;
  const values = valuesOf(view, form);
  act("enter", { view_id: view.id, block_id: blockId, action_id: block.element.action_id, values });
}

function viewBlock(block) {
  if (block.type === "input") {
    const element = block.element;
    const field = element.type.endsWith("_input")
      ? h(element.multiline ? "textarea" : "input", {
        class: "bk-field-input", type: element.type === "number_input" ? "number" : "text",
        placeholder: element.placeholder?.text, value: element.initial_value,
        required: !block.optional, maxlength: element.max_length, step: element.is_decimal_allowed ? "any" : null,
        dataset: { actionId: element.action_id },
      })
      : renderElement(element, { channel: "", ts: "" });
    if (element.multiline && element.initial_value) field.value = element.initial_value;
    return h("label", { class: "bk-input", dataset: { blockId: block.block_id } },
      h("span", { class: "bk-input-label" }, ...plain(block.label.text),
        block.optional && h("span", { class: "bk-optional" }, " (optional)")),
      field,
      block.hint && h("span", { class: "bk-hint" }, ...plain(block.hint.text)),
      h("span", { class: "view-error", role: "alert", dataset: { errorFor: block.block_id } }));
  }
  if (block.type === "divider") return h("hr", { class: "bk-divider" });
  const texts = block.elements || [block.text, ...(block.fields || [])];
  return h("div", { class: block.type === "context" ? "bk-context" : "bk-text" },
    ...texts.filter(Boolean).map((text) => h("div", {},
      ...(text.type === "mrkdwn" ? mrkdwn(text.text, names) : plain(text.text || text.alt_text || "")))));
}

function valuesOf(view, form) {
  const values = {};
  for (const block of view.blocks.filter((candidate) => candidate.type === "input")) {
    const { action_id: actionId, type, options } = block.element;
    const slot = form.querySelector(`[data-block-id="${CSS.escape(block.block_id)}"]`);
    const typed = slot.querySelector("input, textarea, select")?.value || null;
    const value = options
      ? { type, selected_option: options.find((option) => option.value === typed) || null }
      : type === "conversations_select" ? { type, selected_conversation: typed } : { type, value: typed };
    values[block.block_id] = { [actionId]: value };
  }
  return values;
}
