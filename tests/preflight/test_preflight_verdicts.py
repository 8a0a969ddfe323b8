"""What the checks before a start conclude from what AWS says; nothing is asked here."""

from __future__ import annotations

import pytest

from stationmaster.aws.account import EcrImage, read_ecr_image
from stationmaster.domain.catalogue.instances import CATALOGUE, get_instance
from stationmaster.domain.catalogue.kubernetes_versions import OfferedVersion, Support
from stationmaster.domain.catalogue.quotas import quota_of
from stationmaster.domain.commands.grammar import parse_request
from stationmaster.preflight.findings import Severity
from stationmaster.preflight.machines import (
    judge_offer,
    judge_quota,
    judge_version,
    needed_vcpus,
)
from stationmaster.preflight.subject import Machines, of_start

REGION = "us-west-2"
ZONES = {"subnet-1": "us-west-2a", "subnet-2": "us-west-2b"}


@pytest.mark.parametrize(
    ("instance_type", "is_spot", "code"),
    [
        ("p5.48xlarge", False, "L-417A185B"),
        ("p6-b200.48xlarge", False, "L-417A185B"),
        ("g6e.12xlarge", False, "L-DB2E81BA"),
        ("m5.2xlarge", False, "L-1216C47A"),
        ("trn1.32xlarge", False, "L-2C3B7624"),
        ("p4d.24xlarge", True, "L-7212CCBC"),
        ("p5en.48xlarge", True, "L-C4BD4855"),
        ("g5.xlarge", True, "L-3819A6DF"),
    ],
)
def test_instance_type_counts_towards_the_quota_of_its_family(instance_type, is_spot, code):
    quota = quota_of(instance_type, is_spot=is_spot)

    assert quota is not None
    assert quota.code == code


def test_each_instance_type_of_the_catalogue_has_an_on_demand_quota():
    assert [name for name in CATALOGUE if quota_of(name) is None] == []


@pytest.mark.parametrize(
    ("instance", "nodes", "needed"),
    [
        ("p5.48xlarge", 4, {"L-417A185B": (384, 768), "L-1216C47A": (8, 8)}),
        ("m5.2xlarge", 2, {"L-1216C47A": (24, 24)}),  # with the system node, of the same family
    ],
)
def test_start_needs_the_vcpus_of_its_nodes_and_of_the_system_node(instance, nodes, needed):
    machines = Machines(get_instance(instance), nodes=nodes, least_nodes=2)

    found = needed_vcpus(machines)

    assert {quota.code: vcpus for quota, vcpus in found.items() if quota} == needed


@pytest.mark.parametrize(
    ("limit", "used", "severity"),
    [
        (768, 0, Severity.INFO),
        (767, 0, Severity.WARNING),
        (768, 384, Severity.WARNING),
        (768, 385, Severity.ERROR),
        (0, 0, Severity.ERROR),
    ],
)
def test_quota_is_judged_by_what_is_free_of_it(limit, used, severity):
    quota = quota_of("p5.48xlarge")

    found = judge_quota(quota, limit=limit, used=used, least=384, most=768, region=REGION)

    assert found.severity is severity
    assert f"allows {limit:,} vCPUs in us-west-2 and {used:,} run" in found.message
    assert (f"--quota-code L-417A185B --desired-value {used + 768}" in found.remedy) is (
        severity is not Severity.INFO
    )


@pytest.mark.parametrize(
    ("offered", "severity", "words"),
    [
        ({"us-west-2b", "us-west-2c"}, Severity.INFO, "is offered in us-west-2b"),
        ({"us-west-2c"}, Severity.ERROR, "in us-west-2c and not in us-west-2a, us-west-2b"),
        (set(), Severity.ERROR, "is not offered in us-west-2"),
    ],
)
def test_offer_is_judged_by_the_zones_in_which_nodes_may_be(offered, severity, words):
    (found,) = judge_offer("p5.48xlarge", zones=ZONES, offered=offered, region=REGION)

    assert found.severity is severity
    assert words in found.message
    assert bool(found.remedy) is (severity is Severity.ERROR)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (
            "123456789012.dkr.ecr.us-west-2.amazonaws.com/stationmaster/relay:0.1.0",
            EcrImage("123456789012", "us-west-2", "stationmaster/relay", "0.1.0", ""),
        ),
        (
            "123456789012.dkr.ecr.us-west-2.amazonaws.com/relay",
            EcrImage("123456789012", "us-west-2", "relay", "latest", ""),
        ),
        (
            f"123456789012.dkr.ecr.us-west-2.amazonaws.com/relay@sha256:{'a' * 64}",
            EcrImage("123456789012", "us-west-2", "relay", "", f"sha256:{'a' * 64}"),
        ),
        ("stationmaster/relay:latest", None),
        ("public.ecr.aws/hpc-cloud/nccl-tests:latest", None),
    ],
)
def test_address_of_an_image_in_ecr_is_read(image, expected):
    assert read_ecr_image(image) == expected


def test_guest_of_another_cluster_needs_no_machines():
    start = parse_request(["llama2-7b-finetune"])

    assert of_start(start).machines is not None
    assert of_start(start).repositories == ("meta-llama/Llama-2-7b-hf",)


@pytest.mark.parametrize(
    ("wanted", "severity", "said", "remedy"),
    [
        ("", Severity.INFO, "gets Kubernetes 1.35", ""),
        ("1.33", Severity.WARNING, "$0.60 an hour", "out to get 1.35"),
        ("1.37", Severity.WARNING, "checked with 1.31 to 1.36", "out to get 1.35"),
        ("1.20", Severity.ERROR, "EKS offers no Kubernetes 1.20", "set kubernetes_version"),
    ],
)
def test_kubernetes_version_is_judged_by_its_support(wanted, severity, said, remedy):
    offered = [
        OfferedVersion("1.33", Support.EXTENDED),
        OfferedVersion("1.35", Support.STANDARD, is_default=True),
        OfferedVersion("1.37", Support.STANDARD),
    ]

    found = judge_version(offered, wanted=wanted)

    assert found.severity is severity
    assert said in found.message
    assert remedy in found.remedy


def test_extended_support_that_no_setting_avoids_asks_for_a_newer_product():
    offered = [OfferedVersion("1.36", Support.EXTENDED), OfferedVersion("1.38", Support.STANDARD)]

    found = judge_version(offered, wanted="")

    assert found.severity is Severity.WARNING
    assert "newer version of Stationmaster" in found.remedy
