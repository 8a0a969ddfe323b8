"""Two runs on one cluster: what each brings is named after it, and what they share is the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stationmaster.domain.ids import RunId
from stationmaster.rendering.run_objects import render_all
from tests.support.factories import CLUSTER_ID, make_request

RUNS = (RunId("tiny-llama-aaaaaaaa"), RunId("tiny-llama-bbbbbbbb"))
# Of the cluster: the namespace, its file system, and what relays may read.
SHARED = {
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
}


def objects_of(run_id: RunId, rendezvous: str) -> dict[tuple[str, str], Any]:
    request = make_request(cluster_id=CLUSTER_ID, overrides={"rendezvous": rendezvous})
    rendered = render_all(request, run_id=run_id)
    return {(item["kind"], item["metadata"]["name"]): item for item in rendered}


@pytest.mark.parametrize("rendezvous", ["c10d", "etcd"])
def test_objects_of_two_runs_on_one_cluster_do_not_meet(rendezvous):
    first, second = (objects_of(run_id, rendezvous) for run_id in RUNS)

    common = first.keys() & second.keys()
    assert {kind for kind, _ in common} == SHARED
    assert [first[key] for key in common] == [second[key] for key in common]
    own = {key: item for key, item in first.items() if key not in common}
    assert {kind for kind, _ in own} >= {"Deployment", "PyTorchJob"}
    assert RUNS[1] not in json.dumps(list(own.values()))


def test_processes_of_two_runs_on_one_cluster_do_not_find_each_other():
    jobs = [objects_of(run_id, "etcd")["PyTorchJob", run_id] for run_id in RUNS]

    policies = [job["spec"]["elasticPolicy"] for job in jobs]
    assert len({policy["rdzvId"] for policy in policies}) == 2
    assert len({policy["rdzvHost"] for policy in policies}) == 2
