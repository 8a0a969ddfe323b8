"""The one way in which a finding of the AwsSolutions rules is accepted: by its full id, with why.

It holds for the scope that it is made on and what is below, so it is made as deep as possible.
"""

from __future__ import annotations

import aws_cdk as cdk
from constructs import IConstruct


def accept(scope: IConstruct, rule: str, reason: str) -> None:
    """Accept the finding `rule` (e.g. "SQS3" or "IAM5[Resource::*]") on `scope`, saying why.

    A rule of another checker has its name before it: "CloudFormation-Validate::E3050".
    """
    if len(reason) < 20:
        raise ValueError(f"reason for accepting {rule} is {reason!r}; expected a sentence")
    cdk.Validations.of(scope).acknowledge(
        cdk.Acknowledgment(
            id=rule if rule.startswith("CloudFormation") else f"AwsSolutions-{rule}", reason=reason
        )
    )


def accept_wildcard(scope: IConstruct, resource: str, reason: str) -> None:
    """Accept a resource with a wildcard in a policy of `scope`; `resource` as in the statement."""
    resolved = cdk.Stack.of(scope).resolve(resource)
    accept(scope, f"IAM5[Resource::{_written_out(resolved)}]", reason)


def _part_written_out(part: object) -> str:
    """Write out a part of a text; nag writes an import there by its name alone."""
    match part:
        case {"Fn::ImportValue": str(name)}:
            return name
        case _:
            return _written_out(part)


def _written_out(value: object) -> str:
    match value:
        case str():
            return value.replace("${", "<").replace("}", ">")  # a policy variable
        case {"Fn::Join": [str(separator), list(parts)]}:
            return separator.join(_part_written_out(part) for part in parts)
        case {"Ref": str(name)}:
            return f"<{name}>"
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return f"<{name}.{attribute}>"
        case {"Fn::ImportValue": str(name)}:
            return f'{{"Fn::ImportValue":"{name}"}}'
        case _:
            raise ValueError(f"cannot write {value!r} out as nag does")
