"""Whether the capacity reservation or block of a start has the instances that it needs."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.account import Account
from stationmaster.domain.cluster.spec import Window
from stationmaster.domain.durations import moment
from stationmaster.domain.errors import BadParameter, NotPossibleNow
from stationmaster.preflight.findings import Finding, Severity, absent
from stationmaster.preflight.subject import Machines, Subject
from stationmaster.services import Services

NAME: Final = "reservation"


def applies(services: Services, subject: Subject) -> bool:
    """Say whether nodes come from a reservation."""
    return subject.machines is not None and bool(subject.machines.reservation_id)


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding."""
    assert subject.machines is not None
    machines = subject.machines
    try:
        found = services.reservations.look_up(machines.reservation_id)
    except (BadParameter, NotPossibleNow) as error:
        return absent(NAME, str(error), "use another reservation or block, or capacity=on-demand")
    window = found.reservation.window
    return [judge(machines, available=found.available, total=found.total, window=window)]


def judge(
    machines: Machines, *, available: int, total: int, window: Window | None = None
) -> Finding:
    """Judge the instances that nobody uses; `window` is that of a capacity block."""
    what, when = "reservation", ""
    if window is not None:
        what = "block"
        when = f", from {moment(window.starts_at)} to {moment(window.ends_at)}"
    said = (
        f"capacity {what} {machines.reservation_id} has {available} of {total} "
        f"{machines.instance.name} free{when}"
    )
    if available >= machines.nodes:
        return Finding(check=NAME, severity=Severity.INFO, message=said)
    is_lacking = available < machines.least_nodes
    return Finding(
        check=NAME,
        severity=Severity.ERROR if is_lacking else Severity.WARNING,
        message=f"{said}, and {machines.nodes} are wished for",
        remedy="use fewer nodes, or wait until others have left it",
    )
