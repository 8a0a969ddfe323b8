"""The deployed functions: what the registry says, with settings that the product can read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from infra_templates import Resource, of_type, reference, text_of

from lambdas.registry import (
    FUNCTIONS,
    READERS,
    RULES,
    SCHEDULES,
    Function,
    Permission,
    get_function,
)
from stacks.config import MOST_LISTED, StageConfig, read_config
from stationmaster.domain.catalogue.recipes import FRAMEWORK_IMAGES
from stationmaster.settings import PREFIX, Settings


def environment(function: Resource) -> dict[str, str]:
    variables = function["Properties"]["Environment"]["Variables"]
    return {name: text_of(value) for name, value in variables.items()}


def test_every_registered_function_is_deployed(functions: dict[str, Resource]) -> None:
    assert set(functions) == {function.name for function in FUNCTIONS}


@pytest.mark.parametrize("spec", FUNCTIONS, ids=lambda spec: spec.name)
def test_function_is_deployed_as_registered(spec: Function, functions: dict[str, Resource]) -> None:
    deployed: dict[str, Any] = functions[spec.name]["Properties"]

    assert deployed["Handler"] == spec.handler
    assert deployed["Timeout"] == spec.timeout_s
    assert deployed["MemorySize"] == spec.memory_mib
    assert deployed["Runtime"] == "python3.13"
    assert deployed["Architectures"] == ["x86_64"]
    assert deployed["LoggingConfig"]["LogFormat"] == "JSON"
    assert deployed["LoggingConfig"]["ApplicationLogLevel"] == "INFO"
    assert deployed["TracingConfig"] == {"Mode": "Active"}


def test_functions_reserve_nothing_of_what_a_new_account_has(
    functions: dict[str, Resource],
) -> None:
    """An account may begin with 10 executions at a time, and Lambda keeps these unreserved."""
    for name, function in functions.items():
        assert "ReservedConcurrentExecutions" not in function["Properties"], name


def test_each_function_has_a_role_of_its_own(functions: dict[str, Resource]) -> None:
    roles = [reference(each["Properties"]["Role"]) for each in functions.values()]

    assert len(set(roles)) == len(FUNCTIONS)


def test_each_function_logs_into_a_group_that_expires(
    functions: dict[str, Resource], resources: dict[str, Resource]
) -> None:
    groups = {
        logical_id.partition("/")[2]: group["Properties"]
        for logical_id, group in of_type(resources, "AWS::Logs::LogGroup").items()
    }
    used = [
        reference(each["Properties"]["LoggingConfig"]["LogGroup"]) for each in functions.values()
    ]

    assert len(set(used)) == len(FUNCTIONS)
    for group in groups.values():
        assert group["RetentionInDays"] <= 90


# What only some deployments configure.
OPTIONAL = {
    "public_api",
    "api_cidrs",
    "functions_security_group_id",
    "metrics_role_arn",
    "file_systems",
    "reservations",
    "rules_file",
}


@pytest.mark.parametrize("name", [function.name for function in FUNCTIONS])
def test_environment_gives_complete_settings(name: str, functions: dict[str, Resource]) -> None:
    settings = Settings.from_environment(environment(functions[name]))

    assert settings.deployment == "stationmaster"
    assert settings.region == "{Region}"
    assert settings.train_state_machine_arn.endswith(":stateMachine:stationmaster-train")
    assert settings.teardown_state_machine_arn.endswith(":stateMachine:stationmaster-teardown")
    assert len(settings.subnet_ids) == 2
    assert settings.training_image.endswith(":0.1.0")
    for required in (
        settings.table_name,
        settings.bus_name,
        settings.artifacts_bucket,
        settings.vpc_id,
        settings.relay_image,
    ):
        assert required
    permissions = get_function(name).permissions
    for setting, readers in READERS.items():
        is_given = getattr(settings, setting) != Settings.model_fields[setting].default
        assert is_given == (bool(readers & permissions) and setting not in OPTIONAL), setting


def test_long_settings_go_to_those_that_read_them() -> None:
    reading = {
        setting: {each.name for each in FUNCTIONS if readers & each.permissions}
        for setting, readers in READERS.items()
    }

    assert reading["node_role_arn"] == {"ensure-node-group"}
    assert reading["fsx_csi_role_arn"] == {"install-plugin"}
    assert reading["cluster_access_role_arns"] == {"ensure-cluster", "bot"}
    assert reading["slack_secret_id"] == {"bot", "notifier"}
    assert reading["relay_secret_id"] == {"submit-job", "recorder"}
    assert reading["saver_role_arn"] == {
        *("stage-data", "submit-job", "save-results", "release-run", "reaper")
    }
    for setting in ("cluster_role_arn", "relay_role_arn", "stager_role_arn"):
        assert reading[setting] == {"ensure-cluster"}


def test_environment_is_only_settings(functions: dict[str, Resource]) -> None:
    for name, function in functions.items():
        assert all(variable.startswith(PREFIX) for variable in environment(function)), name


def test_no_function_knows_the_image_of_a_framework_that_is_not_built(
    functions: dict[str, Resource],
) -> None:
    variables = {f"{PREFIX}{image.upper()}_IMAGE" for image in FRAMEWORK_IMAGES.values()}

    assert variables <= {PREFIX + setting.upper() for setting in Settings.model_fields}
    for name, function in functions.items():
        assert not variables & environment(function).keys(), name


# The longest that may stand in place of a reference, by what the reference looks like.
LONGEST = (
    (r"\{Partition\}", "aws-us-gov"),
    (r"\{AccountId\}", "123456789012"),
    (r"\{Region\}", "ap-northeast-1"),
    (r"\{URLSuffix\}", "amazonaws.com.cn"),
    (r"\{[^{},]*(?:Subnet|RefVpc)[^{},]*\}", "subnet-" + "0" * 17),
    (r"\{[^{},]*RefBus[^{},]*\}", "b" * 62),
    (r"\{[^{},]*(?:Secret|Arn|Role)[^{},]*\}", "a" * 110),
    (r"\{\d of [^{},]* at :\}", "ap-northeast-1"),
    (r"\{[^{},]+\}", "n" * 63),
    (r"\bstationmaster\b(?=-|$)", "d" * 28),
)


def longest_text(value: str) -> str:
    for pattern, text in LONGEST:
        value = re.sub(pattern, text, value)
    return value


def test_environment_has_room_for_every_list_and_ten_more_settings(
    functions: dict[str, Resource],
) -> None:
    lists = [
        PREFIX + name.upper()
        for name in Settings.model_fields
        if isinstance(getattr(StageConfig(), name, None), tuple)
    ]
    num_zones_more = 4  # a network may have six

    for name, function in functions.items():
        variables = {key: longest_text(value) for key, value in environment(function).items()}
        size = sum(len(each) for each in (*variables, *variables.values()))
        size += sum(len(each) for each in lists) + MOST_LISTED + num_zones_more * 25
        assert (
            size + 10 * len(PREFIX + "A_SETTING_WITH_A_NAME" + "and-a-value-of-some-length") < 4096
        ), name


def test_lists_that_do_not_fit_are_refused() -> None:
    buckets = [f"{number:063}" for number in range(15)]

    with pytest.raises(ValueError, match="shorten dataset_buckets, which takes 959") as caught:
        read_config({"dataset_buckets": buckets, "push_organisations": ["my-lab"]})

    assert "push_organisations take 965 characters together, and 900 fit" in str(caught.value)


def test_role_names_fit_in_every_region() -> None:
    longest = "d" * 28

    assert StageConfig(deployment=longest).deployment == longest
    for spec in FUNCTIONS:
        assert len(f"{longest}-{spec.name}-ap-northeast-1") <= 64, spec.name
    with pytest.raises(ValueError, match="deployment"):
        read_config({"deployment": longest + "d"})


def test_cluster_access_goes_to_functions_that_use_kubernetes(
    functions: dict[str, Resource], resources: dict[str, Resource]
) -> None:
    arns = Settings.from_environment(
        environment(functions["ensure-cluster"])
    ).cluster_access_role_arns
    roles = {name.partition("/")[2]: role for name, role in resources.items()}
    names = {
        text_of(
            roles[reference(functions[spec.name]["Properties"]["Role"])]["Properties"]["RoleName"]
        )
        for spec in FUNCTIONS
        if Permission.KUBERNETES in spec.permissions
    }

    assert set(arns) == {f"arn:{{Partition}}:iam::{{AccountId}}:role/{name}" for name in names}


def test_asynchronous_functions_keep_what_they_tried_in_vain(
    functions: dict[str, Resource], resources: dict[str, Resource]
) -> None:
    logical_ids = {
        name: next(key for key, each in resources.items() if each is function).partition("/")[2]
        for name, function in functions.items()
    }
    configured = {
        reference(each["Properties"]["FunctionName"]): each["Properties"]
        for each in of_type(resources, "AWS::Lambda::EventInvokeConfig").values()
    }

    for name in {each.function for each in (*RULES, *SCHEDULES)}:
        config = configured[logical_ids[name]]
        assert config["MaximumRetryAttempts"] == 2
        assert "DeadLetters" in text_of(config["DestinationConfig"]["OnFailure"]["Destination"])
