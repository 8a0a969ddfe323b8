// What a hostile page tries on each server; the texts that it could read, null where it could not.
async (targets) => {
  const LIMIT_MS = 60000;
  const failed = () => null;

  const limited = (promise) =>
    Promise.race([
      promise.catch(failed),
      new Promise((resolve) => setTimeout(resolve, LIMIT_MS, "no end within the limit")),
    ]);

  const fetched = async (url, options) => {
    const answer = await fetch(url, { signal: AbortSignal.timeout(LIMIT_MS / 2), ...options });
    return answer.type === "opaque" ? null : `${answer.status} ${await answer.text()}`;
  };

  const socket = (url) =>
    new Promise((resolve) => {
      const opened = new WebSocket(url.replace(/^http/, "ws"));
      opened.onopen = () => resolve("opened");
      opened.onerror = () => resolve(null);
    });

  const events = (url) =>
    new Promise((resolve) => {
      const source = new EventSource(url);
      source.onmessage = (message) => resolve(message.data);
      source.onerror = () => {
        resolve(null);
        source.close();
      };
    });

  const script = (url) =>
    new Promise((resolve) => {
      const tag = document.createElement("script");
      tag.onload = () => resolve("ran");
      tag.onerror = () => resolve(null);
      tag.src = url;
      document.body.append(tag);
    });

  const framed = (fill) =>
    new Promise((resolve) => {
      const frame = document.createElement("iframe");
      frame.name = `frame-${document.querySelectorAll("iframe").length}`;
      const loaded = () => {
        try {
          resolve(frame.contentDocument.documentElement.textContent);
        } catch {
          resolve(null);
        }
      };
      document.body.append(frame);
      frame.onload = loaded;
      fill(frame);
    });

  const posted = (url, body) =>
    framed((frame) => {
      const form = document.createElement("form");
      Object.assign(form, { action: url, method: "POST", enctype: "text/plain" });
      form.target = frame.name;
      const input = document.createElement("input");
      [input.name, input.value] = [body.slice(0, -1), body.slice(-1)];
      form.append(input);
      document.body.append(form);
      form.submit();
    });

  const attempts = ({ base, paths, posts, socket: socketPath }) => {
    const tried = { [`socket ${socketPath}`]: socket(base + socketPath) };
    for (const path of paths) {
      const url = base + path;
      tried[`fetch ${path}`] = fetched(url);
      tried[`fetch without cors ${path}`] = fetched(url, { mode: "no-cors" });
      tried[`events ${path}`] = events(url);
      tried[`script ${path}`] = script(url);
      tried[`frame ${path}`] = framed((frame) => (frame.src = url));
    }
    for (const { path, body, headers } of posts) {
      const [url, method] = [base + path, "POST"];
      tried[`fetch with headers ${path}`] = fetched(url, { method, body, headers });
      tried[`fetch as text ${path}`] = fetched(url, { method, body });
      tried[`fetch without cors ${path}`] = fetched(url, { method, body, mode: "no-cors" });
      tried[`form ${path}`] = posted(url, body);
    }
    return tried;
  };

  const read = {};
  for (const [name, target] of Object.entries(targets)) {
    read[name] = {};
    await Promise.all(
      Object.entries(attempts(target)).map(async ([attempt, promise]) => {
        read[name][attempt] = await limited(promise);
      }),
    );
  }
  return read;
};
