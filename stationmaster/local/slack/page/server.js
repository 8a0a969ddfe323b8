// The way to the server: a socket that comes back by itself, and the acts of a person.

import { apply, changed, state } from "/static/state.js";

let socket = null;
let attempt = 0;
let timer = null;

/** Connect as the current user; reconnect for as long as the page is open. */
export function connect() {
  clearTimeout(timer);
  if (socket) {
    socket.onclose = null;
    socket.close();
  }
  const address = new URL("/local/socket", location.href);
  address.protocol = address.protocol.replace("http", "ws");
  address.searchParams.set("user", state.me);
  socket = new WebSocket(address);
  socket.onmessage = (event) => {
    attempt = 0;
    apply(JSON.parse(event.data));
  };
  socket.onclose = (event) => {
    if (event.code === 4004) {
      // The remembered person is not in this workspace: fall back to its first one.
      localStorage.removeItem("act-as");
      state.me = "U000OPERATOR";
    }
    state.connection = "reconnecting";
    changed();
    attempt += 1;
    timer = setTimeout(connect, Math.min(250 * 2 ** (attempt - 1), 4000));
  };
}

/** Act as another person: a new connection, with what that person may see. */
export function actAs(user) {
  if (user === state.me) return;
  state.me = user;
  state.thread = null;
  state.unread.clear();
  localStorage.setItem("act-as", user);
  connect();
}

/** Do something on the server; return its answer, {ok: false, error} when it cannot be reached. */
export async function act(name, fields) {
  try {
    const response = await fetch(`/local/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ user: state.me, ...fields }),
    });
    return await response.json();
  } catch (error) {
    return { ok: false, error: "not_connected", detail: String(error) };
  }
}
