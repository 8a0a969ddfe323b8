"""A deployment that takes the functions out of the network, while clusters need them there."""

from __future__ import annotations

import io
import json
import urllib.request
from email.message import Message
from typing import Any
from urllib.response import addinfourl

import pytest

from lambdas.check_reach import handler, refusal
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.names import cluster_name
from tests.support.aws_steps import IDLE, Account

SPEED = IDLE  # nothing ends by itself

URL = "https://cloudformation-custom-resource-response-uswest2.s3.us-west-2.amazonaws.com/a?X-Amz=b"
REQUEST = {
    "RequestType": "Create",
    "ResponseURL": URL,
    "StackId": "arn:aws:cloudformation:us-west-2:123456789012:stack/workflow/1",
    "RequestId": "request-1",
    "LogicalResourceId": "CheckReach",
    "ResourceType": "AWS::CloudFormation::CustomResource",
    "ResourceProperties": {"ServiceToken": "arn:of:check-reach", "ServiceTimeout": "600"},
}


class Answers(urllib.request.HTTPSHandler):
    """What is sent to CloudFormation's bucket, newest last."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[urllib.request.Request] = []

    def https_open(self, req: urllib.request.Request) -> Any:
        self.sent.append(req)
        answer: Any = addinfourl(io.BytesIO(), Message(), req.full_url, 200)
        answer.msg = "OK"
        return answer


@pytest.fixture
def answers(account: Account, monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers()
    monkeypatch.setattr(urllib.request, "_opener", urllib.request.build_opener(made))
    for name, value in account.settings.to_environment().items():
        monkeypatch.setenv(name, value)
    return made


def ask(answers: Answers, **changes: str) -> dict[str, str]:
    handler(REQUEST | changes, None)  # type: ignore[arg-type]  # the context is not read
    data = answers.sent[-1].data
    assert isinstance(data, bytes)
    answer: dict[str, str] = json.loads(data)
    return answer


def test_functions_leave_only_when_no_closed_api_is_left(
    account: Account, answers: Answers
) -> None:
    eks = account.aws.client("eks")

    def make(which: str, *, is_public: bool) -> str:
        owner = Account(account.aws, account.settings)
        kept = owner.keep()
        eks.create_cluster(
            name=cluster_name(kept.cluster_id),
            roleArn=account.settings.cluster_role_arn,
            resourcesVpcConfig={
                "subnetIds": list(account.settings.subnet_ids),
                "endpointPublicAccess": is_public,
            },
        )
        account.aws.finish_lifecycles()
        return kept.cluster_id

    account.keep()  # nothing of it is made
    make("open", is_public=True)
    ids = {key: REQUEST[key] for key in ("StackId", "RequestId", "LogicalResourceId")}
    taken = {"Status": "SUCCESS", "Reason": "", "PhysicalResourceId": "check-reach", **ids}
    assert ask(answers) == taken

    closed = make("closed", is_public=False)
    refused = ask(answers)

    assert refused == taken | {"Status": "FAILED", "Reason": refusal([f"lab-{closed}"])}
    assert ask(answers) == refused  # delivered twice
    for kind in ("Update", "Delete"):
        assert ask(answers, RequestType=kind, PhysicalResourceId="p") == taken | {
            "PhysicalResourceId": "p"
        }
    eks.delete_cluster(name=cluster_name(closed))
    account.aws.finish_lifecycles()
    assert ask(answers) == taken
    assert {(each.get_method(), each.full_url) for each in answers.sent} == {("PUT", URL)}
    assert {each.get_header("Content-type") for each in answers.sent} == {""}


def test_refusal_names_a_few_clusters_and_both_ways_out() -> None:
    assert refusal([]) == ""
    said = refusal([f"lab-{number}" for number in range(200)])

    assert "clusters, 200 in all: lab-0, lab-1, lab-2, lab-3, lab-4; expected none" in said
    assert 'delete them, or set "public_api": false or "api_cidrs": ["0.0.0.0/0"]' in said


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ResponseURL": "https://amazonaws.com.example.org/"}, "ResponseURL"),
        ({"ResponseURL": "https://example.org/.amazonaws.com/"}, "ResponseURL"),
        ({"ResponseURL": URL.replace("https", "http")}, "ResponseURL"),
        ({"RequestType": "Read"}, "RequestType"),
    ],
)
def test_what_cloudformation_does_not_ask_is_not_answered(
    changes: dict[str, str], problem: str, answers: Answers
) -> None:
    with pytest.raises(PermanentError, match=f"no request of CloudFormation, {problem}:"):
        handler(REQUEST | changes, None)  # type: ignore[arg-type]  # the context is not read

    assert not answers.sent
