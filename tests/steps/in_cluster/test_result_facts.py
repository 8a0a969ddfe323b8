"""What the manifest of a result says of its run."""

from __future__ import annotations

import pytest
from kubernetes import client, config

from stationmaster.domain.names import NAMESPACE
from stationmaster.domain.run.events import RunPhase
from stationmaster.jobs.live_run import LiveRun
from stationmaster.jobs.result_facts import result_facts
from stationmaster.steps.submit_job import submit_job
from tests.support.aws_fixtures import until
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import ready_for_job

SPEED = IDLE
DIGEST = f"sha256:{'5a' * 32}"


def pulled(account: Account, image_id: str) -> None:
    """The kubelet says which image the training pods run."""
    gateway = account.services.kubernetes(account.cluster_id)
    status = {"name": "pytorch", "image": "x", "imageID": image_id, "ready": True}
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        for pod in until(lambda: gateway.pods(labels={"stationmaster/run-id": account.run_id})):
            client.CoreV1Api(api).patch_namespaced_pod_status(
                pod.name,
                NAMESPACE,
                {"status": {"containerStatuses": [{**status, "restartCount": 0}]}},
            )


@pytest.mark.parametrize(
    ("image_id", "added"),
    [
        (f"123456789012.dkr.ecr.us-west-2.amazonaws.com/training@{DIGEST}", f"@{DIGEST}"),
        (f"docker-pullable://registry.example.com/training@{DIGEST}", f"@{DIGEST}"),
        (DIGEST, ""),  # the node's own id of an image that was never in a registry
        ("", ""),
    ],
)
def test_result_names_the_image_as_the_registry_had_it_when_pods_ran(
    account: Account, image_id: str, added: str
):
    ready_for_job(account)
    submit_job(account.services, account.run_id)
    pulled(account, image_id)

    facts = result_facts(LiveRun(account.services, account.run), outcome=RunPhase.SUCCEEDED)

    assert facts.image == account.settings.training_image + added


def test_result_of_an_image_that_was_named_by_its_digest_keeps_it(account: Account):
    image = f"registry.example.com/team/trainer@{DIGEST}"
    ready_for_job(account)
    submit_job(account.services, account.run_id)
    pulled(account, f"registry.example.com/team/trainer@sha256:{'0b' * 32}")
    run = account.run
    run = run.model_copy(update={"request": run.request.model_copy(update={"image": image})})

    facts = result_facts(LiveRun(account.services, run), outcome=RunPhase.SUCCEEDED)

    assert facts.image == image
