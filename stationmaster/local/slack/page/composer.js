// The composer: autosizing text, slash autocomplete, history, Enter to send.

import { suggest } from "/static/autocomplete.js";
import { h, icon } from "/static/dom.js";
import { act } from "/static/server.js";
import { state } from "/static/state.js";

const MAX_HEIGHT_PX = 220;
const MAX_HISTORY = 100;
let numComposers = 0;

function history() {
  return JSON.parse(localStorage.getItem("history") || "[]");
}

/**
 * Build a composer; `target()` says where it posts, `placeholder()` what it shows, `isClosed()` no
 * posts; `sends()` is called before it posts.
 */
export function createComposer({ testid, target, placeholder, isClosed, sends }) {
  numComposers += 1;
  const listId = `suggestions-${numComposers}`;
  const input = h("textarea", {
    class: "composer-input", rows: 1, dataset: { testid }, autocomplete: "off", spellcheck: "false",
    role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": listId,
    "aria-label": "Message",
  });
  const popover = h("div", { class: "suggestions", dataset: { testid: `${testid}-suggestions` }, hidden: true });
  const send = h("button", {
    class: "composer-send", type: "button", "aria-label": "Send", title: "Send", dataset: { testid: `${testid}-send` },
  }, icon("send"));
  const slash = h("button", {
    class: "composer-tool", type: "button", title: "Commands", "aria-label": "Commands",
  }, icon("slash"));
  const error = h("p", { class: "composer-error", role: "alert", hidden: true });
  const box = h("div", { class: "composer" }, popover, error,
    h("div", { class: "composer-box" }, input,
      h("div", { class: "composer-row" }, slash,
        h("span", { class: "composer-keys" },
          h("kbd", {}, "Enter"), " to send  ", h("kbd", {}, "Tab"), " to complete  ",
          h("kbd", {}, "↑"), " for history"),
        send)));

  let offered = null;
  let selected = 0;
  let hasChosen = false;
  let recalled = null;

  function close() {
    offered = null;
    draw();
  }

  function refresh() {
    const atEnd = input.selectionStart === input.value.length;
    offered = atEnd && document.activeElement === input ? suggest(input.value, state.app.commands) : null;
    selected = 0;
    hasChosen = false;
    draw();
  }

  function draw() {
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight, MAX_HEIGHT_PX)}px`;
    send.disabled = !input.value.trim();
    const isOpen = Boolean(offered && (offered.items.length || offered.hint));
    popover.hidden = !isOpen;
    input.setAttribute("aria-expanded", String(isOpen));
    input.removeAttribute("aria-activedescendant");
    if (!isOpen) return;
    const options = offered.items.map((item, index) => h("div", {
      class: "suggestion", role: "option", id: `${listId}-${index}`,
      "aria-selected": String(index === selected),
      dataset: { testid: "suggestion", index: String(index) },
    }, item.isCommand && h("img", { src: "/static/icon.svg", alt: "", width: 28, height: 28 }),
      h("span", { class: "suggestion-label" }, item.label,
        item.usage && h("span", { class: "suggestion-usage" }, item.usage)),
      h("span", { class: "suggestion-description" }, item.description)));
    popover.replaceChildren(
      offered.title ? h("div", { class: "suggestions-title" }, offered.title) : "",
      h("div", { class: "suggestions-list", role: "listbox", id: listId, "aria-label": "Suggestions" }, ...options),
      offered.hint ? h("div", { class: "suggestions-hint" }, offered.hint) : "");
    if (options.length) {
      input.setAttribute("aria-activedescendant", `${listId}-${selected}`);
      options[selected].scrollIntoView({ block: "nearest" });
    }
  }

  function accept(index) {
    setText(offered.items[index].insert);
    refresh();
  }

  function setText(text) {
    input.value = text;
    input.setSelectionRange(text.length, text.length);
  }

  async function submit(text = input.value) {
    const trimmed = text.trim();
    if (!trimmed) return;
    const past = history().filter((item) => item !== trimmed);
    localStorage.setItem("history", JSON.stringify([...past, trimmed].slice(-MAX_HISTORY)));
    recalled = null;
    setText("");
    error.hidden = true;
    close();
    sends();
    const answer = await act("send", { text: trimmed, ...target() });
    if (!answer.ok) {
      error.textContent = `Not sent: ${answer.error}. Your text is back in the box.`;
      error.hidden = false;
      if (!input.value) setText(trimmed);
      draw();
    }
  }

  function recall(step) {
    const past = history();
    const next = (recalled ?? past.length) + step;
    if (next < 0 || next > past.length) return;
    recalled = next;
    setText(past[next] || "");
    close();
  }

  input.addEventListener("input", () => {
    recalled = null;
    refresh();
  });
  input.addEventListener("click", refresh);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const count = offered?.items.length || 0;
    const isComplete = !count || (!hasChosen && !offered.items[0].isCommand);
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      if (isComplete) submit();
      else accept(selected);
    } else if (event.key === "Tab" && count && !event.shiftKey) {
      event.preventDefault();
      accept(selected);
    } else if (event.key === "Escape" && offered) {
      event.stopPropagation();
      close();
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && count && recalled === null) {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      selected = hasChosen || step < 0 ? (selected + step + count) % count : 1 % count;
      hasChosen = true;
      draw();
    } else if (event.key === "ArrowUp" && (!input.value || recalled !== null)) {
      event.preventDefault();
      recall(-1);
    } else if (event.key === "ArrowDown" && recalled !== null) {
      event.preventDefault();
      recall(1);
    }
  });
  popover.addEventListener("mousedown", (event) => {
    event.preventDefault();
    const option = event.target.closest("[data-index]");
    if (option) accept(Number(option.dataset.index));
  });
  send.addEventListener("click", () => submit());
  slash.addEventListener("click", () => {
    setText("/");
    input.focus();
    refresh();
  });
  draw();
  return {
    element: box,
    input,
    submit,
    update() {
      input.placeholder = placeholder();
      input.disabled = slash.disabled = isClosed();
    },
  };
}
