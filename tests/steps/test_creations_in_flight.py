"""Creations that have their effect after a teardown has looked: no teardown ends before them.

A call is held on its way while the cluster drains, or is executed after the function that sent it
has died. Each creation of a cluster's own resources is played so; lost answers are in test_shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from lambdas.registry import FUNCTIONS
from stationmaster.domain.cluster.events import ClusterPhase, ClusterPhaseChanged
from stationmaster.domain.errors import PermanentError, StepTimedOut
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from stationmaster.settings import Settings
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_teardown import conclude_teardown
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_file_system import ensure_file_system
from stationmaster.steps.parts.leftovers import find_left
from stationmaster.steps.release_file_system import release_file_system
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.release_network import release_network
from stationmaster.steps.verify_released import verify_released
from tests.support.aws_steps import IDLE, Account
from tests.support.whole_clusters import DELETING, training_nodes

# Creations and deletions come to their end between two calls, never during one.
SPEED = IDLE
GRACE = timedelta(seconds=Settings.model_fields["creation_grace_s"].default)
EFA = {"recipe": "llama2-7b", "instance_type": "p4d.24xlarge"}
Step = Callable[..., Any]


@dataclass(frozen=True)
class Creation:
    """One creating call, the step that makes it, and the steps that come before."""

    service: str
    operation: str
    step: Step
    before: tuple[Step, ...] = ()


CREATIONS = [
    Creation("ec2", "CreateSecurityGroup", ensure_cluster),
    Creation("eks", "CreateCluster", ensure_cluster),
    Creation("ec2", "CreatePlacementGroup", training_nodes, (ensure_cluster,)),
    Creation("ec2", "CreateLaunchTemplate", training_nodes, (ensure_cluster,)),
    Creation("eks", "CreateNodegroup", training_nodes, (ensure_cluster,)),
    Creation("fsx", "CreateFileSystem", ensure_file_system, (ensure_cluster,)),
]
each_creation = pytest.mark.parametrize("creation", CREATIONS, ids=lambda each: each.operation)


class _Away(BaseException):
    """The call has left the function, and the function has ended."""


def finish(account: Account, step: Step) -> None:
    while not step(account.services, account.cluster_id)["ready"]:
        account.aws.finish_lifecycles()
        account.late += timedelta(seconds=1)


def call_on(account: Account, services: Services, step: Step) -> None:
    """Call a step, over and over, until it raises."""
    while True:
        step(services, account.cluster_id)
        account.aws.finish_lifecycles()


def drain(account: Account) -> None:
    account.enter("failed", reason="for the test")
    release_lease(account.services, account.run_id)


def given(account: Account, creation: Creation) -> None:
    account.request(**EFA)
    for step in creation.before:
        finish(account, step)


def send_away(account: Account, creation: Creation) -> Callable[[], None]:
    """Let the step die with its call on the way; what executes the call later.

    The step makes its call with a client of its own, as a function does.
    """
    sent: list[tuple[str, dict[str, Any]]] = []
    services = Services(account.settings, now=account.now)
    event = f"provide-client-params.{creation.service}.{creation.operation}"

    def leave(params: dict[str, Any], **_: Any) -> None:
        sent.append((creation.operation, params))
        raise _Away

    services.client(creation.service).meta.events.register(event, leave)
    with pytest.raises(_Away):
        call_on(account, services, creation.step)
    ((operation, params),) = sent
    client = account.aws.client(creation.service)
    return lambda: client._make_api_call(operation, params)


def released_until_verification(account: Account) -> None:
    drain(account)
    assert begin_teardown(account.services, account.cluster_id)["ready"]
    for step in DELETING[:-1]:
        finish(account, step)


def concluded(account: Account) -> None:
    finish(account, verify_released)
    conclude_teardown(account.services, account.cluster_id)
    assert account.cluster.phase is ClusterPhase.RELEASED
    assert find_left(account.services, account.cluster_id) == []


@each_creation
def test_creation_that_is_executed_after_the_release_is_found_before_the_teardown_ends(
    account: Account, creation: Creation
):
    """Held on its way, or executed late: the function that asked may be alive or dead."""
    given(account, creation)
    execute = send_away(account, creation)
    released_until_verification(account)
    drained_at = account.cluster.entered(ClusterPhase.DRAINING)

    assert not account.call(verify_released), "something may still appear"
    account.late += GRACE - (account.now() - drained_at) - timedelta(seconds=1)
    assert not account.call(verify_released)
    refused = None
    try:
        execute()
    except Exception as exc:  # what it needs may be gone: then AWS refuses it
        refused = exc

    assert refused or find_left(account.services, account.cluster_id)
    concluded(account)


def test_teardown_of_what_was_all_seen_waits_for_nothing(account: Account):
    account.request(**EFA)
    for step in (ensure_cluster, training_nodes, ensure_file_system):
        finish(account, step)

    released_until_verification(account)

    assert account.call(verify_released)


def test_teardown_after_a_refused_creation_waits_for_nothing(account: Account):
    account.request(**EFA)
    finish(account, ensure_cluster)
    account.aws.inject("fsx", "CreateFileSystem", "AccessDeniedException", times=9)
    with pytest.raises(PermanentError):
        account.call(ensure_file_system)

    released_until_verification(account)

    assert account.call(verify_released)


def test_grace_is_longer_than_a_function_may_live_and_its_call_may_take():
    from stacks.constructs.states import CALL_MARGIN_S  # starts the CDK

    longest = max(
        function.timeout_s
        for function in FUNCTIONS
        if any(permission.endswith("-create") for permission in function.permissions)
    )

    assert GRACE.total_seconds() >= longest + CALL_MARGIN_S


@pytest.mark.parametrize(
    ("phases", "outcome", "waits"),
    [
        ((), RunPhase.STOPPED, True),
        ((ClusterPhase.READY,), RunPhase.FAILED, True),
        ((ClusterPhase.READY,), RunPhase.STOPPED, False),
    ],
)
def test_guest_whose_workflow_may_have_been_cut_off_is_looked_at_once_more(
    account: Account, phases: tuple[ClusterPhase, ...], outcome: RunPhase, waits: bool
):
    """What is applied to Kubernetes is not recorded; in an existing EKS cluster it would stay."""
    account.request(eks_name="theirs")
    for phase in phases:
        account.happen_to_cluster(ClusterPhaseChanged, phase=phase)
    account.enter(outcome, reason="for the test")
    release_lease(account.services, account.run_id)
    assert account.call(begin_teardown)

    at_once = account.call(verify_released)
    account.late += GRACE

    assert at_once is not waits
    assert account.call(verify_released)


@pytest.mark.parametrize("step", [ensure_cluster, ensure_file_system])
def test_creation_is_waited_for_until_the_limit_and_then_given_up(account: Account, step):
    account.request()
    account.call(ensure_cluster)
    answers = [account.call(step) for _ in range(3)]

    account.pass_time()

    assert answers == [False] * 3
    with pytest.raises(StepTimedOut, match="is still CREATING"):
        account.call(step)


@pytest.mark.parametrize("step", [release_file_system, release_network, verify_released])
def test_file_system_that_is_still_being_created_is_deleted_when_it_is_there(
    account: Account, step
):
    account.request()
    account.call(ensure_cluster)
    account.call(ensure_file_system)
    account.call(begin_teardown)

    early = account.call(step)
    for _ in range(3):
        account.aws.finish_lifecycles()
        account.call(step)

    assert not early
    assert account.services.file_systems.left(account.cluster_id) == []
