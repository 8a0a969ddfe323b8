"""API errors, in the shape every Kubernetes client expects: an HTTP code and a `Status` object.

Raised by the store, `objects.py` and the REST layer; turned into a response by `rest.py` alone. It
knows nothing of HTTP servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# The reason of a cause. Source: k8s.io/api, core/v1/types.go.
NAMESPACE_TERMINATING = "NamespaceTerminating"

Cause = tuple[str, str]
"""A field's path, and what is wrong with it: `("spec.replicas", "Required value")`."""


class ApiError(Exception):
    """A refused request: HTTP code, machine-readable reason, message."""

    def __init__(
        self, code: int, reason: str, message: str, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> dict[str, Any]:
        """Return the `Status` object that a client decodes."""
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details:
            status["details"] = self.details
        return {**status, "code": self.code}


def _details(resource: str, name: str) -> dict[str, Any]:
    plural, _, group = resource.partition(".")
    details = {"name": name, "kind": plural}
    if group:
        details["group"] = group
    return details


def not_found(resource: str, name: str) -> ApiError:
    """`resource` is the plural, with ".group" outside the core group: `deployments.apps`."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', _details(resource, name))


def unknown_to_kubelet(pod: str) -> ApiError:
    """Return what the API server makes of a kubelet's 404 to a request for a log."""
    message = f"the server could not find the requested resource ( pods/log {pod})"
    return ApiError(404, "NotFound", message, {"name": pod, "kind": "pods/log"})


def already_exists(resource: str, name: str) -> ApiError:
    message = f'{resource} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _details(resource, name))


def conflict(resource: str, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(resource, name))


def stale_version(resource: str, name: str) -> ApiError:
    why = (
        "the object has been modified; please apply your changes to the latest version and try "
        "again"
    )
    return conflict(resource, name, why)


def wrong_uid(resource: str, name: str, *, wanted: str, held: str) -> ApiError:
    why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {held}"
    return conflict(resource, name, why)


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """`causes` are (field path, message) pairs, as an API server's validation lists them."""
    lines = [f"{field}: {message}" for field, message in causes]
    body = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    qualified = f"{kind}.{group}" if group else kind
    details = {
        "name": name,
        "group": group,
        "kind": kind,
        "causes": [
            {"reason": "FieldValueInvalid", "message": message, "field": field}
            for field, message in causes
        ],
    }
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {body}', details)


def forbidden(message: str, *, details: dict[str, Any] | None = None) -> ApiError:
    return ApiError(403, "Forbidden", message, details)


def refused(resource: str, name: str, why: str) -> ApiError:
    """Return what an admission plugin says of one object."""
    message = f'{resource} "{name}" is forbidden: {why}'
    return forbidden(message, details=_details(resource, name))


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def expired(requested: int, oldest: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {requested} ({oldest})")


def method_not_allowed(message: str) -> ApiError:
    return ApiError(405, "MethodNotAllowed", message)


def unsupported_media_type(message: str) -> ApiError:
    return ApiError(415, "UnsupportedMediaType", message)


def internal_error(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")


class NoSuchRouteError(ApiError):
    """A path that the server does not serve: it answers in plain text."""

    TEXT = "404 page not found\n"


def no_such_route() -> ApiError:
    return NoSuchRouteError(404, "NotFound", "the server could not find the requested resource")
