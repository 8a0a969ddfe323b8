"""What the channel, the account and the hub say of what a person names: asked once a command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from stationmaster.commands.finding import find_usable_cluster
from stationmaster.commands.results import find_asked_run, find_saved_run
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.datasets import HubSource, Listing, S3Source
from stationmaster.domain.errors import NotPossibleNow, StationmasterError, TransientError
from stationmaster.domain.keys.questions import (
    Finders,
    FoundFileSystem,
    FoundReservation,
    OwnCodeRules,
)
from stationmaster.services import Services

if TYPE_CHECKING:
    from stationmaster.preflight.findings import Finding

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


def finders(services: Services, *, channel_id: str) -> Finders:
    """Return the answers that the channel, the account and the hub give."""
    settings = services.settings
    return {
        "look_up": services.hub.look_up,
        "find_cluster": partial(find_usable_cluster, services, channel_id=channel_id),
        "find_saved": partial(find_saved_run, services, channel_id=channel_id),
        "find_asked": partial(find_asked_run, services, channel_id=channel_id),
        "measure": partial(measure, services),
        "find_file_system": partial(find_file_system, services),
        "find_eks_cluster": partial(find_eks_cluster, services),
        "find_hyperpod_cluster": partial(find_hyperpod_cluster, services),
        "find_hyperpod_price": partial(find_hyperpod_price, services),
        "find_reservation": partial(find_reservation, services),
        "own_code": OwnCodeRules(
            channel_id=channel_id,
            registries=settings.image_registries,
            channels=settings.image_channels,
            is_this_machine=settings.emulated_speed is not None,
            allows_commands=settings.allow_commands,
        ),
    }


def measure(services: Services, source: S3Source | HubSource, task: str) -> Listing | None:
    """Ask S3, or the hub, what a data set holds; for dataset=s3:// and packed:, once a command.

    None where the hub does not answer: its data is packed without an estimate then.

    Raises:
        UserError: the deployment may not read it, it is not there, or S3 does not answer.
    """
    if isinstance(source, S3Source):
        return services.datasets.measure(source, task)
    try:
        return services.hub.measure(source, task)
    except NotPossibleNow as error:
        logger.warning("data set not measured", extra={"reason": str(error)})
        return None


def find_file_system(services: Services, file_system_id: str) -> FoundFileSystem:
    """Ask AWS about a file system.

    Raises:
        UserError: clusters of the deployment cannot use it, or AWS does not answer.
    """
    listed = services.settings.file_systems
    _refuse_unlisted(f"file_system={file_system_id}", file_system_id, "file_systems", listed)
    found = _now(services.quick_file_systems.look_up, file_system_id)
    free_gib = services.file_system_room.free_gib(file_system_id)
    return FoundFileSystem(spec=found.spec, zone=found.zone, free_gib=free_gib)


def find_eks_cluster(services: Services, name: str) -> None:
    """Ask EKS about an existing cluster.

    Raises:
        UserError: runs of the deployment cannot use it, or EKS does not answer.
    """
    _now(services.existing_clusters.look_up, name)


def find_hyperpod_cluster(services: Services, name: str) -> str:
    """Ask SageMaker for the EKS cluster of a HyperPod cluster; return its name.

    Raises:
        UserError: there is none, it has no EKS cluster, or SageMaker does not answer.
    """
    return _now(services.hyperpod_clusters.eks_name, name)


def find_hyperpod_price(services: Services, instance_type: str) -> float | None:
    """Ask for the USD an hour of a node of HyperPod; None where that is not known."""
    try:
        return services.price_list.of_hyperpod(instance_type)
    except StationmasterError as error:
        logger.warning("price not read", extra={"reason": str(error)})
        return None


def find_reservation(services: Services, reservation_id: str) -> FoundReservation:
    """Ask EC2 about a capacity reservation or block.

    Raises:
        UserError: runs of the deployment cannot use it, or EC2 does not answer.
    """
    listed = services.settings.reservations
    _refuse_unlisted(f"reservation {reservation_id}", reservation_id, "reservations", listed)
    return _now(services.quick_reservations.look_up, reservation_id)


def _now(look_up: Callable[[str], Answer], name: str) -> Answer:
    """Ask once; a person types the command again where nobody answers."""
    try:
        return look_up(name)
    except TransientError as exc:
        raise NotPossibleNow(f"{exc}; type the command again") from exc


def _refuse_unlisted(what: str, name: str, field: str, listed: Collection[str]) -> None:
    """Refuse what the account has and the deployment does not offer.

    Raises:
        NotPossibleNow: naming what it offers.
    """
    if name not in listed and "*" not in listed:
        raise NotPossibleNow(
            f"{what} is not one that this deployment may use: {', '.join(listed) or 'none yet'}; "
            f"its owner lists them as {field} in cdk.json, see docs/settings.md"
        )


# A person waits 3 s for the whole answer.
_DEADLINE_S: Final = 1.5


def preflight(services: Services, starts: Iterable[StartRun]) -> list[tuple[str, list[Finding]]]:
    """Return what was found of the deployment, and of each start what was not found before.

    Nothing is created, and what nobody answers in time is a finding as well.
    """
    # Imported here: a bot that is asked something else starts without it.
    from stationmaster.preflight import examine_all
    from stationmaster.preflight.subject import DEPLOYMENT, of_start

    subjects = [DEPLOYMENT, *(of_start(start) for start in starts)]
    found = examine_all(services, subjects, account=services.quick_account, deadline_s=_DEADLINE_S)
    return [(subject.name, findings) for subject, findings in found]
