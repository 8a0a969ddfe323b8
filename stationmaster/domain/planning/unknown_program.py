"""The plan of a run whose command takes the trainer's place: nobody knows what it needs. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from stationmaster.domain.planning.plan import MemoryPerGpu, Plan

# How long such a command may take: nobody can estimate it, and it may hang.
LONGEST_COMMAND: Final = timedelta(days=30)


def plan_of_program(plan: Plan) -> Plan:
    """Plan the machines, data and price of a recipe, without what is said of its training."""
    memory = MemoryPerGpu.model_validate(dict.fromkeys(MemoryPerGpu.model_fields, 0.0))
    available = plan.memory_per_gpu_gib.available
    fewest = plan.fewest
    if fewest is not None:
        unknown = {"fits": True, "memory_per_gpu_gib": 0.0, "micro_batches": 0}
        unknown |= {"estimated_duration_s": 0, "estimated_cost_usd": 0.0}
        fewest = fewest.model_copy(update=unknown)
    return plan.model_copy(
        update={
            "trains_recipe": False,
            "fits": True,
            "misfits": [],
            "suggestion": None,
            "memory_per_gpu_gib": memory.model_copy(update={"available": available}),
            "estimated_duration_s": 0,
            "estimated_cost_usd": 0.0,
            "tokens_per_s": 0.0,
            "samples_per_s": 0.0,
            "step_time_s": 0.0,
            "assumed_mfu": None,
            "limited_by": "",
            "checkpoint_gb": 0.0,
            "checkpoint_write_s": 0.0,
            "export_gb": 0.0,
            "export_s": 0,
            "fewest": fewest,
            "warnings": [*([plan.data.sentence] if plan.data else []), plan.price_note],
        }
    )
