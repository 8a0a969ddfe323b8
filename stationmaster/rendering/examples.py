"""python -m stationmaster.rendering.examples [--write]

Renders each recipe of the catalogue with its defaults into manifests/examples, one of them as a
TrainJob, the Job that saves a result, and the job that measures NCCL. Without --write it only
compares, and exits 1 when a committed file is stale; a test does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import yaml

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.images import RELAY_IMAGE
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import own_namespace
from stationmaster.domain.results import RunFacts
from stationmaster.domain.run.aggregate import new_run_id
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.nccl_tests import render_nccl_tests
from stationmaster.rendering.placing import placed
from stationmaster.rendering.run_objects import BUCKET, REGION, render_all
from stationmaster.rendering.saver_job import render_saving

DIRECTORY: Final = Path(__file__).resolve().parents[2] / "manifests" / "examples"
SAVED: Final = "tiny-llama"
SAVING: Final = f"{SAVED}-save"
NCCL: Final = "nccl-tests"
# A run on a cluster that has Kubeflow Trainer v2 in place of the Training Operator.
TRAIN_JOB: Final = "llama2-7b-trainjob"
_NCCL_INSTANCE: Final = "p5.48xlarge"
_HEADER: Final = (
    "# Rendered from the recipe {name} with its defaults; do not edit.\n"
    "# Rewrite with: python -m stationmaster.rendering.examples --write\n"
)


class _Dumper(yaml.SafeDumper):
    """Block style with scripts as literal blocks, and no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(objects: Iterable[KubernetesObject]) -> str:
    """Return the objects as a YAML stream that kubectl takes."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100, explicit_start=True)


def example(recipe: Recipe, *, kind: JobKind = JobKind.PYTORCH_JOB) -> str:
    """Return the file of one recipe, with a job of the kind."""
    request = TrainingRequest(
        recipe=recipe.name,
        nodes=recipe.default_nodes,
        instance_type=recipe.default_instance,
        command=f"/train {recipe.name}",
        team_id="T0000000000",
        channel_id="C0000000000",
        user_id="U0000000000",
    )
    is_guest = kind is JobKind.TRAIN_JOB  # only existing clusters have these
    run_id = new_run_id(recipe.name, dedup_key="guest" if is_guest else "example")
    objects = render_all(request, run_id=run_id, kind=kind)
    if is_guest:
        objects = [placed(item, own_namespace(ClusterId(run_id))) for item in objects]
    return _HEADER.format(name=recipe.name) + to_yaml(objects)


def saving_example() -> str:
    """Return the file of the Job that saves the result of a run."""
    recipe = CATALOGUE[SAVED]
    run_id = new_run_id(SAVED, dedup_key="example")
    facts = RunFacts(
        run_id=run_id,
        recipe=SAVED,
        nodes=recipe.default_nodes,
        instance_type=recipe.default_instance,
        outcome="succeeded",
    )
    objects = render_saving(
        facts,
        cluster_id=ClusterId(run_id),
        image=RELAY_IMAGE,
        bucket=BUCKET,
        region=REGION,
    )
    return _HEADER.format(name=SAVED) + to_yaml(objects)


def nccl_example() -> str:
    """Return the file of the job that measures NCCL, for two nodes."""
    job = render_nccl_tests(
        ClusterId("example"), instance=get_instance(_NCCL_INSTANCE), num_nodes=2
    )
    header = _HEADER.replace("the recipe {name} with its defaults", f"2 x {_NCCL_INSTANCE}")
    return header + to_yaml([namespace(), job])


def all_examples() -> dict[str, str]:
    """Return every file's text, by its name without the ending."""
    recipes = {recipe.name: example(recipe) for recipe in CATALOGUE.values()}
    train_job = example(CATALOGUE["llama2-7b"], kind=JobKind.TRAIN_JOB)
    others = {SAVING: saving_example(), NCCL: nccl_example(), TRAIN_JOB: train_job}
    return recipes | others


def main(arguments: list[str]) -> int:
    """Write or compare every example."""
    stale = []
    for name, text in all_examples().items():
        path = DIRECTORY / f"{name}.yaml"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if "--write" in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    verb = "rewritten" if "--write" in arguments else "stale"
    sys.stdout.write("".join(f"{verb}: {name}\n" for name in stale))
    return int(bool(stale) and "--write" not in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
