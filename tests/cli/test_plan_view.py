"""What `stationmaster plan` prints."""

import io

import pytest
from rich.console import Console

from stationmaster.cli.main import main
from stationmaster.cli.plan_view import duration, print_plan
from stationmaster.domain.catalogue.entries import CATALOGUE
from tests.support.plans import make_plan


def printed(name: str, **request: object) -> str:
    stream = io.StringIO()
    print_plan(make_plan(name, **request), Console(file=stream, width=100))
    return stream.getvalue()


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_recipe_is_shown_with_its_memory_speed_and_cost(name):
    text = printed(name)

    assert CATALOGUE[name].default_instance in text
    assert "fits in" in text
    for word in ("optimizer", "activations", "speed", "cost", "checkpoint", "creates"):
        assert word in text


def test_parts_of_memory_follow_one_another_like_a_fall():
    lines = printed("llama2-70b", nodes=2, instance_type="p4d.24xlarge").splitlines()
    weights = next(line for line in lines if line.strip().startswith("weights"))
    gradients = next(line for line in lines if line.strip().startswith("gradients"))
    bar = "\u2588"

    assert "does not fit in 36.8 GiB" in "".join(lines)
    assert gradients.index(bar) == weights.rindex(bar) + 1


def test_what_cuda_graphs_take_is_a_part_of_memory():
    graphs = next(line for line in printed("torchtitan-llama3.1-8b").splitlines() if "CUDA" in line)

    assert graphs.split()[:4] == ["CUDA", "graphs", "6.18", "GiB"]
    assert "CUDA graphs" not in printed(
        "torchtitan-llama3.1-8b", overrides={"cuda_graphs": "false"}
    )


def test_long_steps_are_whole_seconds():
    keys = {"sequence_length": "1048576", "context_parallel": "8"}

    assert ": 39,239 s a step" in printed("megatron-llama3-8b", overrides=keys)


def test_speed_says_that_its_mfu_is_assumed():
    assert "at an assumed 45% MFU" in " ".join(printed("llama2-7b").split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nodes=1:2", "--backend", "trainjob"], "nodes=1:2 cannot be had: Kubeflow Trainer v2"),
        (["--backend", "mpijob"], "invalid choice: 'mpijob' (choose from"),
    ],
)
def test_render_refuses_what_the_kind_of_job_cannot_do(capsys, words, says):
    try:
        code = main(["render", "tiny-llama", *words])
    except SystemExit as ended:
        code = ended.code

    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert says in said.err


def test_plan_that_does_not_fit_ends_with_a_command_that_plans_what_does(capsys):
    assert main(["plan", "llama2-7b", "nodes=1", "instance=g5.12xlarge", "steps=10"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]

    assert last.startswith("try   stationmaster plan llama2-7b nodes=")
    assert "steps=10" in last
    assert main(last.split()[2:]) == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(25, "25 s"), (130, "2 min"), (10_200, "2 h 50 min"), (300_000, "3 days 11 h")],
)
def test_durations_are_written_in_two_units_at_most(seconds, words):
    assert duration(seconds) == words
