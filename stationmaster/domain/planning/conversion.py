"""What it takes to convert published weights for Megatron before a run trains. Pure arithmetic.

The Job is `container/nemo/convert_weights.py`: one pod, on one of the run's nodes, downloads the
weights to the file system, loads them, and writes them in Megatron's form. It was never timed. The
weights are taken to be the recipe's model in bf16; the hub is not asked.
"""

from __future__ import annotations

import math
from typing import Final

from stationmaster.domain.errors import BadParameter
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.planning.cost import (
    HUB_BYTES_PER_S,
    JOB_START_S,
    REORDER_BYTES_PER_S,
    file_system_bytes_per_s,
)
from stationmaster.domain.planning.layout import BF16_BYTES, Layout
from stationmaster.domain.planning.memory import available_host_bytes

# As published, and converted: both are on the file system, and in memory, until the Job ends.
# Source: container/nemo/convert_weights.py, which deletes the first after the second is whole.
_COPIES: Final = 2


class Conversion(Frozen):
    """What a plan says of weights that are converted; field names are a contract."""

    repository: str
    num_bytes: int
    """Of the weights, once."""
    stage_s: int
    """Seconds until they are converted, once the cluster is ready."""
    room_bytes: int
    """What they take of the file system while they are converted."""

    @property
    def sentence(self) -> str:
        """What a person reads in a plan."""
        return (
            f"weights={self.repository}: about {self.num_bytes / 1e9:,.0f} GB are downloaded and "
            f"converted on one node before training, in about {max(1, round(self.stage_s / 60))} "
            "min, which this plan counts; a later run on the same file system finds them. They "
            f"take {self.room_bytes / 1e9:,.0f} GB of it meanwhile"
        )


def plan_conversion(layout: Layout) -> Conversion | None:
    """Return what the weights of a recipe need before training; None where nothing is converted.

    Raises:
        BadParameter: a node's memory is too small for it.
    """
    repository = layout.recipe.weights_to_convert
    if not repository:
        return None
    size = BF16_BYTES * layout.recipe.model.num_parameters
    needed, has = _COPIES * size, available_host_bytes(layout) * layout.processes_per_node
    if needed > has:
        raise BadParameter(
            f"weights={repository} take {needed / 1e9:,.0f} GB of one node's memory while they are "
            f"converted, and {layout.instance.name} has {has / 1e9:,.0f} GB for that; use a larger "
            "instance, or weights=/fsx/PATH of a checkpoint that was converted elsewhere"
        )
    disk = file_system_bytes_per_s(layout.recipe)
    seconds = (
        JOB_START_S  # its image, and Python's libraries
        + size / min(HUB_BYTES_PER_S, disk)
        + _COPIES * size / disk  # read once and written once
        + size / REORDER_BYTES_PER_S
    )
    return Conversion(
        repository=repository,
        num_bytes=size,
        stage_s=math.ceil(seconds),
        room_bytes=_COPIES * size,
    )
