"""Which Service names resolve: those that exist, and headless ones with a ready pod behind them."""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.node import names

READY = {"type": "Ready", "status": "True"}
NOT_READY = {"type": "Ready", "status": "False"}


@pytest.fixture
def objects() -> Objects:
    objects = Objects()
    objects.create(resources.NAMESPACES, {"metadata": {"name": "default"}})
    return objects


def create_service(objects: Objects, **spec: Any) -> None:
    shape = {"selector": {"app": "m"}, "ports": [{"port": 1}], **spec}
    objects.create(
        resources.SERVICES, {"metadata": {"name": "m"}, "spec": shape}, namespace="default"
    )


def create_pod(objects: Objects, *conditions: dict[str, str], phase: str = "Running") -> None:
    pod = {
        "metadata": {"name": "m-0", "labels": {"app": "m"}, "finalizers": ["example.com/hold"]},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    objects.create(resources.PODS, pod, namespace="default")

    def run(stored: dict[str, Any]) -> None:
        stored["status"].update(phase=phase, podIP="127.0.0.1", conditions=list(conditions))

    objects.modify(resources.PODS, "default", "m-0", run)


def test_name_of_a_service_with_an_address_resolves_without_pods(objects: Objects) -> None:
    before = names.resolves(objects, "default", "m")
    create_service(objects)

    assert (before, names.resolves(objects, "default", "m")) == (False, True)


@pytest.mark.parametrize(
    ("condition", "phase", "spec", "expected"),
    [
        (NOT_READY, "Running", {}, False),
        (READY, "Running", {}, True),
        (NOT_READY, "Running", {"publishNotReadyAddresses": True}, True),
        (NOT_READY, "Succeeded", {"publishNotReadyAddresses": True}, False),
        (READY, "Running", {"selector": {"app": "other"}}, False),
    ],
)
def test_name_of_a_headless_service_resolves_to_ready_pods(
    objects: Objects, condition: dict[str, str], phase: str, spec: dict[str, Any], expected: bool
) -> None:
    create_service(objects, clusterIP="None", **spec)
    before = names.resolves(objects, "default", "m")
    create_pod(objects, condition, phase=phase)

    assert (before, names.resolves(objects, "default", "m")) == (False, expected)


def test_pod_that_goes_has_no_name_any_more(objects: Objects) -> None:
    create_service(objects, clusterIP="None")
    create_pod(objects, READY)

    objects.delete(resources.PODS, "default", "m-0")

    assert not names.resolves(objects, "default", "m")
