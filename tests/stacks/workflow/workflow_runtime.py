"""A Lambda runtime that breaks, repeats or holds chosen calls of chosen runs.

Everything else is the shipped handlers in this process. Used by workflow_world; it knows a run only
by its id standing somewhere in a payload.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.exceptions import ClientError

from lambdas.registry import REAPER
from local.aws import Function, InProcessRuntime
from local.aws.runtime import error_payload

FOR_GOOD = 1_000_000
# Ends a hang; no machine is so slow.
HELD_S = 1800.0


@dataclass
class Fault:
    """Calls of one function that end in an error.

    `only` must be part of the payload and `without` must not be a key of it; `lost` lets the
    handler do its work and loses its answer.
    """

    function: str
    error: str = "PermanentError"
    message: str = "broken by the test"
    times: int = FOR_GOOD
    only: Mapping[str, Any] = field(default_factory=dict)
    without: str = ""
    lost: bool = False

    def matches(self, function: str, payload: Mapping[str, Any]) -> bool:
        """Whether a call is one of those that fail."""
        return (
            self.times > 0
            and function == self.function
            and all(payload.get(key) == value for key, value in self.only.items())
            and self.without not in payload
        )

    def answer(self) -> tuple[bytes, bool]:
        """What Lambda answers for it."""
        return error_payload(error_type=self.error, message=self.message), True


@dataclass
class ApiFault:
    """Calls of one AWS operation, made by a run's functions, that AWS refuses."""

    service: str
    operation: str
    code: str
    times: int = FOR_GOOD


@dataclass
class Hold:
    """The first call of a function, or of an AWS operation by one, waits here until it is let go.

    An operation is written `service.Operation`; it waits before it is sent, so the function has
    decided and recorded already. `having` must be a key of a function's payload, `without` must not
    be one, and `only` is part of it.
    """

    function: str
    having: str = ""
    without: str = ""
    only: Mapping[str, Any] = field(default_factory=dict)
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def matches(self, function: str, payload: Mapping[str, Any]) -> bool:
        """Whether a call is the one that waits here."""
        return (
            function == self.function
            and not self.reached.is_set()
            and (not self.having or self.having in payload)
            and self.without not in payload
            and all(payload.get(key) == value for key, value in self.only.items())
        )

    def wait(self) -> None:
        """Called by the runtime, on the function's thread."""
        self.reached.set()
        assert self.released.wait(HELD_S), f"nobody let {self.function} go"


class InterferingRuntime(InProcessRuntime):
    """The shipped handlers, with faults, holds and repetitions by run."""

    def __init__(self) -> None:
        super().__init__()
        self._faults: dict[str, list[Fault]] = {}
        self._holds: dict[str, list[Hold]] = {}
        self._doubled: set[str] = set()
        self._api_faults: dict[str, list[ApiFault]] = {}
        self._served = threading.local()
        self._rules = threading.Lock()
        self.reaper_rests = True  # so that how a run ends by itself can be seen without its help
        self.api_calls: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.told_dead: set[str] = set()  # executions whose bad end the recorder has dealt with

    def configure(self, environment: Mapping[str, str]) -> None:
        """Watch the calls of handlers, whose clients are of the default session.

        Handlers run on our threads, so the session's events say which run a call is for, whatever
        stands in the request.
        """
        super().configure(environment)
        session = boto3.DEFAULT_SESSION
        assert session is not None
        session.events.register("before-call", self._before_call)

    def break_run(self, run_id: str, *faults: Fault | ApiFault) -> None:
        """Make calls of the run fail from now on."""
        with self._rules:
            for fault in faults:
                if isinstance(fault, ApiFault):
                    self._api_faults.setdefault(run_id, []).append(fault)
                else:
                    self._faults.setdefault(run_id, []).append(fault)

    def mend_run(self, run_id: str) -> None:
        """Let every call of the run work again."""
        with self._rules:
            self._faults.pop(run_id, None)
            self._api_faults.pop(run_id, None)

    def hold(self, run_id: str, function: str, **payload: Any) -> Hold:
        """Stop the run's next call of the function or operation until the hold is released.

        A cluster's are stopped by its id. `payload` says which calls, as `Hold` has it.
        """
        hold = Hold(function, **payload)
        with self._rules:
            self._holds.setdefault(run_id, []).append(hold)
        return hold

    def double(self, run_id: str) -> None:
        """Call every handler of the run twice with the same payload."""
        with self._rules:
            self._doubled.add(run_id)

    def invoke(self, function: Function, payload: bytes) -> tuple[bytes, bool]:
        """Call the handler, unless a rule of the run says otherwise."""
        if function.name == REAPER.name and self.reaper_rests:
            return b"[]", False
        hold, fault, doubled = self._rules_for(function.name, payload)
        if hold is not None:
            hold.wait()
        if fault is not None and not fault.lost:
            return fault.answer()
        self._served.run_id = _served_run(payload)
        try:
            if doubled:
                super().invoke(function, payload)
            answer = super().invoke(function, payload)
        finally:
            self._served.run_id = None
            self._note_dead(payload)
        return answer if fault is None else fault.answer()

    def _before_call(self, model: Any, **_: Any) -> None:
        """Refuse a call that a rule names; called by botocore before it sends anything."""
        run_id = getattr(self._served, "run_id", None)
        if run_id is None:
            return
        service, operation = model.service_model.service_name, model.name
        hold = self._hold_for(run_id, f"{service}.{operation}")
        if hold is not None:
            hold.wait()
        with self._rules:
            self.api_calls[run_id].add((service, operation))
            for fault in self._api_faults.get(run_id, []):
                if (fault.service, fault.operation) == (service, operation) and fault.times > 0:
                    fault.times -= 1
                    error = {"Code": fault.code, "Message": "refused by the test"}
                    raise ClientError({"Error": error}, operation)

    def _hold_for(self, run_id: str, call: str) -> Hold | None:
        with self._rules:
            waiting = (
                hold
                for hold in self._holds.get(run_id, [])
                if hold.function == call and not hold.reached.is_set()
            )
            hold = next(waiting, None)
            if hold is not None:
                hold.reached.set()
            return hold

    def _note_dead(self, payload: bytes) -> None:
        parsed = json.loads(payload or b"{}")
        if isinstance(parsed, dict) and parsed.get("source") == "aws.states":
            with self._rules:
                self.told_dead.add(parsed["detail"]["executionArn"])

    def _rules_for(self, name: str, payload: bytes) -> tuple[Hold | None, Fault | None, bool]:
        text = payload.decode()
        parsed = json.loads(text or "{}")
        with self._rules:
            runs = [run for run in (*self._faults, *self._holds, *self._doubled) if run in text]
            holds = [
                hold
                for run in dict.fromkeys(runs)
                for hold in self._holds.get(run, [])
                if hold.matches(name, parsed)
            ]
            faults = [
                fault
                for run in dict.fromkeys(runs)
                for fault in self._faults.get(run, [])
                if fault.matches(name, parsed)
            ]
            if holds:
                holds[0].reached.set()
            if faults:
                faults[0].times -= 1
            doubled = any(run in self._doubled for run in runs)
        return (holds or [None])[0], (faults or [None])[0], doubled


def _served_run(payload: bytes) -> str | None:
    """The run that a step, the recorder or the teardown's starter is called for."""
    parsed = json.loads(payload or b"{}")
    if not isinstance(parsed, dict):
        return None
    detail = parsed.get("detail") or {}
    ids = (parsed.get("run_id"), parsed.get("cluster_id"))
    ids += (detail.get("run_id"), detail.get("cluster_id"), detail.get("name"))
    found = next((each for each in ids if each), None)  # a run's own cluster has the run's id
    return None if found is None else str(found).partition("-teardown-")[0]
