"""What a cluster's own steps bring to an existing EKS cluster after the teardown is over.

The step has looked and decided; the teardown comes to its end; then Kubernetes gets the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.errors import IllegalTransition, RunStopped
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.resources import ResourceKind
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.services import Services
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.install_plugin import install_plugin
from stationmaster.steps.parts.exit_from_existing import left_in_existing
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.run_check import run_check
from stationmaster.steps.submit_job import submit_job
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account
from tests.support.cluster_steps import (
    CLUSTERS,
    add_nodes,
    suspended,
    with_file_system,
    without_pods,
)
from tests.support.trainer_steps import EKS_NAME, theirs


class Late:
    """A Kubernetes API that is asked to apply something when the teardown has just ended."""

    def __init__(self, gateway: KubernetesGateway, tear_down: Callable[[], None]) -> None:
        self._gateway = gateway
        self._tear_down = tear_down
        self.applied: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gateway, name)

    def apply(self, objects: list[dict[str, Any]]) -> None:
        if not self.applied:
            self._tear_down()
        # Pods are not what this is about.
        self._gateway.apply([without_pods(suspended(each)) for each in objects])
        self.applied += [each["kind"] for each in objects]


@pytest.fixture
def guest(account: Account) -> Iterator[Account]:
    """A run whose cluster is in an existing EKS cluster, which has room for it."""
    theirs(account)
    account.request(eks_name=EKS_NAME)
    account.enter("validating")
    local, room = CLUSTERS[account.settings.kubeconfig], f"room-{account.cluster_id}"
    add_nodes(local, room, {"pool": room}, cpu="8", count=3)
    gateway = account.services.kubernetes(account.cluster_id)
    until(lambda: sum(node.ready for node in gateway.nodes(labels={"pool": room})) == 3)
    yield account
    local.remove_nodes(node_group=room)


def submit(services: Services, cluster_id: ClusterId) -> None:
    """What its run brings itself."""
    submit_job(services, RunId(cluster_id.removesuffix("-c")))


def tear_down(account: Account) -> None:
    account.enter("failed", reason="for the test")
    release_lease(account.services, account.run_id)
    account.happen_to_cluster(cluster_events.TeardownStarted)
    account.happen_to_cluster(cluster_events.TeardownCompleted, cost_usd=0.0)


@pytest.mark.parametrize(
    ("step", "brings"),
    [
        (ensure_cluster, "Namespace"),
        (partial(install_plugin, plugin="relay"), "ClusterRole"),
        (partial(run_check, check="storage"), "PersistentVolume"),
        (submit, "PyTorchJob"),
    ],
    ids=["namespace", "plugin", "check", "job"],
)
def test_what_arrives_after_the_teardown_is_taken_out_by_the_step_that_sent_it(
    guest: Account, step: Callable[..., object], brings: str
) -> None:
    with_file_system(guest)
    late = Late(guest.services.kubernetes(guest.cluster_id), partial(tear_down, guest))
    guest.services.kubernetes = lambda _: late

    # A released cluster cannot get what would come next.
    with suppress(IllegalTransition, RunStopped):
        step(guest.services, guest.cluster_id)

    assert brings in late.applied
    until(lambda: kinds_left(guest) <= {ResourceKind.POD_IDENTITY}, timeout_s=30.0)


def kinds_left(account: Account) -> set[ResourceKind]:
    """What the submission asks EKS for comes before what it applies, so the teardown takes it."""
    return {each.kind for each in left_in_existing(account.services, account.cluster)}
