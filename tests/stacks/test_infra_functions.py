"""The deployed functions: what the registry says, with settings that the product can read."""

from __future__ import annotations

from typing import Any

import pytest
from infra_templates import Resource, of_type, reference, text_of

from lambdas.registry import FUNCTIONS, NOTIFIER, RULES, SCHEDULES, Function, Permission
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
    assert deployed.get("ReservedConcurrentExecutions") == spec.reserved_concurrency
    assert deployed["Runtime"] == "python3.13"
    assert deployed["Architectures"] == ["x86_64"]
    assert deployed["LoggingConfig"]["LogFormat"] == "JSON"


def test_notifier_is_the_only_writer_to_slack(functions: dict[str, Resource]) -> None:
    assert functions[NOTIFIER.name]["Properties"]["ReservedConcurrentExecutions"] == 1


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
        settings.cluster_role_arn,
        settings.node_role_arn,
        settings.relay_role_arn,
        settings.saver_role_arn,
        settings.stager_role_arn,
        settings.fsx_csi_role_arn,
        settings.relay_image,
        settings.slack_secret_id,
        settings.hugging_face_secret_id,
    ):
        assert required


def test_environment_is_only_settings(functions: dict[str, Resource]) -> None:
    for name, function in functions.items():
        variables = environment(function)
        assert all(variable.startswith(PREFIX) for variable in variables), name
        # Lambda takes 4 KB; an account's real ids are shorter than the references that stand here.
        assert sum(len(each) for each in (*variables, *variables.values())) < 4096, name


def test_cluster_access_goes_to_functions_that_use_kubernetes(
    functions: dict[str, Resource], resources: dict[str, Resource]
) -> None:
    arns = Settings.from_environment(environment(functions["submit-job"])).cluster_access_role_arns
    expected = {
        reference(functions[spec.name]["Properties"]["Role"])
        for spec in FUNCTIONS
        if Permission.KUBERNETES in spec.permissions
    }

    assert {arn.strip("{}") for arn in arns} == expected


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
