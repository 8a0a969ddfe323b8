"""A hub on the loopback that takes uploads, as the client library of Hugging Face sends them.

Repositories, the preupload question, LFS batches with single and multipart uploads, and commits.
Source: the requests of huggingface_hub 2.4 (`_commit_api`, `lfs`, `hf_api.create_repo`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_writer"
LFS_BYTES = 64


@dataclass
class Repository:
    private: bool = True
    files: dict[str, bytes] = field(default_factory=dict)
    lfs: set[str] = field(default_factory=set)
    commits: list[str] = field(default_factory=lambda: ["0" * 40])
    messages: list[str] = field(default_factory=list)


@dataclass
class UploadHub:
    url: str
    organisations: set[str] = field(default_factory=lambda: {"lab"})
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    failing: dict[str, list[int]] = field(default_factory=dict)
    """Statuses with which the next requests of a kind are answered."""
    part_bytes: int = LFS_BYTES
    """Files of this size or more are asked for as LFS objects, those of twice as much in parts."""
    corrupts: bool = False
    """Whether what is committed loses its last byte."""


class _Refused(Exception):
    def __init__(self, status: int, message: str, *, url: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.url = url


@contextmanager
def upload_hub() -> Iterator[UploadHub]:
    """Serve until the block is left."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = unquote(urlsplit(self.path).path)
            headers: dict[str, str] = {}
            try:
                signed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
                if not signed and not path.startswith("/upload/"):
                    raise _Refused(401, "Invalid credentials in Authorization header")
                status, content = 200, _route(hub, self.command, path, body)
                if path.startswith("/upload/"):
                    headers["ETag"] = f'"{hashlib.md5(body).hexdigest()}"'
            except _Refused as refused:
                status, content = refused.status, {"error": str(refused), "url": refused.url}
            data = json.dumps(content).encode()
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_GET  # noqa: N815  # the base class looks methods up by these names

        def log_message(self, *arguments: object) -> None:
            """Requests are counted by kind."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = UploadHub(url=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _route(hub: UploadHub, method: str, path: str, body: bytes) -> Any:
    routes = {
        "create": r"POST /api/repos/create",
        "validate": r"POST /api/validate-yaml",
        "preupload": r"POST /api/models/([^/]+/[^/]+)/preupload/main",
        "batch": r"POST /([^/]+/[^/]+)\.git/info/lfs/objects/batch",
        "put": r"PUT /upload/([0-9a-f]{64})(?:/(\d+))?",
        "complete": r"POST /upload/([0-9a-f]{64})",
        "verify": r"POST /lfs-verify",
        "commit": r"POST /api/models/([^/]+/[^/]+)/commit/main",
        "info": r"GET /api/models/([^/]+/[^/]+?)(?:/revision/(\w+))?",
    }
    for kind, pattern in routes.items():
        match = re.fullmatch(pattern, f"{method} {path}")
        if match is None:
            continue
        hub.requests.append(kind)
        if hub.failing.get(kind):
            raise _Refused(hub.failing[kind].pop(0), f"{kind} failed")
        return _ANSWERS[kind](hub, match.groups(), body)
    raise _Refused(404, f"no route for {method} {path}")


def _repository(hub: UploadHub, name: str) -> Repository:
    if name not in hub.repositories:
        raise _Refused(404, "Repository not found")
    return hub.repositories[name]


def _create(hub: UploadHub, _: Any, body: bytes) -> Any:
    asked = json.loads(body)
    if asked["organization"] not in hub.organisations:
        raise _Refused(403, f"You don't have the rights to create a model under {asked}")
    name = f"{asked['organization']}/{asked['name']}"
    if name in hub.repositories:
        raise _Refused(409, "You already created this model repo", url=f"{hub.url}/{name}")
    hub.repositories[name] = Repository(private=asked.get("visibility") == "private")
    hub.repositories[name].files[".gitattributes"] = b"*.safetensors filter=lfs\n"
    return {"url": f"{hub.url}/{name}", "name": name}


def _preupload(hub: UploadHub, groups: Any, body: bytes) -> Any:
    _repository(hub, groups[0])
    return {
        "files": [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] >= hub.part_bytes else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for file in json.loads(body)["files"]
        ]
    }


def _batch(hub: UploadHub, groups: Any, body: bytes) -> Any:
    _repository(hub, groups[0])
    objects = []
    for each in json.loads(body)["objects"]:
        answer = dict(each)
        if each["oid"] not in hub.objects:
            href, header = f"{hub.url}/upload/{each['oid']}", {}
            if each["size"] >= 2 * hub.part_bytes:
                numbers = range(1, -(-each["size"] // hub.part_bytes) + 1)
                header = {str(number): f"{href}/{number}" for number in numbers}
                header["chunk_size"] = str(hub.part_bytes)
            upload = {"href": href, "header": header}
            verify = {"href": f"{hub.url}/lfs-verify", "header": {}}
            answer["actions"] = {"upload": upload, "verify": verify}
        objects.append(answer)
    return {"transfer": "multipart", "objects": objects}


def _put(hub: UploadHub, groups: Any, body: bytes) -> Any:
    oid, number = groups
    if number is None:
        hub.objects[oid] = body
    else:
        hub.parts.setdefault(oid, {})[int(number)] = body
    return {}


def _complete(hub: UploadHub, groups: Any, _: bytes) -> Any:
    parts = hub.parts.pop(groups[0])
    hub.objects[groups[0]] = b"".join(parts[number] for number in sorted(parts))
    return {}


def _verify(hub: UploadHub, _: Any, body: bytes) -> Any:
    asked = json.loads(body)
    data = hub.objects.get(asked["oid"], b"")
    if (len(data), hashlib.sha256(data).hexdigest()) != (asked["size"], asked["oid"]):
        raise _Refused(422, "size or hash differs")
    return {}


def _commit(hub: UploadHub, groups: Any, body: bytes) -> Any:
    repository = _repository(hub, groups[0])
    for line in body.splitlines():
        item = json.loads(line)
        value = item["value"]
        if item["key"] == "header":
            repository.messages.append(value["summary"])
        elif item["key"] == "file":
            repository.files[value["path"]] = base64.b64decode(value["content"])
        elif item["key"] == "lfsFile":
            repository.files[value["path"]] = hub.objects[value["oid"]]
            repository.lfs.add(value["path"])
    if hub.corrupts:
        name = max(repository.lfs)
        repository.files[name] = repository.files[name][:-1]
    repository.commits.append(hashlib.sha1(body).hexdigest())
    commit = repository.commits[-1]
    return {"commitUrl": f"{hub.url}/{groups[0]}/commit/{commit}", "commitOid": commit}


def _info(hub: UploadHub, groups: Any, _: bytes) -> Any:
    name, revision = groups
    repository = _repository(hub, name)
    if revision not in (None, "main", *repository.commits):
        raise _Refused(404, "Invalid rev id")
    return {
        "id": name,
        "sha": repository.commits[-1],
        "private": repository.private,
        "siblings": [
            _sibling(path, data, path in repository.lfs) for path, data in repository.files.items()
        ],
    }


def _sibling(path: str, data: bytes, is_lfs: bool) -> dict[str, Any]:
    pointed = b"version https://git-lfs.github.com/spec/v1\n" if is_lfs else data
    blob = hashlib.sha1(f"blob {len(pointed)}\0".encode() + pointed).hexdigest()
    found: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": blob}
    if is_lfs:
        sha256 = hashlib.sha256(data).hexdigest()
        found["lfs"] = {"size": len(data), "sha256": sha256, "pointerSize": 134}
    return found


_ANSWERS: dict[str, Any] = {
    "create": _create,
    "validate": lambda *_: {"errors": [], "warnings": []},
    "preupload": _preupload,
    "batch": _batch,
    "put": _put,
    "complete": _complete,
    "verify": _verify,
    "commit": _commit,
    "info": _info,
}
