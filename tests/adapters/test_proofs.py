"""A signature says who asks, and only for what it was made: checked by an STS that checks it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stationmaster.aws.proofs import caller_of, sign
from stationmaster.domain.errors import NotPermitted
from stationmaster.settings import Settings

ASK = '{"kind": "start"}'


def caller(settings: Settings, **other: Any) -> str:
    asked = {"proof": sign(ASK, deployment="east"), "ask": ASK, "deployment": "east"}
    return caller_of(**(asked | {"region": settings.region, "now": datetime.now(UTC)} | other))


@pytest.mark.parametrize("token", ["", "session-token=="])
def test_sts_says_who_has_signed(
    settings: Settings, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", token)

    assert caller(settings) == "arn:aws:sts::123456789012:user/moto"


@pytest.mark.parametrize(
    "other",
    [{"ask": '{"kind": "start", "text": "llama2-70b nodes=64"}'}, {"deployment": "west"}],
)
def test_signature_for_something_else_is_nobodys(settings: Settings, other: dict[str, str]) -> None:
    with pytest.raises(NotPermitted, match=r"who asks is not known: .* SignatureDoesNotMatch"):
        caller(settings, **other)


@pytest.mark.parametrize("hours", [-1, 1])
def test_signature_of_another_time_is_refused_without_asking(
    settings: Settings, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = sign(ASK, deployment="east")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    with pytest.raises(NotPermitted, match="set this machine's clock"):
        caller(settings, proof=proof, now=datetime.now(UTC) + timedelta(hours=hours))


def test_credentials_that_aws_does_not_know_are_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")

    with pytest.raises(NotPermitted, match="SignatureDoesNotMatch"):
        caller(settings)
