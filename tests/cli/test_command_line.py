"""What the command line says to what it is given, its exit codes, and what it hands on."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from stationmaster.cli import input_files
from stationmaster.cli.local_mode import local_options
from stationmaster.cli.local_watch import Record, is_question
from stationmaster.cli.main import main, make_parser
from stationmaster.cli.plan_view import duration, print_plan
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.entries import CATALOGUE as RECIPES
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.commands.requests import Command, ListClusters, Look, ShowCluster
from tests.support.plans import make_plan


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["plan", "tiny-llama", "nodes=2"], 0, "fits"),
        (["plan", "llama2-7b", "nodes=1", "instance=g5.12xlarge"], 1, "does not fit"),
        (
            ["plan", "ddp-cpu", "nodes=2", "command=torchrun a.py"],
            0,
            "in all open: its command decides",
        ),
        (["render", "ddp-cpu", "command=torchrun /a/b.py"], 0, "workingDir: /a"),
        (["render", "tiny-llama", "learning_rate=fast"], 2, "expected a number"),
        (["local", "run", "train tiny-llama"], 2, "expected /train"),
        (
            ["local", "run", "/train help", "--fault", "gremlins"],
            2,
            'fault "gremlins" is not known',
        ),
        (["local", "run", "/train help", "--speed", "0"], 2, "expected 1 or more"),
        (["local", "run", "/train help", "--state-dir", "/proc/no"], 2, "/proc/no: No such file"),
        (["local", "run", "/train help", "--state-dir", "/"], 2, "--state-dir"),
        (["local", "up", "--state-dir", ""], 2, '--state-dir: "" is no folder; give its path'),
        (["local", "up", "--port", "80000"], 2, '"80000" is no port; give 0 (a free one) to 65535'),
        (["local", "run", "/train help", "--port", "http"], 2, '"http" is no port'),
        (["local", "run", "/train help", "--port", "8_0"], 2, '"8_0" is no port'),
        (["local", "chaos", "--seed", f"{10**18}"], 2, "is no seed; give a whole number"),
        (["local", "chaos", "--seed", "1", "--minutes", "0"], 2, '"0" is no time; give minutes'),
        (["local", "run", "/train help", "--timeout", "nan"], 2, '"nan" is no time'),
        (["slack-manifest", "--url", "http://x"], 2, "https://"),
    ],
)
def test_command_line_answers_with_its_exit_code_and_one_sentence(
    arguments, code, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    try:
        returned = main(arguments)
    except SystemExit as end:  # of argparse
        returned = end.code

    printed = capsys.readouterr()
    assert returned == code, printed.err
    assert words in printed.out + printed.err


OF_RECIPES = "name framework model num_parameters default_instance default_nodes keys"


@pytest.mark.parametrize(
    ("catalogue", "names", "fields"),
    [
        ("recipes", {"tiny-llama", "llama2-7b"}, OF_RECIPES),
        ("instances", {"p4d.24xlarge", "p5.48xlarge", "g5.xlarge"}, "name"),
    ],
)
def test_catalogues_print_json_with_the_contract_fields(catalogue, names, fields, capsys):
    assert main([catalogue, "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} >= names
    assert {*fields.split()} <= rows[0].keys()


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_instances_are_named_whole_at_any_width(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))

    assert main(["instances"]) == 0

    printed = capsys.readouterr().out
    assert [name for name in INSTANCES if f" {name} " not in printed] == []


# Commands of docs/deploy.md that ask AWS.
ASKING = (
    "preflight tiny-llama",
    *(f"{each} --deployment d" for each in ("redrive", "secret wandb", "drain status", "remove")),
    *(f"{each} --deployment d" for each in ("audit C0TRAIN", "bot --socket", "approve a-12345678")),
)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ("AWS_REGION=eu-west-1 AWS_DEFAULT_REGION=e.", "no AWS credentials were found"),
        ("AWS_REGION= AWS_DEFAULT_REGION=eu-west-1", "no AWS credentials were found"),
        ("AWS_CONFIG_FILE=/dev/null", "set AWS_REGION or AWS_PROFILE"),
        ("AWS_REGION=eu.west", "Provided region_name 'eu.west' doesn't match"),
        ("AWS_PROFILE=none", "The config profile (none) could not be found"),
    ],
)
def test_commands_that_ask_aws_take_any_name_of_the_region_or_say_one_sentence(
    environ: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for each in f"AWS_SHARED_CREDENTIALS_FILE=/dev/null {environ}".split():
        monkeypatch.setenv(*each.split("="))

    for command in ASKING:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"key")))
        assert main(command.split()) == 1, command
        (sentence,) = capsys.readouterr().err.splitlines()
        assert said in sentence, command


@pytest.mark.parametrize("verb", [["up"], ["run", "/train help"]])
def test_commands_of_the_channel_are_off_unless_the_flag_was_typed(
    verb: list[str], tmp_path: Path
) -> None:
    def allowed(*flags: str) -> bool:
        words = ["local", *verb, "--state-dir", str(tmp_path), *flags]
        return local_options(make_parser().parse_args(words), Record(None)).allow_commands

    assert not allowed()
    assert allowed("--allow-commands")


def test_run_works_while_the_demo_is_open() -> None:
    demo = make_parser().parse_args(["local", "up"])
    run = make_parser().parse_args(["local", "run", "/train help"])

    assert run.state_dir != demo.state_dir
    assert run.port == 0  # any that is free


def test_every_command_that_shows_or_lists_is_a_question() -> None:
    kinds = {each for each in get_args(Command) if each.__name__.startswith(("Show", "List"))}

    assert kinds <= {*get_args(Look), ListClusters, ShowCluster}
    asking = ("help", "cost", "cluster list", "cluster show small")
    acting = ("tiny-llama", "stop", "cluster create small", "cluster delete small", "nonsense")
    assert [text for text in (*asking, *acting) if is_question(text)] == [*asking]


ROOT = Path(__file__).parents[2]


def test_readme_names_every_recipe_once() -> None:
    table = (ROOT / "README.md").read_text().split("## What it trains")[1].split("\n## ")[0]
    first_column = "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))

    named = [
        each for each in re.findall(r"`([^`]+)`", first_column) if re.match(r"[a-z0-9.-]+$", each)
    ]

    assert sorted(named) == sorted(RECIPES)


def test_page_of_recipes_shows_what_the_command_prints() -> None:
    document = (ROOT / "docs" / "recipes.md").read_text()
    printed = document.split("$ .venv/bin/stationmaster recipes\n")[1].split("```")[0]

    listed = re.findall(r"^ ([a-z][a-z0-9.-]+) ", printed, re.MULTILINE)

    assert listed[:1] == ["recipe"]
    assert sorted(listed[1:]) == sorted(RECIPES)


READERS = {
    "diagnose": [],
    "lint": [],
    "nccl-report": ["--instance", "p4d.24xlarge", "--nodes", "2"],
}


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("command", READERS)
def test_pipe_into_which_nobody_writes_gets_one_sentence(monkeypatch, capsys, pipe, command):
    monkeypatch.setattr(input_files, "_PIPE_S", 0)

    assert main([command, str(pipe), *READERS[command]]) == 2

    error = capsys.readouterr().err
    assert "nothing was written into this pipe in 0 s" in error
    assert error.count("\n") == 1


def test_pipe_is_read_to_its_end_whenever_its_writer_comes(capsys, pipe):
    written = "RuntimeError: CUDA out of memory\n" + "step\n" * 50_000
    writer = threading.Thread(target=pipe.write_text, args=[written])
    threading.Timer(0.05, writer.start).start()

    with input_files.opened(str(pipe), advice="") as file:
        assert file.read() == written.encode()
    writer.join()


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
