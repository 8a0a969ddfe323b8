"""Whether the data set of a start is in S3, and may be read."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.account import Account
from stationmaster.domain.errors import NotPossibleNow, TransientError
from stationmaster.domain.sizes import size_text
from stationmaster.preflight.findings import Finding, absent, present
from stationmaster.preflight.subject import Subject
from stationmaster.services import Services

NAME: Final = "data-bucket"


def applies(services: Services, subject: Subject) -> bool:
    """Say whether data comes from S3."""
    return subject.dataset is not None


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding."""
    assert subject.dataset is not None
    try:
        listing = services.datasets.measure(subject.dataset, subject.task)
    except NotPossibleNow as error:
        if isinstance(error.__cause__, TransientError):
            raise error.__cause__ from error  # S3 did not answer, which says nothing of the data
        # The sentence has its remedy.
        return absent(NAME, str(error))
    least = "" if listing.is_complete else "at least "
    return present(NAME, f"{subject.dataset.uri} holds {least}{size_text(listing.num_bytes)}")
