"""The local AWS endpoint: moto with corrections, EKS and FSx lifecycles, Lambda, events, streams,
HTTP.
"""

import stationmaster.local.service_models  # noqa: F401  (before anything imports moto)
from stationmaster.local.aws.deployment import (
    Deployment,
    DeploymentSpec,
    FunctionSpec,
    StreamSpec,
)
from stationmaster.local.aws.endpoint import LocalAws
from stationmaster.local.aws.observer import AwsObserver
from stationmaster.local.aws.runtime import Function, InProcessRuntime, LambdaRuntime

__all__ = [
    "AwsObserver",
    "Deployment",
    "DeploymentSpec",
    "Function",
    "FunctionSpec",
    "InProcessRuntime",
    "LambdaRuntime",
    "LocalAws",
    "StreamSpec",
]
