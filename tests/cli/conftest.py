"""The local AWS of each test file."""

from tests.support.aws_fixtures import aws, deployed, script

__all__ = ["aws", "deployed", "script"]  # fixtures
