"""The kinds of Kubernetes jobs that a run may be. One module each, with the same verbs.

Everything that knows a job by its kind asks the module: who renders it, who deletes it, who reads
its conditions and who watches its pods. A new kind is a module, a member of JobKind and an entry in
BACKENDS; what clusters must have for it is said in `checks/existing.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from stationmaster.domain.job_kinds import JobCondition, JobKind
from stationmaster.rendering import pytorch_job, train_job
from stationmaster.rendering.job_spec import JobSpec, KubernetesObject


class JobBackend(Protocol):
    """What every such module has; constants of a module are read as properties."""

    @property
    def KIND(self) -> JobKind:  # noqa: N802
        """What the job is called in Kubernetes."""

    @property
    def API_VERSION(self) -> str:  # noqa: N802
        """The API group and version of the job."""

    @property
    def TYPES(self) -> tuple[tuple[str, str], ...]:  # noqa: N802
        """API group and plural of each type of which a job has objects; the job's is the first."""

    @property
    def CUSTOM_TYPE(self) -> str:  # noqa: N802
        """The name of the job's CustomResourceDefinition."""

    @property
    def OPERATOR(self) -> str:  # noqa: N802
        """Who makes pods of the job, for a sentence."""

    @property
    def QUEUE_INTEGRATION(self) -> str:  # noqa: N802
        """What Kueue's configuration has to list so that Kueue admits such jobs."""

    @property
    def LABEL_JOB_NAME(self) -> str:  # noqa: N802
        """The label by which pods name their job."""

    @property
    def CONTAINER(self) -> str:  # noqa: N802
        """What the training container of its pods is called."""

    def render(self, spec: JobSpec, /) -> list[KubernetesObject]:
        """Make the job's objects, in the order of their application; the job itself is last."""

    def parts(self, name: str, /) -> list[tuple[str, str, str]]:
        """Return apiVersion, kind and name of these objects, in the order of deletion."""

    def conditions(self, job: Mapping[str, Any], /) -> list[JobCondition]:
        """Return the conditions that are true, in the words that all kinds share."""

    def is_suspended(self, job: Mapping[str, Any], /) -> bool:
        """Say whether the job is to have no pods: not admitted yet, or stopped by somebody."""

    def replica_of(self, pod: Mapping[str, Any], /) -> str:
        """Return the pod's place in the job, the same for each pod that takes it in turn."""

    def is_of_job(self, kind: str, name: str, *, job: str) -> bool:
        """Say whether an object that an event is about is the job, or a part of it."""

    def refusal(self, *, least: int, most: int) -> str:
        """Say why no such job can have so many nodes, with what to type; "" where one can."""


BACKENDS: Final[Mapping[JobKind, JobBackend]] = {
    JobKind.PYTORCH_JOB: pytorch_job,
    JobKind.TRAIN_JOB: train_job,
}
# A pod of a job has one container with one of these names.
TRAINING_CONTAINERS: Final = frozenset(backend.CONTAINER for backend in BACKENDS.values())


def backend_of(kind: JobKind) -> JobBackend:
    """Return the module of a kind of jobs."""
    return BACKENDS[kind]
