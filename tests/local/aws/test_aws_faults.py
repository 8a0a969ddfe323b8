"""An account in which everything goes wrong that can be made to, by name."""

from __future__ import annotations

from pathlib import Path

from local.aws import DeploymentSpec, InProcessRuntime, LocalAws, NetworkSpec
from local.faults import names


def test_account_with_every_fault_is_deployed_as_any_other(tmp_path: Path) -> None:
    # What is deployed is older than the runs that the faults are for.
    aws = LocalAws(
        state_dir=tmp_path, invoker=InProcessRuntime(), handlers=(), faults=set(names("aws"))
    )
    with aws:
        made = aws.deploy(DeploymentSpec(network=NetworkSpec(), roles=["cluster"]))

        (group,) = aws.client("ec2").describe_security_groups(
            Filters=[{"Name": "vpc-id", "Values": [made.vpc_id]}]
        )["SecurityGroups"]
        assert group["GroupName"] == "default"
        assert made.subnet_ids
        assert made.role_arns["cluster"]
