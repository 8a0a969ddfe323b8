"""How far a run is, and what one step reports, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Position:
    """How far the run is; with the seed it decides all that follows."""

    step: int = 0
    samples_seen: int = 0
    targets_seen: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step reports, the same on every rank."""

    loss_nats: float
    grad_norm: float
    learning_rate: float
    targets: float
    stop_agreed: bool
