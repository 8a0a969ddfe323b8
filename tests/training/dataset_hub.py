"""A stand-in for the data sets of the Hugging Face hub on the loopback, which can be made to fail.

Source: the requests of huggingface_hub 2.4: `HfApi.dataset_info`, and HEAD and GET with ranges of
`/datasets/ORG/NAME/resolve/REVISION/FILE`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class DatasetHub:
    """One data set, at several commits; `fail` says which requests break off."""

    url: str
    repository: str
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files by commit; the last one is the newest."""
    configs: list[dict[str, Any]] = field(default_factory=list)
    gated: bool = False
    fail: Callable[[str], bool] = lambda path: False
    """Whether to break the connection instead of sending a file's bytes."""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path, token."""

    def file_requests(self) -> int:
        return sum(method == "GET" and "/resolve/" in path for method, path, _ in self.requests)


@contextmanager
def dataset_hub(repository: str) -> Iterator[DatasetHub]:
    """Serve until the block is left."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            answer(self, hub)

        def do_GET(self) -> None:
            answer(self, hub)

        def log_message(self, *arguments: object) -> None:
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            hub.requests.append((self.command, self.path, token))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub = DatasetHub(url=f"http://127.0.0.1:{server.server_port}", repository=repository)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(request: BaseHTTPRequestHandler, hub: DatasetHub) -> None:
    path = request.path.split("?")[0]
    about = f"/api/datasets/{hub.repository}"
    newest = next(reversed(hub.commits), "")
    if path in (about, *(f"{about}/revision/{commit}" for commit in hub.commits)):
        commit = path.rpartition("/")[2] if "/revision/" in path else newest
        if hub.gated and not request.headers.get("Authorization"):
            send(request, 401, b"", {"X-Error-Code": "GatedRepo"})
            return
        document = {
            "id": hub.repository,
            "sha": commit,
            "private": False,
            "gated": False,
            "tags": [],
            "cardData": {"configs": hub.configs},
            "siblings": [
                {"rfilename": name} | ({"size": len(contents)} if "blobs=" in request.path else {})
                for name, contents in hub.commits[commit].items()
            ],
        }
        send(request, 200, json.dumps(document).encode(), {})
        return
    if path.startswith("/api/datasets/"):
        code = "RevisionNotFound" if path.startswith(about) else "RepoNotFound"
        send(request, 404, b"", {"X-Error-Code": code})
        return
    commit, _, name = path.removeprefix(f"/datasets/{hub.repository}/resolve/").partition("/")
    contents = hub.commits.get(commit, {}).get(name)
    if contents is None:
        send(request, 404, b"", {"X-Error-Code": "EntryNotFound"})
        return
    headers = {"ETag": '"1"', "X-Repo-Commit": commit}
    asked = request.headers.get("Range")
    if asked is None:
        send(request, 200, contents, headers)
        return
    first, last = (int(edge) for edge in asked.removeprefix("bytes=").split("-"))
    headers["Content-Range"] = f"bytes {first}-{last}/{len(contents)}"
    part = contents[first : last + 1]
    send(request, 206, part, headers, broken=hub.fail(path))


def send(
    request: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    headers: dict[str, str],
    *,
    broken: bool = False,
) -> None:
    request.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body[: len(body) // 2] if broken else body)
    request.close_connection = broken
