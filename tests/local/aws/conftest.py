"""The local AWS of each test file, and functions that do what a test says."""

import pytest

from lambdas.registry import Route
from stationmaster.local.aws import Deployment, DeploymentSpec, FunctionSpec, LocalAws
from tests.support.aws_fixtures import HANDLER, aws, deployed, machines, script

__all__ = ["aws", "deployed", "machines", "script"]  # fixtures


@pytest.fixture(scope="module")
def http_url(aws: LocalAws, deployed: Deployment) -> str:
    """Address of an HTTP API whose routes lead to the function "web"."""
    aws.deploy(
        DeploymentSpec(
            functions=[FunctionSpec(name="web", handler=HANDLER)],
            routes=[Route("POST", path, function="web") for path in ("/slack/events", "/any")],
        )
    )
    return aws.http_url
