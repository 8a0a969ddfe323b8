"""The request of a start as it was typed, with the plan that it was checked by.

A request is planned once, when it is read: a bad value is refused then, and whatever follows (the
answer, the run's cost, a suggestion) takes the recipe and the figures from here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.spec import Reservation
from stationmaster.domain.commands.backing_up import BACKUP_EVERY, typed_backup_every
from stationmaster.domain.commands.capacity import CAPACITY, typed_capacity
from stationmaster.domain.commands.durations import typed_duration
from stationmaster.domain.commands.hosting import CLUSTER, typed_host
from stationmaster.domain.commands.job_options import typed_job_options
from stationmaster.domain.commands.pushing import PUSH_TO
from stationmaster.domain.commands.storing import FILE_SYSTEM, FILE_SYSTEM_TYPE, Storage
from stationmaster.domain.commands.validating import VALIDATE, typed_validate
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.restoring import ResumePoint
from stationmaster.domain.run.request import USUAL_BACKUP_S, JobOptions
from stationmaster.domain.spelling import typed_word


@dataclass(frozen=True)
class StartRun:
    """Start training; `nodes` and `instance_type` are None where the recipe's default applies."""

    recipe: str
    nodes: int | None = None
    min_nodes: int | None = None
    """Of a range MIN:MAX, with `nodes` its most; None for a fixed number."""
    instance_type: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    on: str | None = None
    """The kept cluster to run on, as it was typed; None for one of the run's own."""
    keep_s: int = 0
    """For how long the cluster is to stay after the run."""
    is_full: bool = False
    """Whether every check runs before it trains."""
    push_to: str = ""
    """The repository of the hub that the model is pushed to, ORG/NAME; "" for none."""
    backup_every_s: int | None = USUAL_BACKUP_S
    """Seconds from one backup to the next while it trains; None for no backups."""
    model: LanguageModel | None = None
    """What the hub said of hf:ORG/MODEL; None for a recipe of the catalogue."""
    resolved: Recipe = field(kw_only=True, compare=False, repr=False)
    """The recipe with the overrides applied: what would be trained."""
    plan: Plan = field(kw_only=True, compare=False, repr=False)
    cluster_id: ClusterId | None = field(default=None, kw_only=True, compare=False, repr=False)
    """The cluster that `on` stands for."""
    resume_from: ResumePoint | None = None
    """The checkpoint that training goes on from."""
    weights_from: RunId | None = None
    """The run whose final model has the first weights; `weights` names it as well."""
    storage: Storage = field(default_factory=Storage)
    """The file system that was typed."""
    reservation: Reservation | None = None
    """The capacity reservation or block that was typed; None for none."""
    is_spot: bool = False
    """Whether its nodes are to be spot instances."""
    eks_name: str = ""
    """The EKS cluster of others that was typed."""
    image: str = ""
    """The image of its training pods; "" for the deployment's."""
    program: tuple[str, ...] = ()
    """What they run in place of the recipe's trainer; empty for that."""
    job_options: JobOptions = field(default_factory=JobOptions)
    """How Kubernetes is to run its job."""

    @property
    def words(self) -> str:
        """The request as it could be typed after /train, each value once."""
        return _words(self.recipe, self._placed | self.overrides)

    @property
    def fitting_words(self) -> str | None:
        """The same with what makes it fit at the lowest cost; None if it fits or nothing helps."""
        if self.plan.suggestion is None:
            return None
        changes = dict(word.split("=", 1) for word in self.plan.suggestion.split())
        machines = {key: changes.pop(key) for key in ("nodes", "instance") if key in changes}
        return _words(self.recipe, self._placed | machines | self.overrides | changes)

    @property
    def _placed(self) -> dict[str, str]:
        point = self.resume_from
        least = f"{self.min_nodes}:" if self.min_nodes is not None else ""
        typed = {
            "nodes": f"{least}{self.nodes}" if self.nodes is not None else None,
            "instance": self.instance_type,
            "on": self.on,
            "keep": typed_duration(self.keep_s) if self.keep_s else None,
            VALIDATE: typed_validate(is_full=self.is_full),
            CAPACITY: typed_capacity(self.reservation, is_spot=self.is_spot),
            CLUSTER: typed_host(self.eks_name),
            FILE_SYSTEM: self.storage.typed,
            FILE_SYSTEM_TYPE: self.storage.typed_type,
            BACKUP_EVERY: typed_backup_every(self.backup_every_s),
            PUSH_TO: self.push_to or None,
            "resume_from": f"{point.run_id}@{point.step}" if point is not None else None,
            "image": self.image or None,
            "command": shlex.join(self.program) if self.program else None,
            **typed_job_options(self.job_options),
        }
        return {key: str(value) for key, value in typed.items() if value is not None}


def _words(recipe: str, values: Mapping[str, str]) -> str:
    return " ".join([recipe, *(typed_word(f"{key}={value}") for key, value in values.items())])
