"""Whether the bucket is there that results and backups go to."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.account import Account
from stationmaster.preflight.findings import Finding, absent, present
from stationmaster.preflight.subject import Subject
from stationmaster.services import Services

NAME: Final = "artifacts-bucket"


def applies(services: Services, subject: Subject) -> bool:
    """Say whether the deployment has one."""
    return bool(services.settings.artifacts_bucket)


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding."""
    bucket = services.settings.artifacts_bucket
    problem = account.bucket_problem(bucket)
    if not problem:
        return present(NAME, f"bucket {bucket} is there")
    return absent(
        NAME,
        f"the artifacts bucket {bucket} {problem}, and results would have no place",
        "deploy the data stack again, and let nothing else change its bucket",
    )
