"""The place where a container runs, as far as the environment policy asks: GPUs, EFA, network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stationmaster.domain.catalogue.instances import InstanceType

# EFA without GPUDirect RDMA. Source: AWS, "Get started with EFA and NCCL" (supported instances).
WITHOUT_GPUDIRECT: Final = ("g5.", "g6.", "g6e.")
_WITH_NVLINK: Final = ("p3.", "p3dn.", "p4d.", "p4de.", "p5.", "p5e.", "p5en.", "p6-")


@dataclass(frozen=True)
class Machine:
    """What is known of the place where a container runs; `instance` is None where nothing says."""

    instance: InstanceType | None = None
    num_gpus: int = 0
    num_efa: int = 0
    on_host_network: bool = False
    measures_nccl: bool = False
    """Whether it runs NCCL's own tests, whose verdict is read from the log."""
    runs_megatron: bool = False

    @property
    def family(self) -> str:
        """The beginning of the instance type's name, with the dot; "" where it is not known."""
        return self.instance.name.partition(".")[0] + "." if self.instance else ""

    @property
    def is_neuron(self) -> bool:
        """Whether it is Trainium: its collectives are not NCCL."""
        return self.instance is not None and self.instance.is_neuron

    @property
    def has_gpudirect(self) -> bool | None:
        """Whether EFA reads GPU memory; None where the instance is not known."""
        if self.instance is None:
            return None
        return bool(self.instance.gpu) and not self.family.startswith(WITHOUT_GPUDIRECT)


class On(StrEnum):
    """The places for which a row holds."""

    ANY = "everywhere"
    GPU = "with GPUs"
    CPU = "without GPUs"
    EFA = "with EFA and NVIDIA GPUs"
    NO_EFA = "without EFA interfaces"
    EFA_WITHOUT_GPUDIRECT = "on g5, g6 and g6e, whose EFA has no GPUDirect RDMA"
    EFA_WITH_GPUDIRECT = "on p4d and later, whose EFA has GPUDirect RDMA"
    EFA_UNKNOWN = "with EFA, on an instance type that nothing names"
    NVLINK = "on instances with NVLink"
    NO_NVLINK = "on instances that are not known to have NVLink"
    HOST_NETWORK = "with hostNetwork"
    POD_NETWORK = "in ordinary pods"
    TRAINING = "in training"
    WITHOUT_MEGATRON = "in training without tensor parallelism"


_HOLDS: Final[dict[On, Callable[[Machine], bool]]] = {
    On.ANY: lambda machine: not machine.is_neuron,
    On.GPU: lambda machine: machine.num_gpus > 0,
    On.CPU: lambda machine: machine.num_gpus == 0,
    On.EFA: lambda machine: machine.num_efa > 0 and machine.num_gpus > 0,
    On.NO_EFA: lambda machine: machine.num_gpus > 0 and machine.num_efa == 0,
    On.EFA_WITHOUT_GPUDIRECT: lambda machine: (
        machine.num_efa > 0 and machine.has_gpudirect is False and machine.num_gpus > 0
    ),
    On.EFA_WITH_GPUDIRECT: lambda machine: (
        machine.num_efa > 0 and bool(machine.has_gpudirect) and not machine.is_neuron
    ),
    On.EFA_UNKNOWN: lambda machine: machine.num_efa > 0 and machine.has_gpudirect is None,
    On.NVLINK: lambda machine: machine.family.startswith(_WITH_NVLINK),
    On.NO_NVLINK: lambda machine: not machine.family.startswith(_WITH_NVLINK),
    On.HOST_NETWORK: lambda machine: machine.on_host_network,
    On.POD_NETWORK: lambda machine: not machine.on_host_network,
    On.TRAINING: lambda machine: not machine.measures_nccl,
    On.WITHOUT_MEGATRON: lambda machine: not machine.runs_megatron and machine.num_gpus > 0,
}


def holds(on: On, machine: Machine) -> bool:
    """Say whether a row for these places is about the machine."""
    return _HOLDS[on](machine)
