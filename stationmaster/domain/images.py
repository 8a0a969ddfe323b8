"""Container images that people name: how a name is written, and from which registries. Pure.

Used by the grammar, which reads `image=`, and by the configuration that allows registries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from stationmaster import __version__
from stationmaster.domain.errors import BadCommand


def product_image(name: str) -> str:
    """Name one of the images below `container/`, of this version."""
    return f"stationmaster/{name}:{__version__}"


# The product's own images where no deployment names others: in local mode, and in examples. A
# version, because pods of one run that start at different times must run the same.
TRAINING_IMAGE: Final = product_image("training")
RELAY_IMAGE: Final = product_image("relay")

COPIES: Final = "copies"
"""The deployment's repository of upstream images, which container/build.sh fills."""


def copy_of(image: str, repository: str) -> str:
    """Name the copy of an image, by its tag; without a repository return the image itself."""
    name, _, tag = image.rpartition("/")[2].partition(":")
    return f"{repository}:{name}-{tag}" if repository else image


# The grammar of references, with an explicit registry: without one, tools add docker.io unasked.
# Source: github.com/distribution/reference, reference.go and regexp.go.
_HOST: Final = (
    r"(?:localhost|(?=[a-z0-9.-]*\.)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
    r"(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*)(?::[0-9]{1,5})?"
)
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME: Final = rf"{_HOST}(?:/{_PART})+"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_REFERENCE: Final = re.compile(
    rf"(?P<name>{_NAME})(?::(?P<tag>{_TAG}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?"
)
_PREFIX: Final = re.compile(rf"{_HOST}(?:/{_PART})*/?")
_MOST_CHARACTERS: Final = 255
"""The longest name, without tag and digest, that registries take."""
_MOVING: Final = "latest"
_EXAMPLE: Final = "123456789012.dkr.ecr.us-west-2.amazonaws.com/team/trainer:1.0"


def read_image(text: str) -> str:
    """Read a reference that stays the same while a run pulls it.

    Raises:
        BadCommand: it is malformed, or names no tag and no digest, or the tag `latest`.
    """
    shown = text if len(text) <= 80 else text[:77] + "..."
    found = _match(text)
    if found is None:
        raise BadCommand(
            f'image="{shown}" is not accepted: expected REGISTRY/NAME:TAG or '
            f"REGISTRY/NAME@sha256:DIGEST in lower case, e.g. {_EXAMPLE}"
        )
    if found["digest"] is None and found["tag"] in (None, _MOVING):
        what = f"the tag {_MOVING}" if found["tag"] else "no tag"
        raise BadCommand(
            f'image="{shown}" has {what}, which may be another image each time a pod of the run '
            "starts; name a tag that stays, or a digest (@sha256:...)"
        )
    return text


def names_digest(image: str) -> bool:
    """Say whether a reference names one image for all time."""
    return "@" in image


def is_prefix(text: str) -> bool:
    """Say whether a text names a registry or a path in one: HOST or HOST/PATH."""
    return len(text) <= _MOST_CHARACTERS and _PREFIX.fullmatch(text) is not None


def is_from(image: str, prefixes: Iterable[str]) -> bool:
    """Say whether an image is in one of the registries, compared by whole parts of its path.

    registry.example.com/team allows registry.example.com/team/trainer, and neither
    registry.example.com/team-b/trainer nor registry.example.com.other.org/team/trainer.
    """
    found = _match(image)
    if found is None:
        return False
    parts = found["name"].split("/")
    allowed = [prefix.rstrip("/").split("/") for prefix in prefixes]
    return any(parts[: len(prefix)] == prefix for prefix in allowed)


def _match(text: str) -> re.Match[str] | None:
    found = _REFERENCE.fullmatch(text)
    return found if found is not None and len(found["name"]) <= _MOST_CHARACTERS else None
