"""Server-side apply: what is merged, what goes, how elements of lists are told apart."""

from __future__ import annotations

from typing import Any

import pytest
from api_probes import (
    APPLY,
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    PYTORCHJOBS,
    SERVICES,
    STRATEGIC,
    VOLUMES,
    Answer,
    Asked,
)

from tests.support.cluster_fixtures import eventually, pytorchjob


def body(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}


def config(name: str, **data: str) -> dict[str, Any]:
    return body("ConfigMap", name, **({"data": data} if data else {}))


def deployment(name: str, *containers: dict[str, Any]) -> dict[str, Any]:
    pod = {"containers": [{"image": "i:1", **each} for each in containers]}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    selector = {"matchLabels": {"app": name}}
    spec = {"replicas": 0, "selector": selector, "template": template}
    return body("Deployment", name, spec=spec) | {"apiVersion": "apps/v1"}


def service(name: str, *ports: dict[str, Any]) -> dict[str, Any]:
    return body("Service", name, spec={"ports": list(ports), "selector": {"app": name}})


def applied(
    asked: Asked, path: str, item: dict[str, Any], manager: str = "one", **query: str
) -> Answer:
    place = f"{path}/{item['metadata']['name']}"
    return asked("PATCH", place, item, content_type=APPLY, fieldManager=manager, **query)


def test_apply_takes_values_over_and_takes_away_what_it_applied_before(asked: Asked) -> None:
    applied(asked, CONFIG_MAPS, config("contended", a="1", b="1"))

    taken = applied(asked, CONFIG_MAPS, config("contended", a="2", c="2"), "two")
    left_by_one = applied(asked, CONFIG_MAPS, config("contended", a="2"))
    left_by_both = applied(asked, CONFIG_MAPS, config("contended"), "two")

    assert taken.body["data"] == {"a": "2", "b": "1", "c": "2"}
    assert left_by_one.body["data"] == {"a": "2", "c": "2"}
    assert "data" not in left_by_both.body


def test_containers_and_their_variables_are_told_apart_by_name(asked: Asked) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    applied(asked, DEPLOYMENTS, deployment("merged", {"name": "c", "env": env}, {"name": "d"}))
    template = {"spec": {"containers": [{"name": "side", "image": "s"}]}}
    asked(
        "PATCH",
        f"{DEPLOYMENTS}/merged",
        {"spec": {"template": template}},
        content_type=STRATEGIC,
    )

    result = applied(asked, DEPLOYMENTS, deployment("merged", {"name": "c", "env": env[1:]}))

    pod = result.body["spec"]["template"]["spec"]
    containers = {each["name"]: each for each in pod["containers"]}
    assert set(containers) == {"c", "side"}
    assert containers["c"]["env"] == env[1:]


def test_ports_are_told_apart_by_number_and_protocol(asked: Asked) -> None:
    first = applied(asked, SERVICES, service("ports", {"port": 80, "name": "a"}))
    udp = {"port": 80, "protocol": "UDP", "name": "b"}

    result = applied(asked, SERVICES, service("ports", udp), "two")
    again = applied(asked, SERVICES, service("ports", {"port": 81, "name": "c"}))

    assert first.status == 201
    assert [port["protocol"] for port in result.body["spec"]["ports"]] == ["UDP", "TCP"]
    assert [port["port"] for port in again.body["spec"]["ports"]] == [81, 80]
    assert again.body["spec"]["clusterIP"] == first.body["spec"]["clusterIP"]


def test_volume_that_is_applied_again_stays_bound_to_its_claim(asked: Asked) -> None:
    csi = {"driver": "fsx.csi.aws.com", "volumeHandle": "fs-1"}
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    shape = {"accessModes": modes, "storageClassName": ""}
    held_by = {"namespace": "default", "name": "holding"}
    volume = body(
        "PersistentVolume", "held", spec=shape | {"capacity": size, "csi": csi, "claimRef": held_by}
    )
    spec = shape | {"resources": {"requests": size}}
    applied(asked, VOLUMES, volume)
    claim = asked("POST", CLAIMS, {"metadata": {"name": "holding"}, "spec": spec})
    eventually(
        lambda: asked("GET", f"{VOLUMES}/held").body["status"]["phase"] == "Bound", "a binding"
    )

    again = applied(asked, VOLUMES, volume)

    assert again.body["spec"]["claimRef"]["uid"] == claim.body["metadata"]["uid"]


def test_custom_object_is_merged_by_the_lists_of_its_schema(asked: Asked) -> None:
    def job(**policy: Any) -> dict[str, Any]:
        return pytorchjob("owned", master=False, runPolicy=policy)

    first = applied(asked, PYTORCHJOBS, job(suspend=True, backoffLimit=3))
    result = applied(asked, PYTORCHJOBS, job(suspend=True))

    assert first.status == 201
    assert result.body["spec"]["runPolicy"] == {"suspend": True}


NO_KEY = 'omits all key fields ["name"] (and doesn\'t have default values for any key fields)'
PORTS = [{"containerPort": 1}] * 2


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([{"name": "c"}] * 2, ': duplicate entries for key [name="c"]'),
        (
            [{"name": "c", "env": [{"value": "1"}]}],
            f'[name="c"].env: element 0: associative list with keys has an element that {NO_KEY}',
        ),
        (
            [{"name": "c", "ports": PORTS}],
            '[name="c"].ports: duplicate entries for key [containerPort=1,protocol="TCP"]',
        ),
    ],
)
def test_elements_without_an_identity_are_refused(
    asked: Asked, containers: list[dict[str, Any]], expected: str
) -> None:
    refused = applied(asked, DEPLOYMENTS, deployment("doubled", *containers))

    assert refused.status == 500
    assert refused.message == (
        "failed to create typed patch object (/doubled; apps/v1, Kind=Deployment): "
        f".spec.template.spec.containers{expected}"
    )


def test_dry_run_stores_nothing(asked: Asked) -> None:
    applied(asked, CONFIG_MAPS, config("tried", a="1"))

    tried = applied(asked, CONFIG_MAPS, config("tried", a="2"), dryRun="All")

    assert tried.body["data"] == {"a": "2"}
    assert asked("GET", f"{CONFIG_MAPS}/tried").body["data"] == {"a": "1"}


def seen_by_its_controller(asked: Asked, name: str) -> Any:
    stored = asked("GET", f"{DEPLOYMENTS}/{name}")
    return stored if stored.body.get("status", {}).get("observedGeneration") else None


def test_same_apply_again_writes_nothing(asked: Asked) -> None:
    first = applied(asked, DEPLOYMENTS, deployment("still", {"name": "c"}))
    # Its controller writes what it has seen, and nothing more.
    stored = eventually(lambda: seen_by_its_controller(asked, "still"), "its status")

    second = applied(asked, DEPLOYMENTS, deployment("still", {"name": "c"}))

    assert first.status == 201
    assert second.body["metadata"] == stored.body["metadata"]
