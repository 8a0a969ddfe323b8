"""Kill points: a step dies just after one of its writes took effect, and is called again.

Imported by the test_kill_points* modules. A case says what is there when its steps are called.
`play` calls them as the state machine does. It can kill the process before it sees the answer to a
write: all that it knew is lost, and the same call comes again a second later. The result is
compared as a whole with that of an undisturbed play: every item of the table, what is in the
account, which workflows run, and what was sent to them.

A death before the n-th write leaves what one after the write before it leaves: in between a step
only reads. So there is one kill point a write.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from threading import get_ident
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from kubernetes.client import ApiClient

from stationmaster.aws.table import PARTITION_KEY, SORT_KEY, table_definition
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import TAG_CLUSTER_ID, cluster_name
from stationmaster.domain.resources import ResourceKind
from stationmaster.steps.parts.leftovers import find_left
from tests.chaos.points import some_of, sweep_seed
from tests.support.aws_steps import Account

# They come with what the product asks for, and no record names them.
MADE_BY_AWS = frozenset(
    {
        ResourceKind.EKS_SECURITY_GROUP,
        ResourceKind.NETWORK_INTERFACE,
        ResourceKind.INSTANCE,
        ResourceKind.VOLUME,
    }
)
# So many seeds in a row bring a death after each write.
SEEDS = 9
_READING = ("Describe", "Get", "List", "Query")
_TELLING = ("SendTask", "PutEvents")
_RANDOM = re.compile(r"\b(eni|fs|i|lt|sg|subnet|vol|vpc)-[0-9a-f]{8,17}\b")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")  # of a manifest, which names its run
_COST = re.compile(r'cost_usd": [0-9.e-]+')  # depends on the second at which it is asked for

Call = Callable[[Account], Any]
Outcome = dict[str, Any]
Undisturbed = Callable[["Case"], tuple[Outcome, tuple[str, ...]]]
Accounts = Callable[[], AbstractContextManager[Account]]
PlayEveryKill = Callable[["Case"], None]


class Killed(BaseException):
    """The process that ran a step is gone; nothing in the product may catch this."""


@dataclass(frozen=True, eq=False)
class Case:
    """Steps in the order in which a workflow calls them, each until it is done."""

    name: str
    steps: Sequence[Call]
    given: Call = Account.request
    may_raise: type[StationmasterError] | tuple[()] = ()
    """What ends a step as it should, for the state machine to catch."""
    writes_nothing: bool = False
    """It only reads, so there is no kill point."""
    first_kill: int = 1
    """Before this write nothing has happened yet that the case is about."""
    creates: bool = False
    """Nothing may exist at any moment of which the cluster has no record."""
    asks_bus: bool = True
    """The bus must hear of a cluster that drains; a reaper starts the teardown itself."""
    also: Callable[[Account], Any] = lambda account: None
    """More to compare than is in the table and in the account."""


def one(name: str, step: Call, given: Call = Account.request, **more: Any) -> Case:
    """A case of a single step."""
    return Case(name, [step], given, **more)


def points(case: Case, made: Sequence[str]) -> list[tuple[int, str]]:
    """Number and name of the writes after which the case's steps die, of those that they `made`.

    Nine seeds in a row bring each write, and with `all` as seed they are all there.
    """
    assert bool(made) is not case.writes_nothing, f"it wrote {made}"
    every = [
        (number, write) for number, write in enumerate(made, start=1) if number >= case.first_kill
    ]
    return some_of(every, sweep_seed(), one_in=SEEDS)


@dataclass
class Writes:
    """What steps write to AWS and to Kubernetes, in order; one write may be the last."""

    made: list[str] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    """What was sent to workflows that wait, and to the bus."""
    last: int | None = None
    """The number of the write after which the process dies."""
    _thread: int | None = None

    def start(self, last: int | None) -> None:
        """Forget the last play."""
        self.made, self.told, self.last = [], [], last

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What this thread does inside is done by a step; other threads are somebody else."""
        self._thread = get_ident()
        try:
            yield
        finally:
            self._thread = None

    def attach(self, session: boto3.Session, monkeypatch: pytest.MonkeyPatch) -> None:
        """See the calls of clients that the session makes from now on, and of Kubernetes' own."""
        session.events.register("before-parameter-build", self._before_aws)
        session.events.register("after-call", self._after_aws)
        monkeypatch.setattr(boto3, "client", _kept(session))
        call_api = ApiClient.call_api

        def watched_call(client: ApiClient, method: str, url: str, *rest: Any, **more: Any) -> Any:
            if self._thread != get_ident() or method == "GET":
                return call_api(client, method, url, *rest, **more)
            number = self._begin(f"{method} {_plural_of(url)}")
            answer = call_api(client, method, url, *rest, **more)
            self._end(number)
            return answer

        monkeypatch.setattr(ApiClient, "call_api", watched_call)

    def _before_aws(
        self, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any
    ) -> None:
        if self._thread != get_ident() or model.name.startswith(_READING):
            return
        context["write"] = self._begin(_name_of(model.name, params))
        if model.name.startswith(_TELLING):
            self.told.append([model.name, params])

    def _after_aws(self, context: dict[str, Any], **_: Any) -> None:
        if "write" in context:
            self._end(context["write"])

    def _begin(self, name: str) -> int:
        self.made.append(name)
        return len(self.made)

    def _end(self, number: int) -> None:
        if number == self.last:
            raise Killed(self.made[-1])


def play(account: Account, case: Case, writes: Writes, last: int | None = None) -> Outcome:
    """Call the case's steps until they are done, over a death after write `last`; what came of it.

    Raises:
        AssertionError: it never came to this write.
    """
    _begin(account, case, writes, last)
    answers = [_until_done(account, case, step, writes) for step in case.steps]
    assert last is None or len(writes.made) >= last, "nobody was killed"
    told = [each for n, each in enumerate(writes.told) if each not in writes.told[:n]]
    if not case.asks_bus:
        told = [each for each in told if each[0] != "PutEvents"]
    found = {
        "table": _in_table(account),
        "account": in_account(account),
        "workflows": _workflows(account),
        "told": told,
        "answers": answers,
        "also": case.also(account),
    }
    return _comparable(account, found)


def unrecorded(account: Account) -> Counter[ResourceKind]:
    """How many of each kind exist of the cluster beyond what its records say is there."""
    left = find_left(account.services, account.cluster_id)
    cluster = account.services.cluster_states.find(account.cluster_id)
    records = cluster.resources.values() if cluster is not None else ()
    recorded = Counter(
        record.kind for record in records if record.status is not ResourceStatus.DELETED
    )
    return Counter(each.kind for each in left if each.kind not in MADE_BY_AWS) - recorded


def in_account(account: Account) -> dict[str, Any]:
    """What the account has of the cluster, as AWS itself lists it."""
    cluster_id = account.cluster_id
    ec2, tagged = boto3.client("ec2"), [{"Name": f"tag:{TAG_CLUSTER_ID}", "Values": [cluster_id]}]
    groups = ec2.describe_security_groups(Filters=tagged)["SecurityGroups"]
    templates = ec2.describe_launch_templates(Filters=tagged)["LaunchTemplates"]
    placements = ec2.describe_placement_groups(Filters=tagged)["PlacementGroups"]
    systems = boto3.client("fsx").describe_file_systems()["FileSystems"]
    return {
        "control plane": _control_plane(account),
        "file systems": [
            each["Lifecycle"]
            for each in systems
            if {"Key": TAG_CLUSTER_ID, "Value": cluster_id} in each["Tags"]
        ],
        "security groups": [
            (each["GroupName"], len(each["IpPermissions"]), len(each["IpPermissionsEgress"]))
            for each in groups
        ],
        "launch templates": sorted(each["LaunchTemplateName"] for each in templates),
        "placement groups": sorted(each["GroupName"] for each in placements),
        "what teardown finds": [str(each) for each in find_left(account.services, cluster_id)],
    }


def _kept(session: boto3.Session) -> Callable[..., Any]:
    """Makes each client once."""
    clients: dict[str, Any] = {}

    def client(service: str, **arguments: Any) -> Any:
        if service not in clients:
            clients[service] = session.client(service, **arguments)
        return clients[service]

    return client


def _begin(account: Account, case: Case, writes: Writes, last: int | None) -> None:
    account.restart()  # the clients of these services are watched
    case.given(account)
    account.aws.finish_lifecycles()
    writes.start(last)


def _until_done(account: Account, case: Case, step: Call, writes: Writes) -> Any:
    while True:
        try:
            answer = _call(account, case, step, writes)
        except Killed:
            account.restart()
            account.late += timedelta(seconds=1)
            missing = unrecorded(account) if case.creates else {}
            assert not missing, "these exist and are not recorded"
            continue
        if not _is_unfinished(answer):
            return answer
        account.aws.finish_lifecycles()


def _call(account: Account, case: Case, step: Call, writes: Writes) -> Any:
    try:
        with writes.watched():
            return step(account)
    except case.may_raise as exc:
        return f"{type(exc).__name__}: {exc}"


def _is_unfinished(answer: Any) -> bool:
    return answer == {"ready": False}


def _name_of(operation: str, params: dict[str, Any]) -> str:
    """The operation; where it records events, the last word of their types as well."""
    items = [each["Put"]["Item"] for each in params.get("TransactItems", [])]
    events = [json.loads(item["body"]["S"])["type"] for item in items if "place" in item]
    return f"record {' + '.join(events)}" if events else operation


def _plural_of(url: str) -> str:
    """Which kind of object a request is about: what stands before its name."""
    return url.partition("?")[0].split("/")[-2]


def _in_table(account: Account) -> dict[str, list[Any]]:
    """Every item of the table: states and the like by key, and events in their order."""
    items = boto3.client("dynamodb").scan(TableName=account.settings.table_name)["Items"]
    events = [item for item in items if "place" in item]
    events.sort(key=lambda item: (item[PARTITION_KEY]["S"], int(item["place"]["N"])))
    others = [item for item in items if "place" not in item]
    # Of what was asked for again, the audit says so.
    others = [item for item in others if not item[PARTITION_KEY]["S"].startswith("AUDIT#")]
    return {
        "events": [_body(item) | {"event_id": "ID"} for item in events],
        "others": sorted(
            ([item[PARTITION_KEY]["S"], item[SORT_KEY]["S"], _body(item)] for item in others),
            key=lambda item: item[:2],
        ),
    }


def _body(item: dict[str, Any]) -> dict[str, Any]:
    return json.loads(item["body"]["S"]) if "body" in item else item


def _workflows(account: Account) -> list[str | None]:
    """What runs of the run's, the cluster's, and of a first and second teardown."""
    workflows, cluster_id = account.services.workflows, account.cluster_id
    first = workflows.teardown_status(cluster_id, attempt=1)
    return [
        workflows.train_status(account.run_id),
        workflows.train_status(account.run_id, 2),
        workflows.cluster_status(cluster_id),
        first,
        first and workflows.teardown_status(cluster_id, attempt=2),
    ]


def _control_plane(account: Account) -> dict[str, Any]:
    eks, name = boto3.client("eks"), cluster_name(ClusterId(account.cluster_id))
    try:
        cluster = eks.describe_cluster(name=name)["cluster"]
    except ClientError:
        return {}
    entries = eks.list_access_entries(clusterName=name)["accessEntries"]
    pods = eks.list_pod_identity_associations(clusterName=name)["associations"]
    return {
        "status": cluster["status"],
        "node groups": sorted(eks.list_nodegroups(clusterName=name)["nodegroups"]),
        "add-ons": sorted(eks.list_addons(clusterName=name)["addons"]),
        "access": {
            entry: len(
                eks.list_associated_access_policies(clusterName=name, principalArn=entry)[
                    "associatedAccessPolicies"
                ]
            )
            for entry in entries
        },
        "pod identities": sorted(each["serviceAccount"] for each in pods),
    }


def _comparable(account: Account, found: Outcome) -> Outcome:
    """Without what differs from play to play: ids, moments and what they cost."""
    text = json.dumps(found, default=str)
    text = text.replace(account.cluster_id, "CLUSTER").replace(account.run_id, "RUN")
    text = _DIGEST.sub("DIGEST", text)
    text = _COST.sub('cost_usd": "COST"', _MOMENT.sub("MOMENT", _RANDOM.sub(r"\1-ID", text)))
    return json.loads(text)


@contextmanager
def with_own_table(account: Account) -> Iterator[Account]:
    """Deleted afterwards: emulated DynamoDB copies what it has at each transaction."""
    name, dynamodb = f"of-{account.run_id}", boto3.client("dynamodb")
    dynamodb.create_table(**table_definition(name))
    account.set(table_name=name)
    try:
        yield account
    finally:
        account.aws.faults.clear()  # some cases are about one
    dynamodb.delete_table(TableName=name)
