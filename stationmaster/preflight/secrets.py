"""Whether the deployment's secrets are there and hold what is expected."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.account import Account
from stationmaster.domain.errors import PermanentError
from stationmaster.preflight.findings import Finding, absent, present
from stationmaster.preflight.subject import DEPLOYMENT, Subject
from stationmaster.services import Services

NAME: Final = "secrets"


def applies(services: Services, subject: Subject) -> bool:
    """Say whether the deployment has any."""
    settings = services.settings
    return bool(settings.hugging_face_secret_id or settings.slack_secret_id)


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding for each secret; Slack's is asked for with the deployment only."""
    settings = services.settings
    found: list[Finding] = []
    if settings.slack_secret_id and subject == DEPLOYMENT:
        found += _slack(services)
    if settings.hugging_face_secret_id:
        found += _hugging_face(services)
    return found


def _slack(services: Services) -> list[Finding]:
    try:
        services.secrets.slack()
    except PermanentError as error:
        return _wrong("Slack", error)
    return present(NAME, "the Slack secret is filled in")


def _hugging_face(services: Services) -> list[Finding]:
    try:
        token = services.secrets.hugging_face_token()
    except PermanentError as error:
        return _wrong("Hugging Face", error)
    said = (
        "the Hugging Face secret has a token"
        if token is not None
        else "the Hugging Face secret has no token, so gated models cannot be read"
    )
    return present(NAME, said)


def _wrong(whose: str, error: PermanentError) -> list[Finding]:
    if "AccessDenied" in str(error):
        raise error  # who asks may not read it; others may
    return absent(NAME, str(error), f"put the fields of the {whose} secret in, see docs/deploy.md")
