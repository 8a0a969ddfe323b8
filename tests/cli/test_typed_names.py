"""Names that have to be typed are shown whole, and AWS_REGION reaches boto3."""

from __future__ import annotations

import os

import pytest

from stationmaster.cli.main import main
from stationmaster.domain.catalogue.instances import CATALOGUE
from training.config import parse_config


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_instances_are_named_whole_at_any_width(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))

    assert main(["instances"]) == 0

    printed = capsys.readouterr().out
    assert [name for name in CATALOGUE if f" {name} " not in printed] == []


def test_region_of_aws_region_is_boto3s_too(monkeypatch, capsys):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")

    main(["instances", "--json"])

    assert os.environ["AWS_DEFAULT_REGION"] == "eu-west-1"


def test_trainer_takes_keys_after_options(tmp_path):
    config = parse_config(["tiny-llama", "--output-dir", str(tmp_path), "steps=7"], {})

    assert config.recipe.training.steps == 7
