"""Hands the AWS calls of this process to the local endpoint's application, without a connection.

Used by tests that make tens of thousands of calls: a connection costs more than the call. The
request is built, signed and checked as ever; only the sockets between are left out. Programs that a
test starts still connect.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError
from urllib3 import HTTPResponse
from werkzeug.test import create_environ, run_wsgi_app

from stationmaster.local.aws import LocalAws


def without_connection(aws: LocalAws) -> Callable[..., AWSResponse]:
    """A handler of botocore's event `before-send`: it answers with what the endpoint answers."""

    def send(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        given: dict[str, Any] = dict(request.headers)
        headers = {
            name: value.decode() if isinstance(value, bytes) else value
            for name, value in given.items()
        }
        environ = create_environ(
            request.url.removeprefix(aws.url),
            aws.url,
            method=request.method,
            headers=headers,
            data=request.body or b"",
        )
        try:
            content, status, answered = run_wsgi_app(aws.application, environ, buffered=True)
        except ConnectionResetError as exc:
            # What botocore makes of a connection that ends before the answer.
            raise ConnectionClosedError(endpoint_url=request.url, error=exc) from exc
        body: Any = HTTPResponse(io.BytesIO(b"".join(content)), preload_content=False)
        answered_with: Any = dict(answered)
        return AWSResponse(request.url, int(status.split()[0]), answered_with, body)

    return send
