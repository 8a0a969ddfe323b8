// Small DOM tools: build elements, and turn one tree into another without touching what is equal.
// User text only ever becomes text nodes; nothing here or elsewhere sets innerHTML.

const SVG = "http://www.w3.org/2000/svg";

/** Build an element; null, undefined and false children are left out. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "dataset") {
      for (const [key, item] of Object.entries(value)) {
        if (item !== null && item !== undefined) element.dataset[key] = item;
      }
    } else if (name === "vars") {
      // Through the CSSOM: the page's policy forbids style attributes in markup.
      for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    } else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child);
  }
}

const PATHS = {
  hash: "M6.5 2.5 5 13.5M11 2.5 9.5 13.5M2.5 6h11M2 10h11",
  reply: "M2.5 3.5h11v7H8l-3.5 3v-3h-2z",
  link: "M6.5 9.5l3-3M7 4.5l1.2-1.2a2.9 2.9 0 0 1 4.1 4.1L11 8.7M9 11.5l-1.2 1.2a2.9 2.9 0 0 1-4.1-4.1L5 7.3",
  close: "M4 4l8 8M12 4l-8 8",
  send: "M2.5 2.8l11 5.2-11 5.2 1.6-5.2zM4.1 8h5",
  eye: "M1.5 8s2.4-4.2 6.5-4.2S14.5 8 14.5 8 12.1 12.2 8 12.2 1.5 8 1.5 8zM8 9.8a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6z",
  lock: "M4 7.5h8v6H4zM5.5 7.5V5.2a2.5 2.5 0 0 1 5 0v2.3",
  archive: "M2.5 3h11v3h-11zM3.5 6v7.5h9V6M6.5 8.8h3",
  slash: "M10 2.5 6 13.5",
  expand: "M9.5 2.5h4v4M13.5 2.5l-4.5 4.5M6.5 13.5h-4v-4M2.5 13.5l4.5-4.5",
};

/** Build an element of a drawing. */
export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  append(element, children);
  return element;
}

/** Return one of the line icons, hidden from assistive technology. */
export function icon(name) {
  return svg("svg", { viewBox: "0 0 16 16", class: `icon icon-${name}`, "aria-hidden": "true" },
    svg("path", { d: PATHS[name] }));
}

/** Make `from` equal to `to`, keeping every node that already is: no flicker, focus survives. */
export function morph(from, to) {
  if (from.isEqualNode(to)) return from;
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(to);
    return to;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return from;
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name)) from.removeAttribute(name);
  }
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) === value) continue;
    // Through the CSSOM, as in h(): the policy forbids setting the attribute.
    if (name === "style") from.style.cssText = value;
    else from.setAttribute(name, value);
  }
  const wanted = [...to.childNodes];
  const present = [...from.childNodes];
  wanted.forEach((child, index) => {
    if (index < present.length) morph(present[index], child);
    else from.append(child);
  });
  for (const extra of present.slice(wanted.length)) extra.remove();
  return from;
}

/** Show `items` ([{key, version, build}]) as the children of `parent`, reusing nodes by key. */
export function reconcile(parent, items, cache) {
  const keys = new Set(items.map((item) => item.key));
  for (const [key, entry] of cache) {
    if (!keys.has(key)) {
      entry.node.remove();
      cache.delete(key);
    }
  }
  let cursor = parent.firstChild;
  for (const item of items) {
    let entry = cache.get(item.key);
    if (!entry) {
      entry = { node: item.build(), version: item.version };
      cache.set(item.key, entry);
    } else if (entry.version !== item.version) {
      const before = entry.node;
      entry.node = morph(before, item.build());
      entry.version = item.version;
      if (cursor === before) cursor = entry.node;
    }
    if (entry.node === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(entry.node, cursor);
  }
}
