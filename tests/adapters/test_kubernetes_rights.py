"""The rights that are asked for in an existing EKS cluster cover what the product does there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.ids import ClusterId
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.kinds import path_of
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.kubernetes.rights import (
    GUESTS,
    QUEUE_LOOKS,
    TEAM_LOOKS,
    Account,
    Right,
    common_rights,
    granted_rights,
    hyperpod_rights,
    job_rights,
    needed_rights,
    priority_rights,
    queue_rights,
)
from stationmaster.rendering import pytorch_job
from stationmaster.rendering.examples import example, saving_example
from stationmaster.rendering.job_backends import BACKENDS
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.placing import placed
from stationmaster.rendering.relay import render_relay_rights
from stationmaster.rendering.shared_volume import SharedStorage, render_storage
from tests.support.answering_server import AnsweringServer

SPACE = "stationmaster-c-1"
RIGHTS = {*needed_rights(SPACE, pytorch_job)}
STORAGE = SharedStorage("fs-1", dns_name="fs-1.fsx", mount_name="m", storage_gib=1200)


def every_object() -> list[dict[str, Any]]:
    texts = [*(example(recipe) for recipe in CATALOGUE.values()), saving_example()]
    objects = [item for text in texts for item in yaml.safe_load_all(text)]
    return [
        placed(item, SPACE)
        for item in (
            *objects,
            namespace(),
            *render_relay_rights(pytorch_job),
            *render_storage(ClusterId("c-1"), STORAGE),
        )
    ]


def test_everything_that_is_applied_may_be_made_and_deleted() -> None:
    for item in every_object():
        api_version, kind = item["apiVersion"], item["kind"]
        where = item["metadata"].get("namespace", "")
        resource = path_of(api_version, kind).rpartition("/")[2]
        group = api_version.rpartition("/")[0]

        for verb in ("get", "create", "patch", "delete"):
            assert Right(verb, group, resource, where) in RIGHTS, f"{verb} {kind}"


def test_rights_that_are_handed_on_are_among_them() -> None:
    # Kubernetes refuses a role whose rules whoever makes it does not have.
    roles = [item for item in every_object() if item["kind"] in ("Role", "ClusterRole")]
    assert len(roles) >= 3
    for item in roles:
        where = item["metadata"].get("namespace", "")
        for rule in item["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        assert Right(verb, group, resource, where) in RIGHTS


@pytest.mark.parametrize("of_team", [False, True])
def test_file_for_administrators_grants_exactly_what_guests_use(of_team: bool) -> None:
    items = load_manifests("existing-cluster-team" if of_team else "existing-cluster")

    granted = [
        Right(verb, group, resource, SPACE if role["kind"] == "Role" else "")
        for role in items
        for rule in role.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    used = [
        *QUEUE_LOOKS,
        *TEAM_LOOKS,
        *queue_rights(SPACE, of_team=of_team),
        *priority_rights(queued=True),
    ]
    used += [*hyperpod_rights(), *common_rights(SPACE, of_team=True)]
    used += [] if of_team else common_rights(SPACE)
    used += [right for backend in BACKENDS.values() for right in job_rights(SPACE, backend)]
    without = [{replace(right, namespace="") for right in each} for each in (granted, used)]
    assert without[0] == without[1]
    assert not of_team or {*granted} <= {*used}, "in its namespace only"
    assert len(granted) == len({*granted}), "each is listed once"
    assert items[-1]["subjects"][0]["name"] == GUESTS


@pytest.mark.parametrize("status", [{"allowed": False, "reason": "no"}, {}])
def test_right_that_the_cluster_does_not_grant_is_not_there(
    server: AnsweringServer,
    gateway: KubernetesGateway,
    status: dict[str, Any],
) -> None:
    server.say((201, {"status": status}))

    assert not gateway.may(Right("get", "", "pods/log", SPACE))
    ((method, path, _),) = server.requests
    assert (method, path) == (
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    )


def test_accounts_have_the_rights_of_every_role_that_is_bound_to_them() -> None:
    objects = [placed(item, SPACE) for item in render_relay_rights(pytorch_job)]

    ((account, rights),) = granted_rights(objects).items()

    assert account == Account("stationmaster-relay", SPACE)
    assert account.user == f"system:serviceaccount:{SPACE}:stationmaster-relay"
    assert f"system:serviceaccounts:{SPACE}" in account.groups
    assert len(rights) == 16
    assert {
        Right("watch", "", "events", SPACE),
        Right("get", "", "pods/log", SPACE),
        Right("update", "coordination.k8s.io", "leases", SPACE),
        Right("list", "", "nodes"),
    } <= {*rights}


def test_right_reads_as_kubectl_says_it() -> None:
    right = Right("patch", "batch", "jobs", SPACE)

    assert str(right) == "patch jobs.batch in namespace stationmaster-c-1"
    assert str(Right("list", "", "nodes")) == "list nodes in the whole cluster"
    assert Right("get", "", "pods/log", SPACE).attributes == {
        "verb": "get",
        "resource": "pods",
        "subresource": "log",
        "namespace": SPACE,
    }
