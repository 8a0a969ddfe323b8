"""The local AWS of each test file, and functions that do what a test says."""

from tests.support.aws_fixtures import aws, deployed, machines, script

__all__ = ["aws", "deployed", "machines", "script"]  # fixtures
