"""Above what a start waits for the approval of somebody else, and how it gets it.

What is approved is a fingerprint: of the command, the machines and the price. Where one of them is
another by the time of the approval, the run asks again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from stationmaster.domain.aggregate import Bound
from stationmaster.domain.durations import typed_duration

# How long a start waits, and when approvers are reminded.
EXPIRES_AFTER: Final = timedelta(hours=2)
REMINDED_AFTER: Final = timedelta(hours=1)
MOST_APPROVERS: Final = 5
MOST_SHOWN: Final = 10

Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Limits(BaseModel):
    """What a person may start alone; 0, or an empty list, for no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


class Wish(BaseModel):
    """What somebody wants to start, as far as limits and approvers look at it."""

    model_config = ConfigDict(frozen=True)

    command: str
    """As it could be typed, each value once."""
    nodes: int
    instance_type: str
    gpus: int
    keep_s: float
    usd_per_hour: float
    usd: float

    @property
    def fingerprint(self) -> str:
        """What an approval is of; another one where anything that is bought is another."""
        bought = self.model_copy(
            update={"usd": round(self.usd, 2), "usd_per_hour": round(self.usd_per_hour, 2)}
        )
        return hashlib.sha256(bought.model_dump_json().encode()).hexdigest()[:16]


class Approval(BaseModel):
    """What a run waits for before it starts, and who has agreed."""

    model_config = ConfigDict(frozen=True)

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

    @property
    def is_given(self) -> bool:
        return len(self.given_by) >= self.needed

    @property
    def expires_at(self) -> datetime:
        return self.asked_at + EXPIRES_AFTER

    def with_one_of(self, user_id: str) -> Approval:
        """Add somebody's yes, once."""
        return self.model_copy(update={"given_by": tuple(dict.fromkeys((*self.given_by, user_id)))})


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
