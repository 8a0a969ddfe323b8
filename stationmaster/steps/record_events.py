"""What the recorder does: takes in what the relay and AWS tell, and resolves the wait for jobs."""

from __future__ import annotations

import logging

from stationmaster.domain.errors import (
    PermanentError,
    RunNotFound,
    TrainingFailed,
    TransientError,
)
from stationmaster.domain.events import NodeLost, RelayBatch, RunPhase
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import Run, TeardownStatus, Wait
from stationmaster.services import Services
from stationmaster.steps.await_job import resolve_wait
from stationmaster.steps.conclude_run import sentence_of
from stationmaster.steps.conclude_teardown import conclude_teardown
from stationmaster.steps.examining import find_lost_capacity
from stationmaster.steps.recording import enter_phase

logger = logging.getLogger(__name__)


def record_batch(services: Services, batch: RelayBatch) -> None:
    """Record a relay's batch once, keep its log lines, and resolve or prolong the wait for the job.

    Raises:
        RunNotFound: a batch of a run that was never requested.
    """
    run = services.runs.record(batch.run_id, batch.events)
    services.runs.save_log_tails(batch.run_id, batch.log_tails)
    token = services.runs.load_task_token(batch.run_id, Wait.JOB)
    if token is None or run.phase.is_terminal:
        return
    if resolve_wait(services, run, token):
        return
    lost = _lost_for_good(services, run, batch)
    if lost is not None:
        services.workflows.job_failed(token, error=TrainingFailed.__name__, cause=lost)
    elif batch.heartbeat:
        services.workflows.heartbeat(token)


def _lost_for_good(services: Services, run: Run, batch: RelayBatch) -> str | None:
    """What a run that does not train will never get back.

    Asked of AWS only while the run recovers: when a node is lost, and with each heartbeat.
    """
    asks = batch.heartbeat or any(isinstance(event, NodeLost) for event in batch.events)
    if run.phase is not RunPhase.RECOVERING or not asks:
        return None
    try:
        return find_lost_capacity(services, run)
    except (TransientError, PermanentError) as exc:
        # The next heartbeat asks again, and the wait for a recovery has its own end.
        logger.warning("capacity not looked at", extra={"run_id": run.run_id, "error": str(exc)})
        return None


def record_dead_execution(
    services: Services, *, state_machine_arn: str, execution_name: str, status: str, cause: str
) -> None:
    """Take in that an execution ended badly: a train workflow fails its run and releases it.

    An execution that was stopped from outside, or ran out of time, has not concluded anything.
    """
    if state_machine_arn == services.settings.teardown_state_machine_arn:
        _teardown_died(services, RunId(execution_name.rpartition("-teardown-")[0]), status, cause)
        return
    if state_machine_arn != services.settings.train_state_machine_arn:
        return  # some other workflow of the account
    run_id = RunId(execution_name)
    try:
        run = services.runs.load(run_id)
    except RunNotFound:
        return  # not started by the product
    if not run.phase.is_terminal:
        enter_phase(services, run, RunPhase.FAILED, reason=_death(status, cause))
    services.bus.run_ended(run_id)


def _death(status: str, cause: str) -> str:
    ways = {
        "ABORTED": "the workflow was stopped from outside",
        "TIMED_OUT": "the workflow ran out of time",
    }
    sentence = ways.get(status, f"the workflow ended as {status}")
    return f"{sentence}: {sentence_of(cause)}" if cause else sentence


def _teardown_died(services: Services, run_id: RunId, status: str, cause: str) -> None:
    try:
        run = services.runs.load(run_id)
    except RunNotFound:
        return
    if run.teardown in (TeardownStatus.COMPLETED, TeardownStatus.FAILED):
        return  # told already; one that died before its first step is told here
    conclude_teardown(services, run_id, error={"Cause": _death(status, cause)})
