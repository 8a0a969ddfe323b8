"""Whether the images that a start pulls are in their registry; only ECR's can be asked."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.account import Account, read_ecr_image
from stationmaster.domain.images import copy_of
from stationmaster.preflight.findings import Finding, absent, present
from stationmaster.preflight.subject import Subject
from stationmaster.rendering.rendezvous import IMAGE as ETCD_IMAGE
from stationmaster.services import Services

NAME: Final = "images"


def applies(services: Services, subject: Subject) -> bool:
    """Say yes: each start pulls one, and each cluster the relay's."""
    return True


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding for each image."""
    settings = services.settings
    images = {"relay": settings.relay_image}
    if settings.image_copies:  # all are copied before anything is built
        images["etcd"] = copy_of(ETCD_IMAGE, settings.image_copies)
    if subject.trains:
        images["training"] = subject.image or settings.image_of(subject.framework)
    return [found for each in images.items() for found in _judge(account, *each)]


def _judge(account: Account, what: str, image: str) -> list[Finding]:
    found = read_ecr_image(image)
    if found is None or found.region != account.region:
        return present(
            NAME,
            f"whether the {what} image {image} exists is not asked: its registry is not "
            f"ECR in {account.region}",
        )
    if account.has_image(found):
        return present(NAME, f"the {what} image {image} is there")
    return absent(
        NAME,
        f"the {what} image {image} is not in its registry",
        "build and push it with container/build.sh, see docs/deploy.md; or name one that is there",
    )
