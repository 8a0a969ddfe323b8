"""Rules, schedules, the stream and the public API: nothing is lost, and nothing is left open."""

from __future__ import annotations

import json
from typing import Any

import pytest
from infra_templates import Resource, of_type, reference, text_of

from lambdas.registry import (
    ROUTES,
    RULES,
    SCHEDULES,
    STREAM_BATCH_SIZE,
    STREAM_CONSUMER,
    get_function,
)
from stationmaster.domain.names import (
    DEAD_LETTER_QUEUES,
    ITEM_UNREADABLE,
    NOBODY_REACHED,
    SET_ASIDE,
)


def properties(resources: dict[str, Resource], kind: str) -> list[dict[str, Any]]:
    return [each["Properties"] for each in of_type(resources, kind).values()]


def logical_id(resources: dict[str, Resource], function_name: str) -> str:
    (found,) = [
        key.partition("/")[2]
        for key, each in of_type(resources, "AWS::Lambda::Function").items()
        if each["Properties"]["FunctionName"] == f"stationmaster-{function_name}"
    ]
    return found


def test_rules_deliver_what_the_registry_says(resources: dict[str, Resource]) -> None:
    deployed = [
        (pattern_of(rule), reference(rule["Targets"][0]["Arn"]), "EventBusName" in rule)
        for rule in properties(resources, "AWS::Events::Rule")
    ]

    assert sorted(deployed) == sorted(
        (
            json.dumps(rule.event_pattern, sort_keys=True),
            logical_id(resources, rule.function),
            rule.bus == "product",
        )
        for rule in RULES
    )


def pattern_of(rule: dict[str, Any]) -> str:
    """Without the machines of the account, which only a deployment can name."""
    pattern = rule["EventPattern"]
    detail = {key: each for key, each in pattern.get("detail", {}).items() if "Arn" not in key}
    whole = pattern | ({"detail": detail} if "detail" in pattern else {})
    return json.dumps(whole, sort_keys=True)


def test_rule_on_executions_sees_our_machines_only(resources: dict[str, Resource]) -> None:
    (rule,) = [
        each
        for each in properties(resources, "AWS::Events::Rule")
        if each["EventPattern"]["source"] == ["aws.states"]
    ]
    detail = rule["EventPattern"]["detail"]

    assert detail["status"] == ["ABORTED", "FAILED", "TIMED_OUT"]
    assert [text_of(arn).rpartition(":")[2] for arn in detail["stateMachineArn"]] == [
        "stationmaster-cluster",
        "stationmaster-train",
        "stationmaster-teardown",
    ]


def test_rules_and_schedules_have_retries_and_a_dead_letter_queue(
    resources: dict[str, Resource],
) -> None:
    targets = [rule["Targets"][0] for rule in properties(resources, "AWS::Events::Rule")]
    targets += [each["Target"] for each in properties(resources, "AWS::Scheduler::Schedule")]

    assert len(targets) == len(RULES) + len(SCHEDULES)
    for target in targets:
        assert "DeadLetters" in text_of(target["DeadLetterConfig"]["Arn"])
        assert target["RetryPolicy"]["MaximumRetryAttempts"] >= 3


def test_reaper_runs_every_quarter_of_an_hour_and_cards_are_refreshed_every_minute(
    resources: dict[str, Resource],
) -> None:
    rates = {
        reference(schedule["Target"]["Arn"]): schedule["ScheduleExpression"]
        for schedule in properties(resources, "AWS::Scheduler::Schedule")
    }

    assert rates == {
        logical_id(resources, "reaper"): "rate(15 minutes)",
        logical_id(resources, "notifier"): "rate(1 minute)",
    }


def test_clocks_are_set_in_one_group_and_ring_one_function(resources: dict[str, Resource]) -> None:
    (group,) = properties(resources, "AWS::Scheduler::ScheduleGroup")
    (role_id, role) = next(
        (name, each["Properties"])
        for name, each in of_type(resources, "AWS::IAM::Role").items()
        if "ClockRole" in name
    )
    (policy,) = (
        each
        for each in properties(resources, "AWS::IAM::Policy")
        if [reference(one) for one in each["Roles"]] == [role_id.partition("/")[2]]
    )
    (statement,) = policy["PolicyDocument"]["Statement"]
    (trusted,) = role["AssumeRolePolicyDocument"]["Statement"]

    assert trusted["Principal"] == {"Service": "scheduler.amazonaws.com"}
    here = {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
    assert [
        each["Properties"]["AssumeRolePolicyDocument"]["Statement"][0]["Condition"]
        for each in of_type(resources, "AWS::IAM::Role").values()
        if "scheduler.amazonaws" in str(each)
    ] == [here] * 3
    assert statement["Action"] == "lambda:InvokeFunction"
    assert text_of(statement["Resource"]).endswith(":function:stationmaster-keep-clock")
    of_functions = [
        function["Environment"]["Variables"]
        for function in properties(resources, "AWS::Lambda::Function")
    ]
    setting = [each for each in of_functions if "STATIONMASTER_SCHEDULE_GROUP" in each]
    assert len(setting) > 1
    for variables in setting:
        assert variables["STATIONMASTER_SCHEDULE_GROUP"] == group["Name"]
        assert text_of(variables["STATIONMASTER_KEEP_CLOCK_FUNCTION_ARN"]) == text_of(
            statement["Resource"]
        )


def test_stream_survives_a_bad_record_and_an_absent_slack(resources: dict[str, Resource]) -> None:
    (mapping,) = properties(resources, "AWS::Lambda::EventSourceMapping")

    assert reference(mapping["FunctionName"]) == logical_id(resources, STREAM_CONSUMER)
    assert mapping["BatchSize"] == STREAM_BATCH_SIZE
    assert mapping["BisectBatchOnFunctionError"] is True
    assert mapping["MaximumRetryAttempts"] == 50
    assert mapping["MaximumRecordAgeInSeconds"] == 3600
    assert mapping["ParallelizationFactor"] == 1
    assert mapping["StartingPosition"] == "TRIM_HORIZON"
    assert "DeadLetters" in text_of(mapping["DestinationConfig"]["OnFailure"]["Destination"])


def test_queues_are_encrypted_and_keep_for_two_weeks(resources: dict[str, Resource]) -> None:
    queues = properties(resources, "AWS::SQS::Queue")

    assert queues
    for queue in queues:
        assert queue["SqsManagedSseEnabled"] is True
        assert queue["MessageRetentionPeriod"] == 14 * 86_400


def test_api_has_only_the_routes_of_the_registry(resources: dict[str, Resource]) -> None:
    integrations = {
        name.partition("/")[2]: reference(each["Properties"]["IntegrationUri"])
        for name, each in of_type(resources, "AWS::ApiGatewayV2::Integration").items()
    }
    routes = {
        each["RouteKey"]: integrations[reference(each["Target"]["Fn::Join"][1][1])]
        for each in properties(resources, "AWS::ApiGatewayV2::Route")
    }

    assert routes == {
        f"{route.method} {route.path}": logical_id(resources, route.function) for route in ROUTES
    }


def test_api_is_throttled_and_logged_without_bodies(resources: dict[str, Resource]) -> None:
    (stage,) = properties(resources, "AWS::ApiGatewayV2::Stage")
    logged = json.loads(stage["AccessLogSettings"]["Format"])

    assert stage["DefaultRouteSettings"]["ThrottlingRateLimit"] == 20
    assert stage["DefaultRouteSettings"]["ThrottlingBurstLimit"] == 40
    assert not [value for value in logged.values() if "header" in value or "body" in value]


def test_bot_answers_within_the_gateways_time(resources: dict[str, Resource]) -> None:
    for route in ROUTES:
        assert get_function(route.function).timeout_s <= 30


def test_machines_are_traced_and_logged_without_task_tokens(
    resources: dict[str, Resource],
) -> None:
    machines = properties(resources, "AWS::StepFunctions::StateMachine")

    assert len(machines) == 3
    for machine in machines:
        assert machine["TracingConfiguration"] == {"Enabled": True}
        assert machine["LoggingConfiguration"]["Level"] == "ALL"
        assert machine["LoggingConfiguration"]["IncludeExecutionData"] is False


def test_run_that_nobody_hears_of_raises_an_alarm(
    resources: dict[str, Resource], functions: dict[str, Resource]
) -> None:
    (log_filter,) = [
        each
        for each in properties(resources, "AWS::Logs::MetricFilter")
        if NOBODY_REACHED in each["FilterPattern"]
    ]
    (counted,) = log_filter["MetricTransformations"]
    (alarm,) = [
        each
        for each in properties(resources, "AWS::CloudWatch::Alarm")
        if each.get("MetricName") == counted["MetricName"]
    ]

    log_group = functions["notifier"]["Properties"]["LoggingConfig"]["LogGroup"]
    assert reference(log_filter["LogGroupName"]) == reference(log_group)
    assert log_filter["FilterPattern"] == f'{{ $.message = "{NOBODY_REACHED}" }}'
    assert (alarm["Namespace"], alarm["MetricName"]) == (
        counted["MetricNamespace"],
        counted["MetricName"],
    )
    assert alarm["Threshold"] == 1
    assert alarm["TreatMissingData"] == "notBreaching"


@pytest.mark.parametrize("message", [SET_ASIDE, ITEM_UNREADABLE])
def test_what_cannot_be_read_raises_an_alarm(resources: dict[str, Resource], message: str) -> None:
    filters = [
        each
        for each in properties(resources, "AWS::Logs::MetricFilter")
        if each["FilterPattern"] == f'{{ $.message = "{message}" }}'
    ]
    watched = {
        each["MetricTransformations"][0]["MetricName"]: reference(each["LogGroupName"])
        for each in filters
    }

    ending = message.replace(" ", "-")
    functions = ("notifier", "recorder", "reaper")
    assert watched.keys() == {f"stationmaster-{name}-{ending}" for name in functions}
    assert all(name.split("-")[1] in group for name, group in watched.items())


def test_each_queue_of_dead_letters_has_a_name_and_an_alarm(resources: dict[str, Resource]) -> None:
    queues = of_type(resources, "AWS::SQS::Queue")
    alarms = [
        each
        for each in properties(resources, "AWS::CloudWatch::Alarm")
        if each.get("MetricName") == "ApproximateNumberOfMessagesVisible"
    ]

    assert sorted(each["Properties"]["QueueName"] for each in queues.values()) == sorted(
        f"stationmaster-{name}" for name in DEAD_LETTER_QUEUES
    )
    assert len(alarms) == len(queues)
    assert {each["Threshold"] for each in alarms} == {1}
