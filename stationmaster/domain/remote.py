"""What a terminal or a program asks of a deployment's bot function, and what that answers.

The payload of the invocation is `{"stationmaster": Envelope}`, and nothing beside it: an event of
API Gateway has no such field, and no sender of one can add it. Both sides read strictly.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import RunView
from stationmaster.domain.teams import IN_TEAM

FIELD: Final = "stationmaster"
# Below the 6 MB that Lambda takes; a command has far fewer, which the grammar says more kindly.
_MOST_TYPED: Final = 50_000


class Proof(Frozen, extra="forbid"):
    """The signature of a request GetCallerIdentity, with which the bot asks STS who has signed."""

    # Of these headers, no fewer: what is not signed says nothing about the signer.
    authorization: str = Field(
        pattern=r"^AWS4-HMAC-SHA256 Credential=[A-Za-z0-9]{1,128}/[0-9]{8}/[a-z0-9-]{1,40}/sts/"
        r"aws4_request, SignedHeaders=content-type;host;x-amz-date;(x-amz-security-token;)?"
        r"x-stationmaster-ask;x-stationmaster-deployment, Signature=[0-9a-f]{64}$"
    )
    date: str = Field(pattern=r"^[0-9]{8}T[0-9]{6}Z$")
    security_token: str = Field(default="", max_length=16_384, pattern=r"^[A-Za-z0-9+/=_-]*$")


class Envelope(Frozen, extra="forbid"):
    """An `Ask` as JSON, and the proof of who asks; the proof covers the text as it is."""

    ask: str = Field(max_length=2 * _MOST_TYPED)
    proof: Proof


class Ask(Frozen, extra="forbid"):
    """A question about a channel, or a start in it."""

    kind: Literal["plan", "start", "status", "results", "look", "stop"]
    channel_id: str = Field(pattern=rf"^{IN_TEAM}[CG][A-Z0-9]{{2,30}}$")
    text: str = Field(default="", max_length=_MOST_TYPED)
    """Of a plan, a start or a look, as typed after /train."""
    request_id: str = Field(default="", pattern=r"^([0-9a-f]{32})?$")
    """Of a start, which is made once for each."""
    run_id: str = Field(default="", max_length=100)
    """Of the others: an id or a name."""
    via: Literal["cli", "mcp"] = "cli"
    """For the audit: a program, or an assistant's tool."""

    @model_validator(mode="after")
    def _has_id(self) -> Self:
        if self.kind == "start" and not self.request_id:
            raise ValueError("a start needs a request_id")
        return self


class Answer(Frozen, extra="forbid"):
    """What the bot answers: a value, or one of two reasons why there is none."""

    value: dict[str, Any] | None = None
    refused: str = ""
    """A sentence for whoever asked."""
    suggestion: str | None = None
    failed: str = ""
    """A sentence with the reference under which the bot's log has more."""
    is_transient: bool = False


class SavedResult(Frozen, from_attributes=True):
    """Where the result of a run is."""

    uri: str
    num_files: int
    num_bytes: int


class RunReport(Frozen):
    """A run, as a program sees it."""

    run_id: RunId
    channel_id: str
    status: RunPhase
    is_over: bool
    """Whether it has ended; its cluster may still be on its way out."""
    is_new: bool = False
    """Whether this start has made it; a same one may have, a moment ago."""
    reason: str = ""
    """Why it has ended so."""
    awaits_approval: bool = False
    approval_reasons: tuple[str, ...] = ()
    approvers: tuple[str, ...] = ()
    step: int = 0
    total_steps: int | None = None
    loss: float | None = None
    price_per_hour_usd: float
    estimated_cost_usd: float
    cost_usd: float
    result: SavedResult | None = None


def report_of(view: RunView, *, now: datetime, is_new: bool = False) -> RunReport:
    """Report what a program wants to know of a run."""
    run, progress = view.run, view.run.progress
    asked = run.approval if run.awaits_approval else None
    return RunReport(
        run_id=run.run_id,
        channel_id=run.request.channel_id,
        status=run.phase,
        is_over=run.phase.is_terminal,
        is_new=is_new,
        reason=run.reason,
        awaits_approval=asked is not None,
        approval_reasons=asked.reasons if asked else (),
        approvers=asked.approvers if asked else (),
        step=progress.step if progress else 0,
        total_steps=progress.total_steps if progress else None,
        loss=progress.loss_nats if progress else None,
        price_per_hour_usd=run.price_per_hour_usd,
        estimated_cost_usd=run.estimated_cost_usd,
        cost_usd=view.cost_usd(now),
        result=SavedResult.model_validate(run.results) if run.results else None,
    )


class Said(Frozen):
    """What the channel would read, as text."""

    text: str


class RunResults(Frozen):
    """What a run has left: where it is, and addresses of the files that people open."""

    run_id: RunId
    result: SavedResult
    links: dict[str, str]
    """By path; who has such an address may read the file for `link_seconds`."""
    num_others: int
    """Files without an address; manifest.json lists them."""
    link_seconds: int
