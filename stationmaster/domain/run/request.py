"""What a person asked for, and where a job runs: the wish and the placement."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.ids import ClusterId


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
    instance_type: str
    overrides: dict[str, str] = {}
    cluster_id: ClusterId | None = None
    """The cluster to run on; None for one of its own, which is made for it."""
    keep_s: int = 0
    """For how many seconds after the run its cluster is kept for the next one."""
    model: LanguageModel | None = None
    """What the Hugging Face hub said of hf:ORG/MODEL when it was typed; nothing asks it again."""
    command: str
    team_id: str
    channel_id: str
    user_id: str

    @property
    def wish(self) -> Placement:
        """Where the person wants the job to run."""
        return Placement(nodes=self.nodes, instance_type=self.instance_type)
