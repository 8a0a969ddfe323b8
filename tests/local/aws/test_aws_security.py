"""The local AWS account is for programs that have its key: no browser, no other key, no other code.

Requests are written byte by byte where a client would add what is left out here.
"""

from __future__ import annotations

import hashlib
import json
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from moto.awslambda.models import lambda_backends

from stationmaster.local.aws import (
    Deployment,
    InProcessRuntime,
    LocalAws,
)
from tests.support.aws_fixtures import HANDLER, Script

LIST_SECRETS = {
    "X-Amz-Target": "secretsmanager.ListSecrets",
    "Content-Type": "application/x-amz-json-1.1",
}


def signed(
    aws: LocalAws,
    *,
    method: str = "POST",
    path: str = "/",
    body: bytes = b"{}",
    service: str = "secretsmanager",
    headers: Mapping[str, str] = LIST_SECRETS,
) -> dict[str, str]:
    """Return the headers of a signed request; without more it lists the secrets."""
    variables = aws.environment()
    key = Credentials(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"])
    request = AWSRequest(method=method, url=f"{aws.url}{path}", data=body, headers=dict(headers))
    SigV4Auth(key, service, "us-west-2").add_auth(request)
    return dict(request.headers)


@pytest.mark.parametrize("server", ["aws", "http"])
@pytest.mark.parametrize("framing", ["Content-Length: {length}", "Transfer-Encoding: chunked"])
def test_body_of_a_refused_request_is_never_read_as_another(
    aws: LocalAws, http_url: str, script: Script, server: str, framing: str
) -> None:
    """A page may post any text: it must not become a request without an Origin."""
    target = urlsplit(aws.url if server == "aws" else http_url)
    sent = signed(aws) if server == "aws" else {}
    inner = [
        f"POST /{'' if server == 'aws' else 'slack/events'} HTTP/1.1",
        f"Host: {target.netloc}",
    ]
    inner += [f"{name}: {text}" for name, text in sent.items()]
    smuggled = "\r\n".join([*inner, "Content-Length: 2", "", "{}"])
    outer = [
        "POST / HTTP/1.1",
        f"Host: {target.netloc}",
        "Origin: https://evil.test",
        framing.format(length=len(smuggled)),
        "",
        smuggled,
    ]
    aws.forget_calls()

    with socket.create_connection((target.hostname, target.port)) as connection:
        connection.sendall("\r\n".join(outer).encode())
        answers = b"".join(iter(lambda: connection.recv(65536), b""))

    assert answers.startswith(b"HTTP/1.1 403")
    assert answers.count(b"HTTP/1.1") == 1
    assert (aws.calls, script.received("web")) == ([], [])


BAD_REQUESTS = {
    "length is no number": (b"POST /x HTTP/1.1", b"Content-Length: abc"),
    "length is negative": (b"POST /x HTTP/1.1", b"Content-Length: -1"),
    "address is none": (b"GET http://[bad/ HTTP/1.1", b"X: y"),
    "host is none": (b"GET //[bad HTTP/1.1", b"X: y"),
    "chunk is none": (b"POST /x HTTP/1.1", b"Transfer-Encoding: chunked\r\n\r\nzz"),
    "key is not ASCII": (
        b"GET / HTTP/1.1",
        b"Authorization: AWS4-HMAC-SHA256 Credential=\xe9/20260101/us-west-2/sts/aws4_request, "
        b"SignedHeaders=host, Signature=" + 64 * b"0",
    ),
}


@pytest.mark.parametrize("server", ["aws", "http"])
@pytest.mark.parametrize("bad", BAD_REQUESTS)
def test_bad_request_gets_an_answer_and_no_traceback(
    aws: LocalAws,
    http_url: str,
    script: Script,
    capfd: pytest.CaptureFixture[str],
    server: str,
    bad: str,
) -> None:
    target = urlsplit(aws.url if server == "aws" else http_url)
    line, header = BAD_REQUESTS[bad]

    with socket.create_connection((target.hostname, target.port)) as connection:
        connection.sendall(
            b"\r\n".join([line, f"Host: {target.netloc}".encode(), header, b"", b""])
        )
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))

    assert 400 <= int(answer.split()[1]) < 500
    assert script.received("web") == []
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "path", ["/moto-api/", "/moto-api/reset", "/latest/meta-data/iam/security-credentials/"]
)
@pytest.mark.parametrize("service", ["secretsmanager", "lambda", "s3"])
def test_motos_control_pages_are_not_reachable(
    aws: LocalAws, script: Script, path: str, service: str
) -> None:
    unsigned = httpx.post(f"{aws.url}{path}")
    answer = httpx.post(
        f"{aws.url}{path}",
        content=b"{}",
        headers=signed(aws, path=path, service=service),
    )

    assert (unsigned.status_code, answer.status_code) == (403, 404)
    assert aws.client("lambda").get_function(FunctionName="worker")


# -- the key ------------------------------------------------------------------


def client(aws: LocalAws, service: str, **changed: str) -> Any:
    """Return a client with other credentials than the endpoint's."""
    variables = aws.environment()
    return boto3.Session(
        aws_access_key_id=changed.get("key_id", variables["AWS_ACCESS_KEY_ID"]),
        aws_secret_access_key=changed.get("secret", variables["AWS_SECRET_ACCESS_KEY"]),
        region_name="us-west-2",
    ).client(service, endpoint_url=aws.url, config=Config(retries={"total_max_attempts": 1}))


@pytest.mark.parametrize(
    ("service", "call", "unknown", "wrong", "status"),
    [
        ("eks", "list_clusters", "UnrecognizedClientException", "InvalidSignatureException", 403),
        ("dynamodb", "list_tables", "UnrecognizedClientException", "InvalidSignatureExc", 403),
        ("sts", "get_caller_identity", "InvalidClientTokenId", "SignatureDoesNotMatch", 403),
        ("ec2", "describe_vpcs", "AuthFailure", "SignatureDoesNotMatch", 401),
        ("s3", "list_buckets", "InvalidAccessKeyId", "SignatureDoesNotMatch", 403),
    ],
)
def test_other_key_or_secret_is_refused_as_the_service_words_it(
    aws: LocalAws, script: Script, service: str, call: str, unknown: str, wrong: str, status: int
) -> None:
    aws.forget_calls()

    with pytest.raises(ClientError, match=unknown) as other_key:
        getattr(client(aws, service, key_id="local"), call)()
    with pytest.raises(ClientError, match=wrong):
        getattr(client(aws, service, secret="local"), call)()
    getattr(client(aws, service), call)()

    assert other_key.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert len(aws.calls) == 1


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer x",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential={key}/20260101/us-west-2/no-such-service/aws4_request",
        "AWS4-HMAC-SHA256 Credential={key}/20260101/us-west-2/secretsmanager/aws4_request",
    ],
)
def test_missing_or_malformed_authorization_is_refused(
    aws: LocalAws, script: Script, authorization: str
) -> None:
    key = aws.environment()["AWS_ACCESS_KEY_ID"]
    stated = {"Authorization": authorization.format(key=key)} if authorization else {}

    answer = httpx.post(aws.url, content=b"{}", headers=LIST_SECRETS | stated)

    code = "UnrecognizedClient" if authorization else "MissingAuthenticationToken"
    assert (answer.status_code, answer.json()["__type"]) == (403, f"{code}Exception")


@pytest.mark.parametrize("changed", ["body", "hashed body", "path", "query", "header", "date"])
def test_changed_request_is_refused(aws: LocalAws, script: Script, changed: str) -> None:
    hashed = {"X-Amz-Content-SHA256": hashlib.sha256(b"{}").hexdigest()}
    headers = signed(aws, headers=LIST_SECRETS | (hashed if "hashed" in changed else {}))
    assert httpx.post(aws.url, content=b"{}", headers=headers).status_code == 200
    if changed == "header":
        headers["X-Amz-Target"] = "secretsmanager.GetRandomPassword"
    if changed == "date":
        del headers["X-Amz-Date"]
    url = {"path": f"{aws.url}/other", "query": f"{aws.url}/?a=1"}.get(changed, aws.url)

    answer = httpx.post(url, content=b"[]" if "body" in changed else b"{}", headers=headers)

    assert (answer.status_code, answer.json()["__type"]) == (403, "InvalidSignatureException")


def test_signed_request_with_odd_path_and_query_is_served(aws: LocalAws, script: Script) -> None:
    """The signature covers the address as it was sent, escapes included."""
    with pytest.raises(ClientError) as missing:
        aws.client("lambda").get_function(FunctionName="a:b")
    with pytest.raises(ClientError) as absent:
        aws.client("eks").list_tags_for_resource(
            resourceArn="arn:aws:eks:us-west-2:123456789012:cluster/x y%2F"
        )
    aws.client("lambda").list_functions(Marker="0 +&=/", MaxItems=1)

    assert "Signature" not in missing.value.response["Error"]["Code"]
    assert "Signature" not in absent.value.response["Error"]["Code"]


def test_key_is_new_at_each_start_and_its_file_is_private(aws: LocalAws, tmp_path: Path) -> None:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    other = LocalAws(state_dir=tmp_path, invoker=InProcessRuntime(), handlers=[])
    left = tmp_path / "aws.env"
    left.write_text("an older one that everybody could read")
    left.chmod(0o644)

    other._write_environment()

    assert all(other.environment()[name] != aws.environment()[name] for name in names)
    assert stat.S_IMODE(left.stat().st_mode) == 0o600
    assert f"AWS_ACCESS_KEY_ID={other.environment()[names[0]]}" in left.read_text()


# -- handlers -----------------------------------------------------------------


@pytest.mark.parametrize("handler", ["pty.spawn", ""])
def test_function_with_another_handler_cannot_be_created(
    aws: LocalAws, script: Script, deployed: Deployment, handler: str
) -> None:
    with pytest.raises(ClientError) as refused:
        aws.client("lambda").create_function(
            FunctionName="foreign",
            Runtime="python3.13",
            Role=deployed.role_arns["local-execution"],
            Handler=handler,
            Code={"ZipFile": b"x"},
        )

    assert refused.value.response["Error"]["Code"] == "InvalidParameterValueException"
    assert f"handler '{handler}' is none of this deployment" in str(refused.value)
    assert aws.function_arn("foreign") not in str(aws.client("lambda").list_functions())
    with pytest.raises(ClientError, match="is none of this deployment"):
        aws.client("lambda").update_function_configuration(FunctionName="worker", Handler=handler)


def test_other_handler_that_is_stored_anyway_is_not_run(
    aws: LocalAws, script: Script, tmp_path: Path
) -> None:
    marked = tmp_path / "marked"
    stored = lambda_backends[aws.account_id][aws.region].get_function("flaky")
    stored.handler = "os.mkdir"
    try:
        answer = aws.client("lambda").invoke(
            FunctionName="flaky", Payload=json.dumps(str(marked)).encode()
        )
    finally:
        stored.handler = HANDLER

    payload = json.load(answer["Payload"])
    assert answer["FunctionError"] == "Unhandled"
    assert payload["errorType"] == "Runtime.HandlerNotAllowed"
    assert "handler 'os.mkdir' is none of this deployment" in payload["errorMessage"]
    assert not marked.exists()
