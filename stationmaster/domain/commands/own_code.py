"""What a start with `image=` and `command=` runs besides the product's own code, where it may.

`parameters` calls it while it reads a start. Pure: what the deployment allows in the channel is
given by the caller.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.catalogue.recipes import PRESET
from stationmaster.domain.datasets import PACKED_PREFIX
from stationmaster.domain.errors import BadCommand, BadParameter, NotPossibleNow
from stationmaster.domain.images import is_from, names_digest, read_image
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.planning.unknown_program import LONGEST_COMMAND

IMAGE: Final = "image"
COMMAND: Final = "command"
# What still means something when another program takes the trainer's place.
_KEYS_BESIDES_A_COMMAND: Final = frozenset({PRESET, "dataset", "rendezvous"})


@dataclass(frozen=True, kw_only=True)
class OwnCodeRules:
    """What of people's own a deployment runs for one channel."""

    channel_id: str
    registries: tuple[str, ...]
    """HOST or HOST/PATH, whose images may be named."""
    channels: tuple[str, ...]
    """Whose members may name images and commands."""
    is_this_machine: bool = False
    """Pods are processes of the machine that the deployment runs on: local mode."""
    allows_commands: bool = True


@dataclass(frozen=True)
class OwnCode:
    """What was typed; empty where the product's own runs."""

    image: str = ""
    program: tuple[str, ...] = ()
    """The words of the command, which no shell reads."""


def read_own_code(values: MutableMapping[str, str], rules: OwnCodeRules | None) -> OwnCode:
    """Take `image` and `command` out of the values. `rules` are None where no channel is at hand.

    Raises:
        NotPossibleNow: the deployment does not allow them, or not in this channel.
        BadCommand: one of them is malformed.
        BadParameter: the image is of another registry.
    """
    image, command = values.pop(IMAGE, None), values.pop(COMMAND, None)
    for key in (key for key, value in ((IMAGE, image), (COMMAND, command)) if value is not None):
        _refuse_where_not_allowed(key, rules)
    if rules is None:
        return OwnCode()
    if command is not None and not rules.allows_commands:
        raise NotPossibleNow(
            f"{COMMAND}= runs what is typed in the channel on this machine, with the rights of "
            "whoever started local mode, so it is off; start it with --allow-commands to allow it"
        )
    return OwnCode(
        image=_image(image, rules) if image is not None else "",
        program=_program(command) if command is not None else (),
    )


def _refuse_where_not_allowed(key: str, rules: OwnCodeRules | None) -> None:
    if rules is None:
        raise NotPossibleNow(
            f"{key}= is allowed by a deployment for some of its channels, and none is known here; "
            "type the command in the channel"
        )
    missing = [
        field
        for field, value in (
            ("image_registries", rules.registries),
            ("image_channels", rules.channels),
        )
        if not value
    ]
    if missing:
        raise NotPossibleNow(
            f"{key}= is off in this deployment: set {' and '.join(missing)} in cdk.json and "
            "deploy again, see docs/deploy.md"
        )
    if rules.channel_id not in rules.channels:
        raise NotPossibleNow(
            f"{key}= is not allowed in this channel: add {rules.channel_id} to image_channels in "
            "cdk.json and deploy again, see docs/deploy.md"
        )


def _image(text: str, rules: OwnCodeRules) -> str:
    image = read_image(text)
    if not is_from(image, rules.registries):
        allowed = ", ".join(rules.registries)
        why = "runs only" if not rules.is_this_machine else "runs no images, only the programs of"
        raise BadParameter(
            f'image="{image[:200]}" is not of an allowed registry: this deployment {why} {allowed}'
        )
    return image


def _program(text: str) -> tuple[str, ...]:
    """The words of a command, split as a shell does and expanded by nobody."""
    if not all(character.isprintable() for character in text):
        raise BadCommand(
            f"{COMMAND}= has a character that cannot be seen, such as a line break; write the "
            "command in one line"
        )
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise BadCommand(
            f"a quote is opened and not closed in {COMMAND}={text[:80]}; close it or leave it out"
        ) from exc
    if not words or not words[0]:
        raise BadCommand(
            f'{COMMAND}= names no program; write it in quotes, {COMMAND}="torchrun train.py"'
        )
    return tuple(words)


def refuse_idle_keys(own: OwnCode, keys: Iterable[str]) -> None:
    """Refuse keys of the recipe's trainer and its checkpoints, where a command takes its place.

    Raises:
        BadParameter: naming the first of them.
    """
    if not own.program:
        return
    idle = next((key for key in keys if key not in _KEYS_BESIDES_A_COMMAND), None)
    if idle is not None:
        raise BadParameter(
            f"{idle}= has no effect beside {COMMAND}=, which replaces the recipe's trainer; write "
            "it into the command, or leave it out"
        )


def refuse_etcd(own: OwnCode, rendezvous: str) -> None:
    """Refuse to wait for etcd with a program that an image of people's own need not have.

    Raises:
        BadParameter: naming what works.
    """
    if own.image and rendezvous == "etcd":
        raise BadParameter(
            "rendezvous=etcd waits for etcd with a program of the deployment's own image, which "
            f"{IMAGE}= replaces; use rendezvous=c10d or static"
        )


def refuse_unread_data(own: OwnCode, dataset: str) -> None:
    """Refuse data that only the recipe's trainer reads.

    Raises:
        BadParameter: it would be packed for that trainer.
    """
    if own.program and dataset.startswith(PACKED_PREFIX):
        raise BadParameter(
            f'dataset="{dataset[:80]}" is packed for the recipe\'s trainer, which {COMMAND}= '
            "replaces; use s3://BUCKET/PREFIX, or a word that the command understands"
        )


def plan_with_own_code(plan: Plan, own: OwnCode) -> Plan:
    """The plan with what code of people's own means for it."""
    notes = []
    if own.program:
        notes.append(
            f"runs {shlex.join(own.program)[:200]} in place of the recipe's trainer: its memory, "
            "duration and cost are not known, nothing is saved before it ends, and it is ended "
            f"after {LONGEST_COMMAND.days} days at the latest"
        )
    if own.program and plan.min_nodes is not None:
        notes.append(
            f"nodes={plan.node_words}: it gets all of {plan.nodes} nodes that are free, "
            f"{plan.min_nodes} at least, and may lose some; what it trains on another number of "
            "them, and that it goes on, is the command's own business"
        )
    if own.image:
        notes.append(f"every training pod runs {own.image}")
        if not names_digest(own.image):
            notes.append(
                "the image is named by a tag: nodes that pull it before and after the tag moves "
                "run different code; a digest (@sha256:...) names one image for good"
            )
    return plan.model_copy(update={"warnings": [*notes, *plan.warnings]}) if notes else plan
