"""The endpoint itself: injected faults, recorded calls, the HTTP front, deployment."""

from __future__ import annotations

import base64
import http.client
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from stationmaster.local.aws import (
    Deployment,
    DeploymentSpec,
    FunctionSpec,
    InProcessRuntime,
    LocalAws,
    Route,
)
from stationmaster.local.aws.deployment import substitute
from stationmaster.local.aws.moto_patches import require_version
from tests.support.aws_fixtures import HANDLER, Script


@pytest.fixture(scope="module")
def url(aws: LocalAws) -> str:
    """Address of an HTTP API whose routes lead to the function "web"."""
    made = aws.deploy(
        DeploymentSpec(
            functions=[FunctionSpec(name="web", handler=HANDLER)],
            routes=[
                Route(method="POST", path="/slack/events", function="web"),
                Route(method="POST", path="/any", function="web"),
            ],
        )
    )
    return made.http_url


def describe_nothing(aws: LocalAws, service: str) -> Any:
    """Make one harmless call of a service."""
    calls: dict[str, Any] = {
        "ec2": lambda client: client.describe_vpcs(),
        "eks": lambda client: client.list_clusters(),
        "fsx": lambda client: client.describe_file_systems(),
        "dynamodb": lambda client: client.list_tables(),
        "events": lambda client: client.list_event_buses(),
        "stepfunctions": lambda client: client.list_state_machines(),
        "secretsmanager": lambda client: client.list_secrets(),
        "lambda": lambda client: client.list_functions(),
        "sts": lambda client: client.get_caller_identity(),
        "iam": lambda client: client.list_roles(),
    }
    return calls[service](aws.client(service))


# -- faults -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "signing", "operation", "code", "status"),
    [
        ("ec2", "ec2", "DescribeVpcs", "RequestLimitExceeded", 503),
        ("eks", "eks", "ListClusters", "ServerException", 500),
        ("fsx", "fsx", "DescribeFileSystems", "InternalServerError", 500),
        ("dynamodb", "dynamodb", "ListTables", "ThrottlingException", 400),
        ("events", "events", "ListEventBuses", "InternalException", 400),
        ("stepfunctions", "states", "ListStateMachines", "AccessDeniedException", 403),
        ("secretsmanager", "secretsmanager", "ListSecrets", "AccessDeniedException", 403),
        ("lambda", "lambda", "ListFunctions", "TooManyRequestsException", 429),
        ("sts", "sts", "GetCallerIdentity", "AccessDenied", 403),
        ("iam", "iam", "ListRoles", "ServiceFailure", 400),
    ],
)
def test_injected_error_reaches_the_caller_once(
    aws: LocalAws,
    script: Script,
    service: str,
    signing: str,
    operation: str,
    code: str,
    status: int,
) -> None:
    aws.forget_calls()
    aws.inject(signing, operation, code)

    with pytest.raises(ClientError) as raised:
        describe_nothing(aws, service)
    describe_nothing(aws, service)

    assert raised.value.response["Error"]["Code"] == code
    assert raised.value.response["Error"]["Message"] == "injected by a test"
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert aws.calls == [(signing, operation)] * 2


def test_injected_closed_connection_is_one(aws: LocalAws, script: Script) -> None:
    aws.inject("eks", "ListClusters", "ConnectionClosed")

    with pytest.raises(ConnectionClosedError):
        describe_nothing(aws, "eks")

    assert "clusters" in describe_nothing(aws, "eks")


def test_operation_that_is_not_emulated_is_named(aws: LocalAws, script: Script) -> None:
    with pytest.raises(ClientError, match="eks:ListInsights is not emulated"):
        aws.client("eks").list_insights(clusterName="c")


# -- HTTP front ---------------------------------------------------------------


def test_http_request_becomes_a_payload_2_event(url: str, script: Script) -> None:
    script.on("web", lambda event, context: {"statusCode": 200, "body": "ok"})

    answer = httpx.post(
        f"{url}/slack/events?a=1&a=2&b=",
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


def test_http_binary_body_is_base64(url: str, script: Script) -> None:
    script.on("web", lambda event, context: {"statusCode": 204})

    httpx.post(f"{url}/any", content=b"\x89PNG\x00", headers={"Content-Type": "image/png"})

    event = script.received("web")[0]
    assert event["isBase64Encoded"] is True
    assert base64.b64decode(event["body"]) == b"\x89PNG\x00"


@pytest.mark.parametrize(
    ("result", "status", "text"),
    [
        ({"statusCode": 418, "headers": {"X-Kind": "pot"}, "body": "tea"}, 418, "tea"),
        ({"hello": "there"}, 200, '{"hello": "there"}'),
    ],
)
def test_http_response_is_what_the_function_returned(
    url: str, script: Script, result: dict[str, Any], status: int, text: str
) -> None:
    script.on("web", lambda event, context: result)

    answer = httpx.post(f"{url}/any")

    assert (answer.status_code, answer.text) == (status, text)
    assert answer.headers.get("x-kind") == result.get("headers", {}).get("X-Kind")


def test_http_function_error_is_500_without_its_text(url: str, script: Script) -> None:
    script.fail("web", times=1)

    answer = httpx.post(f"{url}/any")

    assert (answer.status_code, answer.json()) == (500, {"message": "Internal Server Error"})


def test_http_unknown_route_is_404_and_keeps_the_connection_usable(
    url: str, script: Script
) -> None:
    script.on("web", lambda event, context: {"statusCode": 200, "body": event.get("body")})

    with httpx.Client() as client:
        missing = client.post(f"{url}/other", content="x" * 1000)
        found = client.post(f"{url}/any", content="y", headers={"Content-Type": "text/plain"})

    assert (missing.status_code, found.text) == (404, "y")


def test_http_body_over_the_limit_is_413(url: str, script: Script) -> None:
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port)
    connection.putrequest("POST", "/any")
    connection.putheader("Content-Length", str(11 * 1024 * 1024))
    connection.endheaders()

    status = connection.getresponse().status
    connection.close()

    assert status == 413
    assert script.received("web") == []


# -- endpoint -----------------------------------------------------------------


def test_environment_points_any_sdk_at_the_endpoint(aws: LocalAws, tmp_path: Path) -> None:
    code = "import boto3; print(boto3.client('sts').get_caller_identity()['Account'])"

    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **aws.environment()},
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.strip() == "123456789012"
    assert aws.url.startswith("http://127.0.0.1:")


def test_second_endpoint_in_one_process_is_refused(aws: LocalAws, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="already runs in this process"):
        LocalAws(state_dir=tmp_path, invoker=InProcessRuntime(), handlers=[]).start()

    assert describe_nothing(aws, "sts")["Account"] == "123456789012"


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


def test_substitute_refuses_an_unknown_placeholder() -> None:
    with pytest.raises(ValueError, match=r'state machine "train": placeholder \$\{Nobody\}'):
        substitute("${Nobody}", {"Ensure": "arn:x"}, name="train")


@pytest.fixture(scope="module", autouse=True)
def _deployed_first(deployed: Deployment) -> None:
    """Create the scripted functions and the role before any later deployment."""
