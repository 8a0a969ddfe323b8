"""What people look at, and what calls them: a dashboard, alarms, and a topic that alarms go to.

Alarms on dead letters and on single log lines are made in other stacks, and go to the same topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from lambdas.registry import BOT, STREAM_CONSUMER
from stacks.config import StageConfig
from stacks.constructs.alarms import add_alarm
from stacks.constructs.statements import arn
from stationmaster.domain.census import DIMENSION, NAMESPACE, Census, Measure

_FIVE_MINUTES: Final = cdk.Duration.minutes(5)
# The reaper counts every quarter of an hour.
_COUNTED: Final = cdk.Duration.minutes(15)
# Single ones are scanners that have found the address.
_REFUSED: Final = 5
_LATE: Final = cdk.Duration.minutes(5)

# Title, metric of a GPU of a node, and how the GPUs of a cluster become one figure. The metrics are
# Container Insights', with a line for each cluster that there is or was. Namespace, names and
# dimensions are those that CloudWatch's agent declares for EKS.
# Source: https://github.com/aws/amazon-cloudwatch-agent, translator/translate/otel/exporter/awsemf/
# kubernetes.go, and the CloudWatch user guide, "NVIDIA GPU metrics".
_GPU_GRAPHS: Final = (
    ("Use of GPUs, %", "node_gpu_utilization", "Average"),
    ("Memory of GPUs in use, %", "node_gpu_memory_utilization", "Average"),
    ("Hottest GPU, degrees C", "node_gpu_temperature", "Maximum"),
    ("Power of a GPU, W", "node_gpu_power_draw", "Average"),
)
# The same of file systems, with what a minute's sum is divided by. Source: FSx for Lustre user
# guide, "Amazon FSx for Lustre metrics and dimensions".
_FILE_SYSTEM_GRAPHS: Final = (
    ("Read from file systems, MB/s", "DataReadBytes", 60_000_000),
    ("Written to file systems, MB/s", "DataWriteBytes", 60_000_000),
    ("Free on file systems of Lustre, GiB", "FreeDataStorageCapacity", 2**30),
)
# A search finds whole words of a dimension's value, and dashes part them.
_CLUSTERS: Final = "stationmaster"


class ObservabilityStack(cdk.Stack):
    """The dashboard, alarms on workflows, functions, teardowns and spend, and their topic."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: StageConfig,
        machine_arns: Mapping[str, str],
        functions: Sequence[str],
        alarmed: Sequence[cdk.Stack],
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, construct_id, **kwargs)
        self._deployment = config.deployment
        topic = self._topic(config)
        self._alarms: list[cloudwatch.Alarm] = []
        self._add_alarms(config, machine_arns, functions)
        self._add_alarms_of_slack()
        action = actions.SnsAction(topic)
        for alarm in self._alarms:
            alarm.add_alarm_action(action)
            alarm.add_ok_action(action)
        for each in alarmed:
            _send_alarms(each, topic_name=_topic_name(config))
        dashboard = self._add_dashboard(machine_arns, functions)
        dashboard.add_widgets(*_file_system_graphs())
        if config.gpu_metrics:
            dashboard.add_widgets(*_gpu_graphs())
        cdk.CfnOutput(
            self, "AlarmTopicArn", value=topic.topic_arn, description="subscribe here to alarms"
        )

    def _topic(self, config: StageConfig) -> sns.Topic:
        topic = sns.Topic(self, "Alarms", topic_name=_topic_name(config), enforce_ssl=True)
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                conditions={"StringEquals": {"aws:SourceAccount": self.account}},
            )
        )
        for address in config.alarm_emails:
            topic.add_subscription(subscriptions.EmailSubscription(address))
        return topic

    def _add_alarms(
        self, config: StageConfig, machine_arns: Mapping[str, str], functions: Sequence[str]
    ) -> None:
        for name, machine in machine_arns.items():
            failed = cloudwatch.MathExpression(
                expression="FILL(failed, 0) + FILL(stopped, 0) + FILL(late, 0)",
                using_metrics={
                    "failed": _of_machine("ExecutionsFailed", machine),
                    "stopped": _of_machine("ExecutionsAborted", machine),
                    "late": _of_machine("ExecutionsTimedOut", machine),
                },
                label=f"{name} workflows that crashed",
                period=_FIVE_MINUTES,
            )
            self._alarm(
                f"{name.title()}Crashed",
                failed,
                f"a {name} workflow crashed, was stopped, ran out of time or left something "
                "behind; the reaper continues with it within a quarter of an hour",
            )
        for name in ("recorder", "reaper", "notifier"):
            if name in functions:
                self._alarm(
                    f"{name.title()}Fails",
                    self._of_function("Errors", name),
                    f"the function {name} fails again and again; look at its log",
                    threshold=3,
                    evaluation_periods=3,
                )
        self._alarm(
            "StuckTeardown",
            self._figure("StuckTeardowns"),
            "a teardown gave up or takes longer than two hours: machines may cost money; /train "
            "cluster list and docs/deploy.md say what to do",
        )
        self._alarm(
            "ReaperHelped",
            self._figure("Helped"),
            "the reaper restarted workflows in four quarters of an hour in a row: something keeps "
            "stopping them",
            evaluation_periods=4,
        )
        self._alarm(
            "Orphans",
            self._figure("Orphans"),
            "the account has something of a cluster that is over, unknown or unreadable; the "
            "reaper's log says what, and what becomes of it",
        )
        self._alarm(
            "ReaperSilent",
            self._figure("OpenClusters", statistic="SampleCount"),
            "the reaper has counted nothing for an hour: nothing looks after clusters",
            comparison=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            evaluation_periods=4,
            missing=cloudwatch.TreatMissingData.BREACHING,
        )
        self._alarm(
            "Spend",
            self._figure("UsdPerHour"),
            f"all clusters together cost more than {config.alarm_usd_per_hour:g} USD an hour",
            threshold=config.alarm_usd_per_hour,
            comparison=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
        )

    def _add_alarms_of_slack(self) -> None:
        """Raise alarms on what people notice in Slack: failing commands, cards that stand still."""
        self._alarm(
            "BotFails",
            self._of_function("Errors", BOT.name),
            "the bot failed on a command or a click; look at its log",
        )
        self._alarm(
            "BotThrottled",
            self._of_function("Throttles", BOT.name),
            "Lambda did not call the bot: the account runs as many functions as it may",
        )
        self._alarm(
            "RefusedRequests",
            self._measured(Measure.REFUSED_REQUESTS, statistic="Sum")[0],
            f"{_REFUSED} requests to the bot in five minutes were not Slack's: somebody tries, or "
            "the signing secret is another one than Slack's",
            threshold=_REFUSED,
        )
        self._alarm(
            "NotifierLate",
            self._of_function("IteratorAge", STREAM_CONSUMER, statistic="Maximum"),
            "cards and threads are five minutes behind the table; look at the notifier's log",
            threshold=_LATE.to_milliseconds(),
        )

    def _alarm(
        self, construct_id: str, metric: cloudwatch.IMetric, description: str, **more: Any
    ) -> None:
        self._alarms.append(add_alarm(self, construct_id, metric, description, **more))

    def _add_dashboard(
        self, machine_arns: Mapping[str, str], functions: Sequence[str]
    ) -> cloudwatch.Dashboard:
        figures = {name: self._figure(name) for name in Census.model_fields}
        spend = figures.pop("UsdPerHour")
        dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name=self._deployment)
        dashboard.add_widgets(
            _graph("Runs, clusters, teardowns", [*figures.values()]),
            _graph("USD an hour, by planned prices", [spend]),
            cloudwatch.AlarmStatusWidget(title="Alarms", alarms=[*self._alarms], width=8, height=6),
        )
        dashboard.add_widgets(
            *(
                _graph(
                    f"Workflow {name}",
                    [_of_machine(f"Executions{end}", machine) for end in ("Started", "Succeeded")],
                    [_of_machine(f"Executions{end}", machine) for end in ("Failed", "Aborted")],
                )
                for name, machine in machine_arns.items()
            )
        )
        dashboard.add_widgets(
            _graph(
                "How far behind table and channel are, s",
                self._measured(Measure.EVENT_LAG, Measure.NEWS_LAG, statistic="Maximum"),
            ),
            _graph(
                "Requests to the bot, and refused ones",
                self._measured(Measure.REQUESTS, statistic="Sum"),
                self._measured(Measure.REFUSED_REQUESTS, statistic="Sum"),
            ),
        )
        dashboard.add_widgets(
            _graph(
                "Errors of functions", [self._of_function("Errors", each) for each in functions]
            ),
            _graph(
                "Slowest call, ms",
                [
                    self._of_function("Duration", each, statistic="Maximum")
                    for each in ("bot", "notifier", "recorder", "reaper")
                ],
            ),
            _graph(
                "Functions at once, of the account",
                [
                    lambda_.Function.metric_all_concurrent_executions(
                        statistic="Maximum", period=_FIVE_MINUTES
                    )
                ],
            ),
        )
        return dashboard

    def _figure(self, name: str, *, statistic: str = "Maximum") -> cloudwatch.Metric:
        if name not in Census.model_fields:
            raise ValueError(f"{name} is no figure of a census")
        return self._own(name, statistic=statistic, period=_COUNTED)

    def _measured(self, *measures: Measure, statistic: str) -> list[cloudwatch.IMetric]:
        return [self._own(each, statistic=statistic, period=_FIVE_MINUTES) for each in measures]

    def _own(self, name: str, *, statistic: str, period: cdk.Duration) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace=NAMESPACE,
            metric_name=name,
            dimensions_map={DIMENSION: self._deployment},
            statistic=statistic,
            period=period,
        )

    def _of_function(self, metric: str, name: str, *, statistic: str = "Sum") -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace="AWS/Lambda",
            metric_name=metric,
            dimensions_map={"FunctionName": f"{self._deployment}-{name}"},
            statistic=statistic,
            label=name,
            period=_FIVE_MINUTES,
        )


def _of_machine(metric: str, arn: str) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace="AWS/States",
        metric_name=metric,
        dimensions_map={"StateMachineArn": arn},
        statistic="Sum",
        period=_FIVE_MINUTES,
    )


def _graph(
    title: str,
    left: Sequence[cloudwatch.IMetric],
    right: Sequence[cloudwatch.IMetric] = (),
    *,
    width: int = 8,
) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=[*left], right=[*right], width=width, height=6)


def _gpu_graphs() -> list[cloudwatch.GraphWidget]:
    """Draw a graph for each of use, memory, temperature and power of each cluster's GPUs."""
    found = (
        (
            title,
            "SEARCH('{ContainerInsights,ClusterName} "
            f"MetricName=\"{metric}\" {_CLUSTERS}', '{statistic}', 60)",
        )
        for title, metric, statistic in _GPU_GRAPHS
    )
    return [_searched(title, search, width=6) for title, search in found]


def _file_system_graphs() -> list[cloudwatch.GraphWidget]:
    """Draw what is read, written and free of each file system of the account, also of others."""
    return [
        _searched(
            title,
            f"SEARCH('{{AWS/FSx,FileSystemId}} MetricName=\"{metric}\"', 'Sum', 60) / {divisor}",
            width=8,
        )
        for title, metric, divisor in _FILE_SYSTEM_GRAPHS
    ]


def _searched(title: str, search: str, *, width: int) -> cloudwatch.GraphWidget:
    minute = cdk.Duration.minutes(1)
    found = cloudwatch.MathExpression(expression=search, label="", period=minute)
    return _graph(title, [found], width=width)


def _topic_name(config: StageConfig) -> str:
    return f"{config.deployment}-alarms"


def _send_alarms(stack: cdk.Stack, *, topic_name: str) -> None:
    """Send the alarms of another stack to the topic, by its name: no stack waits for this one."""
    for each in stack.node.find_all():
        if isinstance(each, cloudwatch.CfnAlarm):
            each.alarm_actions = each.ok_actions = [arn("sns", topic_name)]
