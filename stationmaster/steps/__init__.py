"""What the workflows do: one module a step, each an idempotent verb that never sleeps.

A step takes the services and an id, looks at the account or the cluster, does the next thing that
is missing, and says whether it is done. The state machine waits and calls again.
"""

from __future__ import annotations

from typing import TypedDict


class StepResult(TypedDict):
    """What a step answers to its state machine: done, or call again after a wait."""

    ready: bool


READY: StepResult = {"ready": True}
NOT_READY: StepResult = {"ready": False}
