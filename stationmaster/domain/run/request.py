"""What a person asked for, and where a job runs: the wish and the placement."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.datasets import AS_IT_IS, Dataset, NamedData, read_dataset
from stationmaster.domain.detected import Wanted
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.registry import Options
from stationmaster.domain.names import study_cluster
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.restoring import RestoringOrder

MAX_TITLE: Final = 80


class Placement(Frozen):
    """Where a job runs: how many nodes of which type."""

    nodes: int = Field(ge=1)
    instance_type: str


class TrainingRequest(Options):
    """What a person asked for, with every default filled in.

    `nodes` and `instance_type` are a wish: where the job runs is the placement of an attempt.
    """

    recipe: str
    nodes: int
    instance_type: str
    overrides: dict[str, str] = Field(default_factory=dict)
    link_reason: str = ""
    """Why the plan links its data to the file system; "" where it is copied."""
    study: tuple[RunId, ...] = ()
    """The runs of the study that it is one of, itself among them; at most MOST_COMPARED."""
    model: LanguageModel | None = None
    """What the Hugging Face hub said of hf:ORG/MODEL when it was typed; nothing asks it again."""
    detections: Wanted = Field(default_factory=dict)
    """What follows from what is found wrong, by the rules of its channel."""
    command: str
    team_id: str
    channel_id: str
    user_id: str

    @property
    def goes_with_study(self) -> bool:
        """Whether its cluster was made for its study, and goes with the last run of that."""
        return bool(self.study) and self.cluster_id == study_cluster(self.study)

    @property
    def title(self) -> str:
        """What people call it: its name, otherwise its recipe with the keys that were typed."""
        typed = (f"{key}={value}" for key, value in self.overrides.items())
        shown = [each for each in typed if each in self.command]
        return self.name or " ".join([self.recipe, *shown])[:MAX_TITLE]

    @property
    def uses_own_trainer(self) -> bool:
        """Whether the product's own trainer runs, and no custom command or framework."""
        known = CATALOGUE.get(self.recipe)
        return not self.program and (known is None or known.uses_own_trainer)

    @property
    def needs_cuda(self) -> bool:
        """Whether its pods may use GPUs; nobody knows what a custom command loads."""
        return bool(self.program) or self.resolved.needs_gpu

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
        if not self.restores:
            return None
        return RestoringOrder(
            run_id=run_id,
            checkpoint=self.resume_from,
            model_of=self.weights_from,
            output_of=self.output_from,
        )

    @property
    def brings_data(self) -> bool:
        """Whether data or results are brought to the file system before it trains."""
        if self.restores:
            return True
        typed = read_dataset(self.overrides.get("dataset", ""))
        return bool(self.weights_to_convert) or not isinstance(typed, NamedData)

    @property
    def dataset(self) -> str:
        """The data that it trains on; of another program, what it is passed, or "" for nothing."""
        typed = self.overrides.get("dataset", "")
        return typed if self.program else self.resolved.training.dataset

    @property
    def data(self) -> Dataset:
        return read_dataset(self.dataset)

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
        return self.fit(get_recipe(self.recipe, self.model).with_overrides(self.overrides))
