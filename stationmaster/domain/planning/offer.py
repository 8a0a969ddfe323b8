"""Compares what AWS offers of an instance type, where a run would start, with the catalogue.

Regions differ. So does an account whose machines have other devices than the catalogue says: the
local mode's have the GPUs of one computer.
"""

from __future__ import annotations

from dataclasses import dataclass

from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE, Recipe


@dataclass(frozen=True)
class Offer:
    """What EC2 says of an instance type in a region."""

    region: str
    is_offered: bool
    num_gpus: int


def offer_warnings(recipe: Recipe, instance: InstanceType, offer: Offer) -> list[str]:
    """Say why a run on these machines would end before it trains, as far as EC2's word shows it."""
    if not offer.is_offered:
        return [
            f"{instance.name} is not offered in {offer.region}: a run would stop while it "
            "provisions; use another instance"
        ]
    if recipe.needs_gpu and offer.num_gpus < instance.num_gpus:
        small = f"; {PRESET}={SMOKE} runs it small, on CPUs" if recipe.smoke else ""
        return [
            f"EC2 in {offer.region} says that {instance.name} has {offer.num_gpus} GPUs, and each "
            f"pod asks for {instance.num_gpus}: training cannot start there{small}"
        ]
    return []
