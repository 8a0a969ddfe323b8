"""The checks before a start on an account: what is asked, what is found, what stops a workflow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stationmaster import preflight
from stationmaster.aws.account import ACCOUNT_ACTIONS, IMAGE_ACTIONS
from stationmaster.cli.main import main
from stationmaster.commands import preflight as show_preflight
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.commands.grammar import parse_command, parse_requests
from stationmaster.domain.commands.requests import ShowPreflight
from stationmaster.domain.errors import BadParameter, NotPossibleNow, PreflightFailed
from stationmaster.domain.run.events import RunPhase
from stationmaster.preflight import examine
from stationmaster.preflight.findings import Check, Finding, Severity, lacking, uncertain
from stationmaster.preflight.subject import DEPLOYMENT, Subject, of_request, of_start
from stationmaster.steps.prepare_cluster import prepare_cluster
from stationmaster.steps.prepare_run import prepare_run
from tests.support.aws_steps import Account
from tests.support.factories import make_request

REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"


def found_of(account: Account, subject: Subject) -> dict[str, list[Finding]]:
    services = account.services
    findings = examine(services, subject, account=services.account, deadline_s=600)
    by_check: dict[str, list[Finding]] = {}
    for finding in findings:
        by_check.setdefault(finding.check, []).append(finding)
    return by_check


class Hub:
    """In place of the hub: says of every repository the same."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def check_readable(self, repository: str) -> None:
        if self.error is not None:
            raise self.error


def test_account_that_has_everything_lacks_nothing(account: Account):
    found = found_of(account, of_request(make_request()))

    assert {*found} == {
        "vcpu-quota",
        "instance-offers",
        "kubernetes-version",
        "images",
        "artifacts-bucket",
    }
    every = [each for findings in found.values() for each in findings]
    assert lacking(every) == []
    assert uncertain(every) == []


def test_questions_are_those_that_the_functions_are_granted(account: Account):
    account.set(relay_image=f"{REGISTRY}/stationmaster/relay:0.1.0")
    account.aws.faults.add("no-vcpu-quota")
    account.aws.forget_calls()

    found_of(account, of_request(make_request(instance_type="p5.48xlarge")))

    asked = {
        f"{service}:{operation}" for service, operation in account.aws.calls if service != "s3"
    }
    assert asked == {*ACCOUNT_ACTIONS, *IMAGE_ACTIONS}


def test_quota_of_a_new_account_is_lacking_for_gpus_and_not_for_cpus(account: Account):
    account.aws.faults.add("no-vcpu-quota")

    gpus = found_of(account, of_request(make_request(instance_type="p5.48xlarge")))
    cpus = found_of(account, of_request(make_request()))

    assert [each.severity for each in gpus["vcpu-quota"]] == [Severity.INFO, Severity.ERROR]
    assert "allows 0 vCPUs" in gpus["vcpu-quota"][1].message
    assert lacking(cpus["vcpu-quota"]) == []


def test_new_account_is_warned_of_builds_on_the_largest_machine(account: Account):
    account.aws.faults.add("no-vcpu-quota")

    found = found_of(account, DEPLOYMENT)["image-builds"]

    assert [each.severity for each in found] == [Severity.INFO, Severity.WARNING]
    assert (
        "on Linux/2XLarge in us-west-2, used with more_images in cdk.json, 0 at a time"
        in found[1].message
    )
    assert "--service-code codebuild --quota-code L-0397D009" in found[1].remedy


def test_copies_of_images_that_are_not_in_the_registry_are_lacking(account: Account):
    account.set(image_copies=f"{REGISTRY}/nowhere")

    found = found_of(account, of_request(make_request()))["images"]

    (etcd,) = lacking(found)
    assert etcd.message.startswith(f"the etcd image {REGISTRY}/nowhere:etcd-3.5.21-0 is not in")


def test_image_that_is_not_in_its_registry_is_lacking(account: Account):
    ecr = account.aws.client("ecr")
    ecr.create_repository(repositoryName="stationmaster/relay")
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {"digest": "sha256:1"},
            "layers": [],
        }
    )
    ecr.put_image(repositoryName="stationmaster/relay", imageManifest=manifest, imageTag="0.1.0")

    severities = {}
    for image in ("relay:0.1.0", "relay:0.2.0", "other:0.1.0"):
        account.set(relay_image=f"{REGISTRY}/stationmaster/{image}")
        severities[image] = found_of(account, DEPLOYMENT)["images"][0].severity

    assert severities == {
        "relay:0.1.0": Severity.INFO,
        "relay:0.2.0": Severity.ERROR,
        "other:0.1.0": Severity.ERROR,
    }


def test_data_that_may_not_be_read_is_lacking(account: Account):
    request = make_request(overrides={"dataset": "s3://corpus/text"})

    (found,) = found_of(account, of_request(request))["data-bucket"]

    assert found.severity is Severity.ERROR
    assert "reads no data from S3 yet" in found.message


def test_secrets_that_nobody_has_filled_in_are_told_from_those_that_are_gone(account: Account):
    for name in ("new-hub", "new-slack"):
        account.aws.client("secretsmanager").create_secret(Name=name)
    account.set(hugging_face_secret_id="new-hub", slack_secret_id="new-slack")

    slack, hub = found_of(account, DEPLOYMENT)["secrets"]
    assert 'secret "new-slack" has no value yet' in slack.message
    assert hub.severity is Severity.INFO
    account.set(hugging_face_secret_id="gone")
    (hub,) = found_of(account, of_request(make_request()))["secrets"]
    assert 'secret "gone" does not exist' in hub.message


def test_secret_without_its_fields_is_lacking_and_one_without_a_token_is_not(account: Account):
    secrets = account.aws.client("secretsmanager")
    secrets.create_secret(Name="hub", SecretString='{"token": ""}')
    secrets.create_secret(Name="slack", SecretString="{}")
    account.set(hugging_face_secret_id="hub", slack_secret_id="slack")

    of_deployment = found_of(account, DEPLOYMENT)["secrets"]
    of_run = found_of(account, of_request(make_request()))["secrets"]

    assert [each.severity for each in of_deployment] == [Severity.ERROR, Severity.INFO]
    assert "check bot_token, signing_secret" in of_deployment[0].message
    assert [each.message for each in of_run] == [
        "the Hugging Face secret has no token, so gated models cannot be read"
    ]


@pytest.mark.parametrize(
    ("error", "severity"),
    [
        (None, Severity.INFO),
        (BadParameter("org/model is gated"), Severity.ERROR),
        (NotPossibleNow("the hub cannot be asked"), Severity.WARNING),
    ],
)
def test_gated_model_is_lacking_and_a_silent_hub_is_not(account: Account, error, severity):
    account.services.hub = Hub(error)  # type: ignore[misc, assignment]  # a stand-in

    (found,) = found_of(account, of_start(*parse_requests(["llama2-7b-finetune"])))["model-access"]

    assert found.severity is severity


def test_question_that_is_denied_is_said_and_stops_nothing(account: Account):
    account.aws.inject("servicequotas", "GetServiceQuota", "AccessDeniedException")
    account.ask()

    prepare_run(account.services, account.run_id)

    (event,) = account.events("preflight.warned")
    assert len(event.findings) == 1
    assert event.findings[0].startswith("vcpu-quota: could not be asked: reading the quota")
    assert "AccessDeniedException" in event.findings[0]


def test_question_without_an_answer_is_unanswered_after_its_time(account: Account, monkeypatch):
    over = threading.Event()
    held = Check("held", lambda *_: True, lambda *_: over.wait(600))
    not_asked = Check("not asked", lambda *_: False, lambda *_: [])
    monkeypatch.setattr(preflight, "CHECKS", (held, not_asked))
    services = account.services

    with released(over):
        found = examine(services, DEPLOYMENT, account=services.account, deadline_s=0.05)

    assert [each.message for each in found] == ["could not be asked: no answer in 0.1 s"]


@contextmanager
def released(over: threading.Event) -> Iterator[None]:
    try:
        yield
    finally:
        over.set()


def test_run_of_an_account_that_lacks_something_ends_before_anything_is_made(account: Account):
    account.aws.faults.add("no-vcpu-quota")
    account.ask(recipe="llama2-7b", instance_type="p5.48xlarge")

    with pytest.raises(PreflightFailed, match=r"nothing was made.*need.* 384 more.*quota-code"):
        prepare_run(account.services, account.run_id)

    assert account.run.attempts == []


def test_run_that_has_a_cluster_is_not_looked_at_again(account: Account):
    account.request()
    account.aws.faults.add("no-vcpu-quota")
    account.enter(RunPhase.VALIDATING)
    account.aws.forget_calls()

    prepare_run(account.services, account.run_id)

    assert ("servicequotas", "GetServiceQuota") not in account.aws.calls


def test_kept_cluster_is_looked_at_before_its_first_resource(account: Account):
    account.keep()
    account.set(relay_image=f"{REGISTRY}/nowhere:1")

    with pytest.raises(PreflightFailed, match=r"the relay image .* is not in its registry"):
        prepare_cluster(account.services, account.cluster_id)

    assert account.cluster.phase is ClusterPhase.REQUESTED


def test_run_that_is_not_alone_in_lacking_something_says_how_much(account: Account):
    account.set(artifacts_bucket="nowhere", relay_image=f"{REGISTRY}/nowhere:1")
    account.ask()

    with pytest.raises(PreflightFailed, match=r"\(and 1 more: type /train preflight\)"):
        prepare_run(account.services, account.run_id)


def test_command_has_each_start_with_what_was_not_found_before(account: Account):
    command = parse_command("preflight tiny-llama nodes=2 llama2-7b instance=p5.48xlarge")
    assert isinstance(command, ShowPreflight)
    account.services.hub = Hub()  # type: ignore[misc, assignment]  # a stand-in

    examined = show_preflight(account.services, command.starts)

    assert [name for name, _ in examined] == [
        "the deployment",
        "/train tiny-llama nodes=2",
        "/train llama2-7b instance=p5.48xlarge",
    ]
    assert [{each.check for each in findings} for _, findings in examined] == [
        {"kubernetes-version", "image-builds", "images", "artifacts-bucket"},
        {"vcpu-quota", "instance-offers"},
        {"vcpu-quota", "instance-offers", "model-access"},
    ]


def test_command_line_says_as_json_what_lacks(account: Account, monkeypatch, capsys):
    for name, value in account.settings.to_environment().items():
        monkeypatch.setenv(name, value)

    assert main(["preflight", "tiny-llama", "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    account.aws.faults.add("no-vcpu-quota")
    assert main(["preflight", "llama2-7b", "instance=p5.48xlarge"]) == 1

    assert {*there[0]} == {"subject", "check", "severity", "message", "remedy"}
    assert "lacking" in capsys.readouterr().out


def test_command_line_asks_the_account_alone_where_nothing_is_deployed(
    account: Account, monkeypatch, capsys
):
    monkeypatch.delenv("STATIONMASTER_TABLE_NAME", raising=False)

    assert main(["preflight", "--json"]) == 0

    found = [each["check"] for each in json.loads(capsys.readouterr().out)]
    assert found == ["kubernetes-version", *["image-builds"] * 2, *["images"] * 2]
