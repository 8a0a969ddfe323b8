"""`track=`: where the trainer reports its figures besides its channel, by what client. Pure."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.errors import BadCommand, BadParameter
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.keys.own_code import Option as OwnCode
from stationmaster.domain.trackers import EXPECTED, read_tracker

TRACK: Final = Key(
    name="track",
    help="where the trainer's figures go as well: tensorboard (files of the result), "
    "wandb:PROJECT, mlflow:EXPERIMENT, or mlflow:URL of a server without accounts",
    meanings=("report_to", "logger", "tracker", "tracking"),
    choices=("tensorboard", "wandb:my-project"),
    is_resumed=True,
    typed=lambda options: options.track,
)


class Option(Part):
    """Where the figures go."""

    track: str = ""
    """A place as it is typed; "" for none."""


def read(typed: Typed) -> Option:
    """Read the place."""
    value = typed.get(TRACK)
    if value is None:
        return Option()
    if read_tracker(value) is None:
        raise BadCommand(f"track={value[:80]} is not accepted: expected {EXPECTED}")
    return Option(track=value)


def refuse(start: Start) -> None:
    """Refuse it where another program trains than the product's own trainer."""
    is_own = start.recipe.uses_own_trainer and not start.part(OwnCode).program
    if start.part(Option).track and not is_own:
        raise BadParameter(
            "track= has no effect here: it reports the figures of the product's own trainer, and "
            "another program reports its own; leave it out"
        )


FAMILY: Final = Family(keys=(TRACK,), read=read, refuse=refuse)
