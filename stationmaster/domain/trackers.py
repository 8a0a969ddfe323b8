"""Where a trainer's figures can go besides its progress lines, as people type it. Pure."""

from __future__ import annotations

import re
from typing import Final

from stationmaster.domain.frozen import Frozen

EXPECTED: Final = (
    "tensorboard, wandb:PROJECT or wandb:TEAM/PROJECT, mlflow:EXPERIMENT or mlflow:https://HOST"
)
# Variables of the client libraries; the first of each kind is needed.
_VARIABLES: Final[dict[str, tuple[str, ...]]] = {
    "wandb": ("WANDB_API_KEY", "WANDB_BASE_URL"),
    "mlflow": ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"),
}
VARIABLES: Final = tuple(name for names in _VARIABLES.values() for name in names)
_NAME: Final = r"[A-Za-z0-9][\w.-]{0,63}"
_TRACKED: Final = re.compile(
    rf"tensorboard|wandb:({_NAME}/)?{_NAME}|mlflow:({_NAME}|https?://[\w.:/-]{{1,120}})", re.ASCII
)


class Tracker(Frozen):
    """One place, and the project, experiment or address in it."""

    kind: str
    name: str = ""

    @property
    def is_address(self) -> bool:
        return "://" in self.name

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables it is given: none where its address was typed, which nobody vouches for."""
        return () if self.is_address else _VARIABLES.get(self.kind, ())


def read_tracker(text: str) -> Tracker | None:
    """Read a place; None where it is none."""
    kind, _, name = text.partition(":")
    return Tracker(kind=kind, name=name) if _TRACKED.fullmatch(text) else None
