"""What a request asks for, by moto's routers and parsers, and how the own services answer it.

`identify` and `parameters_of` read any request; a `NativeService` serves those of one service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from botocore import xform_name
from botocore.exceptions import UnknownServiceError
from moto.core.model import ServiceModel
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request, determine_request_protocol
from moto.core.routing import get_service_router
from moto.core.utils import get_service_model
from werkzeug.exceptions import NotFound

# Signing names whose botocore model has another name, for the services that local mode uses.
_MODELS: Final = {
    "servicequotas": "service-quotas",
    "states": "stepfunctions",
    "tagging": "resourcegroupstaggingapi",
}
# The HTTP status that AWS answers with, for the codes that are not answered with 400.
_STATUS: Final = {
    "AccessDenied": 403,
    "AccessDeniedException": 403,
    "UnauthorizedOperation": 403,
    "AuthFailure": 401,
    "InvalidAccessKeyId": 403,
    "InvalidClientTokenId": 403,
    "InvalidSignatureException": 403,
    "MissingAuthenticationToken": 403,
    "MissingAuthenticationTokenException": 403,
    "SignatureDoesNotMatch": 403,
    "UnrecognizedClientException": 403,
    "InternalError": 500,
    "InternalFailure": 500,
    "InternalServerError": 500,
    "InternalServerException": 500,
    "ServerException": 500,
    "ServiceException": 500,
    "UnknownOperationException": 501,
    "ServiceUnavailable": 503,
    "ServiceUnavailableException": 503,
    "RequestLimitExceeded": 503,
    "SlowDown": 503,
    "TooManyRequestsException": 429,
    "ResourceInUseException": 409,
    "ResourceNotFoundException": 404,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
}


class ApiError(Exception):
    """An error that a service answers with."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status of this error."""
        return _STATUS.get(self.code, 400)


def service_model(service: str) -> ServiceModel:
    """Return the model of the service with this signing name.

    Raises:
        UnknownServiceError: there is none.
    """
    return get_service_model(_MODELS.get(service, service))


def identify(service: str, request: Request) -> tuple[str, dict[str, Any]]:
    """Return the operation's API name, "" when it is unknown, and what the path names."""
    target = request.headers.get("X-Amz-Target", "")
    if target:
        return target.rpartition(".")[2], {}
    try:
        operation, named = get_service_router(_MODELS.get(service, service)).match(request)
    except (NotFound, NotImplementedError, UnknownServiceError):
        return "", {}
    return operation.name, named


def parameters_of(
    service: str, request: Request, operation: str, named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a request asks for, by the API's own names; `named` is what its path names.

    Raises:
        ApiError: it cannot be read.
    """
    try:
        model = service_model(service)
        protocol = determine_request_protocol(model, request.content_type)
        if protocol == "json":
            return dict(json.loads(request.get_data() or b"{}"))
        parsed: dict[str, Any] = PROTOCOL_PARSERS[protocol](model.operation_model(operation)).parse(
            {
                "method": request.method,
                "values": request.values,
                "headers": request.headers,
                "body": request.get_data(),
                "url_path": request.path,
                "url_params": named,
            }
        )
    except UnknownServiceError:
        return {}
    except Exception as exc:  # whatever a client has sent
        raise ApiError("SerializationException", f"the request cannot be read: {exc}") from exc
    return parsed


class NativeService:
    """Base of a service that is a class with one method an operation: `create_cluster(params)`.

    Parameters arrive under the names of the API's request members; the returned dict has the names
    of the response members. Datetimes become what JSON services answer with.
    """

    signing_name = ""

    def owns_arn(self, arn: str) -> bool:
        """Return whether an ARN is one of this service's."""
        return arn.split(":")[2:3] == [self.signing_name]

    def serve(self, operation: str, parameters: dict[str, Any]) -> bytes:
        """Carry out one operation; return the body of the answer.

        Raises:
            ApiError: what the service answers instead.
        """
        method = getattr(self, xform_name(operation), None)
        if method is None:
            name = f"{self.signing_name}:{operation}"
            raise ApiError(
                "UnknownOperationException", f"{name} is not emulated by the local AWS endpoint"
            )
        return json.dumps(method(parameters), default=datetime.timestamp).encode()


def paged(
    key: str, items: list[Any], parameters: Mapping[str, Any], *, most: int = 100
) -> dict[str, Any]:
    """Return one page of `items` under their key, and the token of the next; tokens are offsets."""
    limit, token = ("maxResults", "nextToken") if key[0].islower() else ("MaxResults", "NextToken")
    start = int(parameters.get(token) or 0)
    end = start + min(int(parameters.get(limit) or most), most)
    return {key: items[start:end], **({token: str(end)} if end < len(items) else {})}
