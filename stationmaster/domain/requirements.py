"""What a run's cluster must have before its job is submitted: plugins to install, checks to pass.

Pure functions of the recipe and the instance type. prepare-run hands the lists to the workflow,
which installs and checks each entry; the steps refuse names that are not here.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.instances import InstanceType
from stationmaster.domain.recipes import Recipe

TRAINING_OPERATOR: Final = "training-operator"
FSX_CSI_DRIVER: Final = "fsx-csi-driver"
NVIDIA_DEVICE_PLUGIN: Final = "nvidia-device-plugin"
EFA_DEVICE_PLUGIN: Final = "efa-device-plugin"
RELAY_PLUGIN: Final = "relay"

NODES_CHECK: Final = "nodes"
GPUS_CHECK: Final = "gpus"
EFA_CHECK: Final = "efa"
STORAGE_CHECK: Final = "storage"

# V100 and T4 machines have an EFA interface that brings NCCL nothing (no GPUDirect, old AMIs).
_EFA_WITHOUT_BENEFIT: Final = ("p3dn.", "g4dn.")


def uses_efa(recipe: Recipe, instance: InstanceType) -> bool:
    """Whether the job asks for the instance's EFA interfaces."""
    if not recipe.needs_gpu or instance.num_efa == 0:
        return False
    return not instance.name.startswith(_EFA_WITHOUT_BENEFIT)


def plugins_for(recipe: Recipe, instance: InstanceType) -> list[str]:
    """Plugins that the run's cluster needs; they may be installed side by side."""
    plugins = [TRAINING_OPERATOR, FSX_CSI_DRIVER]
    if recipe.needs_gpu:
        plugins.append(NVIDIA_DEVICE_PLUGIN)
    if uses_efa(recipe, instance):
        plugins.append(EFA_DEVICE_PLUGIN)
    return [*plugins, RELAY_PLUGIN]


def checks_for(recipe: Recipe, instance: InstanceType) -> list[str]:
    """Checks that must all pass before the job is submitted; they may run side by side."""
    checks = [NODES_CHECK]
    if recipe.needs_gpu:
        checks.append(GPUS_CHECK)
    if uses_efa(recipe, instance):
        checks.append(EFA_CHECK)
    return [*checks, STORAGE_CHECK]
