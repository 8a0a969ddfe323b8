"""Runs Lambda functions: the runtime protocol, the one of this process, and who finds functions.

`Invoker` serves API invocations, Step Functions tasks, rules, streams and schedules; it must not
know which of those asked. It runs only handlers that the endpoint was made with.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Protocol

import boto3
from botocore.credentials import Credentials, ReadOnlyCredentials
from moto.awslambda.models import LambdaFunction, lambda_backends

from stationmaster.local.aws.access import AccessKey

logger = logging.getLogger(__name__)

# A profile of the person's own account would take the place of the emulated credentials.
OVERRIDES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")


@dataclass(frozen=True)
class Function:
    """What a runtime must know of a Lambda function."""

    name: str
    handler: str
    arn: str = ""
    timeout_s: int = 3
    environment: Mapping[str, str] = field(default_factory=dict)
    # Of its role; None: it calls AWS with the owner's.
    key: AccessKey | None = None


class LambdaRuntime(Protocol):
    """Executes one invocation at a time per calling thread; many threads may call."""

    def configure(self, environment: Mapping[str, str]) -> None:
        """Give every function these variables, beside its own; called when the endpoint starts."""

    def invoke(self, function: Function, payload: bytes) -> tuple[bytes, bool]:
        """Return the response payload and whether the function failed."""

    def close(self) -> None:
        """Release what the runtime holds."""


def error_payload(*, error_type: str, message: str, stack: list[str] | None = None) -> bytes:
    """Return the payload that Lambda answers with when a function fails."""
    return json.dumps(
        {"errorMessage": message, "errorType": error_type, "stackTrace": stack or []}
    ).encode()


class _CallersKey(Credentials):
    """The key of the function that runs on the thread, the owner's on every other thread."""

    acting = threading.local()

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return what a request of this thread is signed with."""
        key: AccessKey | None = getattr(self.acting, "key", None)
        if key is None:
            return ReadOnlyCredentials(self.access_key, self.secret_key, self.token)
        return ReadOnlyCredentials(key.key_id, key.secret, "local")


class InProcessRuntime:
    """Imports each handler once and calls it on the caller's thread.

    AWS is called with the function's key there; a thread that a handler starts has the owner's.

    Fast and easy to debug. os.environ is one for the process, so a function's variables are merged
    into it; of two functions that want different values for one name the second fails. Timeouts
    are not enforced: a thread cannot be ended from outside.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[Any, Any], Any]] = {}
        self._guard = threading.Lock()
        self._set_by: dict[str, str] = {}
        self._before: dict[str, str | None] = {}
        self._is_closed = False

    def configure(self, environment: Mapping[str, str]) -> None:
        """Set variables of this process until `close`, and unset what would override them."""
        with self._guard:
            self._is_closed = False
            for name in OVERRIDES:
                self._before.setdefault(name, os.environ.pop(name, None))
            for name, value in environment.items():
                self._before.setdefault(name, os.environ.get(name))
                os.environ[name] = value
        # boto3's session of this process keeps the credentials that it has found first.
        boto3.setup_default_session()
        if "AWS_ACCESS_KEY_ID" in environment:
            _give(
                _CallersKey(
                    environment["AWS_ACCESS_KEY_ID"],
                    environment["AWS_SECRET_ACCESS_KEY"],
                    environment.get("AWS_SESSION_TOKEN"),
                )
            )

    def invoke(self, function: Function, payload: bytes) -> tuple[bytes, bool]:
        """Call the handler; a raised exception becomes Lambda's error payload."""
        try:
            handler = self._handler(function)
            before = getattr(_CallersKey.acting, "key", None)
            _CallersKey.acting.key = function.key
            try:
                result = handler(json.loads(payload or b"{}"), _context(function))
            finally:
                _CallersKey.acting.key = before
            return json.dumps(result).encode(), False
        except Exception as exc:
            # This is Lambda's own boundary: any exception of a handler becomes its error response.
            stack = traceback.format_tb(exc.__traceback__)
            name = type(exc).__name__
            return error_payload(error_type=name, message=str(exc), stack=stack), True

    def close(self) -> None:
        """Restore the environment variables that this runtime had set; no call sets them again."""
        with self._guard:
            self._is_closed = True
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            self._before.clear()
            self._set_by.clear()
            self._handlers.clear()
        boto3.setup_default_session()

    def _handler(self, function: Function) -> Callable[[Any, Any], Any]:
        with self._guard:
            if self._is_closed:  # an invocation that nobody waited for
                raise RuntimeError(
                    f'function "{function.name}": the local AWS endpoint has stopped'
                )
            found = self._handlers.get(function.name)
            if found is not None:
                return found
            self._apply_environment(function)
            module_name, _, attribute = function.handler.rpartition(".")
            if not module_name:
                raise ImportError(
                    f'function "{function.name}": handler "{function.handler}" has no module; '
                    "expected module.attribute"
                )
            handler: Callable[[Any, Any], Any] = getattr(
                importlib.import_module(module_name), attribute
            )
            self._handlers[function.name] = handler
            return handler

    def _apply_environment(self, function: Function) -> None:
        for name, value in function.environment.items():
            owner = self._set_by.get(name)
            if owner is not None and os.environ.get(name) != value:
                raise RuntimeError(
                    f'function "{function.name}" sets {name}={value!r} but "{owner}" set '
                    f"{os.environ.get(name)!r}; the functions of this process share one environment"
                )
            self._before.setdefault(name, os.environ.get(name))
            self._set_by[name] = function.name
            os.environ[name] = value


def _context(function: Function) -> SimpleNamespace:
    """Return what handlers ask of the context that Lambda gives them."""
    return SimpleNamespace(function_name=function.name, invoked_function_arn=function.arn)


def _give(credentials: Credentials) -> None:
    """Let boto3's session of this process use these, whatever else it could find."""
    session: Any = boto3.DEFAULT_SESSION
    provider = SimpleNamespace(METHOD="endpoint", CANONICAL_NAME=None, load=lambda: credentials)
    session._session.get_component("credential_provider").providers.insert(0, provider)


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
