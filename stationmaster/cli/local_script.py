"""Types the commands of `local run` as a person does, waits for their ends, and gives the verdict.

A run ends with its receipt, its cluster gone or kept. A cluster's command ends when the cluster is
ready, or gone. What is kept is deleted when the last command has ended.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from stationmaster.cli.local_watch import Typed, Watch, is_question, take_in
from stationmaster.commands import list_clusters, view_run
from stationmaster.commands.runs import SAME_WORDS_WINDOW
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.run.events import ProgressReported, RunPhase
from stationmaster.domain.run.goodput import goodput
from stationmaster.domain.run.view import RunView
from stationmaster.domain.sizes import size_text
from stationmaster.local.mode import LocalMode
from stationmaster.local.slack.records import TRAINING_CHANNEL_ID
from stationmaster.local.stop_signals import StopSignals
from stationmaster.services import Services
from stationmaster.steps.parts.leftovers import find_left

OK, NO, BAD_INPUT = 0, 1, 2
# After a stop at the time limit, and for what is deleted at the end, a teardown gets this long.
TEARDOWN_GRACE_S: Final = 120.0
# How often a wait looks where no event makes it look.
_LOOK_S: Final = 2.0


class Script:
    """Types commands into a running local mode; one after the other, or all together.

    Args:
        timeout_s: how long one command may take; a run is stopped then.
        same_words_s: for how long the same words are taken for the same command.
        results_dir: the folder into which each run's result is downloaded at the end, if any.
    """

    def __init__(
        self,
        mode: LocalMode,
        watch: Watch,
        signals: StopSignals,
        *,
        timeout_s: float,
        results_dir: Path | None = None,
        same_words_s: float = SAME_WORDS_WINDOW.total_seconds() + 1.5,
    ) -> None:
        assert mode.settings is not None
        self._mode = mode
        self._watch = watch
        self._signals = signals
        self._timeout_s = timeout_s
        self._results_dir = results_dir
        self._same_words_s = same_words_s
        self._services = Services.create(mode.settings)
        self._typed: list[Typed] = []
        self._started = time.monotonic()

    def play(self, texts: Sequence[str], *, together: bool) -> int:
        """Type every command, wait for the ends, delete what is kept; the exit code."""
        for text in texts:
            if self._signals.asked():
                return NO
            typed = self._type(text)
            if not together:
                self._wait(typed)
                if not typed.is_accepted and not typed.is_question:
                    break  # what follows may build on it
        for typed in self._typed if together else ():
            self._wait(typed)
        if self._signals.asked():
            return NO
        self._delete_kept()
        self._settle()
        return NO if self._signals.asked() else self._verdict(len(texts))

    def _type(self, text: str) -> Typed:
        self._pause_before(text)
        typed = self._begun(text)
        typed.is_question = is_question(text)
        self._typed.append(typed)
        self._watch.take_effects()
        # A terminal has no form, which the command alone opens.
        self._mode.slack.type_command(f"/train {text or 'help'}")
        # What is new arrives with the table's stream, which may be behind the bot's answer.
        self._settle()
        for effect in self._watch.take_effects():
            take_in(typed, effect)
        return typed

    def _begun(self, text: str) -> Typed:
        return Typed(text, time.monotonic(), self._services.now())

    def _pause_before(self, text: str) -> None:
        """Pause: the same words a moment later are one command, and two are wanted."""
        before = [each.started for each in self._typed if each.text == text]
        left_s = self._same_words_s - (time.monotonic() - max(before, default=-math.inf))
        if left_s > 0 and not is_question(text):
            self._watch.print_line("pause", f"{left_s:.0f} s, as the same words are typed again")
            self._signals.wait_for(threading.Event(), limit_s=left_s)

    def _wait(self, typed: Typed) -> None:
        """Wait for the end of what a command has caused; stop its runs at the time limit."""
        left_s = self._timeout_s - (time.monotonic() - typed.started)
        if not self._wait_until_over(typed, limit_s=left_s) and not self._signals.asked():
            typed.timed_out = True
            self._watch.print_line("limit", f"{self._timeout_s:g} s are over: {typed.text}")
            for run_id in typed.runs:
                self._mode.slack.type_command(f"/train stop {run_id} now")
            self._wait_until_over(typed, limit_s=TEARDOWN_GRACE_S)
        typed.wall_s = time.monotonic() - typed.started
        self._settle()  # the receipt

    def _wait_until_over(self, typed: Typed, *, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not self._signals.asked():
            self._watch.turned.clear()
            if self._is_over(typed):
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._signals.wait_for(self._watch.turned, limit_s=min(left_s, _LOOK_S))
        return False

    def _is_over(self, typed: Typed) -> bool:
        return (
            all(not self._view(run_id).is_live for run_id in (*typed.runs, *typed.stopped))
            and all(
                each.phase is ClusterPhase.READY or _is_gone(each)
                for each in map(self._cluster, typed.clusters)
            )
            and all(_is_gone(self._cluster(each)) for each in typed.gone)
        )

    def _delete_kept(self) -> None:
        """Delete every kept cluster of the channel, as a person would, and wait for its end."""
        kept = list_clusters(self._services, channel_id=TRAINING_CHANNEL_ID)
        ids = [view.cluster.cluster_id for view in kept]
        for view in kept:
            if not view.cluster.is_going_away:
                self._watch.print_line("delete", f"cluster {view.cluster.label}, which is kept")
                self._mode.slack.type_command(f"/train cluster delete {view.cluster.label} now")
        if ids:
            end = self._begun("the deletion of what is kept")
            end.gone = ids
            self._wait_until_over(end, limit_s=max(self._timeout_s, TEARDOWN_GRACE_S))

    def _verdict(self, num_commands: int) -> int:
        """Write a result for each run and a summary; 0 only if all is well and nothing is left."""
        lefts = {cluster_id: self._left(cluster_id) for cluster_id in self._cluster_ids()}
        results = [
            self._result(run_id, typed, lefts) for typed in self._typed for run_id in typed.runs
        ]
        for result in results:
            self._watch.record.write(result)
            cost = f"{result['cost_usd']:.4f} USD emulated"
            said = f"{result['status']} in {result['wall_s']:.1f} s, {cost}"
            self._print_left(said, result["left"])
        is_complete = self._download()
        left = [each for found in lefts.values() for each in found]
        succeeded = [typed for typed in self._typed if self._has_succeeded(typed)]
        if num_commands > 1:
            self._summarise(num_commands, num_succeeded=len(succeeded), left=left)
        elif not results and self._typed[0].clusters:
            outcome = "ready" if succeeded else "not ready"
            self._print_left(f"{outcome} in {self._typed[0].wall_s:.1f} s", left)
        if not all(typed.is_accepted or typed.is_question for typed in self._typed):
            return BAD_INPUT
        return OK if len(succeeded) == num_commands and not left and is_complete else NO

    def _download(self) -> bool:
        """Bring each run's result into a folder of its own, verified; False where one is damaged.

        A run that has left nothing has nothing to bring.
        """
        if self._results_dir is None:
            return True
        is_complete = True
        for run in [self._view(run_id).run for typed in self._typed for run_id in typed.runs]:
            if run.results is None:
                continue
            folder = self._results_dir / run.run_id
            try:
                found = self._services.artifacts.download(
                    run.run_id, folder, recorded=run.saved_manifest
                )
            except StationmasterError as exc:
                self._watch.print_line("damaged", str(exc))
                is_complete = False
                continue
            size = size_text(found.manifest.num_bytes)
            said = f"{len(found.manifest.files)} files, {size}, verified in {folder}"
            self._watch.print_line("saved", said)
        return is_complete

    def _summarise(self, num_commands: int, *, num_succeeded: int, left: list[str]) -> None:
        costs = [
            cluster.cost_usd(self._services.now())
            for cluster_id in self._cluster_ids()
            if (cluster := self._services.cluster_states.find(cluster_id)) is not None
        ]
        summary = {
            "kind": "summary",
            "commands": num_commands,
            "succeeded": num_succeeded,
            "billable_resources_left": len(left),
            "left": left,
            "cost_usd": sum(costs),
            "wall_s": round(time.monotonic() - self._started, 2),
        }
        self._watch.record.write(summary)
        self._print_left(
            f"{num_succeeded} of {num_commands} commands succeeded, {sum(costs):.4f} USD emulated",
            left,
        )

    def _has_succeeded(self, typed: Typed) -> bool:
        if typed.timed_out or not (typed.is_accepted or typed.is_question):
            return False
        runs = [self._services.runs.load(run_id) for run_id in typed.runs]
        ready = [self._cluster(each).entered(ClusterPhase.READY) for each in typed.clusters]
        return (
            all(run.phase is RunPhase.SUCCEEDED for run in runs)
            # A cluster that was ready before, and went with the checks that this asked for, is not.
            and all(at is not None and at >= typed.at for at in ready)
            and all(self._cluster(each).torn_down_at is not None for each in typed.gone)
        )

    def _result(
        self, run_id: RunId, typed: Typed, lefts: dict[ClusterId, list[str]]
    ) -> dict[str, Any]:
        view = self._view(run_id)
        run = view.run
        left = lefts.get(run.cluster_id, []) if run.cluster_id is not None else []
        results, found = run.results, goodput(view, self._services.now())
        return {
            "kind": "result",
            "status": run.phase.value,
            "reason": run.reason,
            "run_id": run.run_id,
            "cluster_id": run.cluster_id,
            "phases": run.phase_names,
            "attempts": run.attempt_number if run.attempts else 0,
            "steps": run.progress.step if run.progress else 0,
            "first_loss": run.first_loss_nats,
            "last_loss": run.progress.loss_nats if run.progress else None,
            "resumed_from_step": run.resumed_from_step,
            "queued_s": _queued_s(view),
            "time_to_first_step_s": self._time_to_first_step_s(view),
            "cost_usd": view.cost_usd(self._services.now()),
            "goodput": found and round(found.fraction, 4),
            "spent_s": found and {each.value: t.total_seconds() for each, t in found.spent.items()},
            "usd_per_million_tokens": found and found.usd_per_million_tokens,
            "result": results and results.model_dump(include={"uri", "num_files", "num_bytes"}),
            "teardown": view.teardown.value,
            "billable_resources_left": len(left),
            "left": left,
            "wall_s": round(typed.wall_s, 2),
        }

    def _time_to_first_step_s(self, view: RunView) -> float | None:
        """Measure from the request to the first step that was reported."""
        for event in self._services.runs.events(view.run.run_id):
            if isinstance(event, ProgressReported):
                return round((event.at - view.run.requested_at).total_seconds(), 2)
        return None

    def _print_left(self, said: str, left: list[str]) -> None:
        remains = "nothing billable is left" if not left else f"left behind: {', '.join(left)}"
        self._watch.print_line("result", f"{said}, {remains}")

    def _left(self, cluster_id: ClusterId) -> list[str]:
        try:
            return [str(each) for each in find_left(self._services, cluster_id)]
        except StationmasterError as exc:
            return [f"unknown: {exc}"]

    def _cluster_ids(self) -> list[ClusterId]:
        """Return every cluster that a command or a run has come to."""
        runs = [self._services.runs.load(each) for typed in self._typed for each in typed.runs]
        of_runs = [run.cluster_id for run in runs if run.cluster_id is not None]
        made = [each for typed in self._typed for each in (*typed.clusters, *typed.gone)]
        return [*dict.fromkeys([*of_runs, *made])]

    def _view(self, run_id: RunId) -> RunView:
        return view_run(self._services, self._services.runs.load(run_id))

    def _cluster(self, cluster_id: ClusterId) -> Cluster:
        return self._services.cluster_states.load(cluster_id)

    def _settle(self) -> None:
        assert self._mode.aws is not None
        self._mode.aws.settle()


def _is_gone(cluster: Cluster) -> bool:
    return cluster.teardown in (TeardownStatus.COMPLETED, TeardownStatus.FAILED)


def _queued_s(view: RunView) -> float:
    """Return how long the run has stood in a queue, in seconds; until now while it does."""
    total = 0.0
    since: datetime | None = None
    for phase, at in view.run.phases:
        if since is not None:
            total += (at - since).total_seconds()
        since = at if phase is RunPhase.QUEUED else None
    return round(total, 2)
