"""What reading a command may have to ask of others: the hub, AWS, the channel's runs and clusters.

Each question is a function that the caller gives; without one, what would have to be asked is
refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.commands.capacity import FindReservation, no_reservations
from stationmaster.domain.commands.hosting import FindEksCluster, no_eks_clusters
from stationmaster.domain.commands.joining import FindCluster, no_clusters
from stationmaster.domain.commands.own_code import OwnCodeRules
from stationmaster.domain.commands.resuming import FindSaved, no_results
from stationmaster.domain.commands.storing import FindFileSystem, no_file_systems
from stationmaster.domain.datasets import HubSource, Listing, S3Source
from stationmaster.domain.errors import NotPossibleNow

LookUp = Callable[[str], LanguageModel]
"""Asks the Hugging Face hub what ORG/MODEL is; raises a UserError that says why it cannot."""


def no_hub(repository: str) -> LanguageModel:
    """Look nothing up: where no hub is at hand, or is meant to be asked.

    Raises:
        NotPossibleNow: always.
    """
    raise NotPossibleNow(
        f"{repository} cannot be looked up on the Hugging Face hub from here; use a recipe of the "
        "catalogue"
    )


Measure = Callable[[S3Source | HubSource, str], Listing | None]
"""Asks S3 or the hub what a source holds, for a recipe of a task; None where nobody can be asked.

Raises a UserError that says why it cannot be read."""


def no_buckets(source: S3Source | HubSource, task: str) -> None:
    """Measure nothing: where neither is meant to be asked."""


class Finders(TypedDict):
    """The questions that the keys of a start may bring up."""

    find_cluster: FindCluster
    find_saved: FindSaved
    find_file_system: FindFileSystem
    find_eks_cluster: FindEksCluster
    find_reservation: FindReservation
    own_code: OwnCodeRules | None


@dataclass(frozen=True, slots=True)
class Questions:
    """What reading a command may have to ask of others."""

    look_up: LookUp = no_hub
    """Asked for hf:ORG/MODEL only."""
    find_cluster: FindCluster = no_clusters
    """Asked for on=CLUSTER only."""
    find_saved: FindSaved = no_results
    """Asked for /train resume, resume_from= and weights=RUN only."""
    measure: Measure = no_buckets
    """Asked for dataset=s3:// and dataset=packed: only."""
    find_file_system: FindFileSystem = no_file_systems
    """Asked for file_system=fs-... only."""
    find_eks_cluster: FindEksCluster = no_eks_clusters
    """Asked for cluster=eks:NAME only."""
    own_code: OwnCodeRules | None = None
    """What image= and command= may be in the channel; None where no channel is at hand."""
    find_reservation: FindReservation = no_reservations
    """Asked for capacity=odcr:ID and block:ID only."""

    @property
    def finders(self) -> Finders:
        """What reading the keys of a start asks, by the names of its arguments."""
        return {
            "find_cluster": self.find_cluster,
            "find_saved": self.find_saved,
            "find_file_system": self.find_file_system,
            "find_eks_cluster": self.find_eks_cluster,
            "find_reservation": self.find_reservation,
            "own_code": self.own_code,
        }
