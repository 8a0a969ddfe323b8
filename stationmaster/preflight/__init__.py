"""What an account lacks, asked before anything costs money.

What cannot be asked stops nothing: it is a warning that says so. The first step of a workflow ends
it where a finding is an error. A new check is a function and an entry in CHECKS of its module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Final

from stationmaster.aws.account import Account
from stationmaster.domain.errors import StationmasterError
from stationmaster.preflight import contents, machines
from stationmaster.preflight.findings import Check, Finding, unanswered
from stationmaster.preflight.subject import Subject
from stationmaster.services import Services

CHECKS: Final[tuple[Check, ...]] = (*machines.CHECKS, *contents.CHECKS)


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
            found.append(unanswered(check.name, f"no answer in {deadline_s:.1f} s"))
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
            return [unanswered(check.name, str(error))]

    return ask
