"""What a person asks before a start: does the account have what it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from stationmaster.domain.commands.start import StartRun
from stationmaster.services import Services

if TYPE_CHECKING:
    from stationmaster.preflight.findings import Finding

# A person waits 3 s for the whole answer.
_DEADLINE_S: Final = 1.5


def preflight(services: Services, starts: Iterable[StartRun]) -> list[tuple[str, list[Finding]]]:
    """Return what was found of the deployment, and of each start what was not found before.

    Nothing is created, and what nobody answers in time is a finding as well.
    """
    # Imported here: a bot that is asked something else starts without it.
    from stationmaster.preflight import examine_all
    from stationmaster.preflight.subject import DEPLOYMENT, of_start

    subjects = [DEPLOYMENT, *(of_start(start) for start in starts)]
    found = examine_all(services, subjects, account=services.quick_account, deadline_s=_DEADLINE_S)
    return [(subject.name, findings) for subject, findings in found]
