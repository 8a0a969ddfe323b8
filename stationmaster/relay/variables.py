"""Reads environment variables of the relay's programs, or names them where they are missing.

`setter` is what sets them, e.g. "the saver's Job"; errors name it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.names import NAMESPACE
from stationmaster.domain.outside import first_problem


def required(variables: Mapping[str, str], name: str, *, setter: str) -> str:
    """Return the value of a variable.

    Raises:
        PermanentError: it is missing or empty.
    """
    value = variables.get(name, "")
    if not value:
        state = "empty" if name in variables else "missing"
        raise PermanentError(f"variable {name} is {state}; {setter} must set it")
    return value


def region(variables: Mapping[str, str], *, setter: str) -> str:
    """Return the AWS region: AWS_REGION, or AWS_DEFAULT_REGION without it.

    Raises:
        PermanentError: neither is set.
    """
    name = "AWS_REGION" if variables.get("AWS_REGION") else "AWS_DEFAULT_REGION"
    return required(variables, name, setter=setter)


def namespace(variables: Mapping[str, str]) -> str:
    """Return the namespace that the program runs in: STATIONMASTER_NAMESPACE, or the usual one."""
    return variables.get("STATIONMASTER_NAMESPACE") or NAMESPACE


def not_understood(name: str, problem: ValidationError | str, *, setter: str) -> PermanentError:
    """Make the error of a variable whose text is not understood."""
    if isinstance(problem, ValidationError):
        problem = first_problem(problem)
    return PermanentError(f"variable {name} is not understood: {problem}; {setter} must set it")
