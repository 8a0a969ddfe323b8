"""The endpoint itself: the HTTP front, recorded calls, deployment, functions and their runtime."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from stationmaster.local.aws import (
    Deployment,
    DeploymentSpec,
    Function,
    FunctionSpec,
    InProcessRuntime,
    LocalAws,
)
from stationmaster.local.aws.moto_patches import require_version
from stationmaster.local.faults import names
from tests.chaos.direct_calls import without_connection
from tests.support.aws_fixtures import HANDLER, Script


def test_operation_that_is_not_emulated_is_named(aws: LocalAws, script: Script) -> None:
    with pytest.raises(ClientError, match="eks:ListInsights is not emulated"):
        aws.client("eks").list_insights(clusterName="c")


# -- HTTP front ---------------------------------------------------------------


def test_http_request_becomes_a_payload_2_event(http_url: str, script: Script) -> None:
    script.on("web", lambda event, context: {"statusCode": 200, "body": "ok"})

    answer = httpx.post(
        f"{http_url}/slack/events?a=1&a=2&b=",
        content="text=%2Ftrain",
        headers={
            "Content-Type": "application/x-www-form-urlencoded",
            "X-Slack-Signature": "v0=abc",
        },
    )

    event = script.received("web")[0]
    assert (answer.status_code, answer.text) == (200, "ok")
    assert (event["version"], event["routeKey"]) == ("2.0", "POST /slack/events")
    assert (event["rawPath"], event["rawQueryString"]) == ("/slack/events", "a=1&a=2&b=")
    assert event["queryStringParameters"] == {"a": "1,2", "b": ""}
    assert event["headers"]["x-slack-signature"] == "v0=abc"
    assert event["requestContext"]["http"]["method"] == "POST"
    assert (event["body"], event["isBase64Encoded"]) == ("text=%2Ftrain", False)


@pytest.mark.parametrize(
    ("result", "status", "text"),
    [
        ({"statusCode": 418, "headers": {"X-Kind": "pot"}, "body": "tea"}, 418, "tea"),
        ({"hello": "there"}, 200, '{"hello": "there"}'),
    ],
)
def test_http_response_is_what_the_function_returned(
    http_url: str, script: Script, result: dict[str, Any], status: int, text: str
) -> None:
    script.on("web", lambda event, context: result)

    answer = httpx.post(f"{http_url}/any")

    assert (answer.status_code, answer.text) == (status, text)
    assert answer.headers.get("x-kind") == result.get("headers", {}).get("X-Kind")


def test_http_function_error_is_500_without_its_text(http_url: str, script: Script) -> None:
    script.fail("web", times=1)

    answer = httpx.post(f"{http_url}/any")

    assert (answer.status_code, answer.json()) == (500, {"message": "Internal Server Error"})


def test_http_unknown_route_is_404_and_keeps_the_connection_usable(
    http_url: str, script: Script
) -> None:
    script.on("web", lambda event, context: {"statusCode": 200, "body": event.get("body")})

    with httpx.Client() as client:
        missing = client.post(f"{http_url}/other", content="x" * 1000)
        found = client.post(f"{http_url}/any", content="y", headers={"Content-Type": "text/plain"})

    assert (missing.status_code, found.text) == (404, "y")


def test_http_body_over_the_limit_is_413(http_url: str, script: Script) -> None:
    target = urlsplit(http_url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port)
    connection.putrequest("POST", "/any")
    connection.putheader("Content-Length", str(11 * 1024 * 1024))
    connection.endheaders()

    status = connection.getresponse().status
    connection.close()

    assert status == 413
    assert script.received("web") == []


# -- endpoint -----------------------------------------------------------------


def test_second_endpoint_in_one_process_is_refused(aws: LocalAws, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="already runs in this process"):
        LocalAws(state_dir=tmp_path, invoker=InProcessRuntime(), handlers=[]).start()

    assert aws.client("sts").get_caller_identity()["Account"] == "123456789012"


def test_patches_refuse_another_moto() -> None:
    with pytest.raises(RuntimeError, match=r"moto 5\.2\.6 is installed .* install moto==5\.2\.5"):
        require_version("5.2.6")


def test_deployed_calls_are_not_recorded(aws: LocalAws, deployed: Deployment) -> None:
    aws.forget_calls()

    made = aws.deploy(
        DeploymentSpec(
            functions=[FunctionSpec(name="extra", handler=HANDLER)], secrets={"slack-token": "x"}
        )
    )

    assert aws.calls == []
    assert made.function_arns["extra"] == aws.function_arn("extra")
    value = aws.client("secretsmanager").get_secret_value(SecretId="slack-token")
    assert value["SecretString"] == "x"


def test_account_with_every_fault_is_deployed_as_any_other(aws: LocalAws, script: Script) -> None:
    # What is deployed is older than the runs that the faults are for.
    aws.faults.update(names("aws"))

    made = aws.deploy(DeploymentSpec(network="faulty", roles=["cluster"]))

    (group,) = aws.client("ec2").describe_security_groups(
        Filters=[{"Name": "vpc-id", "Values": [made.vpc_id]}]
    )["SecurityGroups"]
    assert group["GroupName"] == "default"
    assert made.subnet_ids
    assert made.role_arns["cluster"]


def test_new_group_is_unknown_to_the_first_call_of_each_kind(aws: LocalAws, script: Script) -> None:
    aws.faults.add("eventual-consistency")
    ec2 = aws.client("ec2")
    group = {"GroupId": ec2.create_security_group(GroupName="n", Description="n")["GroupId"]}

    for call in (ec2.authorize_security_group_ingress, ec2.authorize_security_group_egress):
        rule = [{"IpProtocol": "tcp", "FromPort": 1, "ToPort": 2, "IpRanges": []}]
        with pytest.raises(ClientError, match="does not exist"):
            call(**group, IpPermissions=rule)
        call(**group, IpPermissions=rule)


def test_lost_answer_of_a_call_without_connection_ends_as_a_closed_one(
    aws: LocalAws, script: Script
) -> None:
    aws.faults.add("lost-answers")
    ec2, directly = aws.client("ec2"), without_connection(aws)
    ec2.meta.events.register("before-send", directly)

    with pytest.raises(ConnectionClosedError, match="closed before we received"):
        ec2.create_placement_group(GroupName="g", Strategy="cluster")
    groups = ec2.describe_placement_groups()["PlacementGroups"]
    ec2.meta.events.unregister("before-send", directly)

    assert [each["GroupName"] for each in groups] == ["g"], "it took effect"


# -- functions ----------------------------------------------------------------


def function(**fields: Any) -> Function:
    """Return a function with a handler of this file."""
    environment = {"COLOUR": "blue"}
    return Function(
        **{"name": "probe", "handler": f"{__name__}.echo", "environment": environment, **fields}
    )


def echo(event: Any, context: Any) -> Any:
    return event


def test_in_process_conflicting_environment_is_refused() -> None:
    runtime = InProcessRuntime()
    runtime.invoke(function(), b"{}")

    result, failed = runtime.invoke(function(name="other", environment={"COLOUR": "red"}), b"{}")
    runtime.close()

    assert failed
    assert "COLOUR='red'" in json.loads(result)["errorMessage"]
    assert "COLOUR" not in os.environ


def test_in_process_call_after_the_end_is_refused_and_sets_no_variable() -> None:
    runtime = InProcessRuntime()
    runtime.close()

    result, failed = runtime.invoke(function(), b"{}")

    assert failed
    assert "the local AWS endpoint has stopped" in json.loads(result)["errorMessage"]
    assert "COLOUR" not in os.environ
