"""`stationmaster remove`: what is in the way ends it, its stacks go, and data stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stationmaster.cli.main import main
from stationmaster.local.aws import LocalAws

TEMPLATE = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
DEPLOYMENT = {"Key": "stationmaster:deployment", "Value": "prod"}


def test_stacks_go_once_nothing_is_in_the_way_and_the_name_was_typed(
    aws: LocalAws, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    cloudformation, secrets = aws.client("cloudformation"), aws.client("secretsmanager")
    for stack in ("prod-images", "prod-data", "production-data"):
        cloudformation.create_stack(StackName=stack, TemplateBody=TEMPLATE)
    secrets.create_secret(Name="slack", Tags=[DEPLOYMENT])
    of_cluster = {"Key": "stationmaster:cluster-id", "Value": "a"}
    arn = secrets.create_secret(Name="of-a-cluster", Tags=[DEPLOYMENT, of_cluster])["ARN"]

    assert main(["remove", "--deployment", "prod", "--yes", "prod"]) == 1
    assert f"  {arn}\n" in capsys.readouterr().out.partition("stacks that")[0]
    secrets.delete_secret(SecretId=arn, ForceDeleteWithoutRecovery=True)
    assert main(["remove", "--deployment", "prod", "--dry-run"]) == 0
    assert "delete-secret --secret-id arn:" in capsys.readouterr().out
    assert main(["remove", "--deployment", "prod", "--yes", "product"]) == 2
    assert len(cloudformation.describe_stacks()["Stacks"]) == 3
    assert main(["remove", "--deployment", "prod", "--yes", "prod"]) == 0
    (left,) = cloudformation.describe_stacks()["Stacks"]
    assert left["StackName"] == "production-data"
