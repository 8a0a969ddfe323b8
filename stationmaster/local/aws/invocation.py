"""Finds a Lambda function by name or ARN and runs it, for whoever asks.

It runs only handlers that the endpoint was made with; it knows moto's function store and a
`LambdaRuntime`, not the handlers.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from moto.awslambda.models import LambdaFunction, lambda_backends

from stationmaster.local.aws.access import AccessKey
from stationmaster.local.aws.runtime import Function, LambdaRuntime, error_payload

logger = logging.getLogger(__name__)

# Lambda retries an asynchronous invocation twice.
# Source: AWS Lambda developer guide, "How Lambda handles errors and retries with asynchronous
# invocation".
_ASYNC_ATTEMPTS = 3
# In real time; AWS waits one minute and then two.
_ASYNC_RETRY_S = (0.2, 0.4)


class UnknownFunctionError(Exception):
    """No function has the given name or ARN."""

    def __init__(self, *, name: str, account_id: str, region: str) -> None:
        arn = (
            name
            if name.startswith("arn:")
            else f"arn:aws:lambda:{region}:{account_id}:function:{name}"
        )
        super().__init__(f"Function not found: {arn}")


class Invoker:
    """Runs functions synchronously, or asynchronously on a pool."""

    def __init__(
        self,
        *,
        runtime: LambdaRuntime,
        handlers: frozenset[str],
        account_id: str,
        region: str,
        key_of: Callable[[str], AccessKey | None] = lambda _function: None,
        discard: Callable[[Function, bytes, bytes, int], None] = lambda *_: None,
    ) -> None:
        """`key_of` has the key with which a function of a name calls AWS, None for the owner's.

        `discard` gets what was invoked asynchronously in vain, with the last answer.
        """
        self.runtime = runtime
        self._discard = discard
        self._handlers = handlers
        self._account_id = account_id
        self._region = region
        self._key_of = key_of
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="lambda-async")
        self._pending = 0
        self._guard = threading.Lock()
        self._turns: dict[str, threading.Semaphore] = {}

    def find(self, name_or_arn: str) -> Function:
        """Return the function.

        Raises:
            UnknownFunctionError: there is none.
        """
        name = name_or_arn.rsplit(":function:", maxsplit=1)[-1].split(":", maxsplit=1)[0]
        storage = lambda_backends[self._account_id][self._region]._lambdas
        found = storage._get_latest(name) if name in storage._functions else None
        if found is None:
            raise UnknownFunctionError(
                name=name_or_arn, account_id=self._account_id, region=self._region
            )
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
        """Run a function that was found before, once its reserved concurrency allows it."""
        refusal = self.refusal_of(function.handler)
        if refusal is not None:
            logger.warning("function refused", extra={"function": function.name})
            return error_payload(error_type="Runtime.HandlerNotAllowed", message=refusal), True
        with self._turn(function):
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

    def _turn(self, function: Function) -> AbstractContextManager[object]:
        """Lambda throttles what exceeds the concurrency, and its callers retry; here they wait."""
        if function.reserved_concurrency is None:
            return nullcontext()
        with self._guard:
            return self._turns.setdefault(
                function.arn, threading.Semaphore(function.reserved_concurrency)
            )

    def invoke_later(self, function: Function, payload: bytes) -> None:
        """Run the function on the pool, with the retries of an asynchronous invocation."""
        with self._guard:
            self._pending += 1
        self._pool.submit(self._run_with_retries, function, payload)

    @property
    def idle(self) -> bool:
        """Whether no asynchronous invocation is pending."""
        with self._guard:
            return self._pending == 0

    def close(self) -> None:
        """End the pool without waiting for running handlers, then the runtime."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.runtime.close()

    def _run_with_retries(self, function: Function, payload: bytes) -> None:
        try:
            for attempt in range(1, _ASYNC_ATTEMPTS + 1):
                result, failed = self.run(function, payload)
                if not failed:
                    return
                if attempt < _ASYNC_ATTEMPTS:
                    time.sleep(_ASYNC_RETRY_S[attempt - 1])
            logger.error(
                "asynchronous invocation dropped after its retries",
                extra={"function": function.name, "error": _error_line(result)},
            )
            self._discard(function, payload, result, _ASYNC_ATTEMPTS)
        finally:
            with self._guard:
                self._pending -= 1


def as_function(found: LambdaFunction) -> Function:
    """Return what a runtime needs of moto's function record."""
    return Function(
        name=found.function_name,
        handler=found.handler,
        arn=found.function_arn,
        timeout_s=int(found.timeout),
        memory_mib=int(found.memory_size),
        environment=dict(found.environment_vars),
        reserved_concurrency=int(found.reserved_concurrency)
        if found.reserved_concurrency
        else None,
    )


def _error_line(payload: bytes) -> str:
    try:
        error = json.loads(payload)
    except ValueError:
        return payload[:200].decode(errors="replace")
    if not isinstance(error, dict):
        return str(error)[:200]
    return f"{error.get('errorType')}: {error.get('errorMessage')}"[:500]
