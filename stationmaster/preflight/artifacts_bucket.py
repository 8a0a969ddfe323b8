"""Whether the bucket is there that results and backups go to."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.account import Account
from stationmaster.preflight.findings import Finding, Severity
from stationmaster.preflight.subject import Subject
from stationmaster.services import Services

NAME: Final = "artifacts-bucket"


def applies(services: Services, subject: Subject) -> bool:
    """Say whether the deployment has one."""
    return bool(services.settings.artifacts_bucket)


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding."""
    bucket = services.settings.artifacts_bucket
    return [judge(bucket, account.bucket_problem(bucket))]


def judge(bucket: str, problem: str) -> Finding:
    """Return the verdict; `problem` is "" for none."""
    if not problem:
        return Finding(check=NAME, severity=Severity.INFO, message=f"bucket {bucket} is there")
    return Finding(
        check=NAME,
        severity=Severity.ERROR,
        message=f"the artifacts bucket {bucket} {problem}, and results would have no place",
        remedy="deploy the data stack again, and let nothing else change its bucket",
    )
