"""Plays what was drawn in a local mode: an undisturbed run, then faults under several runs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from lambdas import registry
from stationmaster.commands import view_run
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterEvent, ClusterRequested
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.ids import RunId
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.view import RunView
from stationmaster.local.chaos.drawing import CLUSTER, TRAINING, Incident
from stationmaster.local.chaos.hands import Hands, again, set_clock
from stationmaster.local.chaos.invariants import Mark, Seen, broken, broken_at_end
from stationmaster.local.chaos.runtime import DisturbedRuntime
from stationmaster.local.faults import limits_with
from stationmaster.local.mode import LocalMode, LocalOptions
from stationmaster.local.slack.records import TRAINING_CHANNEL_ID
from stationmaster.services import Services
from stationmaster.steps.parts.leftovers import find_left

# As in pod_python/sitecustomize.py.
_FULL_DISK: Final = "STATIONMASTER_LOCAL_FULL_DISK"
# Nobody waits who could type a command again.
_ANSWER_WITHIN_S: Final = 120.0
_LOOK_S: Final = 0.5
_JUDGE_EVERY_S: Final = 2.0
# Ends a hang: a run that has begun late, and its teardown.
_SETTLE_S: Final = 900.0


class Play:
    """What happens in one local mode of its own.

    Args:
        say: takes each line of the timeline: what, and its words.
        asked_to_stop: whether somebody wants to end it.
        options: of the local mode.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        say: Callable[[str, str], None],
        asked_to_stop: Callable[[], bool] = lambda: False,
        **options: Any,
    ) -> None:
        self._say = say
        self._asked_to_stop = asked_to_stop
        self._full_disk = state_dir / "full-disk"
        self._runtime = DisturbedRuntime()
        self._mode = LocalMode(
            LocalOptions(
                state_dir=state_dir,
                port=0,
                runtime=self._runtime,
                limits=limits_with(()),
                answer_within_s=_ANSWER_WITHIN_S,
                pod_environment={_FULL_DISK: str(self._full_disk)},
                **options,
            )
        )
        self._events: list[ev.RunEvent | ClusterEvent] = []
        self._guard = threading.Lock()
        self._losses: dict[int, float | None] = {}
        self._judged_at = 0.0
        self.findings: list[str] = []
        """What did not hold, each once."""
        self.ends: Counter[str] = Counter()
        """How many runs ended in each phase, the undisturbed one among them."""

    def play(self, incidents: Sequence[Incident]) -> None:
        """Let everything happen, and judge throughout and at the end.

        Raises:
            OSError, ValueError: the state directory cannot be used.
            StationmasterError: the undisturbed run did not succeed.
        """
        self._mode.on_event(self._take)
        try:
            with self._mode as mode:
                assert mode.settings is not None
                self._services = Services(mode.settings)
                self._hands = Hands(mode, self._runtime, self._services, full_disk=self._full_disk)
                self._run_undisturbed()
                self._disturb(incidents)
                self._judge_the_end()
        finally:
            set_clock()

    def _run_undisturbed(self) -> None:
        self._say("undisturbed", self._hands.type(TRAINING))
        self._wait(lambda: self._views() and self._are_runs_over(), limit_s=_SETTLE_S)
        phases = [view.run.phase for view in self._views()]
        if phases != [ev.RunPhase.SUCCEEDED] and not self._asked_to_stop():
            raise StationmasterError(f"the undisturbed run did not succeed: {phases}")
        self._losses = {each.step: each.loss_nats for each in self._of(ev.ProgressReported)}

    def _disturb(self, incidents: Sequence[Incident]) -> None:
        self._say("cluster", self._hands.type(f"cluster create {CLUSTER} nodes=2"))
        began = time.monotonic()
        for incident in incidents:
            self._wait(lambda: False, limit_s=began + incident.at_s - time.monotonic())
            if self._asked_to_stop():
                return
            self._say(incident.kind, self._hands.do(incident))

    def _judge_the_end(self) -> None:
        self._hands.take_back(everything=True)
        self._say("rest", "no more faults; every run comes to its end")
        self._wait(self._are_runs_over, limit_s=_SETTLE_S)
        self._say("cluster", self._hands.type(f"cluster delete {CLUSTER} now"))
        self._wait(self._is_still, limit_s=_SETTLE_S)
        if self._asked_to_stop():
            return
        assert self._mode.aws is not None
        self._mode.aws.settle()
        clusters = self._clusters()
        found = [find_left(self._services, each.cluster_id) for each in clusters]
        left = [str(each) for of_cluster in found for each in of_cluster]
        self._note(broken_at_end(self._seen(), clusters, left, self._executions()))
        self.ends = Counter(view.run.phase.value for view in self._views())

    def _take(self, event: ev.RunEvent | ClusterEvent) -> None:
        """Called by the stream, once for each event."""
        with self._guard:
            self._events.append(event)
        match event:
            case ev.PhaseChanged():
                self._say(f"  {event.run_id}", f"{event.phase.value} {event.reason}".strip())
            case ev.AttemptStarted(after=why) if why:
                self._say(f"  {event.run_id}", f"another attempt after {why}")
            case _:
                pass

    def _of(self, *kinds: type) -> list[Any]:
        with self._guard:
            return [event for event in self._events if isinstance(event, kinds)]

    def _wait(self, condition: Callable[[], object], *, limit_s: float) -> None:
        """Wait; take back what is over, and judge, meanwhile. What is not over then stays so."""
        deadline = time.monotonic() + limit_s
        while not condition() and not self._asked_to_stop() and time.monotonic() < deadline:
            self._hands.take_back()
            if time.monotonic() >= self._judged_at + _JUDGE_EVERY_S:
                self._note(broken(self._seen()))
                self._judged_at = time.monotonic()
            time.sleep(max(0.0, min(_LOOK_S, deadline - time.monotonic())))

    def _note(self, findings: Iterable[str]) -> None:
        for finding in findings:
            if finding not in self.findings:
                self.findings.append(finding)
                self._say("BROKEN", finding)

    def _seen(self) -> Seen:
        return Seen(
            now=self._services.now(),
            runs=self._views(),
            events=self._of(ev.ProgressReported, ev.TrainingRecovered),
            marks=self._marks(),
            losses=self._losses,
            pods=self._hands.training_pods(),
        )

    def _views(self) -> list[RunView]:
        ids = sorted(event.run_id for event in self._of(ev.RunRequested))
        return [again(partial(self._view, run_id)) for run_id in ids]

    def _view(self, run_id: RunId) -> RunView:
        return view_run(self._services, self._services.runs.load(run_id))

    def _clusters(self) -> list[Cluster]:
        ids = {each.cluster_id for each in self._of(ClusterRequested)}
        return [self._services.cluster_states.load(each) for each in sorted(ids)]

    def _are_runs_over(self) -> bool:
        return all(not view.is_live for view in self._views())

    def _is_still(self) -> bool:
        torn_down = all(each.torn_down_at is not None for each in self._clusters())
        return torn_down and not self._runtime.num_late and not self._executions()

    def _executions(self) -> list[str]:
        """Name the workflows that run."""
        assert self._mode.aws is not None
        aws, found = self._mode.aws, []
        for machine in registry.MACHINES:
            asked = {"stateMachineArn": aws.state_machine_arn(machine), "statusFilter": "RUNNING"}
            answer = aws.client("stepfunctions").list_executions(**asked)
            found += [f"{machine} {execution['name']}" for execution in answer["executions"]]
        return found

    def _marks(self) -> list[Mark]:
        """List what each message of the channel and its threads is about, each message once."""
        slack, channel = self._mode.slack, TRAINING_CHANNEL_ID
        shown = [each for top in slack.messages(channel) for each in slack.thread(channel, top.ts)]
        marks = []
        for message in {each.ts: each for each in shown}.values():
            marked = (message.metadata or {}).get("event_payload") or {}
            keys = str(marked.get("keys", "")).split()
            marks += [Mark(str(marked.get("about")), key, message.text) for key in keys]
        return marks
