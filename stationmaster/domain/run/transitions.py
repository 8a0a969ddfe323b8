"""Which phase of a run may follow which."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.run.events import RunPhase

TRANSITIONS: Final[dict[RunPhase, frozenset[RunPhase]]] = {
    phase: frozenset(following)
    for phase, following in {
        RunPhase.REQUESTED: {
            RunPhase.AWAITING_APPROVAL,
            RunPhase.QUEUED,
            RunPhase.PROVISIONING,
            RunPhase.VALIDATING,
            RunPhase.STAGING,
            RunPhase.SUBMITTING,
            RunPhase.FAILED,
            RunPhase.STOPPED,
        },
        RunPhase.AWAITING_APPROVAL: {
            RunPhase.QUEUED,
            RunPhase.PROVISIONING,
            RunPhase.VALIDATING,
            RunPhase.STAGING,
            RunPhase.SUBMITTING,
            RunPhase.FAILED,
            RunPhase.STOPPED,
        },
        RunPhase.QUEUED: {
            RunPhase.PROVISIONING,
            RunPhase.VALIDATING,
            RunPhase.STAGING,
            RunPhase.SUBMITTING,
            RunPhase.RUNNING,  # the others only where Kueue held its job
            RunPhase.SAVING,
            RunPhase.SUCCEEDED,
            RunPhase.FAILED,
            RunPhase.STOPPED,
        },
        RunPhase.PROVISIONING: {
            RunPhase.VALIDATING,
            RunPhase.STAGING,
            RunPhase.SUBMITTING,
            RunPhase.FAILED,
            RunPhase.STOPPED,
        },
        RunPhase.VALIDATING: {
            RunPhase.STAGING,
            RunPhase.SUBMITTING,
            RunPhase.FAILED,
            RunPhase.STOPPED,
        },
        RunPhase.STAGING: {RunPhase.SUBMITTING, RunPhase.FAILED, RunPhase.STOPPED},
        RunPhase.SUBMITTING: {
            RunPhase.QUEUED,
            RunPhase.RUNNING,
            RunPhase.SAVING,
            RunPhase.FAILED,
            RunPhase.STOPPED,
        },
        RunPhase.RUNNING: {
            RunPhase.QUEUED,
            RunPhase.RECOVERING,
            RunPhase.SAVING,
            RunPhase.SUCCEEDED,
            RunPhase.FAILED,
            RunPhase.STOPPED,
        },
        RunPhase.RECOVERING: {
            RunPhase.QUEUED,
            RunPhase.RUNNING,
            RunPhase.SAVING,
            RunPhase.SUCCEEDED,
            RunPhase.FAILED,
            RunPhase.STOPPED,
        },
        RunPhase.SAVING: {RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.STOPPED},
        RunPhase.SUCCEEDED: set(),
        RunPhase.FAILED: set(),
        RunPhase.STOPPED: set(),
    }.items()
}
