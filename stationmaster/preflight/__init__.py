"""What an account lacks, asked before anything costs money. One module a check.

`applies` says whether a start needs a check, `look` asks and judges. What cannot be asked stops
nothing: it is a warning that says so. The first step of a workflow ends it where a finding is an
error. A new check is a module here and an entry in CHECKS.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Final, Protocol

from stationmaster.aws.account import Account
from stationmaster.domain.errors import StationmasterError
from stationmaster.preflight import (
    artifacts_bucket,
    data_bucket,
    image_builds,
    instance_offers,
    kubernetes_version,
    model_access,
    published_images,
    reservation,
    secrets,
    vcpu_quota,
)
from stationmaster.preflight.findings import Finding, unanswered
from stationmaster.preflight.subject import Subject
from stationmaster.services import Services


class Check(Protocol):
    """What every module of this package has."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a constant of a module
        """The name of the check in findings."""

    def applies(self, services: Services, subject: Subject, /) -> bool:
        """Say whether it has anything to ask."""

    def look(self, services: Services, account: Account, subject: Subject, /) -> list[Finding]:
        """Ask and judge; a StationmasterError is raised where nobody answers."""


CHECKS: Final[tuple[Check, ...]] = (
    vcpu_quota,
    instance_offers,
    kubernetes_version,
    reservation,
    image_builds,
    published_images,
    model_access,
    artifacts_bucket,
    data_bucket,
    secrets,
)


def examine(
    services: Services, subject: Subject, *, account: Account, deadline_s: float
) -> list[Finding]:
    """Return all findings, in the order of CHECKS; checks run side by side.

    What has not answered after `deadline_s` seconds is found to be unanswered.
    """
    checks = [check for check in CHECKS if check.applies(services, subject)]
    # Not in a `with`: leaving one waits for an answer that may never come.
    pool = ThreadPoolExecutor(max_workers=len(CHECKS))
    asked: list[Future[list[Finding]]] = []
    for check in checks:
        ask = _asking(check, services, account, subject)
        asked.append(pool.submit(copy_context().run, ask))
    wait(asked, timeout=deadline_s)
    pool.shutdown(wait=False, cancel_futures=True)
    found: list[Finding] = []
    for check, future in zip(checks, asked, strict=True):
        if future.done() and not future.cancelled():
            found += future.result()
        else:
            found.append(unanswered(check.NAME, f"no answer in {deadline_s:.1f} s"))
    return found


def examine_all(
    services: Services, subjects: Sequence[Subject], *, account: Account, deadline_s: float
) -> list[tuple[Subject, list[Finding]]]:
    """Find for each subject within one deadline; earlier findings are left out."""
    ends = time.monotonic() + deadline_s
    seen: set[Finding] = set()
    examined = []
    for subject in subjects:
        left_s = max(0.0, ends - time.monotonic())
        found = examine(services, subject, account=account, deadline_s=left_s)
        examined.append((subject, [each for each in found if each not in seen]))
        seen.update(found)
    return examined


def _asking(
    check: Check, services: Services, account: Account, subject: Subject
) -> Callable[[], list[Finding]]:
    def ask() -> list[Finding]:
        try:
            return check.look(services, account, subject)
        except StationmasterError as error:
            return [unanswered(check.NAME, str(error))]

    return ask
