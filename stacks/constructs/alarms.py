"""Alarms on what functions log and on dead letters, for what reaches no channel."""

from __future__ import annotations

from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from stationmaster.domain.names import ITEM_UNREADABLE, SET_ASIDE

_AT_LEAST: Final = cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD


def add_log_alarm(function: lambda_.Function, *, message: str, description: str) -> None:
    """Raise an alarm within five minutes of a log line with this very message.

    The metric's name has deployment and function: others may log the same.
    """
    resource = function.node.default_child
    assert isinstance(resource, lambda_.CfnFunction)
    name = message.replace(" ", "-")
    metric_filter = logs.MetricFilter(
        function,
        f"{name}-lines",
        log_group=function.log_group,
        filter_pattern=logs.FilterPattern.string_value("$.message", "=", message),
        metric_namespace="Stationmaster",
        metric_name=f"{resource.function_name}-{name}",
        metric_value="1",
    )
    metric = metric_filter.metric(statistic="Sum", period=cdk.Duration.minutes(5))
    add_alarm(function, f"{name}-alarm", metric, description)


def add_dead_letter_alarms(function: lambda_.Function) -> None:
    """Raise alarms when the function keeps a dead letter, or leaves out what it cannot read."""
    add_log_alarm(
        function,
        message=SET_ASIDE,
        description="something could not be read: stationmaster redrive --dry-run lists it",
    )
    add_log_alarm(
        function,
        message=ITEM_UNREADABLE,
        description="an item of the table is damaged, or of another version: the logs name it",
    )


def add_queue_alarm(queue: sqs.Queue) -> None:
    """Raise an alarm within five minutes of the first message, until the queue is empty."""
    metric = queue.metric_approximate_number_of_messages_visible(
        statistic="Maximum", period=cdk.Duration.minutes(5)
    )
    advice = "dead letters wait: stationmaster redrive --dry-run lists them"
    add_alarm(queue, "depth-alarm", metric, advice)


def add_alarm(
    scope: Construct,
    construct_id: str,
    metric: cloudwatch.IMetric,
    description: str,
    *,
    threshold: float = 1,
    evaluation_periods: int = 1,
    comparison: cloudwatch.ComparisonOperator = _AT_LEAST,
    missing: cloudwatch.TreatMissingData = cloudwatch.TreatMissingData.NOT_BREACHING,
) -> cloudwatch.Alarm:
    """Raise an alarm where the metric is 1 or more, or as far as said otherwise."""
    return cloudwatch.Alarm(
        scope,
        construct_id,
        metric=metric,
        alarm_description=description,
        threshold=threshold,
        evaluation_periods=evaluation_periods,
        comparison_operator=comparison,
        treat_missing_data=missing,
    )
