"""What invokes functions besides the state machines: event rules, schedules, the table's stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_event_sources as sources
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_scheduler_targets as scheduler_targets
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from lambdas.registry import (
    STREAM_BATCH_SIZE,
    STREAM_MAX_AGE_S,
    STREAM_RETRIES,
    Rule,
    Schedule,
)
from stacks.acknowledgements import accept_wildcard


@dataclass(frozen=True)
class Clock:
    """The clocks of kept clusters: the group of their schedules, and the role they ring with."""

    group: str
    function_arn: str
    role: iam.IRole


def add_rules(
    scope: Construct,
    rules: Sequence[Rule],
    *,
    bus: events.IEventBus,
    functions: Mapping[str, lambda_.Function],
    machine_arns: Sequence[str],
    dead_letters: sqs.IQueue,
) -> None:
    """Add an EventBridge rule each; those on executions match ours only, not all of the account."""
    for rule in rules:
        target = targets.LambdaFunction(
            functions[rule.function],
            dead_letter_queue=dead_letters,
            retry_attempts=10,
            max_event_age=cdk.Duration.hours(6),
        )
        events.Rule(
            scope,
            rule.name,
            event_bus=bus if rule.bus == "product" else None,
            event_pattern=_pattern(rule, machine_arns),
            targets=[target],
        )


def _pattern(rule: Rule, machine_arns: Sequence[str]) -> events.EventPattern:
    pattern = rule.event_pattern
    detail: dict[str, Any] = dict(pattern.get("detail", {}))
    if pattern["source"] == ["aws.states"]:
        detail["stateMachineArn"] = list(machine_arns)
    return events.EventPattern(
        source=pattern["source"],
        detail_type=pattern["detail-type"],
        detail=detail or None,
    )


def _scheduler(scope: Construct) -> iam.ServicePrincipal:
    """Return EventBridge Scheduler's principal, for schedules of this account only.

    Source: EventBridge Scheduler user guide, "Confused deputy prevention".
    """
    here = {"StringEquals": {"aws:SourceAccount": cdk.Stack.of(scope).account}}
    return iam.ServicePrincipal("scheduler.amazonaws.com", conditions=here)


def add_schedules(
    scope: Construct,
    schedules: Sequence[Schedule],
    *,
    functions: Mapping[str, lambda_.Function],
    dead_letters: sqs.IQueue,
) -> None:
    """Add a schedule for each of `functions`, with a role that may invoke only it."""
    for schedule in schedules:
        function = functions.get(schedule.function)
        if function is None:
            continue  # of another stack
        role = iam.Role(scope, f"{schedule.name}-schedule-role", assumed_by=_scheduler(scope))
        accept_wildcard(
            role, f"{function.function_arn}:*", "versions and aliases of this one function"
        )
        scheduler.Schedule(
            scope,
            f"{schedule.name}-schedule",
            schedule=scheduler.ScheduleExpression.rate(cdk.Duration.seconds(schedule.rate_s)),
            target=scheduler_targets.LambdaInvoke(
                function,
                input=scheduler.ScheduleTargetInput.from_object({}),
                role=role,
                dead_letter_queue=dead_letters,
                retry_attempts=3,
                max_event_age=cdk.Duration.seconds(max(60, schedule.rate_s)),
            ),
        )


def add_clock(scope: Construct, *, group: str, function_arn: str) -> Clock:
    """Add the group of kept clusters' schedules, and a role that may invoke only that function."""
    scheduler.ScheduleGroup(
        scope,
        "Clocks",
        schedule_group_name=group,
        # Clusters do not outlive their deployment: what is left of it is deleted with it.
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    role = iam.Role(
        scope,
        "ClockRole",
        assumed_by=_scheduler(scope),
        description="Lets the clock of a kept cluster ring",
    )
    role.add_to_policy(
        iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=[function_arn])
    )
    return Clock(group=group, function_arn=function_arn, role=role)


def add_stream_consumer(
    function: lambda_.Function, *, table: dynamodb.ITable, dead_letters: sqs.IQueue
) -> None:
    """Hand the table's stream to `function`, in order, one batch a shard at a time.

    `lambdas.registry` says why batches are halved and how long they are tried.
    """
    function.add_event_source(
        sources.DynamoEventSource(
            table,
            starting_position=lambda_.StartingPosition.TRIM_HORIZON,
            batch_size=STREAM_BATCH_SIZE,
            parallelization_factor=1,
            bisect_batch_on_error=True,
            retry_attempts=STREAM_RETRIES,
            max_record_age=cdk.Duration.seconds(STREAM_MAX_AGE_S),
            on_failure=sources.SqsDlq(dead_letters),
        )
    )
    assert function.role is not None
    accept_wildcard(function.role, "*", "dynamodb:ListStreams is not granted on single streams")
