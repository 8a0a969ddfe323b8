"""What `stationmaster recipes` and `stationmaster instances` print."""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from typing import Final

from rich.console import Console
from rich.table import Table

from stationmaster.domain.catalogue.entries import CATALOGUE as RECIPES
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.keys.names import key_names


def recipes(arguments: argparse.Namespace) -> int:
    """List what can be trained."""
    rows = [
        {
            "name": recipe.name,
            "framework": recipe.framework,
            "model": recipe.summary,
            "num_parameters": recipe.model.num_parameters,
            "default_instance": recipe.default_instance,
            "default_nodes": recipe.default_nodes,
            "keys": list(key_names(recipe)),
        }
        for recipe in RECIPES.values()
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    table = Table("recipe", "size", "default machines", "what", box=None)
    for column in table.columns[:-1]:
        column.no_wrap = True
    for recipe in RECIPES.values():
        table.add_row(
            recipe.name,
            _short_count(recipe.model.num_parameters),
            f"{recipe.default_nodes} x {recipe.default_instance}",
            recipe.summary,
        )
    console = Console()
    console.print(table)
    console.print("\nany causal language model of the Hugging Face hub: hf:ORG/MODEL")
    console.print(
        "add preset=smoke to run a recipe of our own trainer small, on CPUs", highlight=False
    )
    return 0


def _short_count(count: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


_USES: Final = {
    "hf": "Trainer(..., callbacks=[for_transformers()])",
    "lightning": "Trainer(..., callbacks=[for_lightning()])",
    "torch": "report(step=step, total_steps=total_steps, loss=loss)",
}


def snippet(arguments: argparse.Namespace) -> int:
    """Print the file with which a program reports its steps, and how it is called."""
    print(f"# Save it as report.py beside your script, and call there: {_USES[arguments.kind]}")
    print((files("training") / "report.py").read_text(), end="")
    return 0


def instances(arguments: argparse.Namespace) -> int:
    """List the instance types that are known."""
    if arguments.json:
        print(json.dumps([instance.model_dump() for instance in INSTANCES.values()], indent=2))
        return 0
    table = Table(box=None)
    # What has to be typed is never cut, however narrow the terminal is.
    table.add_column("instance", no_wrap=True, min_width=max(map(len, INSTANCES)))
    for title in ("accelerators", "GiB each", "EFA", "Gbps", "vCPU", "GiB"):
        table.add_column(title)
    table.add_column("USD/h", justify="right")
    table.add_column("bf16 TFLOP/s each", justify="right")
    for i in INSTANCES.values():
        table.add_row(
            i.name,
            f"{i.num_gpus} x {i.gpu}" if i.gpu else "-",
            f"{i.gpu_memory_gib:g}" if i.gpu else "-",
            str(i.num_efa),
            f"{i.network_gbps:g}",
            str(i.vcpus),
            str(i.memory_gib),
            "-" if i.price_per_hour_usd is None else f"{i.price_per_hour_usd:.2f}",
            "-" if i.peak_tflops_bf16 is None else f"{i.peak_tflops_bf16:g}",
        )
    Console().print(table)
    return 0
