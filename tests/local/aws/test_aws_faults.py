"""An account in which everything goes wrong that can be made to, by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ConnectionClosedError

from stationmaster.local.aws import DeploymentSpec, InProcessRuntime, LocalAws
from stationmaster.local.faults import names
from tests.chaos.direct_calls import without_connection


def test_account_with_every_fault_is_deployed_as_any_other(tmp_path: Path) -> None:
    # What is deployed is older than the runs that the faults are for.
    aws = LocalAws(
        state_dir=tmp_path, invoker=InProcessRuntime(), handlers=(), faults=set(names("aws"))
    )
    with aws:
        made = aws.deploy(DeploymentSpec(network="stationmaster", roles=["cluster"]))

        (group,) = aws.client("ec2").describe_security_groups(
            Filters=[{"Name": "vpc-id", "Values": [made.vpc_id]}]
        )["SecurityGroups"]
        assert group["GroupName"] == "default"
        assert made.subnet_ids
        assert made.role_arns["cluster"]


def test_lost_answer_of_a_call_without_connection_ends_as_a_closed_one(tmp_path: Path) -> None:
    with LocalAws(
        state_dir=tmp_path, invoker=InProcessRuntime(), handlers=(), faults={"lost-answers"}
    ) as aws:
        ec2 = aws.client("ec2")
        ec2.meta.events.register("before-send", without_connection(aws))

        with pytest.raises(ConnectionClosedError, match="closed before we received"):
            ec2.create_placement_group(GroupName="g", Strategy="cluster")
        groups = ec2.describe_placement_groups()["PlacementGroups"]

        assert [each["GroupName"] for each in groups] == ["g"], "it took effect"
