"""What a person asked for, and where a job runs: the wish and the placement."""

from __future__ import annotations

from typing import Final, Literal, get_args

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.spec import FileSystemSpec, Reservation, with_file_system
from stationmaster.domain.datasets import AS_IT_IS, is_staged
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.restoring import RestoringOrder, ResumePoint

USUAL_BACKUP_S: Final = 6 * 3600
NcclLevel = Literal["WARN", "INFO"]
NCCL_LEVELS: Final[tuple[NcclLevel, ...]] = get_args(NcclLevel)


class JobOptions(BaseModel):
    """How Kubernetes is to run the job, where that was typed."""

    model_config = ConfigDict(frozen=True)

    queue: str = ""
    """The queue of Kueue that admits the job; "" for none."""
    priority_class: str = ""
    """The PriorityClass of its pods; "" for none."""
    host_network: bool = False
    """Whether its pods use the network of their nodes."""
    nccl_debug: NcclLevel | None = None
    """NCCL's log level; None for what suits the machine."""


class Placement(BaseModel):
    """Where a job runs: how many nodes of which type."""

    model_config = ConfigDict(frozen=True)

    nodes: int
    instance_type: str


class TrainingRequest(BaseModel):
    """What a person asked for, with every default filled in.

    `nodes` and `instance_type` are a wish: where the job runs is the placement of an attempt.
    """

    model_config = ConfigDict(frozen=True)

    recipe: str
    nodes: int
    min_nodes: int | None = None
    """The least number that is enough, where fewer than `nodes` are; None for a fixed number."""
    instance_type: str
    overrides: dict[str, str] = {}
    cluster_id: ClusterId | None = None
    """The cluster to run on; None for one of its own, which is made for it."""
    reservation: Reservation | None = None
    """The reservation of its own cluster's nodes, or None."""
    is_spot: bool = False
    """Whether they are spot instances."""
    eks_name: str = ""
    """The existing EKS cluster that its cluster uses; "" for one that is made."""
    keep_s: int = 0
    """For how many seconds after the run its cluster is kept."""
    is_full: bool = False
    """Whether every check of its own cluster runs before it trains."""
    file_system_mbps_per_tib: int | None = None
    """MB/s a TiB of a new file system; None for the recipe's."""
    file_system_gib: int | None = None
    """The size of a file system of its own, typed or chosen by the plan; None for the recipe's."""
    file_system: FileSystemSpec | None = None
    """The file system that exists and that its own cluster uses; None for a new one."""
    link_reason: str = ""
    """Why the plan links its data to the file system; "" where it is copied."""
    resume_from: ResumePoint | None = None
    """The checkpoint of another run from which training continues."""
    weights_from: RunId | None = None
    """The run whose trained model has the first weights; `overrides` name it as well."""
    push_to: str = ""
    """The repository of the hub that its model is pushed to, ORG/NAME; "" for none."""
    backup_every_s: int | None = USUAL_BACKUP_S
    """Seconds from one backup to the next while it trains; None for no backups."""
    image: str = ""
    """The image of the training pods; "" for the deployment's."""
    program: tuple[str, ...] = ()
    """What the training pods run in place of the recipe's trainer; empty for that."""
    job_options: JobOptions = JobOptions()
    """How Kubernetes is to run its job."""
    model: LanguageModel | None = None
    """What the Hugging Face hub said of hf:ORG/MODEL when it was typed; nothing asks it again."""
    command: str
    team_id: str
    channel_id: str
    user_id: str

    @property
    def is_prepaid(self) -> bool:
        """Whether its nodes are of a capacity block, which was paid for when it was bought."""
        return self.reservation is not None and self.reservation.window is not None

    @property
    def uses_own_trainer(self) -> bool:
        """Whether the product's own trainer runs, and no custom command or framework."""
        known = CATALOGUE.get(self.recipe)
        return not self.program and (known is None or known.uses_own_trainer)

    @property
    def node_words(self) -> str:
        """The number of its nodes, as typed: "8", or "2:8"."""
        return f"{self.min_nodes}:{self.nodes}" if self.min_nodes is not None else str(self.nodes)

    @property
    def wish(self) -> Placement:
        """Where the person wants the job to run."""
        return Placement(nodes=self.nodes, instance_type=self.instance_type)

    def restoring_order(self, run_id: RunId) -> RestoringOrder | None:
        """Order what has to come back of other runs' results before the run `run_id` trains."""
        if self.resume_from is None and self.weights_from is None:
            return None
        return RestoringOrder(
            run_id=run_id, checkpoint=self.resume_from, model_of=self.weights_from
        )

    @property
    def brings_data(self) -> bool:
        """Whether data or results are brought to the file system before it trains."""
        if self.resume_from is not None or self.weights_from is not None:
            return True
        return bool(self.weights_to_convert) or is_staged(self.overrides.get("dataset", ""))

    @property
    def dataset(self) -> str:
        """The data that it trains on; of another program, what it is passed, or "" for nothing."""
        typed = self.overrides.get("dataset", "")
        return typed if self.program else self.resolved.training.dataset

    @property
    def data_task(self) -> str:
        """The task that its data is prepared for; another program gets the data as it is."""
        return AS_IT_IS if self.program else self.resolved.data_task

    @property
    def weights_to_convert(self) -> str:
        """The repository whose weights are converted before its framework loads them, or ""."""
        if self.program or self.uses_own_trainer:
            return ""
        return self.resolved.weights_to_convert

    @property
    def resolved(self) -> Recipe:
        """Resolve the recipe with its overrides, and with the file system that was planned.

        Raises:
            UserError: the recipe or an override is not (or no longer) known.
        """
        recipe = get_recipe(self.recipe, self.model).with_overrides(self.overrides)
        if self.file_system is not None:
            return with_file_system(recipe, self.file_system)
        planned = {
            "file_system_gib": self.file_system_gib,
            "file_system_mbps_per_tib": self.file_system_mbps_per_tib,
        }
        return recipe.model_copy(
            update={key: value for key, value in planned.items() if value is not None}
        )
