"""Above what a run, a larger budget of it, or a change of a kept cluster waits for somebody else.

What is approved is a fingerprint: of the command, the machines and the price. Where one of them is
another by the time of the approval, the run asks again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from stationmaster.domain.aggregate import Bound
from stationmaster.domain.durations import typed_duration
from stationmaster.domain.event import Event
from stationmaster.domain.frozen import Frozen

# How long a start waits, and when approvers are reminded.
EXPIRES_AFTER: Final = timedelta(hours=2)
REMINDED_AFTER: Final = timedelta(hours=1)
MOST_APPROVERS: Final = 5
MOST_SHOWN: Final = 10

Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Limits(Frozen, extra="forbid"):
    """What a person may start alone; 0, or an empty list, for no limit."""

    usd: Usd = 0
    """That a run may cost in all, by its plan."""
    usd_per_hour: Usd = 0
    gpus: int = Field(default=0, ge=0)
    keep_hours: Usd = 0
    """That a cluster is kept."""
    instance_types: tuple[str, ...] = Field(default=(), max_length=200)
    """Machines that take an approval always."""
    approvals: int = Field(default=1, ge=1, le=MOST_APPROVERS)
    """Approvers that have to agree."""
    iam_above_usd: Usd = 0
    """Above it no click approves, but an IAM identity: `stationmaster approve`."""

    def exceeded(self, wish: Wish) -> list[str]:
        """Say what of the wish is above a limit, a phrase each."""
        above = []
        if 0 < self.usd < wish.usd:
            above.append(f"about ${wish.usd:,.2f} in all, and ${self.usd:,.2f} may be spent")
        if wish.budget_from_usd is not None:
            return above  # the machines were settled when the run started
        if 0 < self.usd_per_hour < wish.usd_per_hour:
            above.append(
                f"${wish.usd_per_hour:,.2f} an hour, and ${self.usd_per_hour:,.2f} may be spent"
            )
        if 0 < self.gpus < wish.gpus:
            above.append(f"{wish.gpus} GPUs, and {self.gpus} may be taken")
        if 0 < self.keep_hours < wish.keep_s / 3600:
            most = typed_duration(self.keep_hours * 3600)
            above.append(f"a cluster for {typed_duration(wish.keep_s)}, and {most} is allowed")
        if wish.instance_type in self.instance_types:
            above.append(f"{wish.instance_type} is always asked for")
        return above


class Wish(Frozen):
    """What somebody wants to start, as far as limits and approvers look at it."""

    command: str
    """As it could be typed, each value once."""
    nodes: int
    instance_type: str
    gpus: int
    keep_s: float
    usd_per_hour: float
    usd: float
    budget_from_usd: float | None = None
    """What is kept for a run so far, where a larger budget of it is asked for; otherwise None."""

    @property
    def fingerprint(self) -> str:
        """What an approval is of; another one where anything that is bought is another."""
        bought = self.model_copy(
            update={"usd": round(self.usd, 2), "usd_per_hour": round(self.usd_per_hour, 2)}
        )
        return hashlib.sha256(bought.model_dump_json(exclude_none=True).encode()).hexdigest()[:16]


class Decided(Event):
    """What approvers, or the time, have done about what waits for an approval."""

    decision: Literal["given", "refused", "reminded"]
    user_id: str = ""
    """An id of Slack or an ARN of IAM; "" where nobody has decided in time."""
    fingerprint: str = ""
    """Of the wish that it is about; a decision about another one changes nothing."""


class Approval(Frozen):
    """What somebody waits for, and who has agreed."""

    reasons: Annotated[tuple[str, ...], Bound(5)]
    wish: Wish
    approvers: Annotated[tuple[str, ...], Bound(MOST_SHOWN)]
    """Who may decide, as the channel's rules named them when it was asked for."""
    needed: int
    by_iam: bool = False
    """Whether only an identity of IAM may agree."""
    asked_at: datetime
    given_by: Annotated[tuple[str, ...], Bound(MOST_APPROVERS)] = ()
    """Who has agreed: ids of Slack, ARNs of IAM."""
    refused_by: str | None = None
    """Who decided against it; "" where nobody decided in time."""
    is_reminded: bool = False
    """Whether approvers were reminded."""
    asked_by: str = ""
    """Who asks for a larger budget; "" where the run or the cluster says who asks."""

    @property
    def is_of_budget(self) -> bool:
        """Whether a larger budget of a run is asked for."""
        return self.wish.budget_from_usd is not None

    @property
    def is_given(self) -> bool:
        return len(self.given_by) >= self.needed

    @property
    def expires_at(self) -> datetime:
        return self.asked_at + EXPIRES_AFTER

    @property
    def is_open(self) -> bool:
        """Whether it is not decided."""
        return not self.is_given and self.refused_by is None

    def after(self, event: Decided) -> Approval:
        """Return it after an event; one that comes too late, or twice, changes nothing."""
        if not self.is_open or event.fingerprint != self.wish.fingerprint:
            return self
        match event.decision:
            case "given":
                given_by = tuple(dict.fromkeys((*self.given_by, event.user_id)))
                return self.model_copy(update={"given_by": given_by})
            case "refused":
                return self.model_copy(update={"refused_by": event.user_id, "given_by": ()})
            case "reminded":
                return self.model_copy(update={"is_reminded": True})

    def unless_replaced(self, budget_usd: float) -> Approval | None:
        """Return it where a new budget of the run leaves it: of the start, or what has given it."""
        has_given = self.is_given and self.wish.usd == budget_usd
        return self if has_given or not self.is_of_budget else None

    def due(self, now: datetime) -> Literal["refused", "reminded"] | None:
        """Return what the time brings: a reminder, then the end."""
        if now >= self.expires_at:
            return "refused"
        is_late = now >= self.asked_at + REMINDED_AFTER
        return "reminded" if is_late and not self.is_reminded else None


def approval_for(
    limits: Limits, wish: Wish, *, approvers: Sequence[str], now: datetime
) -> Approval | None:
    """Return the approval that a start waits for; None where it needs none."""
    reasons = limits.exceeded(wish)
    if not reasons:
        return None
    return Approval(
        reasons=tuple(reasons),
        wish=wish,
        approvers=tuple(approvers[:MOST_SHOWN]),
        needed=limits.approvals,
        by_iam=0 < limits.iam_above_usd < wish.usd,
        asked_at=now,
    )
