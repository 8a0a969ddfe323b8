"""Who asks, and whether they may: tokens of service accounts, and RBAC.

Used by the REST layer for every request, and for access reviews, which answer from the same rules.
The person who started the cluster is in system:masters and may do everything.
Source: kubernetes, plugin/pkg/auth/authorizer/rbac and pkg/registry/rbac/validation/rule.go; the
sentence of a refusal is apiserver's, pkg/endpoints/handlers/responsewriters/errors.go.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers

from stationmaster.local.cluster.api import discovery, errors, resources
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import RBAC, Object

_MASTERS: Final = "system:masters"
_ROLES = f"roles.{RBAC}"
_CLUSTER_ROLES = f"clusterroles.{RBAC}"
_ROLE_BINDINGS = f"rolebindings.{RBAC}"
_CLUSTER_ROLE_BINDINGS = f"clusterrolebindings.{RBAC}"

_EVERYTHING: Final[list[Object]] = [
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
]


@dataclass(frozen=True)
class Person:
    """Who sends a request: a user and their groups."""

    user: str
    groups: tuple[str, ...]


ADMINISTRATOR: Final = Person("kubernetes-admin", (_MASTERS, "system:authenticated"))


def account(namespace: str, name: str) -> Person:
    """Return a service account as a user."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return Person(f"system:serviceaccount:{namespace}:{name}", (*groups, "system:authenticated"))


@dataclass(frozen=True)
class Question:
    """What somebody wants to do: a verb on a resource."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @classmethod
    def of(cls, review: Mapping[str, Any]) -> Question:
        """The question of an access review's specification."""
        asked = review["resourceAttributes"]  # of other paths nobody asks
        fields = ("verb", "group", "resource", "subresource", "namespace", "name")
        return cls(**{field: asked.get(field, "") for field in fields})

    @property
    def qualified(self) -> str:
        """The resource with its subresource, as rules name it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def impersonated(headers: Headers) -> tuple[Person, list[Question]] | None:
    """Return as whom somebody asks, and what they must be allowed for it; None as themselves.

    Source: apiserver, pkg/endpoints/filters/impersonation.
    """
    user, groups = headers.get("impersonate-user"), headers.getlist("impersonate-group")
    if not user:  # kubectl refuses groups alone
        return None
    questions = [Question("impersonate", resource="groups", name=group) for group in groups]
    asked = Question("impersonate", resource="users", name=user)
    if user.startswith("system:serviceaccount:"):
        namespace, _, name = user.removeprefix("system:serviceaccount:").partition(":")
        asked = Question("impersonate", "", "serviceaccounts", "", namespace, name)
        groups = groups or [*account(namespace, name).groups]
    if not {"system:authenticated", "system:unauthenticated"} & {*groups}:
        groups = [*groups, "system:authenticated"]
    return Person(user, tuple(groups)), [asked, *questions]


class Tokens:
    """Bearer tokens of the administrator and of service accounts."""

    def __init__(self, objects: Objects, administrator: str) -> None:
        self._objects = objects
        self._administrator = administrator
        self._lock = threading.Lock()
        self._accounts: dict[str, tuple[str, str, str]] = {}

    def issue(self, namespace: str, name: str) -> str:
        """Return a token for a service account, good as long as the account is there.

        Raises:
            ApiError: 404 without that account.
        """
        uid = self._objects.get(resources.SERVICE_ACCOUNTS, namespace, name)["metadata"]["uid"]
        place = (namespace, name, uid)
        with self._lock:
            found = next((token for token, held in self._accounts.items() if held == place), None)
            token = found or secrets.token_urlsafe(24)
            self._accounts[token] = place
        return token

    def person(self, header: str | None) -> Person:
        """Return who sends an `Authorization` header.

        Raises:
            ApiError: 401 for a token that is none, or whose account is gone.
        """
        token = (header or "").removeprefix("Bearer ")
        if secrets.compare_digest(token.encode(), self._administrator.encode()):
            return ADMINISTRATOR
        place = self._accounts.get(token)
        if place is None:
            raise errors.unauthorized()
        namespace, name, uid = place
        found = self._objects.find(resources.SERVICE_ACCOUNTS, namespace, name)
        if found is None or found["metadata"]["uid"] != uid:
            raise errors.unauthorized()
        return account(namespace, name)


class Authorizer:
    """Answers from the Roles, ClusterRoles and bindings that are stored."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def require(self, person: Person, question: Question) -> None:
        """Let an allowed request pass.

        Raises:
            ApiError: 403 in the server's words.
        """
        if not self.allows(person, question):
            raise _refusal(person, question)

    def allows(self, person: Person, question: Question) -> bool:
        return _MASTERS in person.groups or any(
            _covers(rule, question) for rule in self._rules_of(person, question.namespace)
        )

    def rights(self, person: Person, namespace: str) -> Object:
        """Answer `kubectl auth can-i --list`."""
        rules = [*self._rules_of(person, namespace), *discovery.EVERYBODYS_RULES]
        rules += _EVERYTHING if _MASTERS in person.groups else []
        kinds = {"resourceRules": "resources", "nonResourceRules": "nonResourceURLs"}
        found = {kind: [rule for rule in rules if rule.get(key)] for kind, key in kinds.items()}
        return {**found, "incomplete": False}

    def _rules_of(self, person: Person, namespace: str) -> Iterator[Object]:
        """Yield the rules of somebody's bindings; one to a role that is not there has none."""
        store = self._objects.store
        bindings = store.list(_CLUSTER_ROLE_BINDINGS)
        if namespace:
            bindings = [*bindings, *store.list(_ROLE_BINDINGS, namespace)]
        for binding in bindings:
            where = binding["metadata"].get("namespace", "")
            if any(_is(subject, person, where) for subject in binding.get("subjects") or []):
                reference = binding["roleRef"]
                wide = reference["kind"] == "ClusterRole"
                key, place = (_CLUSTER_ROLES, "") if wide else (_ROLES, where)
                yield from (store.get(key, place, reference["name"]) or {}).get("rules") or []


def _is(subject: Mapping[str, Any], person: Person, namespace: str) -> bool:
    name = subject.get("name", "")
    match subject.get("kind"):
        case "User":
            return bool(name == person.user)
        case "Group":
            return name in person.groups
        case _:
            place = subject.get("namespace") or namespace
            return account(place, name).user == person.user


def _covers(rule: Mapping[str, Any], question: Question) -> bool:
    if not {question.verb, "*"} & {*(rule.get("verbs") or [])}:
        return False
    if not {question.group, "*"} & {*(rule.get("apiGroups") or [])}:
        return False
    offered = {*(rule.get("resources") or [])}
    wanted = {question.qualified, "*"}
    if question.subresource:
        wanted.add(f"*/{question.subresource}")
    names = rule.get("resourceNames") or []
    return bool(wanted & offered) and (not names or question.name in names)


def _refusal(person: Person, question: Question) -> errors.ApiError:
    where = f'in the namespace "{question.namespace}"'
    if not question.namespace:
        where = "at the cluster scope"
    what = (
        f'User "{person.user}" cannot {question.verb} resource "{question.qualified}" in API group '
        f'"{question.group}" {where}'
    )
    kind = f"{question.resource}.{question.group}" if question.group else question.resource
    named = f'{kind} "{question.name}"' if question.name else kind
    details = {"name": question.name, "group": question.group, "kind": question.resource}
    return errors.forbidden(
        f"{named} is forbidden: {what}",
        details={key: value for key, value in details.items() if value},
    )
