"""A plan on a terminal. Called by the command line; the numbers are `domain.plan`'s."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stationmaster.domain.planning.plan import MemoryPerGpu, Plan

_BAR: Final = "\u2588"
_BAR_WIDTH: Final = 30
_MEMORY_PARTS: Final = (
    ("weights", "weights"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer"),
    ("gathered", "gathered blocks"),
    ("activations", "activations"),
    ("logits", "logits"),
    ("graphs", "CUDA graphs"),
)


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Print whether it fits, what it takes, what it creates, and what to know before."""
    console = console or Console()
    gpus = f", {plan.num_gpus} GPUs" if plan.num_gpus else ""
    console.print(
        Text(f"{plan.recipe} on {plan.node_words} x {plan.instance_type}{gpus}", style="bold")
    )
    if plan.trains_recipe:
        console.print(f"{plan.parallelism}; {_step(plan)}\n")
        console.print(_memory(plan))
        console.print()
    console.print(_facts(plan))
    for warning in plan.warnings:
        style = "red" if warning in plan.misfits else "yellow"
        console.print(Text.assemble(("note  ", style), warning), soft_wrap=True)


def duration(seconds: float) -> str:
    """Write a duration: 25 s, 34 min, 2 h 50 min, 3 days 4 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} days {hours} h"


def _seconds(seconds: float) -> str:
    """Write seconds: 0.0914 s, 42.7 s, 39,200 s."""
    return f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.3g} s"


def _step(plan: Plan) -> str:
    what = "image" if plan.counts_images else "sequence"
    sample = f"{plan.micro_batch_size} {what}{'s' * (plan.micro_batch_size > 1)}"
    if plan.micro_batches == 1:
        return f"{sample} a step in each process"
    return f"{plan.micro_batches} micro-batches of {sample} a step in each process"


def _memory(plan: Plan) -> Table:
    memory = plan.memory_per_gpu_gib
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    where = "GPU" if plan.num_gpus else "process"
    verdict = ("fits", "green") if plan.fits else ("does not fit", "red")
    table.add_row(
        f"memory of each {where}",
        _size(memory.total),
        Text.assemble(verdict, f" in {memory.available:.1f} GiB"),
    )
    before = 0.0
    for field, name in _MEMORY_PARTS:
        size = getattr(memory, field)
        if not size:
            continue
        table.add_row(f"  {name}", _size(size), Text(_bar(before, size, memory), style="cyan"))
        before += size
    if memory.in_host_memory:
        table.add_row("  in host memory", _size(memory.in_host_memory), "of each process")
    return table


def _size(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"


def _bar(before: float, size: float, memory: MemoryPerGpu) -> str:
    """Return a part's share, beginning where the part before it ended."""
    column = _BAR_WIDTH / max(memory.total, memory.available)
    start, end = round(before * column), round((before + size) * column)
    return " " * start + _BAR * (end - start)


def _facts(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    if plan.trains_recipe:
        _add_training(table, plan)
    else:
        table.add_row(
            "cost", f"${plan.price_per_hour_usd:,.2f} an hour; in all open: its command decides"
        )
    for index, line in enumerate(plan.will_create):
        table.add_row("" if index else "creates", line)
    return table


def _add_training(table: Table, plan: Plan) -> None:
    unit = "images" if plan.counts_images else "tokens"
    assumption = f", at an assumed {plan.assumed_mfu:.0%} MFU" if plan.assumed_mfu else ""
    table.add_row(
        "speed",
        f"about {plan.tokens_per_s:,.0f} {unit}/s: {_seconds(plan.step_time_s)} a step, "
        f"limited by {plan.limited_by}{assumption}",
    )
    table.add_row(
        "time",
        f"first step after about {duration(plan.time_to_first_step_s)}, "
        f"end of training after {duration(plan.estimated_duration_s - plan.export_s)}",
    )
    table.add_row(
        "cost",
        f"${plan.price_per_hour_usd:,.2f} an hour, about ${plan.estimated_cost_usd:,.2f} in all, "
        "teardown included",
    )
    table.add_row(
        "checkpoint",
        f"{plan.checkpoint_gb:,.3g} GB, written in {duration(plan.checkpoint_write_s)}",
    )
