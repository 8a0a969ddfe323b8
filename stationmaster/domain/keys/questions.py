"""What reading a command may have to ask of others: the hub, AWS, the channel's runs and clusters.

Each question is a function that the caller gives; it raises a UserError that says why what is named
cannot be used. Without one, what would have to be asked is refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final, Never, TypedDict, Unpack

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.spec import FileSystemSpec, Reservation
from stationmaster.domain.datasets import HubSource, Listing, S3Source
from stationmaster.domain.errors import NotPossibleNow, UserError
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import ResultManifest


@dataclass(frozen=True)
class FoundReservation:
    """A capacity reservation or block, as EC2 described it when it was typed."""

    reservation: Reservation
    instance_type: str
    available: int
    """Instances of it that nobody uses; before a block's start, all of them."""
    total: int
    ends_at: datetime | None = None
    """When EC2 ends it; None where only its owner does."""
    seen_at: datetime | None = None
    """When EC2 was asked; None where that does not matter."""


@dataclass(frozen=True)
class FoundFileSystem:
    """A file system that exists, as AWS described it when it was typed."""

    spec: FileSystemSpec
    zone: str
    """The availability zone that it is in, and that the nodes are made in."""
    free_gib: int | None = None
    """Room on it; None where that is not known."""


@dataclass(frozen=True, kw_only=True)
class AskedRun:
    """A run of the channel, as a person asked for it."""

    run_id: RunId
    recipe: str
    """As it was named."""
    model: LanguageModel | None
    """What the hub said of it then."""
    nodes: int
    words: dict[str, str]
    """What `/train rerun`, or of a `SavedRun` `/train resume`, types again, by its keys."""


@dataclass(frozen=True, kw_only=True)
class SavedRun(AskedRun):
    """A run that has ended, and what its manifest says that it has left.

    Its nodes are those of its last attempt.
    """

    resolved: Recipe
    program: tuple[str, ...]
    """What ran in place of the recipe's trainer; empty for that."""
    instance_type: str
    manifest: ResultManifest


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
    is_anywhere: bool = False
    """No channel is known: what a deployment allows of it is said where it is started."""


ANYWHERE: Final = OwnCodeRules(channel_id="", registries=(), channels=(), is_anywhere=True)
"""For whoever only looks at a plan or a manifest."""

LookUp = Callable[[str], LanguageModel]
"""Asks the Hugging Face hub what ORG/MODEL is."""
FindCluster = Callable[[str], Cluster]
"""Finds a kept cluster by its name, by its id, or by how its id begins."""
FindSaved = Callable[[str], SavedRun]
"""Finds a run by its id, or the newest that has ended by `last`, and reads its manifest."""
FindAsked = Callable[[str], AskedRun]
"""Finds a run by its id or name, or the newest that has ended by `last`."""
Measure = Callable[[S3Source | HubSource, str], Listing | None]
"""Asks S3 or the hub what a source holds for a task; None where nobody can be asked."""
FindFileSystem = Callable[[str], FoundFileSystem]
"""Asks AWS about a file system by its id."""
FindEksCluster = Callable[[str], None]
"""Asks EKS about a cluster by its name."""
FindHyperPodCluster = Callable[[str], str]
"""Asks SageMaker for the EKS cluster of a HyperPod cluster, both by their names."""
FindHyperPodPrice = Callable[[str], float | None]
"""Asks AWS for the USD an hour of a node of HyperPod, by EC2's type; None where it is unknown."""
FindReservation = Callable[[str], FoundReservation]
"""Asks EC2 about a reservation by its id."""


def _nobody(sentence: str) -> Callable[[str], Never]:
    """Answer for nobody: where no channel is at hand, or AWS is not meant to be asked."""

    def refuse(name: str) -> Never:
        raise NotPossibleNow(sentence.format(name))

    return refuse


_IN_CHANNEL: Final = "type the command in the channel"
_OF_ACCOUNT: Final = f"of the deployment's AWS account, and that is not asked here; {_IN_CHANNEL}"
_no_hub = _nobody(
    "{} cannot be looked up on the Hugging Face hub from here; use a recipe of the catalogue"
)
_no_clusters = _nobody(
    f"on={{}} names a kept cluster of a channel, and none is known here; {_IN_CHANNEL}"
)
_no_results = _nobody(f"{{}} names a run of a channel, and none is known here; {_IN_CHANNEL}")
_no_file_systems = _nobody(f"file_system={{}} names a file system {_OF_ACCOUNT}")
_no_eks_clusters = _nobody(f"cluster=eks:{{}} names an EKS cluster {_OF_ACCOUNT}")
_no_hyperpod_clusters = _nobody(f"cluster=hyperpod:{{}} names a HyperPod cluster {_OF_ACCOUNT}")
_no_reservations = _nobody(f"{{}} is a reservation {_OF_ACCOUNT}")


def _no_price(instance_type: str) -> None:
    """Know no price."""


def _measure_nothing(source: S3Source | HubSource, task: str) -> None:
    """Leave the source unmeasured."""


class Finders(TypedDict, total=False):
    """Who is asked, by the names of the questions."""

    look_up: LookUp
    find_cluster: FindCluster
    find_saved: FindSaved
    find_asked: FindAsked
    measure: Measure
    find_file_system: FindFileSystem
    find_eks_cluster: FindEksCluster
    find_hyperpod_cluster: FindHyperPodCluster
    find_hyperpod_price: FindHyperPodPrice
    find_reservation: FindReservation
    own_code: OwnCodeRules | None


@dataclass(frozen=True, slots=True)
class Questions:
    """What reading a command may have to ask of others."""

    look_up: LookUp = _no_hub
    """Asked for hf:ORG/MODEL only."""
    find_cluster: FindCluster = _no_clusters
    """Asked for on=CLUSTER only."""
    find_saved: FindSaved = _no_results
    """Asked for /train resume, resume_from= and weights=RUN only."""
    find_asked: FindAsked = _no_results
    """Asked for /train rerun and /train keep only."""
    measure: Measure = _measure_nothing
    """Asked for dataset=s3:// and dataset=packed: only."""
    find_file_system: FindFileSystem = _no_file_systems
    """Asked for file_system=fs-... only."""
    find_eks_cluster: FindEksCluster = _no_eks_clusters
    """Asked for cluster=eks:NAME only."""
    find_hyperpod_cluster: FindHyperPodCluster = _no_hyperpod_clusters
    """Asked for cluster=hyperpod:NAME only."""
    find_hyperpod_price: FindHyperPodPrice = _no_price
    """Asked of the nodes of a guest on HyperPod only."""
    find_reservation: FindReservation = _no_reservations
    """Asked for capacity=odcr:ID and block:ID only."""
    own_code: OwnCodeRules | None = None
    """What image= and command= may be in the channel; None where no channel is at hand."""
    names_clusters: bool = True
    """False on the command line, where no cluster can be named: what is planned may be for any."""


def questions(*, names_clusters: bool = True, **finders: Unpack[Finders]) -> Questions:
    """Make the questions of one command; each is asked once about each name."""
    ask = Questions(names_clusters=names_clusters, **finders)
    names = [each.name for each in fields(ask) if each.name.startswith(("find_", "measure"))]
    once: dict[str, Any] = {name: _asked_once(getattr(ask, name)) for name in names}
    return replace(ask, **once)


def _asked_once(find: Callable[..., Any]) -> Callable[..., Any]:
    answers: dict[tuple[object, ...], Any] = {}

    def remembered(*names: object) -> Any:
        if names not in answers:
            try:
                answers[names] = find(*names)
            except UserError as error:
                answers[names] = error
        answer = answers[names]
        if isinstance(answer, UserError):
            raise answer
        return answer

    return remembered
