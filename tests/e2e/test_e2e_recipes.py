"""Recipes of every kind through the whole product, in their small presets, on two nodes each.

They are typed at once into one channel: side
by side they take little longer than one.
"""

import pytest
from e2e_world import World, world

from stationmaster.diagnosis.explaining import explain
from stationmaster.diagnosis.reading import read_source
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run.events import RunPhase

# One of each kind: experts, weights from a checkpoint and instructions, images, whole replicas.
RECIPES = ("mixtral-8x7b", "llama2-7b-finetune", "resnet50", "ddp-cpu")
# The job of one has a master, as trainers need that know nothing of an elastic rendezvous.
STATIC = "ddp-cpu"


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The local mode after all runs have their receipts, and the run of each recipe."""
    with world(tmp_path_factory.mktemp("recipes"), forks=True) as local:
        started = {name: local.start(f"/train {_words(name)}") for name in RECIPES}
        yield local, {name: local.wait_for_receipt(run_id) for name, run_id in started.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_small_preset_of_a_recipe_trains_on_two_nodes_to_its_receipt(ended, name):
    local, runs = ended
    run = runs[name]
    steps = get_recipe(name).with_overrides({"preset": "smoke"}).training.steps

    assert run.phase is RunPhase.SUCCEEDED, run.reason
    assert run.progress is not None
    assert run.progress.step == run.progress.total_steps == steps
    assert run.last_checkpoint_step == steps
    assert run.evaluation is not None
    assert run.evaluation.step == steps
    assert _of(local, run.run_id, "training.started").world_size == 2
    assert local.cluster(run.run_id).teardown is TeardownStatus.COMPLETED
    assert local.left(run.run_id) == []
    # Images are described by their accuracy, text by its perplexity.
    assert (run.evaluation.top1 is not None) == (name == "resnet50")
    assert name == "resnet50" or run.evaluation.perplexity > 1
    assert _pods(local, run.run_id) == (
        {"master-0", "worker-0"} if name == STATIC else {"worker-0", "worker-1"}
    )


@pytest.mark.parametrize("name", RECIPES)
def test_healthy_run_raises_no_finding(ended, name, tmp_path):
    local, runs = ended
    run_id = runs[name].run_id

    local.services.artifacts.download(run_id, tmp_path)

    logs = sorted((tmp_path / "logs").iterdir())
    assert len(logs) == 2
    found = explain([read_source(log.name, log.read_text()) for log in logs])
    assert [(finding.rule, finding.evidence) for finding in found] == []
    assert "\u26a0" not in local.thread_text(run_id)
    assert "\u26a0" not in str(local.card(run_id).blocks)


def _pods(local: World, run_id: str) -> set[str]:
    return {
        event.pod.removeprefix(f"{run_id}-")
        for event in local.of_type("pod.changed")
        if event.run_id == run_id and event.phase == "Running"
    }


def _words(name: str) -> str:
    words = f"{name} preset=smoke nodes=2"
    return f"{words} rendezvous=static" if name == STATIC else words


def _of(local: World, run_id: str, kind: str):
    return next(event for event in local.of_type(kind) if event.run_id == run_id)
