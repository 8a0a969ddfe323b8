"""Creations that never end: the step gives them up in its time, and says what AWS says."""

from __future__ import annotations

import pytest

from stationmaster.domain.errors import StepTimedOut
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_file_system import ensure_file_system
from stationmaster.steps.release_file_system import release_file_system
from stationmaster.steps.release_network import release_network
from stationmaster.steps.verify_released import verify_released
from tests.support.aws_steps import IDLE, Account

SPEED = IDLE


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
