"""One HTTP call to a Kubernetes API, and vendor errors turned into our own.

Objects travel as plain JSON: the typed classes of the client are neither needed nor parsed. What
may heal by itself becomes TransientError, which the state machines retry; a refusal becomes
PermanentError with the own sentence of the server, unless the caller expects it (NotFound).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from stationmaster.domain.errors import PermanentError, TransientError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_TIMEOUT_S: Final = (5, 30)  # connect, read
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"

# Answers that another try can turn: sign-in and rights take seconds to spread after an access entry
# is made (401, RBAC's 403), 408, 409 is a lost race, 429 a throttle.
_TRANSIENT_STATUS: Final = frozenset({401, 408, 409, 429})
_RBAC_REFUSAL: Final = "is forbidden: User "
_NAMESPACE_ENDS: Final = "because it is being terminated"
# What server-side apply says, with status 500, of an object that does not fit its type's schema.
# Source: apimachinery, util/managedfields/internal/structuredmerge.go, and structured-merge-diff.
_UNFIT: Final = (
    "failed to create typed patch object",
    "field not declared in schema",
    "duplicate entries for key",
)


class NotFound(Exception):
    """The API server does not have the object, or does not (yet) serve its type."""


class PageExpired(TransientError):
    """The next page of a list has expired; list from the beginning."""


class Calls:
    """Requests to one API server."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def get(self, path: str, *, what: str, query: Mapping[str, str] | None = None) -> Any:
        """Read JSON.

        Raises:
            NotFound, PageExpired, TransientError, PermanentError: `what` says in the error what
                was being done.
        """
        return json.loads(self._request("GET", path, what=what, query=query))

    def log(
        self, path: str, *, what: str, query: Mapping[str, str], must_answer: bool = False
    ) -> str:
        """Read a container's log; empty when there is none, or the kubelet does not give it.

        Raises:
            TransientError: the API server did not answer or did not let us ask, or, where what the
                log says decides something (`must_answer`), the kubelet did not (500 and above).
        """
        status, data = self._answer("GET", path, what=what, query=query)
        is_kubelet_silent = must_answer and status >= 500
        if status in _TRANSIENT_STATUS or status == 403 or is_kubelet_silent:
            raise TransientError(_sentence(what, status, data))
        return data.decode("utf-8", "replace") if status < 400 else ""

    def apply(self, path: str, body: Mapping[str, Any], *, manager: str, what: str) -> Any:
        """Apply on the server, taking over others' fields; unknown fields are refused."""
        answer = self._request(
            "PATCH",
            path,
            what=what,
            query={"fieldManager": manager, "force": "true", "fieldValidation": "Strict"},
            body=body,
            content_type=_APPLY,
        )
        return json.loads(answer)

    def merge(self, path: str, body: Mapping[str, Any], *, what: str) -> None:
        """Change some fields of an existing object.

        Raises:
            NotFound, TransientError, PermanentError: as `get`.
        """
        self._request("PATCH", path, what=what, body=body, content_type=_MERGE)

    def create(self, path: str, body: Mapping[str, Any], *, what: str) -> Any:
        """Post an object, and read the answer.

        Raises:
            NotFound, TransientError, PermanentError: as `get`.
        """
        return json.loads(self._request("POST", path, what=what, body=body))

    def delete(self, path: str, *, what: str, grace_s: int | None = None) -> None:
        """Request a deletion, dependents after their owner.

        `grace_s` is how long a pod's processes get; None for the pod's own limit.
        """
        body: dict[str, object] = {"propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        self._request("DELETE", path, what=what, body=body)

    def close(self) -> None:
        """Close idle connections; the next call opens a new one."""
        self._client.rest_client.close()

    def is_answering(self) -> bool:
        """Say whether anything answers at the server's address, whatever it says."""
        try:
            self._answer("GET", "/version", what="asking for its version", timeout_s=(3, 5))
        except TransientError:
            return False
        return True

    def _request(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        status, data = self._answer(
            method, path, what=what, query=query, body=body, content_type=content_type
        )
        if status < 400:
            return data
        sentence = _sentence(what, status, data)
        if status == 404:
            raise NotFound(sentence)
        if status == 410 and query and "continue" in query:
            raise PageExpired(sentence)
        if _is_transient(status, sentence):
            raise TransientError(sentence)
        raise PermanentError(sentence)

    def _answer(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        timeout_s: tuple[float, float] = _TIMEOUT_S,
    ) -> tuple[int, bytes]:
        # Imported here: see the package's docstring.
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json, */*"}
        if body is not None:
            headers["Content-Type"] = content_type
        request = self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*request, _request_timeout=timeout_s)
            return response.status, response.read() or b""
        except (ApiException, HTTPError, OSError) as exc:
            raise TransientError(
                f"{what}: the cluster's API cannot be reached: {type(exc).__name__}: {exc}"
            ) from exc


def _is_transient(status: int, sentence: str) -> bool:
    if status >= 500:
        return not any(phrase in sentence for phrase in _UNFIT)
    if status in _TRANSIENT_STATUS:
        return True
    return status == 403 and (_RBAC_REFUSAL in sentence or _NAMESPACE_ENDS in sentence)


def _sentence(what: str, status: int, data: bytes) -> str:
    return f"{what}: the cluster answers {status}: {_message(data)}"


def _message(data: bytes) -> str:
    """Return the sentence of a Status object; the beginning of anything else."""
    text = data.decode("utf-8", "replace").strip()
    try:
        status = json.loads(text)
    except ValueError:
        return text[:500] or "no explanation"
    if isinstance(status, dict) and status.get("message"):
        return str(status["message"])
    return text[:500]
