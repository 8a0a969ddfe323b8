"""A stand-in for the Hugging Face hub on the loopback, which can be made to fail.

Source: the requests of huggingface_hub 2.4 (what a repository is, its tree, HEAD and GET of its
files, with ranges), and the error codes that `hf_raise_for_status` reads from X-Error-Code.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """What a model or data set consists of: the files of a directory, or those of its commits."""

    directory: Path | None = None
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files by commit; the last one is the newest."""
    configs: list[dict[str, Any]] = field(default_factory=list)
    gated: bool = False
    fail: Callable[[str], bool] = lambda path: False
    """Whether to break the connection instead of sending a part of a file."""

    @property
    def commit(self) -> str:
        """The newest one."""
        if self.directory is None:
            return next(reversed(self.commits))
        return hashlib.sha1(str(self.directory).encode()).hexdigest()

    def commit_of(self, revision: str | None) -> str:
        """It itself, or the newest one for `main`."""
        return revision if revision in self.commits else self.commit

    def files(self, commit: str) -> dict[str, bytes]:
        if self.directory is None:
            return self.commits.get(commit, {})
        found = sorted(path for path in self.directory.rglob("*") if path.is_file())
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in found}


@dataclass
class HubStandIn:
    url: str
    models: dict[str, Repository] = field(default_factory=dict)
    datasets: dict[str, Repository] = field(default_factory=dict)
    token: str = "hf_reader"
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path, token."""

    def file_requests(self) -> int:
        return sum(method == "GET" and "/resolve/" in path for method, path, _ in self.requests)


@contextmanager
def hub_stand_in() -> Iterator[HubStandIn]:
    """Serve until the block is left."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self, hub)

        def do_HEAD(self) -> None:
            answer(self, hub)

        def log_message(self, *arguments: object) -> None:
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            hub.requests.append((self.command, self.path, token))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub = HubStandIn(url=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?")
_FILE = re.compile(r"(/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


def answer(request: BaseHTTPRequestHandler, hub: HubStandIn) -> None:
    path = unquote(urlsplit(request.path).path)
    asked, file = _API.fullmatch(path), _FILE.fullmatch(path)
    match = asked or file
    if match is None:
        refuse(request, 404, "EntryNotFound")
        return
    repositories = hub.datasets if "datasets" in (match[1] or "") else hub.models
    repository = repositories.get(match[2])
    authorised = request.headers.get("Authorization") == f"Bearer {hub.token}"
    if repository is None:
        refuse(request, 404 if authorised else 401, "RepoNotFound")
    elif repository.gated and not authorised:
        refuse(request, 401, "GatedRepo")
    elif asked is not None:
        commit = repository.commit_of(asked[4])
        files = repository.files(commit)
        if asked[3] == "tree":
            send(request, json.dumps(tree(files)).encode())
        else:
            about = info(match[2], repository, commit, files, sizes="blobs=" in request.path)
            send(request, json.dumps(about).encode())
    else:
        commit = repository.commit_of(match[3])
        files = repository.files(commit)
        if match[4] in files:
            send_file(request, files[match[4]], commit, breaks=lambda: repository.fail(path))
        else:
            refuse(request, 404, "EntryNotFound")


def info(
    name: str, repository: Repository, commit: str, files: dict[str, bytes], *, sizes: bool
) -> dict[str, object]:
    return {
        "id": name,
        "sha": commit,
        "private": False,
        "gated": "manual" if repository.gated else False,
        "tags": [],
        "cardData": {"configs": repository.configs},
        "siblings": [
            {"rfilename": file} | ({"size": len(data)} if sizes else {})
            for file, data in files.items()
        ],
    }


def tree(files: dict[str, bytes]) -> list[dict[str, object]]:
    return [
        {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        for file, data in files.items()
    ]


def send_file(
    request: BaseHTTPRequestHandler, data: bytes, commit: str, *, breaks: Callable[[], bool]
) -> None:
    """The file, or the part that was asked for, half of which comes where it breaks off."""
    headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit}
    part = request.headers.get("Range")
    if part is None:
        send(request, data, headers=headers)
        return
    first, last = (int(edge) for edge in part.removeprefix("bytes=").split("-"))
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    send(request, data[first : last + 1], status=206, headers=headers, breaks=breaks())


def refuse(request: BaseHTTPRequestHandler, status: int, code: str) -> None:
    body = json.dumps({"error": code}).encode()
    send(request, body, status=status, headers={"X-Error-Code": code, "X-Error-Message": code})


def send(
    request: BaseHTTPRequestHandler,
    body: bytes,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    breaks: bool = False,
) -> None:
    request.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body[: len(body) // 2] if breaks else body)
    request.close_connection = breaks
