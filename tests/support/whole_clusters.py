"""The steps that make a cluster and those that delete it, in the order of their workflows."""

from __future__ import annotations

from functools import partial
from typing import Final

from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_file_system import ensure_file_system
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_file_system import release_file_system
from stationmaster.steps.release_network import release_network
from stationmaster.steps.release_node_group import release_node_group
from stationmaster.steps.verify_released import verify_released

system_nodes = partial(ensure_node_group, node_group="system")
training_nodes = partial(ensure_node_group, node_group="training")
release_training_nodes = partial(release_node_group, node_group="training")

MAKING: Final = (ensure_cluster, system_nodes, training_nodes, ensure_file_system)
DELETING: Final = (
    release_training_nodes,
    release_file_system,
    partial(release_node_group, node_group="system"),
    release_cluster,
    release_network,
    verify_released,
)
