"""Finds a Lambda function by name or ARN and runs it, for whoever asks.

It runs only handlers that the endpoint was made with; it knows moto's function store and a
`LambdaRuntime`, not the handlers.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from moto.awslambda.models import LambdaFunction, lambda_backends

from stationmaster.local.aws.access import AccessKey
from stationmaster.local.aws.runtime import Function, LambdaRuntime, error_payload

logger = logging.getLogger(__name__)


class UnknownFunctionError(Exception):
    """No function has the given name or ARN."""


class Invoker:
    """Runs functions."""

    def __init__(
        self,
        *,
        runtime: LambdaRuntime,
        handlers: frozenset[str],
        account_id: str,
        region: str,
        key_of: Callable[[str], AccessKey | None] = lambda _function: None,
    ) -> None:
        """`key_of` has the key with which a function of a name calls AWS, None for the owner's."""
        self.runtime = runtime
        self._handlers = handlers
        self._account_id = account_id
        self._region = region
        self._key_of = key_of

    def find(self, name_or_arn: str) -> Function:
        """Return the function.

        Raises:
            UnknownFunctionError: there is none.
        """
        name = name_or_arn.rsplit(":function:", maxsplit=1)[-1].split(":", maxsplit=1)[0]
        storage = lambda_backends[self._account_id][self._region]._lambdas
        found = storage._get_latest(name) if name in storage._functions else None
        if found is None:
            owner = f"arn:aws:lambda:{self._region}:{self._account_id}"
            arn = name_or_arn if name_or_arn.startswith("arn:") else f"{owner}:function:{name}"
            raise UnknownFunctionError(f"Function not found: {arn}")
        return as_function(found)

    def refusal_of(self, handler: object) -> str | None:
        """Return why no function may have this handler, None when one may."""
        if handler in self._handlers:
            return None
        return f"handler {handler!r} is none of this deployment; only its own handlers run here"

    def invoke(self, name_or_arn: str, payload: bytes) -> tuple[bytes, bool]:
        """Run the function now; return its payload and whether it failed."""
        return self.run(self.find(name_or_arn), payload)

    def run(self, function: Function, payload: bytes) -> tuple[bytes, bool]:
        """Run a function that was found before."""
        refusal = self.refusal_of(function.handler)
        if refusal is not None:
            logger.warning("function refused", extra={"function": function.name})
            return error_payload(error_type="Runtime.HandlerNotAllowed", message=refusal), True
        started = time.monotonic()
        acting = replace(function, key=self._key_of(function.name))
        result, failed = self.runtime.invoke(acting, payload)
        if failed:
            logger.warning(
                "function failed",
                extra={"function": function.name, "error": _error_line(result)},
            )
        logger.debug(
            "function ran",
            extra={"function": function.name, "duration_s": time.monotonic() - started},
        )
        return result, failed

    def close(self) -> None:
        """End the runtime."""
        self.runtime.close()


def as_function(found: LambdaFunction) -> Function:
    """Return what a runtime needs of moto's function record."""
    return Function(
        name=found.function_name,
        handler=found.handler,
        arn=found.function_arn,
        timeout_s=int(found.timeout),
        memory_mib=int(found.memory_size),
        environment=dict(found.environment_vars),
    )


def _error_line(payload: bytes) -> str:
    try:
        error = json.loads(payload)
    except ValueError:
        return payload[:200].decode(errors="replace")
    if not isinstance(error, dict):
        return str(error)[:200]
    return f"{error.get('errorType')}: {error.get('errorMessage')}"[:500]
