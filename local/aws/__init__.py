"""The local AWS endpoint: moto with corrections, EKS and FSx lifecycles, Lambda, events, streams,
HTTP.
"""

import local.service_models  # noqa: F401  (before anything imports moto)
from local.aws.deployment import Deployment
from local.aws.endpoint import LocalAws
from local.aws.http_api import Route
from local.aws.observer import AwsObserver, SilentObserver
from local.aws.ric import RicRuntime
from local.aws.runtime import Function, InProcessRuntime, LambdaRuntime
from local.aws.schedules import Schedule
from local.aws.specs import (
    BucketSpec,
    DeploymentSpec,
    FunctionSpec,
    NetworkSpec,
    RuleSpec,
    StateMachineSpec,
    StreamSpec,
    SubnetSpec,
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
    "RicRuntime",
    "Route",
    "RuleSpec",
    "Schedule",
    "SilentObserver",
    "StateMachineSpec",
    "StreamSpec",
    "SubnetSpec",
    "TableSpec",
]
