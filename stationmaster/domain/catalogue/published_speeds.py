"""Speeds of training that others have published, as dated data: shown beside estimates.

Read on 2026-11-20. Nothing is computed from them: their sources rarely name every setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PublishedSpeed:
    """A speed that was measured with a recipe like one of ours, on one kind of machines."""

    recipe: str
    instance_type: str
    nodes: int
    value: str
    unit: str
    settings: str
    """What the source says of the settings that decide, and what is assumed of them."""
    source: str


SAMPLES: Final = "samples/s"
TOKENS_A_GPU: Final = "tokens/s a GPU"
_SAMPLE: Final = "awslabs' FSDP sample for EKS, log in its README of June 2025"
_TITAN: Final = "awslabs' torchtitan sample, its README"
_P5: Final = "p5.48xlarge"
SPEEDS: Final = (
    # Its loader cut sequences at 4,096 whatever was asked for, and it kept activations on the host.
    PublishedSpeed(
        "llama3.1-8b", _P5, 4, "8.3 to 9.4", SAMPLES,
        "batch 1 a GPU, sequence 4,096 assumed, activations in host memory", _SAMPLE,
    ),
    PublishedSpeed(
        "torchtitan-llama3.1-8b", _P5, 4, "6,785", TOKENS_A_GPU,
        "bf16, sequence 8,192", _TITAN,
    ),
    PublishedSpeed(
        "torchtitan-llama3.1-8b", _P5, 4, "7,865", TOKENS_A_GPU,
        "compiled, float8, sequence 8,192", _TITAN,
    ),
)  # fmt: skip


def published_for(recipe: str, instance_type: str) -> tuple[PublishedSpeed, ...]:
    """Return the speeds of a recipe on such machines, whatever their number."""
    return tuple(
        each for each in SPEEDS if (each.recipe, each.instance_type) == (recipe, instance_type)
    )
