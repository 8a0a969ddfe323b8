"""Graphs of the GPUs of each cluster, for the dashboard; a cluster is named after its run.

The metrics are Container Insights', with a line for each cluster that there is or was. Namespace,
names and dimensions are those that CloudWatch's agent declares for EKS.
Source: https://github.com/aws/amazon-cloudwatch-agent, translator/translate/otel/exporter/awsemf/
kubernetes.go, and the CloudWatch user guide, "NVIDIA GPU metrics".
"""

from __future__ import annotations

from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

# Title, metric of a GPU of a node, and how the GPUs of a cluster become one figure.
_GRAPHS: Final = (
    ("Use of GPUs, %", "node_gpu_utilization", "Average"),
    ("Memory of GPUs in use, %", "node_gpu_memory_utilization", "Average"),
    ("Hottest GPU, degrees C", "node_gpu_temperature", "Maximum"),
    ("Power of a GPU, W", "node_gpu_power_draw", "Average"),
)
# A search finds whole words of a dimension's value, and dashes part them.
_CLUSTERS: Final = "stationmaster"


def gpu_graphs() -> list[cloudwatch.GraphWidget]:
    """Draw a graph for each of use, memory, temperature and power."""
    return [
        cloudwatch.GraphWidget(
            title=title,
            left=[
                cloudwatch.MathExpression(
                    expression="SEARCH('{ContainerInsights,ClusterName} "
                    f"MetricName=\"{metric}\" {_CLUSTERS}', '{statistic}', 60)",
                    using_metrics={},
                    label="",
                    period=cdk.Duration.minutes(1),
                )
            ],
            width=6,
            height=6,
        )
        for title, metric, statistic in _GRAPHS
    ]
