"""Whether CodeBuild may build the images: a new account has a quota of 0 for some machines."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.account import Account
from stationmaster.preflight.findings import Finding, Severity
from stationmaster.preflight.subject import DEPLOYMENT, Subject
from stationmaster.services import Services

NAME: Final = "image-builds"
SERVICE_CODE: Final = "codebuild"
# Source: Service Quotas, "Concurrently running builds for Linux/... environment".
_QUOTAS: Final = {
    "L-4DDC4A99": ("Linux/Large", "without more_images in cdk.json"),
    "L-0397D009": ("Linux/2XLarge", "with more_images in cdk.json"),
}


def applies(services: Services, subject: Subject) -> bool:
    """Say whether to look: at the deployment alone, since a start builds nothing."""
    return subject == DEPLOYMENT


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding for each machine that the project may be built on."""
    return [
        _judge(code, account.quota(SERVICE_CODE, code), region=account.region) for code in _QUOTAS
    ]


def _judge(code: str, limit: int, *, region: str) -> Finding:
    machine, used = _QUOTAS[code]
    message = f"CodeBuild may run builds on {machine} in {region}, used {used}, {limit:,} at a time"
    if limit:
        return Finding(check=NAME, severity=Severity.INFO, message=message)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        message=message,
        remedy="build with container/build.sh and Docker, or ask for 1: aws service-quotas "
        f"request-service-quota-increase --service-code {SERVICE_CODE} --quota-code {code} "
        f"--desired-value 1 --region {region}",
    )
