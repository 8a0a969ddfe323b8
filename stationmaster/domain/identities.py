"""Identities of IAM, as STS names them and as the rules of channels list them."""

from __future__ import annotations

import re
from typing import Final

ARN: Final = "arn:"
"""What an identity of IAM begins with, and no id of Slack."""

_NAME: Final = "[A-Za-z0-9_+=,.@-]"
# A role is listed without its path, which STS does not say of who has assumed it.
LISTED: Final = (
    rf"arn:aws[a-z-]*:(iam|sts)::[0-9]{{12}}:"
    rf"(root|role/{_NAME}{{1,64}}|user/[A-Za-z0-9_+=,.@/-]{{1,512}}|federated-user/{_NAME}{{1,64}})"
)
_ASSUMED: Final = re.compile(
    rf"arn:(aws[a-z-]*):sts::([0-9]{{12}}):assumed-role/({_NAME}+)/({_NAME}+)", re.ASCII
)


def identity_of(caller_arn: str) -> tuple[str, str]:
    """Return who a caller is, and the name of the session; "" where there is none.

    Whoever has assumed a role is that role, in every session.
    """
    match = _ASSUMED.fullmatch(caller_arn)
    if match is None:
        return caller_arn, ""
    partition, account, role, session = match.groups()
    return f"arn:{partition}:iam::{account}:role/{role}", session


def short_name(identity: str) -> str:
    """Return what tells an identity apart within an account, e.g. role/ci."""
    return identity.split(":", 5)[-1]
