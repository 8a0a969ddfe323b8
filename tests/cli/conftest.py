"""The local AWS of each test file."""

from tests.support.aws_fixtures import aws

__all__ = ["aws"]  # fixtures
