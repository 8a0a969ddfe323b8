"""When the attempts of an Auto Scaling group say that its instances cannot be launched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stationmaster.aws.node_groups import NodeGroup
from stationmaster.aws.scaling_groups import ScalingGroups

FULL = "We currently do not have sufficient p5 capacity in the zone. Launching EC2 instance failed."
QUOTA = "You have requested more vCPU capacity than your current vCPU limit of 0 allows."


@dataclass
class AutoScaling:
    """Answers with these activities, the newest first, or refuses."""

    activities: list[dict[str, Any]] = field(default_factory=list)
    refusal: str = ""

    def describe_scaling_activities(self, **asked: Any) -> dict[str, Any]:
        assert asked["AutoScalingGroupName"] == "eks-training-1"
        if self.refusal:
            raise ClientError({"Error": {"Code": self.refusal}}, "DescribeScalingActivities")
        return {"Activities": self.activities}


def activity(status: str, at: int, why: str = FULL) -> dict[str, Any]:
    return {"StatusCode": status, "StartTime": at, "StatusMessage": why}


def looked_at(*activities: dict[str, Any], refusal: str = "", **group: Any) -> NodeGroup:
    made = {"name": "training", "status": "CREATING", "scaling_groups": ("eks-training-1",)}
    client = AutoScaling(list(activities), refusal)
    return ScalingGroups(None, client).add_to(NodeGroup(**{**made, **group}))


@pytest.mark.parametrize(
    ("activities", "keeps_failing"),
    [
        ([], False),
        ([activity("Failed", 2)], False),  # the next attempt may succeed
        ([activity("Failed", 2), activity("Failed", 2)], False),  # two instances of one attempt
        ([activity("Failed", 2), activity("Failed", 1)], True),
        ([activity("InProgress", 3), activity("Failed", 2), activity("Failed", 1)], True),
        ([activity("Successful", 3), activity("Failed", 2), activity("Failed", 1)], False),
        ([activity("Failed", 3), activity("Successful", 2), activity("Failed", 1)], False),
    ],
)
def test_two_attempts_in_a_row_that_fail_are_a_verdict(
    activities: list[dict[str, Any]], keeps_failing: bool
) -> None:
    assert looked_at(*activities).keeps_failing is keeps_failing


@pytest.mark.parametrize(
    ("why", "lacks_instances", "lacks_quota", "remedy"),
    [
        (FULL, True, False, "try again later, or with another instance type or fewer nodes"),
        (QUOTA, False, True, "ask for more vCPUs of these instances in Service Quotas"),
        ("Client.InternalError: Client error on launch.", False, False, ""),
    ],
)
def test_newest_message_says_what_is_lacking(
    why: str, lacks_instances: bool, lacks_quota: bool, remedy: str
) -> None:
    found = looked_at(activity("Failed", 2, why), activity("Failed", 1, "another"))

    assert (found.failure, found.remedy) == (why, remedy)
    assert (found.lacks_instances, found.lacks_quota) == (lacks_instances, lacks_quota)


def test_group_that_is_gone_has_tried_nothing_and_health_issues_are_kept() -> None:
    assert looked_at(refusal="ValidationError").failed_attempts == 0
    assert looked_at(activity("Failed", 1), failure="Code: of EKS").failure == "Code: of EKS"
    two = (activity("Failed", 3), activity("Failed", 2))
    assert (looked_at(*two).failed_at, looked_at().failed_at) == (3, None)
