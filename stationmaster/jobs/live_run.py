"""A run that is on a cluster, as its Jobs see it, and what a look at one of them finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import run_job_name
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import Attempt
from stationmaster.domain.run.events import RunEvent
from stationmaster.domain.run.staging import Staging
from stationmaster.inspection import Verdict
from stationmaster.rendering import job_spec
from stationmaster.rendering.job_spec import JobSpec
from stationmaster.services import RunStamp, Services

if TYPE_CHECKING:
    from stationmaster.kubernetes.gateway import KubernetesGateway


@dataclass(frozen=True)
class Outcome:
    """The result of a look at a Job: MISSING, WAITING, or its end."""

    verdict: Verdict
    why: str = ""
    """One sentence for a Job that is BAD."""
    event: RunEvent | None = None
    """The event to record."""
    reaches: Sequence[RunId] = ()
    """The results in the bucket that the pods of a MISSING Job reach."""


@dataclass(frozen=True)
class LiveRun:
    """A run and how to reach the cluster of its newest attempt."""

    services: Services
    run: Run

    @property
    def run_id(self) -> RunId:
        return self.run.run_id

    @property
    def attempt(self) -> Attempt:
        """The run's newest attempt.

        Raises:
            PermanentError: none has begun.
        """
        return attempt_of(self.run)

    @property
    def cluster_id(self) -> ClusterId:
        """The cluster of that attempt."""
        return self.attempt.cluster_id

    @property
    def kubernetes(self) -> KubernetesGateway:
        """The Kubernetes API of that cluster.

        Raises:
            TransientError: the cluster has no endpoint yet, or does not answer.
        """
        return self.services.kubernetes(self.cluster_id)

    @property
    def staging(self) -> Staging | None:
        """How far the data has come on the file system of that cluster."""
        return staging_on(self.run, self.cluster_id)

    def job_name(self, name: str, number: int | None = None) -> str:
        """Name one of its Jobs, by the name of the Job's module."""
        return run_job_name(self.run_id, name, number)

    def stamp(self, *about: object) -> RunStamp:
        """Make the fields that every event has; `about` makes its id."""
        return self.services.run_stamp(self.run_id, *about)

    def record(self, event: RunEvent | None) -> LiveRun:
        """Record the event, if there is one."""
        if event is None:
            return self
        return replace(self, run=self.services.runs.record(self.run_id, [event]))

    def spec(self, *, image: str = "", attempt: Attempt | None = None) -> JobSpec:
        """Describe the training job of the attempt, with its data where that was brought.

        `image` is the deployment's for another program; "" for that of the training job.
        """
        attempt, settings = attempt or self.attempt, self.services.settings
        recipe = self.run.request.resolved
        guest = self.services.guest_spec(attempt.cluster_id)
        staging = staging_on(self.run, attempt.cluster_id)
        return job_spec(
            self.run.request,
            attempt,
            run_id=self.run_id,
            image=image or settings.image_of(recipe.framework, on_gpus=self.run.request.needs_cuda),
            data_root=staging.root if staging else "",
            weights_root=staging.weights_root if staging else "",
            hyperpod_vcpus=guest.hyperpod_vcpus if guest else None,
            queue=guest.queue.name if guest and guest.queue else "",
        )


def attempt_of(run: Run) -> Attempt:
    """Return the run's newest attempt.

    Raises:
        PermanentError: none has begun, so the run has no cluster either.
    """
    if run.attempt is None:
        raise PermanentError(f"run {run.run_id} has no cluster")
    return run.attempt


def cluster_of(run: Run) -> ClusterId:
    """Return the cluster of the run's newest attempt.

    Raises:
        PermanentError: the run has come to none.
    """
    return attempt_of(run).cluster_id


def staging_on(run: Run, cluster_id: ClusterId) -> Staging | None:
    """Return how far the run's data is on the file system of the cluster."""
    is_here = run.staging is not None and run.staging.cluster_id == cluster_id
    return run.staging if is_here else None
