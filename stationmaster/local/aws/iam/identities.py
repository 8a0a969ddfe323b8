"""The principals of the account, with their keys, and the answer to each request of theirs.

The owner's own key belongs to no principal here and may do everything: it is the person's, and the
deployment's. Every check of a principal is kept, so that a test can tell what a grant is needed
for.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from stationmaster.local.aws.access import AccessKey
from stationmaster.local.aws.iam.account import Account
from stationmaster.local.aws.iam.needs import Parameters, checks_of
from stationmaster.local.aws.iam.on_behalf import LINKING, ON_BEHALF, PASSED, Worded
from stationmaster.local.aws.iam.policies import (
    PRINCIPAL_TAG,
    Check,
    Decision,
    Statement,
    decide,
    read_statement,
)
from stationmaster.local.aws.wire import ApiError

logger = logging.getLogger(__name__)

# Error codes by protocol; "" is for every protocol that is not listed.
# Source: "Common Errors" of the service's API reference; for EC2 "Error codes for the Amazon EC2
# API"; for S3 "Error responses".
_CODES: Final = {
    "": "AccessDeniedException",
    "ec2": "UnauthorizedOperation",
    "query": "AccessDenied",
    "rest-xml": "AccessDenied",
}
# A run makes some 400 different checks; a local mode that stays up for days remembers no more.
MOST_ASKED: Final = 10_000
# Of roles that pods take on; a run has one of its own.
_MOST_SESSIONS: Final = 10_000


@dataclass(frozen=True)
class Principal:
    """A role with its policies, as one session of it that has a key."""

    name: str
    role_arn: str
    statements: tuple[Statement, ...]
    trusted: frozenset[str]
    """The services that may take the role on."""
    key: AccessKey
    trust: tuple[Statement, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    """What conditions and policy variables know of a session: aws:PrincipalTag/NAME -> value."""

    @property
    def session_arn(self) -> str:
        """Who it is in AWS's messages."""
        account, role = self.role_arn.split(":")[4], self.role_arn.rsplit("/", 1)[-1]
        return f"arn:aws:sts::{account}:assumed-role/{role}/{role}"

    def require(self, check: Check, protocol: str) -> None:
        """Refuse what the policies do not allow.

        Source: IAM user guide, "Troubleshooting access denied error messages".
        """
        decision = decide(self.statements, check)
        if decision is Decision.ALLOWED:
            return
        because = (
            "with an explicit deny in an identity-based policy"
            if decision is Decision.DENIED
            else f"because no identity-based policy allows the {check.action} action"
        )
        resource = f'"{check.resource}"' if protocol == "rest-xml" else check.resource
        message = (
            f"User: {self.session_arn} is not authorized to perform: {check.action} on resource: "
            f"{resource} {because}"
        )
        if protocol == "ec2":
            message = f"You are not authorized to perform this operation. {message}"
        raise ApiError(_CODES.get(protocol, _CODES[""]), message)


class Identities:
    """Every principal of one account; none until somebody adds them."""

    def __init__(self, account: Account, *, most_asked: int = MOST_ASKED) -> None:
        """`most_asked` is how many different checks are remembered, the first ones."""
        self.account = account
        self._most_asked = most_asked
        self._by_name: dict[str, Principal] = {}
        self._sessions: dict[tuple[str, frozenset[tuple[str, str]]], AccessKey] = {}
        self._asked: set[tuple[str, str, str, frozenset[tuple[str, str]], bool]] = set()
        self._guard = threading.Lock()

    def add(
        self, name: str, *, role_arn: str, role: Mapping[str, Any], values: Mapping[str, str]
    ) -> Principal:
        """Make a principal of a role as `lambdas/policies.json` has it, a function's by its name.

        Raises:
            PolicyError: its policies have what cannot be evaluated.
        """
        trust = [read_statement({**each, "Resource": "*"}, values) for each in role["trust"]]
        assert trust, f"{name} has no trust policy"
        made = Principal(
            name=name,
            role_arn=role_arn,
            statements=tuple(read_statement(each, values) for each in role["statements"]),
            trusted=frozenset(_services(role["trust"])),
            key=AccessKey.new(),
            trust=tuple(trust),
        )
        with self._guard:
            self._by_name[name] = made
        return made

    def named(self, name: str) -> Principal | None:
        """Return the principal of this name, or of the function of this name; None for none."""
        with self._guard:
            return self._by_name.get(name)

    def principals(self) -> list[Principal]:
        """Return every principal."""
        with self._guard:
            return list(self._by_name.values())

    def of_key(self, key_id: str) -> Principal | None:
        """Return whose key it is, None for the owner's and for one that nobody has."""
        with self._guard:
            for (name, tags), key in self._sessions.items():
                if key.key_id == key_id:
                    known = {f"{PRINCIPAL_TAG}{tag}": value for tag, value in tags}
                    return replace(self._by_name[name], key=key, tags=known)
        return next((each for each in self.principals() if each.key.key_id == key_id), None)

    def assume(self, role_arn: str, tags: Mapping[str, str]) -> AccessKey | None:
        """Return the key of a pod's session of a role; None where its trust refuses.

        Source: EKS user guide, "Create IAM role with trust policy required by EKS Pod Identity":
        the service takes the role on and tags the session.
        """
        role = self.of_role(role_arn)
        context = {f"aws:RequestTag/{tag}": value for tag, value in tags.items()}
        context["aws:SourceAccount"] = self.account.account_id
        if role is None or "pods.eks.amazonaws.com" not in role.trusted:
            return None
        for action in ("sts:AssumeRole", "sts:TagSession"):
            if decide(role.trust, Check(action, context=context)) is not Decision.ALLOWED:
                logger.warning("a role's trust refuses a pod", extra={"role": role_arn, **tags})
                return None
        with self._guard:
            while len(self._sessions) >= _MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            session = (role.name, frozenset(tags.items()))
            return self._sessions.setdefault(session, AccessKey.new())

    def of_role(self, role_arn: str) -> Principal | None:
        """Return the principal of a role, None when none has it."""
        return next((each for each in self.principals() if each.role_arn == role_arn), None)

    def asked(self) -> Iterator[tuple[str, Check]]:
        """Yield each different check so far, with the name of the principal that asked."""
        with self._guard:
            found = sorted(self._asked, key=str)
        for name, action, resource, context, is_missing in found:
            yield name, Check(action, resource, dict(context), is_missing)

    def write_asked(self, path: Path) -> None:
        """Leave each check as a line of JSON; no file without any."""
        lines = [
            json.dumps([name, check.action, check.resource, dict(check.context), check.is_missing])
            for name, check in self.asked()
        ]
        if lines:
            path.write_text("\n".join([*lines, ""]))

    def check(
        self, principal: Principal, service: str, operation: str, given: Parameters, protocol: str
    ) -> None:
        """Refuse what a principal's policies do not allow.

        Raises:
            ApiError: in the words of the service.
        """
        for check in checks_of(self.account, service, operation, given):
            self._require(principal, check, protocol)
        asked = f"{service}:{operation}"
        if passed := PASSED.get(asked):
            for role_arn in passed.roles(given):
                context = {"iam:PassedToService": passed.service}
                self._require(principal, Check("iam:PassRole", role_arn, context), protocol)
                role = self.of_role(role_arn)
                if role is not None and (passed.trusted or passed.service) not in role.trusted:
                    message = passed.distrust.format(role=role_arn)
                    raise ApiError("InvalidParameterException", message)
        for row in ON_BEHALF.get(asked, ()):
            worded = row if isinstance(row, Worded) else Worded(row, "{denied}")
            for check in worded.checks(self.account, given):
                try:
                    self._require(principal, check, protocol)
                except ApiError as denied:
                    words = worded.words.replace("{denied}", denied.message)
                    raise ApiError(worded.code or denied.code, words) from denied
        if asked in LINKING:
            self.account.linked.add(LINKING[asked])

    def _require(self, principal: Principal, check: Check, protocol: str) -> None:
        check = replace(check, context={**check.context, **principal.tags})
        context = frozenset(check.context.items())
        with self._guard:
            if len(self._asked) < self._most_asked:
                self._asked.add(
                    (principal.name, check.action, check.resource, context, check.is_missing)
                )
        principal.require(check, protocol)


def _services(trust: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for statement in trust:
        service = statement.get("Principal", {}).get("Service", [])
        yield from service if isinstance(service, list) else [service]


def unknown_operation(principal: Principal, asked: str, protocol: str) -> ApiError:
    """Return the refusal of an operation that nobody can be allowed."""
    return ApiError(
        _CODES.get(protocol, _CODES[""]),
        f"User: {principal.session_arn} asks {asked}, an operation that the local IAM does not "
        "know",
    )


KEY_ID: Final = re.compile(r"(?:Credential=|X-Amz-Credential=)([A-Za-z0-9]+)(?:/|%2F)")
"""Where a request, or a presigned address, names the key that it is signed with."""
