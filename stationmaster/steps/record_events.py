"""What the recorder does: records what the relay and AWS report, and carries out what follows."""

from __future__ import annotations

import logging
from typing import Final

from stationmaster.aws.workflows import train_name
from stationmaster.domain.bus import RelayBatch
from stationmaster.domain.errors import (
    IllegalTransition,
    NotStorable,
    PermanentError,
    TransientError,
)
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import CapacityLost, RelayHeard
from stationmaster.domain.reactions.workflow import Do, EndWait, WorkflowFailed, sentence_of
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import CheckpointSaved, RunEvent, RunPhase
from stationmaster.jobs.push import give_up_push
from stationmaster.log_keys import learn
from stationmaster.saving_reactions import settle_saving
from stationmaster.services import Services
from stationmaster.steps.conclude_cluster import fail_cluster
from stationmaster.steps.conclude_teardown import fail_teardown
from stationmaster.steps.parts.backups import back_up
from stationmaster.steps.parts.budgets import look_at_budget, stop_where_decided
from stationmaster.steps.parts.next_attempt import begin_attempt
from stationmaster.steps.parts.records import change_phases
from stationmaster.steps.parts.rescaling import look_at_size
from stationmaster.steps.parts.silence import find_lost_capacity
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.release_run import cluster_to_leave
from stationmaster.waiting import settle_wait

# What one event may raise, and a further delivery of it as well: the others of its batch are
# recorded without it, because one of them may be the end of the job.
_OF_ONE_EVENT: Final = (
    IllegalTransition, NotStorable, ArithmeticError, LookupError, TypeError, ValueError,
)  # fmt: skip

logger = logging.getLogger(__name__)


def record_batch(services: Services, batch: RelayBatch) -> list[tuple[RunEvent, str]]:
    """Record a relay's batch once, keep its log lines, and carry out what follows from it.

    A batch that is delivered again records nothing, and what follows is carried out again: the
    delivery before may have ended between the two.

    Returns:
        The events that can never be recorded, each with the reason.

    Raises:
        RunNotFound: a batch of a run that was never requested.
        Unreadable: the run cannot be read.
    """
    run, refused = _record(services, batch)
    if batch.heartbeat or any(isinstance(event, CheckpointSaved) for event in batch.events):
        run = look_at_size(services, run)
    services.runs.save_log_tails(batch.run_id, batch.log_tails)
    heard = RelayHeard(services.now(), heartbeat=batch.heartbeat)
    unusable = {event.event_id for event, _ in refused}
    events = [event for event in batch.events if event.event_id not in unusable]
    reactions = [each for seen in (*events, heard) for each in decide(run, seen, POLICY)]
    if Do.ASK_CAPACITY in reactions and not any(isinstance(each, EndWait) for each in reactions):
        lost = _lost_capacity(services, run)
        reactions += decide(run, CapacityLost(lost), POLICY) if lost is not None else ()
    settle_wait(services, run.run_id, reactions)
    if batch.heartbeat:
        look_at_budget(services, run)
    stop_where_decided(services, run, reactions)
    begin_attempt(services, run, reactions)
    back_up(services, run, reactions)  # last: it may take as long as the cluster needs to answer
    return refused


def _record(services: Services, batch: RelayBatch) -> tuple[Run, list[tuple[RunEvent, str]]]:
    """Record all events at once, or one after another where one of them can never be recorded."""
    try:
        return services.runs.record(batch.run_id, batch.events), []
    except _OF_ONE_EVENT:
        refused: list[tuple[RunEvent, str]] = []
    for event in batch.events:
        try:
            services.runs.record(batch.run_id, [event])
        except _OF_ONE_EVENT as exc:
            refused.append((event, str(exc)))
    return services.runs.load(batch.run_id), refused


def _lost_capacity(services: Services, run: Run) -> str | None:
    """Say what a run that does not train will never get back."""
    try:
        return find_lost_capacity(services, run)
    except (TransientError, PermanentError) as exc:
        # The next heartbeat asks again, and the wait for a recovery has its own end.
        logger.warning("capacity not looked at", extra={"run_id": run.run_id, "error": str(exc)})
        return None


def record_dead_execution(
    services: Services, *, state_machine_arn: str, execution_name: str, status: str, cause: str
) -> None:
    """Record that an execution ended badly: what it was to bring about has failed.

    An execution that was stopped from outside, or ran out of time, has not concluded anything.
    Executions that the product has not started, and those of other state machines, are left alone.
    """
    sentence, settings = _death(status, cause), services.settings
    if state_machine_arn == settings.train_state_machine_arn:
        _train_crashed(services, execution_name, sentence)
    elif state_machine_arn == settings.cluster_state_machine_arn:
        _cluster_crashed(services, execution_name, sentence)
    elif state_machine_arn == settings.teardown_state_machine_arn:
        cluster_id = ClusterId(execution_name.rpartition("-teardown-")[0])
        learn(cluster_id=cluster_id)
        _teardown_crashed(services, cluster_id, sentence)


def _train_crashed(services: Services, execution_name: str, sentence: str) -> None:
    """Record a crash of the newest execution of a run's workflow; others were replaced.

    Whoever recorded that may have crashed before the newest one was started.
    """
    run = services.runs.find(RunId(execution_name)) or services.runs.find(
        RunId(execution_name.rpartition("-")[0])
    )
    if run is None:
        return
    learn(run_id=run.run_id)
    if train_name(run.run_id, run.passes) != execution_name:
        services.workflows.start_train(run.run_id, run.passes)
        return
    if run.phase is RunPhase.SAVING:
        run = give_up_push(services, run)
    reactions = decide(run, WorkflowFailed(sentence), POLICY)
    run = change_phases(services, run, reactions)
    run = settle_saving(services, run, reactions)
    if cluster_to_leave(services, run) is None:
        release_lease(services, run.run_id)
    elif run.phase.is_terminal:
        # What it has in a cluster that stays goes first, which takes its time: another execution
        # does both. Should that one die as well, the reaper does.
        services.workflows.start_train(run.run_id, run.passes + 1)


def _cluster_crashed(services: Services, name: str, sentence: str) -> None:
    """Record a crash; `name` is the cluster's id, later with the execution's number."""
    cluster, number = services.cluster_states.find(ClusterId(name)), 1
    if cluster is None:
        cluster_id, _, word = name.rpartition("-")
        if not word.isdecimal():
            return
        cluster, number = services.cluster_states.find(ClusterId(cluster_id)), int(word)
    if cluster is not None:
        learn(cluster_id=cluster.cluster_id)
        fail_cluster(services, cluster, pass_number=number, reason=sentence)


def _teardown_crashed(services: Services, cluster_id: ClusterId, sentence: str) -> None:
    cluster = services.cluster_states.find(cluster_id)
    if cluster is not None:
        fail_teardown(services, cluster, reason=sentence)


def _death(status: str, cause: str) -> str:
    ways = {
        "ABORTED": "the workflow was stopped from outside",
        "TIMED_OUT": "the workflow ran out of time",
    }
    sentence = ways.get(status, f"the workflow ended as {status}")
    return f"{sentence}: {sentence_of(cause)}" if cause else sentence
