"""The Jobs that work for a run before its training job, beside it, or after it. One module each.

`render` makes its Kubernetes objects, `look` judges, and `failed` says what follows a failure: an
event, or an error that ends the workflow. `steps/parts/job_driver.py` starts, times, waits for and
removes them. A new Job is a module here and an entry in STAGING or JOBS; one of JOBS is carried out
by the step that needs it.
"""

from __future__ import annotations

from typing import Final, Protocol

from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunEvent
from stationmaster.domain.run.staging import Staging
from stationmaster.jobs import (
    backup,
    convert,
    export,
    link,
    look_over,
    prepare,
    push,
    restore,
    save,
    stage,
)
from stationmaster.jobs.bringing import ROLE
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import RunRole


class AnyJob(Protocol):
    """What every module of a Job has."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a constant of a module
        """The end of the Job's name, after the id of its run."""

    def render(self, live: LiveRun, /) -> list[KubernetesObject]:
        """Make the Job and what it needs; called where `look` finds it missing."""

    def look(self, live: LiveRun, /) -> Outcome:
        """Judge once."""

    def failed(self, live: LiveRun, why: str, /) -> RunEvent:
        """Make the event that records a failure; raise where the workflow ends with it."""


class RunJob(AnyJob, Protocol):
    """A Job with a role of its own, by which it and its pods are found."""

    @property
    def ROLE(self) -> RunRole:  # noqa: N802
        """The label of its pods."""


class StagingJob(AnyJob, Protocol):
    """A Job that brings what a run needs before it trains."""

    def applies(self, run: Run, staging: Staging | None, /) -> bool:
        """Say whether the run needs it, with what is on the file system of its cluster."""


# One after the other, in this order.
STAGING: Final[tuple[StagingJob, ...]] = (restore, convert, look_over, link, stage, prepare)
JOBS: Final[tuple[RunJob, ...]] = (backup, export, save, push)

# By which the Jobs of a run are found that end with its training. What saves its result may be
# needed longer.
ROLES: Final[tuple[RunRole, ...]] = (ROLE, *(job.ROLE for job in JOBS if job is not save))


def next_staging(live: LiveRun) -> StagingJob | None:
    """Return what has to be brought next; None where the run has all that it needs."""
    return next((job for job in STAGING if job.applies(live.run, live.staging)), None)
