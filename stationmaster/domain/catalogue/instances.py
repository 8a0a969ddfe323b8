"""The EC2 instance types that recipes may ask for: what is in them and what they cost.

Source: Karpenter's generated instance tables (August 2026) and its price list (us-east-1, on
demand, 2026-07-20); GPU memory is what EC2 reports in GiB; TFLOP/s are dense bf16 per accelerator
from the vendors' data sheets (fp16 for V100 and T4, which have no bf16). Prices drift: they are
data here, and a plan states their date.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.errors import UnknownInstance
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.spelling import nearest

PRICES_AS_OF: Final = "2026-07-20, us-east-1 on demand"
HYPERPOD: Final = "ml."
"""What SageMaker HyperPod calls an EC2 instance type begins with."""


class Gpu(Frozen):
    """What a generation of GPUs brings to training, besides its peak and the size of its memory."""

    has_bf16: bool = True
    has_float8: bool = True
    """Whether it has compute capability 8.9, for products in float8. Source: NVIDIA's data sheets
    of Ada, Hopper and Blackwell; A100 (8.0) and A10G (8.6) have none."""
    runs_cuda_13: bool = True
    """Whether it has compute capability 7.5, for CUDA 13 and the training image. Source: CUDA 13.0
    release notes, which drop Maxwell, Pascal and Volta."""
    memory_gb_per_s: float
    """The bandwidth of its own memory. Source: NVIDIA's data sheets."""
    tflops_fp32: float
    """The peak of float32 products: on TF32 tensor cores where there are. Source: NVIDIA's data
    sheets; half the bf16 peak where these have TF32."""
    link_gb_per_s: float
    """What a ring of the GPUs of one node sustains: NCCL's bus bandwidth."""
    assumed_mfu: float
    """The part of the bf16 peak that FSDP training of a dense language model reaches with
    torch.compile and without checkpointed activations: an assumption with its source."""


# NVLink: 230 GB/s measured on p4d and 468 on p5 within one node, AWS's NCCL test logs; newer
# generations by their links' ratio. Without NVLink all GPUs of a node share PCIe: about 10 GB/s.
_PCIE_GB_PER_S: Final = 10.0

# A100: torchtitan reports 58.2 % for Llama 3 8B on 64 of them; less here, to be on the safe side.
# H100: torchtitan 39.0 %, AWS's log of torchtitan on 4 x p5 39.7 %. H200 has the same
# cores; of B200 and B300 only FP8 figures are public (41 % of the FP8 peak, NVIDIA NeMo). No FSDP
# figures are public for the rest: slower memory for their peak, and PCIe, so less.
_COLUMNS: Final = ("memory_gb_per_s", "tflops_fp32", "link_gb_per_s", "assumed_mfu")


def _gpu(*figures: float, **lacks: bool) -> Gpu:
    return Gpu.model_validate(dict(zip(_COLUMNS, figures, strict=True)) | lacks)


# fmt: off
GPUS: Final[dict[str, Gpu]] = {
    #                    GB/s     TFLOP/s     GB/s       MFU
    "V100":         _gpu( 900,   15.7,         120,     0.35, has_bf16=False, has_float8=False,
                         runs_cuda_13=False),
    "T4":           _gpu( 320,    8.1, _PCIE_GB_PER_S,  0.30, has_bf16=False, has_float8=False),
    "A100":         _gpu(1555,  156,           230,     0.45, has_float8=False),
    "H100":         _gpu(3350,  494.5,         468,     0.39),
    "H200":         _gpu(4800,  494.5,         468,     0.40),
    "B200":         _gpu(8000, 1125,           800,     0.38),
    "B300":         _gpu(8000, 1125,           800,     0.38),
    "A10G":         _gpu( 600,   35,   _PCIE_GB_PER_S,  0.35, has_float8=False),
    "L4":           _gpu( 300,   60.5, _PCIE_GB_PER_S,  0.30),
    "L40S":         _gpu( 864,  181,   _PCIE_GB_PER_S,  0.30),
    "RTX PRO 6000": _gpu(1597,  181,   _PCIE_GB_PER_S,  0.30),
}
# fmt: on


# Their card 0 takes an ENA interface only, EFA is on the cards after it. Source: AWS, "Maximize
# network bandwidth on Amazon EC2 instances with multiple network cards".
_ENA_ONLY_ON_CARD_0: Final = ("p6-b300.",)
# For these it recommends EFA without IP on every card, beside one plain interface on card 0.
_EFA_WITHOUT_IP: Final = ("p5.48xlarge", "p5e.", "p5en.", "p6-")


class InstanceType(Frozen):
    """A row of the catalogue; `gpu` names the accelerator (Trainium included), or is None."""

    name: str
    gpu: str | None
    num_gpus: int
    gpu_memory_gib: float
    num_efa: int
    network_gbps: float
    vcpus: int
    memory_gib: int
    price_per_hour_usd: float | None
    peak_tflops_bf16: float | None
    is_hyperpod: bool = False
    """Whether its nodes are SageMaker HyperPod's."""

    @property
    def label(self) -> str:
        """What its nodes in Kubernetes are labelled as."""
        return f"{HYPERPOD}{self.name}" if self.is_hyperpod else self.name

    def on_hyperpod(self, vcpus: int) -> InstanceType:
        """Return the type as HyperPod's nodes offer it: half the CPUs, without multithreading."""
        return self.model_copy(update={"is_hyperpod": True, "vcpus": vcpus})

    @property
    def prepaid(self) -> InstanceType:
        """The type with the price 0, as paid in advance."""
        return self.model_copy(update={"price_per_hour_usd": 0.0})

    @property
    def is_neuron(self) -> bool:
        """Whether it is Trainium, which needs the Neuron SDK instead of CUDA and NCCL."""
        return self.gpu is not None and self.gpu.startswith("Trainium")

    @property
    def gpu_figures(self) -> Gpu | None:
        """The figures of its GPUs' generation, or None where it has no NVIDIA GPU."""
        return GPUS.get(self.gpu or "")

    @property
    def efa_cards(self) -> range:
        """The indexes of the network cards that carry an EFA interface, one each."""
        first = 1 if self.name.startswith(_ENA_ONLY_ON_CARD_0) else 0
        return range(first, first + self.num_efa)

    @property
    def has_efa_without_ip(self) -> bool:
        """Whether its EFA interfaces take no addresses of the network."""
        return self.name.startswith(_EFA_WITHOUT_IP)


def _row(*row: str | float | None) -> InstanceType:
    columns = list(InstanceType.model_fields)[: len(row)]
    return InstanceType.model_validate(dict(zip(columns, row, strict=True)))


# fmt: off
_ROWS: Final = (
    #    name               gpu     n  GiB  efa  Gbps  vcpu  RAM   $/h      TFLOP/s
    _row("c5.2xlarge",      None,   0,   0,  0,   10,    8,   16,   0.34,   None),
    _row("c6in.2xlarge",    None,   0,   0,  0,   40,    8,   16,   0.4536, None),
    _row("m5.2xlarge",      None,   0,   0,  0,   10,    8,   32,   0.384,  None),
    _row("p3.8xlarge",      "V100", 4,  16,  0,   10,   32,  244,  12.24,    125),
    _row("p3dn.24xlarge",   "V100", 8,  32,  1,  100,   96,  768,  31.212,   125),
    _row("p4d.24xlarge",    "A100", 8,  40,  4,  400,   96, 1152,  21.96,    312),
    _row("p4de.24xlarge",   "A100", 8,  80,  4,  400,   96, 1152,  27.45,    312),
    _row("p5.4xlarge",      "H100", 1,  80,  1,  100,   16,  256,   6.88,    989),
    _row("p5.48xlarge",     "H100", 8,  80, 32, 3200,  192, 2048,  55.04,    989),
    _row("p5e.48xlarge",    "H200", 8, 141, 32, 3200,  192, 2048,   None,    989),
    _row("p5en.48xlarge",   "H200", 8, 141, 16, 3200,  192, 2048,  63.296,   989),
    _row("p6-b200.48xlarge", "B200", 8, 179, 8, 3200,  192, 2048, 113.93,   2250),
    _row("p6-b300.48xlarge", "B300", 8, 269, 16, 6400, 192, 4096, 142.416,  2250),
    _row("g4dn.8xlarge",    "T4",   1,  15,  1,   50,   32,  128,   2.176,    65),
    _row("g5.xlarge",       "A10G", 1, 22.4,  0,   10,    4,   16,   1.006,    70),
    _row("g5.2xlarge",      "A10G", 1, 22.4,  0,   10,    8,   32,   1.212,    70),
    _row("g5.8xlarge",      "A10G", 1, 22.4,  1,   25,   32,  128,   2.448,    70),
    _row("g5.12xlarge",     "A10G", 4, 22.4,  1,   40,   48,  192,   5.672,    70),
    _row("g5.24xlarge",     "A10G", 4, 22.4,  1,   50,   96,  384,   8.144,    70),
    _row("g5.48xlarge",     "A10G", 8, 22.4,  1,  100,  192,  768,  16.288,    70),
    _row("g6.xlarge",       "L4",   1, 22.4,  0,   10,    4,   16,   0.8048,  121),
    _row("g6.2xlarge",      "L4",   1, 22.4,  0,   10,    8,   32,   0.9776,  121),
    _row("g6.8xlarge",      "L4",   1, 22.4,  1,   25,   32,  128,   2.0144,  121),
    _row("g6.12xlarge",     "L4",   4, 22.4,  1,   40,   48,  192,   4.6016,  121),
    _row("g6.24xlarge",     "L4",   4, 22.4,  1,   50,   96,  384,   6.6752,  121),
    _row("g6.48xlarge",     "L4",   8, 22.4,  1,  100,  192,  768,  13.3504,  121),
    _row("g6e.xlarge",      "L40S", 1, 44.7,  0,   20,    4,   32,   1.861,   362),
    _row("g6e.8xlarge",     "L40S", 1, 44.7,  1,   25,   32,  256,   4.5286,  362),
    _row("g6e.12xlarge",    "L40S", 4, 44.7,  1,  100,   48,  384,  10.4926,  362),
    _row("g6e.24xlarge",    "L40S", 4, 44.7,  2,  200,   96,  768,  15.0656,  362),
    _row("g6e.48xlarge",    "L40S", 8, 44.7,  4,  400,  192, 1536,  30.1312,  362),
    _row("g7e.48xlarge", "RTX PRO 6000", 8, 96, 4, 1600, 192, 2048, 33.14,  None),
    _row("trn1.2xlarge",    "Trainium",  1, 32, 0, 12.5,   8,   32,  1.34375, 190),
    _row("trn1.32xlarge",   "Trainium", 16, 32, 8,  800, 128,  512, 21.5,     190),
    _row("trn1n.32xlarge",  "Trainium", 16, 32, 16, 1600, 128, 512, 24.78,    190),
    _row("trn2.48xlarge",   "Trainium2", 16, 96, 16, 3200, 192, 2048, None,   667),
)
# fmt: on

CATALOGUE: Final[dict[str, InstanceType]] = {row.name: row for row in _ROWS}


def get_instance(name: str) -> InstanceType:
    """Look an instance type up, by EC2's name or HyperPod's.

    Raises:
        UnknownInstance: with the nearest known name.
    """
    name = name.removeprefix(HYPERPOD)
    if name in CATALOGUE:
        return CATALOGUE[name]
    close = nearest(name, CATALOGUE)
    near = [close] if close else [each for each in CATALOGUE if name and each.startswith(name)][:6]
    hint = f"did you mean {' or '.join(near)}" if near else "see stationmaster instances"
    raise UnknownInstance(f'instance type "{name}" is not in the catalogue; {hint}')
