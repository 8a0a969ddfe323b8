"""Who answers what a command asks, in one channel of the deployment."""

from __future__ import annotations

from functools import partial

from stationmaster.commands import account
from stationmaster.commands.finding import find_usable_cluster
from stationmaster.commands.results import find_saved_run
from stationmaster.domain.keys.questions import Finders, OwnCodeRules
from stationmaster.services import Services


def finders(services: Services, *, channel_id: str) -> Finders:
    """Return the answers that the channel, the account and the hub give."""
    settings = services.settings
    return {
        "look_up": services.hub.look_up,
        "find_cluster": partial(find_usable_cluster, services, channel_id=channel_id),
        "find_saved": partial(find_saved_run, services, channel_id=channel_id),
        "measure": partial(account.measure, services),
        "find_file_system": partial(account.find_file_system, services),
        "find_eks_cluster": partial(account.find_eks_cluster, services),
        "find_reservation": partial(account.find_reservation, services),
        "own_code": OwnCodeRules(
            channel_id=channel_id,
            registries=settings.image_registries,
            channels=settings.image_channels,
            is_this_machine=settings.emulated_speed is not None,
            allows_commands=settings.allow_commands,
        ),
    }
