"""A Lambda runtime that breaks, repeats or holds chosen calls of chosen runs.

Everything else is the shipped handlers in this process. Used by `tests.chaos.world`; it knows a
run only by its id standing somewhere in a payload.
"""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import boto3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ClientError
from kubernetes.client import ApiClient

from lambdas.registry import NOTIFIER, REAPER
from stationmaster.local.aws import Function, InProcessRuntime
from tests.chaos.rules import ApiFault, Fault, Hold, Way

# Of a path: the group and version, the namespace of what is in one, and the kind.
_KIND: Final = re.compile(r"/(?:api/v1|apis/[^/]+/[^/]+)/(?:namespaces/[^/?]+/)?([^/?]+)")
_SERVER_ERROR: Final = 500


class InterferingRuntime(InProcessRuntime):
    """The shipped handlers, with faults, holds and repetitions by run."""

    def __init__(self) -> None:
        super().__init__()
        self._of_run: dict[str, list[Fault | ApiFault | Hold]] = {}
        self._doubled: set[str] = set()
        self._served = threading.local()
        self._rules = threading.Lock()
        self._call_api = ApiClient.call_api
        self.send: Callable[..., AWSResponse] | None = None
        """How a signed request is sent a second time."""
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
        session.events.register_first("before-send", self._before_send)
        session.events.register("after-call", self._after_call)
        call_api = self._call_api

        def watched(client: ApiClient, method: str, url: str, *rest: Any, **more: Any) -> Any:
            return self._call_kubernetes(
                lambda: call_api(client, method, url, *rest, **more), f"{method} {kind_of(url)}"
            )

        ApiClient.call_api = watched

    def close(self) -> None:
        """Let Kubernetes' client be as it was."""
        ApiClient.call_api = self._call_api
        super().close()

    def break_run(self, run_id: str, *faults: Fault | ApiFault) -> None:
        """Make calls of the run fail from now on."""
        if faults:  # a run without rules is not watched
            with self._rules:
                self._of_run.setdefault(run_id, []).extend(faults)

    def mend_run(self, run_id: str) -> None:
        """Let every call of the run work again."""
        self._keep(run_id, Hold)

    def hold(self, run_id: str, function: str, **payload: Any) -> Hold:
        """Stop the run's next call of the function until the hold is released.

        A cluster's are stopped by its id. `payload` says which calls, as `Hold` has it.
        """
        hold = Hold(function, **payload)
        with self._rules:
            self._of_run.setdefault(run_id, []).append(hold)
        return hold

    def let_go(self, run_id: str) -> None:
        """Release all that waits of the run, and hold nothing more."""
        for rule in self._keep(run_id, Fault, ApiFault):
            if isinstance(rule, Hold):
                rule.is_taken = True
                rule.released.set()

    def _keep(self, run_id: str, *kinds: type) -> list[Any]:
        """Keep the rules of a run that are of these kinds; all that there were."""
        with self._rules:
            rules = self._of_run.pop(run_id, [])
            if kept := [rule for rule in rules if isinstance(rule, kinds)]:
                self._of_run[run_id] = kept
        return rules

    def rest(self) -> None:
        """Interfere with nothing any more, and let go whatever waits."""
        self._doubled.clear()
        for owner in list(self._of_run):
            self.let_go(owner)
            self.mend_run(owner)

    def double(self, run_id: str) -> None:
        """Call every handler of the run twice with the same payload."""
        with self._rules:
            self._doubled.add(run_id)

    def invoke(self, function: Function, payload: bytes) -> tuple[bytes, bool]:
        """Call the handler, unless a rule of the run says otherwise."""
        if function.name == REAPER.name:  # so that how a run ends by itself can be seen
            return b"[]", False
        if function.name == NOTIFIER.name:  # a third of a run's CPU, and nobody reads the channel
            return b"{}", False
        with self._rules:
            is_watched = any(run in payload.decode() for run in (*self._of_run, *self._doubled))
        hold, fault, doubled = self._rules_for(function.name, payload)
        if hold is not None and not hold.after:
            hold.wait()
        if fault is not None and not fault.lost:
            return fault.answer()
        self._served.run_id = _served_run(payload)
        try:
            if doubled:
                super().invoke(function, payload)
            answer = super().invoke(function, payload)
            if function.name == "prepare-run" and is_watched:
                answer = _with_every_state(answer)
        finally:
            self._served.run_id = None
            self._note_dead(payload)
        if hold is not None and hold.after:
            hold.wait()
        return answer if fault is None else fault.answer()

    def _before_call(self, model: Any, **_: Any) -> None:
        """Called by botocore before it sends anything."""
        service, operation = model.service_model.service_name, model.name
        self._served.is_resent = False
        fault = self._meets(service, operation, Way.REFUSED, Way.RESENT)
        if fault is not None and fault.way is Way.REFUSED:
            raise _refusal(fault)
        self._served.is_resent = fault is not None

    def _before_send(self, request: AWSPreparedRequest, **_: Any) -> None:
        """A request whose answer is lost is sent here, and after that by the client itself."""
        if getattr(self._served, "is_resent", False):
            self._served.is_resent = False
            assert self.send is not None
            self.send(request)

    def _after_call(self, model: Any, **_: Any) -> None:
        """Called by botocore with the answer."""
        run_id = getattr(self._served, "run_id", None)
        if run_id is None:
            return
        service, operation = model.service_model.service_name, model.name
        fault = self._fault_for(run_id, service, operation, Way.ANSWERED_BADLY)
        if fault is not None:
            raise _refusal(fault)

    def _call_kubernetes(self, call: Callable[[], Any], operation: str) -> Any:
        fault = self._meets("kubernetes", operation, *Way)
        if fault is not None and fault.way is Way.REFUSED:
            return _BadAnswer(int(fault.code))
        answer = call()
        if fault is None:
            return answer
        answer.read()
        return call() if fault.way is Way.RESENT else _BadAnswer(int(fault.code))

    def _meets(self, service: str, operation: str, *ways: Way) -> ApiFault | None:
        """What a rule of the run that is served does to this call."""
        run_id = getattr(self._served, "run_id", None)
        if run_id is None:
            return None
        with self._rules:
            self.api_calls[run_id].add((service, operation))
        return self._fault_for(run_id, service, operation, *ways)

    def _fault_for(self, run_id: str, service: str, operation: str, *ways: Way) -> ApiFault | None:
        with self._rules:
            rules = [each for each in self._of_run.get(run_id, ()) if isinstance(each, ApiFault)]
            return next((each for each in rules if each.takes(service, operation, *ways)), None)

    def _note_dead(self, payload: bytes) -> None:
        parsed = json.loads(payload or b"{}")
        if isinstance(parsed, dict) and parsed.get("source") == "aws.states":
            with self._rules:
                self.told_dead.add(parsed["detail"]["executionArn"])

    def _rules_for(self, name: str, payload: bytes) -> tuple[Hold | None, Fault | None, bool]:
        """The first hold and the first fault for a call, of the runs whose ids it names."""
        text = payload.decode()
        parsed = json.loads(text or "{}")
        with self._rules:
            rules = [rule for run, of_run in self._of_run.items() if run in text for rule in of_run]
            met = [r for r in rules if not isinstance(r, ApiFault) and r.matches(name, parsed)]
            hold = next((each for each in met if isinstance(each, Hold)), None)
            fault = next((each for each in met if isinstance(each, Fault)), None)
            if hold is not None:
                hold.is_taken = True
            if fault is not None:
                fault.times -= 1
            return hold, fault, any(run in text for run in self._doubled)


class _BadAnswer:
    """An answer of Kubernetes that is an error."""

    def __init__(self, status: int) -> None:
        self.status = status

    def read(self) -> bytes:
        return json.dumps({"kind": "Status", "message": "refused by the test"}).encode()


def _with_every_state(answer: tuple[bytes, bool]) -> tuple[bytes, bool]:
    """A run that something is done to goes through the states that a plain one is spared."""
    said, failed = answer
    known = json.loads(said)
    spared = ("brings_data", "pushes_model", "leaves_cluster")
    return json.dumps({key: known[key] for key in known if key not in spared}).encode(), failed


def kind_of(url: str) -> str:
    """Which kind of object a request to Kubernetes is about."""
    found = _KIND.search(url)
    return found.group(1) if found else url.rpartition("/")[2]


def _refusal(fault: ApiFault) -> ClientError:
    status = _SERVER_ERROR if fault.way is Way.ANSWERED_BADLY else 400
    return ClientError(
        {
            "Error": {"Code": fault.code, "Message": "refused by the test"},
            "ResponseMetadata": {"HTTPStatusCode": status},  # type: ignore[typeddict-item]
        },
        fault.operation,
    )


def _served_run(payload: bytes) -> str | None:
    """The run that a step, the recorder or the teardown's starter is called for."""
    parsed = json.loads(payload or b"{}")
    if not isinstance(parsed, dict):
        return None
    detail = parsed.get("detail") or {}
    ids = [parsed.get("run_id"), parsed.get("cluster_id")]
    ids += [detail.get("run_id"), detail.get("cluster_id"), detail.get("name")]
    found = next((each for each in ids if each), None)  # a run's own cluster has the run's id
    return None if found is None else str(found).partition("-teardown-")[0]
