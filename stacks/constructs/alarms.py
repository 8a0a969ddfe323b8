"""Alarms on what functions log, for what reaches no channel."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs


def add_log_alarm(function: lambda_.Function, *, message: str, description: str) -> None:
    """Raise an alarm within five minutes of a log line with this very message."""
    metric_filter = logs.MetricFilter(
        function,
        "log-lines",
        log_group=function.log_group,
        filter_pattern=logs.FilterPattern.string_value("$.message", "=", message),
        metric_namespace="Stationmaster",
        metric_name=message.replace(" ", "-"),
        metric_value="1",
    )
    metric_filter.metric(statistic="Sum", period=cdk.Duration.minutes(5)).create_alarm(
        function,
        "log-alarm",
        alarm_description=description,
        threshold=1,
        evaluation_periods=1,
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
    )
