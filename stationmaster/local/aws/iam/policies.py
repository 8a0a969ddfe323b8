"""Identity and trust policies: statements are read once, and decide about single checks.

An unknown operator, condition key or element is refused when a policy is read, never ignored.

Source: IAM user guide, "Policy evaluation logic" and "IAM JSON policy elements reference".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

_PLACEHOLDER = re.compile(r"\$\{([^}]+)\}")
_ELEMENTS: Final = frozenset({"Sid", "Effect", "Action", "Resource", "Condition", "Principal"})
_RESOURCE_TAG: Final = "aws:ResourceTag/"
_KEYS: Final = frozenset(
    {
        "aws:SourceAccount",
        "aws:SourceArn",
        "aws:ViaAWSService",
        "ec2:CreateAction",
        "ec2:LaunchTemplate",
        "eks:accessScope",
        "eks:policyArn",
        "eks:principalArn",
        "events:detail-type",
        "events:source",
        "iam:AWSServiceName",
        "iam:PassedToService",
        "kms:ViaService",
        "s3:prefix",
    }
)
# Of a session; the one kind of policy variable that is known here, as ${aws:PrincipalTag/NAME}.
PRINCIPAL_TAG: Final = "aws:PrincipalTag/"
_KEY_FAMILIES: Final = (_RESOURCE_TAG, "aws:RequestTag/", PRINCIPAL_TAG)


class PolicyError(ValueError):
    """A policy has what the local IAM cannot evaluate."""


class Decision(StrEnum):
    """What a principal's policies say of a check."""

    ALLOWED = "allowed"
    NOT_ALLOWED = "not allowed"
    DENIED = "denied"


@dataclass(frozen=True)
class Check:
    """One question to IAM: may this be done to that, under these circumstances?"""

    action: str
    resource: str = "*"
    context: Mapping[str, str] = field(default_factory=dict)
    # AWS answers that a resource is not there before it asks for its tags.
    is_missing: bool = False


@dataclass(frozen=True)
class Condition:
    """One line of a Condition element: it holds when one of the values does."""

    operator: str
    key: str
    values: tuple[str, ...]

    def holds(self, check: Check) -> bool:
        """Say whether the check is as the condition says."""
        if check.is_missing and self.key.startswith(_RESOURCE_TAG):
            return True
        found = check.context.get(self.key)
        if self.operator == "Null":
            return (found is None) == (self.values[0].lower() == "true")
        return found is not None and any(
            _OPERATORS[self.operator](_filled(value, check), found) for value in self.values
        )


@dataclass(frozen=True)
class Statement:
    """One statement of an identity policy."""

    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()

    def applies(self, check: Check) -> bool:
        """Say whether action, resource and conditions fit."""
        return (
            any(_like(pattern.lower(), check.action.lower()) for pattern in self.actions)
            and any(
                _arn_like(_filled(pattern, check), check.resource) for pattern in self.resources
            )
            and all(condition.holds(check) for condition in self.conditions)
        )


def decide(statements: Iterable[Statement], check: Check) -> Decision:
    """Return what the statements say; an explicit Deny outweighs every Allow."""
    decision = Decision.NOT_ALLOWED
    for statement in statements:
        if statement.applies(check):
            if statement.effect == "Deny":
                return Decision.DENIED
            decision = Decision.ALLOWED
    return decision


def read_statement(document: Mapping[str, Any], values: Mapping[str, str]) -> Statement:
    """Return a statement of a policy document, with each ${name} replaced but for policy variables.

    Raises:
        PolicyError: it has an element, an operator, a key or a name that is not known.
    """
    unknown = set(document) - _ELEMENTS
    if unknown:
        raise PolicyError(
            f"a policy statement has {', '.join(sorted(unknown))}, which the local IAM does not "
            f"evaluate; known are {', '.join(sorted(_ELEMENTS))}"
        )
    return Statement(
        effect=document["Effect"],
        actions=_texts(document["Action"], values),
        resources=_texts(document.get("Resource", "*"), values),
        conditions=tuple(
            _condition(operator, key, _texts(wanted, values))
            for operator, lines in document.get("Condition", {}).items()
            for key, wanted in lines.items()
        ),
    )


def _condition(operator: str, key: str, values: tuple[str, ...]) -> Condition:
    if operator not in (*_OPERATORS, "Null"):
        known = ", ".join((*_OPERATORS, "Null"))
        raise PolicyError(
            f'a policy has the condition operator "{operator}", which the local IAM does not '
            f"evaluate; known are {known}"
        )
    if key not in _KEYS and not key.startswith(_KEY_FAMILIES):
        raise PolicyError(
            f'a policy has the condition key "{key}", which the local IAM does not fill in; add it '
            "to stationmaster/local/aws/iam/policies.py and to the checks that have it"
        )
    return Condition(operator, key, values)


def _texts(value: Any, values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        replaced(str(each), values) for each in (value if isinstance(value, list) else [value])
    )


def replaced(text: str, values: Mapping[str, str]) -> str:
    """Return the text with each ${name} replaced.

    Raises:
        PolicyError: a name has no value.
    """

    def value(match: re.Match[str]) -> str:
        if match[1].startswith(PRINCIPAL_TAG):
            return match[0]
        if match[1] not in values:
            raise PolicyError(
                f"the policies name ${{{match[1]}}}, for which local mode has no value; add it to "
                "stationmaster/local/product.py"
            )
        return values[match[1]]

    return _PLACEHOLDER.sub(value, text)


def _filled(text: str, check: Check) -> str:
    """Fill in policy variables; one that the request does not have fits nothing."""
    if "${" not in text:
        return text
    return _PLACEHOLDER.sub(lambda match: check.context.get(match[1], match[0]), text)


@lru_cache(maxsize=4096)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _like(pattern: str, text: str) -> bool:
    return _pattern(pattern).fullmatch(text) is not None


def _arn_like(pattern: str, text: str) -> bool:
    """Compare each of the six parts of an ARN by itself: no wildcard reaches past a colon."""
    if pattern == "*" or not pattern.startswith("arn:"):
        return pattern in ("*", text)
    wanted, found = pattern.split(":", 5), text.split(":", 5)
    return len(wanted) == len(found) and all(map(_like, wanted, found))


_OPERATORS: Final = {
    "ArnLike": _arn_like,
    "Bool": lambda value, found: value.lower() == found.lower(),
    "StringEquals": lambda value, found: value == found,
    "StringLike": _like,
}
