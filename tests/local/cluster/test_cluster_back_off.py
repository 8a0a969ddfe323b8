"""Back-offs of the local cluster: 10 s doubling to 5 minutes for containers, 10 for Jobs' pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stationmaster.local.cluster import back_off
from tests.support.cluster_fixtures import Cluster, eventually, start_cluster


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose seconds are real: what waits there does not go on within a test."""
    cluster = start_cluster(Path(tmp_path_factory.mktemp("slow")), speed=1.0)
    cluster.add_nodes()
    yield cluster
    cluster.close()


def test_containers_wait_10_seconds_doubling_to_5_minutes() -> None:
    containers = back_off.of_containers(speed=60.0)

    delays = [containers.delay_s(failures) for failures in range(1, 8)]

    assert delays == [10, 20, 40, 80, 160, 300, 300]
    assert [back_off.duration_text(delay) for delay in delays[2:6]] == [
        "40s",
        "1m20s",
        "2m40s",
        "5m0s",
    ]
    assert containers.real_s(300) == 5.0
    assert [containers.is_forgotten(ran_s) for ran_s in (9.9, 10.0)] == [False, True]


def test_container_that_fails_twice_waits_for_a_real_cluster_s_10_seconds(slow: Cluster) -> None:
    slow.run_pod("crashes", "exit 1", restartPolicy="Always")

    def waits() -> Any:
        statuses = slow.pod("crashes").status.container_statuses or []
        waiting = statuses[0].state.waiting if statuses else None
        return waiting if waiting and waiting.reason == "CrashLoopBackOff" else None

    state = eventually(waits, "a back-off")

    uid = slow.pod("crashes").metadata.uid
    assert state.message == (
        f"back-off 10s restarting failed container=main pod=crashes_default({uid})"
    )
    assert slow.pod("crashes").status.container_statuses[0].restart_count == 1


def test_job_waits_before_it_replaces_a_pod_that_failed(slow: Cluster) -> None:
    container = {"name": "main", "image": "trial:1", "command": ["sh", "-c", "exit 1"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"metadata": {"name": "fails"}, "spec": {"template": template, "backoffLimit": 3}}
    slow.batch.create_namespaced_job("default", job)

    def counted() -> Any:
        status = slow.batch.read_namespaced_job("fails", "default").status
        return status if status.failed else None

    status = eventually(counted, "a failure")

    pods = slow.core.list_namespaced_pod("default", label_selector="job-name=fails").items
    assert (status.failed, status.active or 0, len(pods)) == (1, 0, 1)
