"""A deployment into a network that exists: it is used by its ids, and nothing of it is made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from infra_templates import ROOT, Template, as_list, of_type, reference, templates_of, text_of
from syntheses import EXISTING

from lambdas.registry import FUNCTIONS, Permission
from stacks.config import StageConfig, read_config, read_context
from stacks.node import use_packaged_node
from stationmaster.domain.catalogue.recipes import FRAMEWORK_IMAGES
from stationmaster.settings import PREFIX

VPC = EXISTING["vpc_id"]
SUBNETS = EXISTING["subnet_ids"]
PEOPLE = EXISTING["kubectl_role_arns"]
OFFICE = EXISTING["api_cidrs"]


@pytest.fixture(scope="session")
def existing(syntheses: Path) -> dict[str, Template]:
    """Templates of a deployment into an existing network, by the name of their stack."""
    return templates_of(syntheses / "existing")


def test_nothing_of_the_network_is_made(existing: dict[str, Template]) -> None:
    assert set(existing) == {"data", "images", "workflow", "bot", "observability"}
    kinds = {
        each["Type"] for template in existing.values() for each in template["Resources"].values()
    }
    assert {kind for kind in kinds if kind.startswith("AWS::EC2::")} == {
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::SecurityGroupIngress",
    }
    assert "AWS::Lambda::Function" in kinds


def test_functions_and_their_rights_name_the_network(existing: dict[str, Template]) -> None:
    for stack in ("workflow", "bot"):
        for function in of_type(existing[stack]["Resources"], "AWS::Lambda::Function").values():
            variables = function["Properties"]["Environment"]["Variables"]
            assert variables["STATIONMASTER_VPC_ID"] == VPC
            assert variables["STATIONMASTER_SUBNET_IDS"] == ",".join(SUBNETS)
            assert variables["STATIONMASTER_KUBECTL_ROLE_ARNS"] == ",".join(PEOPLE)
    policies = of_type(existing["workflow"]["Resources"], "AWS::IAM::Policy").values()
    named = {
        text_of(statement["Resource"])
        for policy in policies
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement["Action"] == "ec2:CreateSecurityGroup" and "Condition" not in statement
    }
    assert named == {f"arn:{{Partition}}:ec2:{{Region}}:{{AccountId}}:vpc/{VPC}"}


def test_images_that_are_asked_for_are_built_besides(existing: dict[str, Template]) -> None:
    resources = existing["images"]["Resources"]
    (project,) = of_type(resources, "AWS::CodeBuild::Project").values()

    repositories = of_type(resources, "AWS::ECR::Repository").values()
    assert sorted(each["Properties"]["RepositoryName"] for each in repositories) == [
        f"stationmaster/{image}"
        for image in (
            *("copies", "cpu", "megatron", "nemo", "nemo2", "relay", "torchtitan", "training"),
        )
    ]
    specification = json.loads(text_of(project["Properties"]["Source"]["BuildSpec"]))
    (command,) = specification["phases"]["build"]["commands"]
    assert command.endswith(" training relay cpu megatron nemo nemo2 torchtitan")
    assert project["Properties"]["Environment"]["ComputeType"] == "BUILD_GENERAL1_2XLARGE"


def test_functions_know_the_images_of_the_frameworks_that_are_built(
    existing: dict[str, Template],
) -> None:
    functions = [
        function
        for stack in ("workflow", "bot")
        for function in of_type(existing[stack]["Resources"], "AWS::Lambda::Function").values()
    ]

    assert len(functions) == len(FUNCTIONS)
    for function in functions:
        variables = function["Properties"]["Environment"]["Variables"]
        for image in FRAMEWORK_IMAGES.values():
            address = text_of(variables[f"{PREFIX}{image.upper()}_IMAGE"])
            registry = "{AccountId}.dkr.ecr.{Region}.{URLSuffix}"
            assert address == f"{registry}/stationmaster/{image}:0.1.0"


def test_people_are_let_in_to_look_and_for_nothing_else(existing: dict[str, Template]) -> None:
    given = [
        statement["Condition"]
        for policy in of_type(existing["workflow"]["Resources"], "AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement["Action"] == "eks:AssociateAccessPolicy"
    ]

    policies = [text_of(each["StringEquals"]["eks:policyArn"]) for each in given]
    roles = [each["ArnLike"]["eks:principalArn"] for each in given]
    assert [each.rpartition("/")[2] for each in policies] == [
        "AmazonEKSClusterAdminPolicy",
        "AmazonEKSViewPolicy",
    ]
    assert roles[1] == PEOPLE
    assert PEOPLE[0] not in map(text_of, roles[0])


def test_metrics_of_gpus_have_a_role_a_log_group_and_graphs(existing: dict[str, Template]) -> None:
    resources = existing["workflow"]["Resources"]
    (role,) = (name for name in of_type(resources, "AWS::IAM::Role") if "Metrics" in name)
    policies = [
        *of_type(resources, "AWS::IAM::Policy").values(),
        *of_type(resources, "AWS::IAM::ManagedPolicy").values(),
    ]
    granted = [
        statement
        for policy in policies
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
    ]
    (made,) = (each for each in granted if "logs:CreateLogGroup" in each["Action"])
    passed = {
        text_of(arn)
        for each in granted
        if each["Action"] == "iam:PassRole"
        for arn in as_list(each["Resource"])
    }
    (function,) = (
        each["Properties"]["Environment"]["Variables"]
        for each in of_type(resources, "AWS::Lambda::Function").values()
        if each["Properties"]["FunctionName"] == "stationmaster-ensure-cluster"
    )
    (dashboard,) = of_type(
        existing["observability"]["Resources"], "AWS::CloudWatch::Dashboard"
    ).values()
    shown = text_of(dashboard["Properties"]["DashboardBody"])

    group = "log-group:/aws/containerinsights/stationmaster-*/performance"
    assert [text_of(each).partition("{AccountId}:")[2] for each in made["Resource"]] == [
        group,
        f"{group}:*",
    ]
    assert f"{{{role}}}" in passed
    assert reference(function["STATIONMASTER_METRICS_ROLE_ARN"]) == role
    assert function["STATIONMASTER_NODE_REPAIR"] == "True"
    for metric in ("utilization", "memory_utilization", "temperature", "power_draw"):
        assert f'{{ContainerInsights,ClusterName}} MetricName=\\"node_gpu_{metric}\\"' in shown


def test_functions_that_call_a_restricted_api_are_in_the_network(
    existing: dict[str, Template],
) -> None:
    resources = existing["workflow"]["Resources"]
    (group,) = of_type(resources, "AWS::EC2::SecurityGroup")
    (rule,) = of_type(resources, "AWS::EC2::SecurityGroupIngress").values()
    deployed = of_type(resources, "AWS::Lambda::Function") | of_type(
        existing["bot"]["Resources"], "AWS::Lambda::Function"
    )

    inside = {
        each["Properties"]["FunctionName"].removeprefix("stationmaster-"): each["Properties"]
        for each in deployed.values()
        if "VpcConfig" in each["Properties"]
    }
    assert set(inside) == {
        spec.name for spec in FUNCTIONS if Permission.KUBERNETES in spec.permissions
    }
    for properties in inside.values():
        assert properties["VpcConfig"]["SubnetIds"] == SUBNETS
        assert reference(properties["VpcConfig"]["SecurityGroupIds"][0]) == group
    ends = (rule["Properties"]["GroupId"], rule["Properties"]["SourceSecurityGroupId"])
    assert {reference(each) for each in ends} == {group}
    variables = inside["ensure-cluster"]["Environment"]["Variables"]
    assert variables["STATIONMASTER_API_CIDRS"] == OFFICE[0]
    assert reference(variables["STATIONMASTER_FUNCTIONS_SECURITY_GROUP_ID"]) == group


def test_functions_leave_the_network_only_after_clusters_were_looked_at(
    existing: dict[str, Template], templates: dict[str, Template]
) -> None:
    """A rollback asks nothing: what asks is made while they leave, and gone while they are in."""
    inside, outside = (each["workflow"]["Resources"] for each in (existing, templates))
    kind = "AWS::CloudFormation::CustomResource"
    ((check, asks),) = of_type(outside, kind).items()
    functions = {
        each["Properties"]["FunctionName"].removeprefix("stationmaster-"): (name, each)
        for name, each in of_type(outside, "AWS::Lambda::Function").items()
    }

    assert of_type(inside, kind) == {}
    asked, _ = functions["check-reach"]
    assert asks["Properties"] == {
        "ServiceToken": {"Fn::GetAtt": [asked, "Arn"]},
        "ServiceTimeout": 600,
    }
    for spec in FUNCTIONS:
        if Permission.KUBERNETES in spec.permissions:
            rights = functions[spec.name][1]["DependsOn"]
            assert any("DefaultPolicy" in each for each in rights), spec.name
            assert all(check in outside[each]["DependsOn"] for each in rights), spec.name


def test_code_of_functions_in_the_network_may_not_use_the_rights_of_lambda(
    existing: dict[str, Template],
) -> None:
    """Lambda needs rights on all interfaces; the code deletes those of its clusters at most."""
    denied = [
        statement
        for kind in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy")  # what does not fit into it
        for policy in of_type(existing["workflow"]["Resources"], kind).values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement["Effect"] == "Deny"
    ]

    inside = {spec.name for spec in FUNCTIONS if Permission.KUBERNETES in spec.permissions}
    for action, others in (
        ("ec2:CreateNetworkInterface", None),
        (
            "ec2:DeleteNetworkInterface",
            {
                "aws:ResourceTag/cluster.k8s.amazonaws.com/name": "stationmaster-*",
                "aws:ResourceTag/stationmaster:deployment": "stationmaster",
            },
        ),
    ):
        found = [each["Condition"] for each in denied if action in as_list(each["Action"])]
        arns = {text_of(each["ArnEquals"]["lambda:SourceFunctionArn"]) for each in found}
        assert {arn.rpartition(":stationmaster-")[2] for arn in arns} == inside
        assert all(each.get("StringNotLike") == others for each in found)


def test_endpoints_that_functions_in_the_network_need_are_documented(
    existing: dict[str, Template],
) -> None:
    """They are what the functions' roles may call, less what AWS itself calls for them."""
    by_lambda = {"iam", "kms", "sqs", "xray"}
    endpoints = {"tag": "tagging", "cloudwatch": "monitoring"}
    inside = {spec.name for spec in FUNCTIONS if Permission.KUBERNETES in spec.permissions}
    services = {
        action.partition(":")[0]
        for policy in of_type(existing["workflow"]["Resources"], "AWS::IAM::Policy").values()
        for role in policy["Properties"]["Roles"]
        if any(reference(role).startswith(f"Roles{name.replace('-', '')}") for name in inside)
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        for action in as_list(statement["Action"])
    }

    documented = (ROOT / "docs" / "deploy.md").read_text()
    listed = documented.partition("need further endpoints:")[2].partition(".\n")[0]
    assert {"eks", "dynamodb", "states"} <= services - by_lambda
    for service in services - by_lambda - {"s3"}:
        assert f"`{endpoints.get(service, service)}`" in listed, service


BAD_REGISTRIES = ("*", "https://registry.example.com", "registry.example.com/*", "")
BAD_CHANNELS = ("*", "#training", "D0123456789", "")


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ({"vpc_id": VPC}, "vpc_id is given without subnet_ids"),
        ({"subnet_ids": SUBNETS}, "subnet_ids is given without vpc_id"),
        ({"vpc_id": "vpc-1", "subnet_ids": SUBNETS}, 'vpc_id "vpc-1" is no id; expected vpc-'),
        ({"vpc_id": VPC, "subnet_ids": [SUBNETS[0], "sn-1"]}, 'subnet_ids has "sn-1", which is no'),
        ({"vpc_id": VPC, "subnet_ids": SUBNETS[:1]}, "at least two different subnets"),
        ({"vpc_id": VPC, "subnet_ids": [SUBNETS[0]] * 2}, "at least two different subnets"),
        (
            {"vpc_id": VPC, "subnet_ids": SUBNETS, "num_nat_gateways": 2},
            "num_nat_gateways is for a new network",
        ),
        (
            {"kubectl_role_arns": ["arn:aws:sts::123456789012:assumed-role/a/b"]},
            'kubectl_role_arns: "arn:aws:sts::123456789012:assumed-role/a/b" is no ARN of an IAM',
        ),
        ({"kubectl_role_arns": ["arn:aws:iam::123456789012:user/a"]}, "not that of a session"),
        (
            {"vpc_id": VPC, "subnet_ids": SUBNETS, "zones": ["us-west-2a", "us-west-2b"]},
            "zones is for a new network",
        ),
        ({"zones": ["us-west-2a"]}, "zones has us-west-2a; expected two to six different zones"),
        ({"zones": ["us-west-2a"] * 2}, "expected two to six different zones"),
        ({"zones": ["us-west-2a", "us-east-1a"]}, "expected zones of one region"),
        ({"zones": ["us-west-2a", "us-west-2-lax-1a"]}, "zones.1: String should match pattern"),
        ({"interface_endpoints": ["sts", "sts"]}, "sts, sts has a service twice"),
        ({"api_cidrs": ["203.0.113.1/24"]}, 'api_cidrs has "203.0.113.1/24"; expected an IPv4'),
        ({"api_cidrs": OFFICE, "public_api": False}, "and public_api is false: leave one out"),
        ({"permissions_boundary": "limits"}, "permissions_boundary: String should match"),
        ({"role_path": f"/{'p' * 63}/"}, "role_path: String should have at most 64"),
        ({"tags": ["a=b,c"]}, "tags.0: String should match"),
        ({"tags": ["Stationmaster:deployment=x"]}, '"Stationmaster:deployment" is a tag that AWS'),
        ({"vpc": VPC}, "vpc: Extra inputs are not permitted"),
        ({"num_nat_gateways": 0}, "num_nat_gateways: Input should be greater than"),
        *(({"image_registries": [each]}, "image_registries") for each in BAD_REGISTRIES),
        *(({"image_channels": [each]}, "image_channels") for each in BAD_CHANNELS),
        *(({"eks_clusters": [each]}, "eks_clusters") for each in ("*", "team-*", "eks:team", "")),
        (
            {"dataset_buckets": ["a"], "linked_buckets": ["a", "c"]},
            "linked_buckets names c, which dataset_buckets does",
        ),
    ],
)
def test_context_that_cannot_be_is_one_sentence(context: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"^cdk\.json, object stationmaster: ") as caught:
        read_config(context)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reader", ["make synth", "cdk"])
def test_refusal_ends_the_synthesis_without_a_traceback(reader: str, tmp_path: Path) -> None:
    """By app.py in a process of its own, where cdk.json says it and where the CDK hands it over."""
    context = json.dumps({"stationmaster": {"vpc_id": VPC}})
    use_packaged_node()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if reader == "cdk":
        environment["CDK_CONTEXT_JSON"] = context
    else:
        (tmp_path / "cdk.json").write_text(f'{{"context": {context}}}')

    finished = subprocess.run(
        [sys.executable, str(ROOT / "app.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 1
    assert finished.stderr.strip().splitlines()[-1].startswith("cdk.json, object stationmaster: ")
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "cdk.out").exists() or not list((tmp_path / "cdk.out").glob("*.json"))


@pytest.mark.parametrize("text", ["{", "[]", '{"context": []}'])
def test_unreadable_cdk_json_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cdk.json"
    path.write_text(text)

    with pytest.raises(ValueError, match=r"cdk\.json is not read: expected JSON"):
        read_context(path)


def test_configuration_may_be_left_out() -> None:
    assert read_config(None) == read_config({}) == StageConfig()
    allowed = {
        "image_registries": ["registry.example.com/team/"],
        "image_channels": ["C0123456789"],
    }
    assert read_config(allowed).image_channels == ("C0123456789",)
