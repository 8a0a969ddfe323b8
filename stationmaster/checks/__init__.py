"""Validation checks: what must be true of a cluster before a job may use it. One module each.

`applies` says whether a cluster needs a check, `render` makes its Kubernetes objects, if any, and
`look` judges. All are fail-closed: only figures that are right pass. A new check is a module here
and an entry in CHECKS.
"""

from __future__ import annotations

from typing import Final, Protocol

from stationmaster.checks import (
    access,
    gpu_health,
    nccl,
    network,
    nodes,
    room,
    storage,
    training,
)
from stationmaster.checks.devices import EFA, GPUS
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.errors import PermanentError
from stationmaster.inspection import Finding, LiveCluster
from stationmaster.rendering.job_spec import KubernetesObject


class Check(Protocol):
    """What every module of this package has."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a constant of a module
        """The name of the check for the workflow, the channel and labels."""

    def applies(self, spec: ClusterSpec, /, *, is_full: bool) -> bool:
        """Say whether clusters of this kind need it; `is_full` where every check runs."""

    def render(self, cluster: LiveCluster, /) -> list[KubernetesObject]:
        """Make what it runs in the cluster; called where `look` finds it missing."""

    def look(self, cluster: LiveCluster, /) -> Finding:
        """Judge once, without changing anything.

        All nodes have joined, except for the checks that do without: `NEEDS_NO_NODES`.
        """


# In the order in which people read them; they may run side by side.
CHECKS: Final[tuple[Check, ...]] = (
    access,
    nodes,
    GPUS,
    EFA,
    room,
    gpu_health,
    storage,
    network,
    training,
    nccl,
)

NEEDS_NO_NODES: Final = (access.NAME, nodes.NAME)
# They have jobs whose pods use whole nodes.
USE_WHOLE_NODES: Final = (network.NAME, training.NAME, nccl.NAME)
# Of the deployment's limit for a check: rights that have not settled in 3 of 15 minutes never do,
# and up to four jobs, one after the other, take longer than one.
_SHARES_OF_LIMIT: Final = {access.NAME: 0.2, nccl.NAME: 2.0}


def names_for(
    spec: ClusterSpec, *, is_full: bool = False, measures_nccl: bool = False
) -> list[str]:
    """Name the checks that must all pass before a job is submitted.

    With `is_full` these include those that quick validations leave out, with `measures_nccl` that
    of nccl-tests.
    """
    needed = [check.NAME for check in CHECKS if check.applies(spec, is_full=is_full)]
    return [*needed, nccl.NAME] if measures_nccl else needed


def before(name: str, spec: ClusterSpec, *, is_full: bool) -> list[str]:
    """Name the checks that must have passed before this one starts anything.

    A pod that asks for all devices does not start on a node that offers too few. A broken GPU
    explains a network that fails, and both explain a training that does. What two checks measure at
    once is wrong for both: the file system's traffic shares the nodes' network.
    """
    first: dict[str, list[Check]] = {
        gpu_health.NAME: [GPUS, EFA],
        network.NAME: [gpu_health],
        storage.NAME: [network] if is_full else [],
        training.NAME: [gpu_health, network, storage],
        nccl.NAME: [gpu_health, network, storage],
    }
    found = first.get(name, [])
    return [check.NAME for check in found if check.applies(spec, is_full=is_full)]


def time_limit_s(name: str, *, longest_s: float) -> float:
    """Return how many seconds a check may take from when it may start; `longest_s` for most."""
    return longest_s * _SHARES_OF_LIMIT.get(name, 1.0)


def get_check(name: str) -> Check:
    """Look a check up by name.

    Raises:
        PermanentError: there is none of that name; says which there are.
    """
    for check in CHECKS:
        if name == check.NAME:
            return check
    known = ", ".join(check.NAME for check in CHECKS)
    raise PermanentError(f'check "{name}" is not known; known: {known}')
