"""The local AWS endpoint: moto with corrections, EKS and FSx lifecycles, Lambda, events, streams,
HTTP.
"""

import stationmaster.local.service_models  # noqa: F401  (before anything imports moto)
from stationmaster.local.aws.deployment import Deployment
from stationmaster.local.aws.endpoint import LocalAws
from stationmaster.local.aws.http_api import Route
from stationmaster.local.aws.observer import AwsObserver
from stationmaster.local.aws.runtime import Function, InProcessRuntime, LambdaRuntime
from stationmaster.local.aws.schedules import Schedule
from stationmaster.local.aws.specs import (
    BucketSpec,
    DeploymentSpec,
    FunctionSpec,
    NetworkSpec,
    RuleSpec,
    StateMachineSpec,
    StreamSpec,
    TableSpec,
)

__all__ = [
    "AwsObserver",
    "BucketSpec",
    "Deployment",
    "DeploymentSpec",
    "Function",
    "FunctionSpec",
    "InProcessRuntime",
    "LambdaRuntime",
    "LocalAws",
    "NetworkSpec",
    "Route",
    "RuleSpec",
    "Schedule",
    "StateMachineSpec",
    "StreamSpec",
    "TableSpec",
]
