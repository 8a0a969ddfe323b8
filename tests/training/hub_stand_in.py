"""A stand-in for the Hugging Face hub on the loopback: the paths that its client library asks for.

Source: the requests of huggingface_hub 2.4, and the error codes that `hf_raise_for_status` reads
from the header X-Error-Code.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    directory: Path
    gated: bool = False

    @property
    def commit(self) -> str:
        return hashlib.sha1(str(self.directory).encode()).hexdigest()

    def files(self) -> list[str]:
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.directory)) for path in found)


@dataclass
class HubStandIn:
    url: str
    models: dict[str, Repository] = field(default_factory=dict)
    datasets: dict[str, Repository] = field(default_factory=dict)
    token: str = "hf_reader"
    requests: list[str] = field(default_factory=list)


@contextmanager
def hub_stand_in() -> Iterator[HubStandIn]:
    """Serve until the block is left."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self, hub, with_body=True)

        def do_HEAD(self) -> None:
            answer(self, hub, with_body=False)

        def log_message(self, *arguments: object) -> None:
            hub.requests.append(f"{self.command} {self.path}")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = HubStandIn(url=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(/revision/[^/]+|/tree/[^/]+)?")
_FILE = re.compile(r"(/datasets)?/([^/]+/[^/]+)/resolve/[^/]+/(.+)")


def answer(request: BaseHTTPRequestHandler, hub: HubStandIn, *, with_body: bool) -> None:
    path = unquote(urlsplit(request.path).path)
    authorised = request.headers.get("Authorization") == f"Bearer {hub.token}"
    if match := _API.fullmatch(path):
        repositories = hub.models if match[1] == "models" else hub.datasets
        repository = repositories.get(match[2])
        if repository is None:
            refuse(request, 404 if authorised else 401, "RepoNotFound")
        elif (match[3] or "").startswith("/tree"):
            send(request, json.dumps(tree(repository)).encode())
        else:
            send(request, json.dumps(info(match[2], repository)).encode())
        return
    match = _FILE.fullmatch(path)
    if match is None:
        refuse(request, 404, "EntryNotFound")
        return
    repository = (hub.datasets if match[1] else hub.models).get(match[2])
    if repository is None:
        refuse(request, 404 if authorised else 401, "RepoNotFound")
    elif repository.gated and not authorised:
        refuse(request, 401, "GatedRepo")
    elif not (repository.directory / match[3]).is_file():
        refuse(request, 404, "EntryNotFound")
    else:
        body = (repository.directory / match[3]).read_bytes()
        send(
            request,
            body,
            with_body=with_body,
            headers={"ETag": f'"{hashlib.sha1(body).hexdigest()}"'}
            | {"X-Repo-Commit": repository.commit},
        )


def info(name: str, repository: Repository) -> dict[str, object]:
    return {
        "id": name,
        "sha": repository.commit,
        "private": False,
        "gated": "manual" if repository.gated else False,
        "tags": [],
        "siblings": [{"rfilename": file} for file in repository.files()],
    }


def tree(repository: Repository) -> list[dict[str, object]]:
    return [
        {
            "type": "file",
            "path": file,
            "size": (repository.directory / file).stat().st_size,
            "oid": hashlib.sha1((repository.directory / file).read_bytes()).hexdigest(),
        }
        for file in repository.files()
    ]


def refuse(request: BaseHTTPRequestHandler, status: int, code: str) -> None:
    body = json.dumps({"error": code}).encode()
    send(request, body, status=status, headers={"X-Error-Code": code, "X-Error-Message": code})


def send(
    request: BaseHTTPRequestHandler,
    body: bytes,
    *,
    status: int = 200,
    with_body: bool = True,
    headers: dict[str, str] | None = None,
) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.end_headers()
    if with_body and request.command != "HEAD":
        request.wfile.write(body)
