"""The requests that the relay makes to the Kubernetes API: get, list, watch, read a log, and write.

Only relay/leadership.py writes: the Lease of the run's relays. It uses the official client's
connection (credentials, TLS, token refresh) and keeps objects as the JSON that the API sent:
building typed objects costs ten times the CPU, which here is shared with training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import urllib3
from kubernetes import client, config

from stationmaster.domain.errors import TransientError

JsonObject = dict[str, Any]
Listed = tuple[list[JsonObject], str]

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 30.0
PAGE: Final = 500
LIST_TRIES: Final = 3
MAX_CONNECTIONS: Final = 256  # one for each followed log and each watch
_POD_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class ClusterUnreachable(TransientError):
    """No answer, a lost connection, or an answer that says to come back later."""


class ObjectMissing(TransientError):
    """The object or its whole type is not there (yet)."""


class RequestRefused(TransientError):
    """The API understood and says no: e.g. a container that has no log yet."""


class Conflict(TransientError):
    """Somebody else wrote the object since it was read, or made it first."""


class WatchExpired(TransientError):
    """The watch cannot continue from its resource version; list again."""


class ClusterApi:
    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    @classmethod
    def connect(cls, kubeconfig: str | None) -> ClusterApi:
        """Use the kubeconfig file when one is named or the pod has no token of its own."""
        configuration = client.Configuration()
        configuration.connection_pool_maxsize = MAX_CONNECTIONS
        configuration.keep_alive = True  # notices a node or API server that vanished mid-watch
        configuration.retries = False
        if _POD_TOKEN.exists() and not kubeconfig:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        return cls(client.ApiClient(configuration))

    def get(self, path: str, *, read_timeout_s: float = READ_TIMEOUT_S) -> JsonObject:
        """Read one object."""
        with self._open(path, {}, read_timeout_s=read_timeout_s) as response:
            return _object(response.read())

    def create(self, path: str, body: JsonObject, *, read_timeout_s: float) -> JsonObject:
        """Make an object of the collection `path`, and return it as stored.

        Raises:
            Conflict: there is one of that name.
        """
        return self._write("POST", path, body, read_timeout_s)

    def replace(self, path: str, body: JsonObject, *, read_timeout_s: float) -> JsonObject:
        """Write an object that is still of the resource version in `body`, and return it as stored.

        Raises:
            Conflict: somebody else wrote it in between.
        """
        return self._write("PUT", path, body, read_timeout_s)

    def _write(self, method: str, path: str, body: JsonObject, read_timeout_s: float) -> JsonObject:
        with self._open(
            path, {}, method=method, body=body, read_timeout_s=read_timeout_s
        ) as response:
            return _object(response.read())

    def list(self, path: str, query: Mapping[str, str]) -> Listed:
        """Read all objects, page by page, and the resource version to watch from.

        Where the next page has expired, the list is begun again.
        """
        for _ in range(LIST_TRIES - 1):
            try:
                return self._list(path, query)
            except WatchExpired:
                continue
        return self._list(path, query)

    def _list(self, path: str, query: Mapping[str, str]) -> Listed:
        items: list[JsonObject] = []
        page = {"limit": str(PAGE)}
        while True:
            with self._open(path, {**query, **page}, read_timeout_s=READ_TIMEOUT_S) as response:
                answer = _object(response.read())
            items += answer.get("items") or []
            metadata = answer.get("metadata") or {}
            following = metadata.get("continue")
            if not following:
                return items, str(metadata.get("resourceVersion", ""))
            page = {"limit": str(PAGE), "continue": following}

    def watch(
        self, path: str, query: Mapping[str, str], *, resource_version: str, timeout_s: int
    ) -> Iterator[tuple[str, JsonObject]]:
        """Yield (type, object) until the server ends the watch.

        Raises:
            WatchExpired: the server no longer knows what happened since `resource_version`.
        """
        watching = {
            **query,
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        with self._open(path, watching, read_timeout_s=timeout_s + READ_TIMEOUT_S) as response:
            rest = b""
            for chunk in _stream(response):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if not line.strip():
                        continue
                    event = _object(line)
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        raise WatchExpired(f"watch of {path} ended: {status.get('message', '')}")
                    yield str(event.get("type")), event.get("object") or {}

    @contextmanager
    def log(
        self,
        path: str,
        *,
        container: str,
        since: str | None,
        follow: bool = False,
        previous: bool = False,
    ) -> Iterator[Iterator[bytes]]:
        """Open a container's log with stamps; `since` is a time in whole seconds, inclusive."""
        query = {"container": container, "timestamps": "true"}
        if since is not None:
            query["sinceTime"] = since
        if follow:
            query["follow"] = "true"
        if previous:
            query["previous"] = "true"
        # A followed log may be silent for hours; TCP keep-alive detects a dead connection.
        read_timeout_s = None if follow else READ_TIMEOUT_S
        with self._open(f"{path}/log", query, read_timeout_s=read_timeout_s) as response:
            yield _stream(response)

    @contextmanager
    def _open(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        read_timeout_s: float | None,
        method: str = "GET",
        body: JsonObject | None = None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        headers = {"Accept": "*/*" if path.endswith("/log") else "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        _, url, headers, content, form = self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._api.call_api(
                method,
                url,
                headers,
                content,
                form,
                _request_timeout=(CONNECT_TIMEOUT_S, read_timeout_s),
            )
            response = cast("urllib3.BaseHTTPResponse", answer.response)
            try:
                _raise_for_status(response, f"{method} {path}")
                yield response
            finally:
                response.close()
                response.release_conn()
        except (urllib3.exceptions.HTTPError, client.ApiException, OSError) as exc:
            raise ClusterUnreachable(f"{method} {path}: {exc}") from exc


def _raise_for_status(response: urllib3.BaseHTTPResponse, request: str) -> None:
    if 200 <= response.status < 300:
        return
    text = response.read().decode("utf-8", "replace")[:300]
    message = f"{request}: HTTP {response.status}: {text}"
    match response.status:
        case 404:
            raise ObjectMissing(message)
        case 409:
            raise Conflict(message)
        case 410:
            raise WatchExpired(message)
        case 400:
            raise RequestRefused(message)
        case _:
            raise ClusterUnreachable(message)


def _stream(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    return response.stream(65_536)


def _object(text: bytes) -> JsonObject:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise ClusterUnreachable(f"the API sent no JSON: {text[:200]!r}") from exc
    if not isinstance(value, dict):
        raise ClusterUnreachable(f"the API sent {type(value).__name__} instead of an object")
    return value
