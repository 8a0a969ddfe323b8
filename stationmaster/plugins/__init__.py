"""What is installed in a cluster before a job may use it. One module each.

A plugin has the verbs of a check: `applies` says whether a cluster needs it, `render` makes its
Kubernetes objects, and `look` says whether it works. ADDONS names the EKS add-ons that it consists
of or needs. A new plugin is a module here and an entry in PLUGINS.
"""

from __future__ import annotations

from typing import Final, Protocol

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.errors import PermanentError
from stationmaster.inspection import Finding, LiveCluster
from stationmaster.plugins import (
    efa_device_plugin,
    fsx_csi_driver,
    mpi_operator,
    nvidia_device_plugin,
    relay,
    training_operator,
)
from stationmaster.rendering.job_spec import KubernetesObject


class Plugin(Protocol):
    """What every module of this package has."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a constant of a module
        """The name for the workflow and the channel."""

    @property
    def ADDONS(self) -> tuple[str, ...]:  # noqa: N802  # a constant of a module
        """The EKS add-ons, in the order in which they are created."""

    def applies(self, spec: ClusterSpec, /) -> bool:
        """Say whether clusters of this kind need it."""

    def render(self, cluster: LiveCluster, /) -> list[KubernetesObject]:
        """Make its Kubernetes objects; applied for as long as it does not work."""

    def look(self, cluster: LiveCluster, /) -> Finding:
        """Judge once, without changing anything."""


# In the order in which people read them; they may be installed side by side.
PLUGINS: Final[tuple[Plugin, ...]] = (
    training_operator,
    fsx_csi_driver,
    nvidia_device_plugin,
    efa_device_plugin,
    relay,
    mpi_operator,
)


def names_for(spec: ClusterSpec, *, measures_nccl: bool = False) -> list[str]:
    """Name the plugins that must work before a job is submitted, or nccl-tests run."""
    needed = [plugin.NAME for plugin in PLUGINS if plugin.applies(spec)]
    return [*needed, mpi_operator.NAME] if measures_nccl else needed


def get_plugin(name: str) -> Plugin:
    """Look a plugin up by name.

    Raises:
        PermanentError: there is none of that name; says which there are.
    """
    for plugin in PLUGINS:
        if name == plugin.NAME:
            return plugin
    known = ", ".join(plugin.NAME for plugin in PLUGINS)
    raise PermanentError(f'plugin "{name}" is not known; known: {known}')
