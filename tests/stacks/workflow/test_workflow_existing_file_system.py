"""Runs on a file system that a person made: it is used, and stays as it was when they are gone.

Real are the state machines, the handlers, the account, the cluster, its pods and their files.
"""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.events import RunPhase
from tests.chaos.world import World

WRITES = {"CreateFileSystem", "UpdateFileSystem", "DeleteFileSystem", "TagResource"}


class Theirs:
    """A person's file system, behind a security group of its own."""

    def __init__(self, world: World, name: str, *, subnet: int = 0, **rule: Any) -> None:
        settings = world.mode.settings
        assert settings is not None
        self._world, ec2, self._fsx = world, world.aws.client("ec2"), world.aws.client("fsx")
        made = ec2.create_security_group(
            GroupName=name, Description="of a person", VpcId=settings.vpc_id
        )
        self.group_id = made["GroupId"]
        rule = rule or {"UserIdGroupPairs": [{"GroupId": self.group_id}]}
        ec2.authorize_security_group_ingress(
            GroupId=self.group_id, IpPermissions=[{"IpProtocol": "-1", **rule}]
        )
        self.file_system_id = self._fsx.create_file_system(
            FileSystemType="LUSTRE",
            FileSystemTypeVersion="2.15",
            StorageCapacity=2400,
            SubnetIds=[settings.subnet_ids[subnet]],
            SecurityGroupIds=[self.group_id],
            LustreConfiguration={"DeploymentType": "SCRATCH_2"},
            Tags=[{"Key": "team", "Value": "research"}],
        )["FileSystem"]["FileSystemId"]
        world.until(lambda: self.described["Lifecycle"] == "AVAILABLE", "it is there")
        self.directory = world.mode.options.state_dir / "file-systems" / self.file_system_id

    @property
    def described(self) -> dict[str, Any]:
        found = self._fsx.describe_file_systems(FileSystemIds=[self.file_system_id])
        described: dict[str, Any] = found["FileSystems"][0]
        return described

    @property
    def rules(self) -> list[dict[str, Any]]:
        found = self._world.aws.client("ec2").describe_security_groups(GroupIds=[self.group_id])
        rules: list[dict[str, Any]] = found["SecurityGroups"][0]["IpPermissions"]
        return rules


@pytest.fixture(scope="module")
def theirs(world: World) -> Theirs:
    """With data on it, which its owner alone may change."""
    made = Theirs(world, "data", subnet=1)
    (made.directory / "data").mkdir(mode=0o750)
    (made.directory / "data" / "notes.txt").write_text("theirs")
    return made


def instances_of(world: World, cluster_id: str) -> dict[str, dict[str, Any]]:
    """What the launch templates of a cluster's node groups say."""
    ec2 = world.aws.client("ec2")
    templates = ec2.describe_launch_templates(
        Filters=[{"Name": "tag:stationmaster:cluster-id", "Values": [cluster_id]}]
    )["LaunchTemplates"]
    return {
        each["LaunchTemplateName"]: ec2.describe_launch_template_versions(
            LaunchTemplateId=each["LaunchTemplateId"]
        )["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        for each in templates
    }


def test_run_uses_the_file_system_and_leaves_it_as_it_was(world: World, theirs: Theirs) -> None:
    before, rules = theirs.described, theirs.rules
    held: list[Any] = []
    world.aws.forget_calls()

    run_id = world.request(
        "existing",
        words=f"file_system={theirs.file_system_id}",
        before=lambda run_id: held.append(world.runtime.hold(run_id, "release-network")),
    )
    world.until(held[0].reached.is_set, "its nodes are gone")
    templates = instances_of(world, run_id)
    held[0].released.set()
    run = world.until_rested(run_id, torn_down=True)

    assert (run.phase, run.reason) == (RunPhase.SUCCEEDED, "")
    assert run.results is not None, "what it leaves is saved all the same"
    outcome = world.outcome(run_id)
    assert (outcome.left, outcome.billable_left) == ([], [])
    cluster = outcome.cluster
    assert cluster is not None
    assert ResourceKind.FILE_SYSTEM not in {each.kind for each in cluster.resources.values()}
    # Nothing was asked of FSx but to describe.
    asked = {operation for service, operation in world.aws.calls if service == "fsx"}
    assert asked
    assert not asked & WRITES
    assert (theirs.described, theirs.rules) == (before, rules)
    assert (theirs.directory / "data" / "notes.txt").read_text() == "theirs"
    assert (theirs.directory / "data").stat().st_mode & 0o7777 == 0o750
    # The run's own directory stays with it; what the check wrote does not.
    assert (theirs.directory / "runs").is_dir()
    check = theirs.directory / ".stationmaster" / "storage-check"
    assert [path for path in check.rglob("*") if path.is_file()] == []
    # Nodes could reach it.
    assert templates
    assert all(theirs.group_id in each["SecurityGroupIds"] for each in templates.values())


def test_data_on_it_is_read_where_it_lies(world: World, theirs: Theirs) -> None:
    words = f"file_system={theirs.file_system_id} dataset=/fsx/data"

    run_id = world.request("existing: data", words=words)
    run = world.until_rested(run_id, torn_down=True)

    assert (run.phase, run.reason) == (RunPhase.SUCCEEDED, "")
    (staged,) = world.outcome(run_id).events_of("data.staged")
    assert (staged.work, staged.counts, staged.root) == ("looking", {"text_files": 1}, "")
    assert [path.name for path in (theirs.directory / "data").iterdir()] == ["notes.txt"]
