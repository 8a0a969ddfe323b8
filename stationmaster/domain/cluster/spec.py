"""What a cluster is made of, and what a recipe needs of one. Pure."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from stationmaster.domain.catalogue.instances import InstanceType, get_instance
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.planning.requirements import (
    EFA_CHECK,
    GPUS_CHECK,
    checks_for,
    plugins_for,
)


class FileSystemSpec(BaseModel):
    """An FSx for Lustre file system: its size and its throughput."""

    model_config = ConfigDict(frozen=True)

    storage_gib: int
    mbps_per_tib: int


class ClusterSpec(BaseModel):
    """Training nodes of one type and number, a file system, plugins, and checks that must pass."""

    model_config = ConfigDict(frozen=True)

    instance_type: str
    nodes: int = Field(ge=1)
    file_system: FileSystemSpec
    plugins: list[str]
    checks: list[str]

    @property
    def instance(self) -> InstanceType:
        """The catalogue's entry of the training nodes' type."""
        return get_instance(self.instance_type)

    @property
    def num_gpus(self) -> int:
        """GPUs that each training node must offer; 0 where they are not needed."""
        return self.instance.num_gpus if GPUS_CHECK in self.checks else 0

    @property
    def num_efa(self) -> int:
        """EFA interfaces that each training node must offer; 0 where they are not needed."""
        return self.instance.num_efa if EFA_CHECK in self.checks else 0


def spec_for(recipe: Recipe, *, nodes: int, instance_type: str) -> ClusterSpec:
    """The cluster that a run of `recipe` needs for itself."""
    instance = get_instance(instance_type)
    return ClusterSpec(
        instance_type=instance_type,
        nodes=nodes,
        file_system=FileSystemSpec(
            storage_gib=recipe.file_system_gib, mbps_per_tib=recipe.file_system_mbps_per_tib
        ),
        plugins=plugins_for(recipe, instance),
        checks=checks_for(recipe, instance),
    )
