"""Everything that is deployed around the Lambda functions, as data.

`stacks` and local mode both build from it, so that the two cannot drift apart. It imports nothing
of AWS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from stationmaster.domain.bus import (
    CLUSTER_DRAINED_DETAIL_TYPE,
    EVENT_SOURCE,
    NODES_WANTED_DETAIL_TYPE,
    RELAY_BATCH_DETAIL_TYPE,
)
from stationmaster.domain.names import DEAD_LETTER_QUEUES
from stationmaster.settings import PREFIX


class Permission(StrEnum):
    """What a function may do; `stacks` turns each into the narrowest IAM statements."""

    TABLE_READ = "table-read"
    TABLE_WRITE = "table-write"
    BUS_PUT = "bus-put"
    START_TRAIN = "start-train"
    START_CLUSTER = "start-cluster"
    READ_CLUSTER_WORKFLOW = "read-cluster-workflow"
    START_TEARDOWN = "start-teardown"
    SEND_TASK_RESULT = "send-task-result"
    SLACK_SECRET = "slack-secret"
    SLACK_SECRET_WRITE = "slack-secret-write"
    HUGGING_FACE_SECRET = "hugging-face-secret"
    RELAY_SECRET = "relay-secret"
    CLUSTER_CREATE = "cluster-create"
    CLUSTER_READ = "cluster-read"
    CLUSTER_DELETE = "cluster-delete"
    EXISTING_CLUSTERS_READ = "existing-clusters-read"
    EXISTING_CLUSTERS_JOIN = "existing-clusters-join"
    EXISTING_CLUSTERS_LEAVE = "existing-clusters-leave"
    NODE_GROUP_CREATE = "node-group-create"
    NODE_REPLACE = "node-replace"
    NODE_GROUP_DELETE = "node-group-delete"
    ADDON_CREATE = "addon-create"
    FILE_SYSTEM_CREATE = "file-system-create"
    FILE_SYSTEM_READ = "file-system-read"
    FILE_SYSTEM_DELETE = "file-system-delete"
    DATA_LINK_CREATE = "data-link-create"
    DATA_LINK_READ = "data-link-read"
    DATA_LINK_DELETE = "data-link-delete"
    NETWORK_CREATE = "network-create"
    NETWORK_READ = "network-read"
    NETWORK_DELETE = "network-delete"
    INSTANCE_TYPES_READ = "instance-types-read"
    PREFLIGHT = "preflight"
    DATASETS_LIST = "datasets-list"
    EXISTING_FILE_SYSTEMS_READ = "existing-file-systems-read"
    FILE_SYSTEM_ROOM = "file-system-room"
    ARTIFACTS_READ = "artifacts-read"
    KUBERNETES = "kubernetes"
    RESULTS_ACCESS = "results-access"
    CLOCK = "clock"


class Package(StrEnum):
    """Which third-party packages a function carries (extras of pyproject.toml)."""

    LAMBDAS = "lambdas"
    BOT = "bot"


@dataclass(frozen=True)
class Function:
    """One Lambda function; `handler` is `module.attribute`."""

    name: str
    handler: str
    permissions: frozenset[Permission]
    timeout_s: int = 60
    memory_mib: int = 256
    package: Package = Package.LAMBDAS


@dataclass(frozen=True)
class Rule:
    """An EventBridge rule; `bus` is "product" for ours, "default" for the account's own."""

    name: str
    bus: str
    event_pattern: dict[str, Any]
    function: str


@dataclass(frozen=True)
class Schedule:
    """A function that is invoked every `rate_s` seconds."""

    name: str
    rate_s: int
    function: str


@dataclass(frozen=True)
class Route:
    """A path of the public HTTP API."""

    method: str
    path: str
    function: str


P = Permission
_STEP: Final = frozenset({P.TABLE_READ, P.TABLE_WRITE})
# Looking for what a cluster still has in the account, asked of AWS and not of records.
_FIND_LEFT: Final = frozenset(
    {P.CLUSTER_READ, P.FILE_SYSTEM_READ, P.DATA_LINK_READ, P.NETWORK_READ}
)
# What follows when a cluster was written: waits that end, its teardown, its clock.
_FOLLOW_UP: Final = frozenset({P.SEND_TASK_RESULT, P.BUS_PUT, P.CLOCK})


def _step(name: str, *permissions: Permission, memory_mib: int = 256) -> Function:
    return Function(
        name=name,
        handler=f"lambdas.steps.{name.replace('-', '_')}",
        permissions=_STEP | frozenset(permissions),
        memory_mib=memory_mib,
    )


# What is looked at before anything is made.
_LOOK_FIRST: Final = frozenset(
    {P.PREFLIGHT, P.HUGGING_FACE_SECRET, P.DATASETS_LIST, P.ARTIFACTS_READ}
)

TRAIN_STEPS: Final = (
    _step("prepare-run", *_LOOK_FIRST, memory_mib=512),
    # Also releases the lease of a run that has ended in this moment.
    _step("acquire-cluster", P.START_CLUSTER, *_FOLLOW_UP),
    _step(
        "stage-data",
        P.CLUSTER_READ,
        P.FILE_SYSTEM_READ,
        P.DATA_LINK_CREATE,
        P.DATA_LINK_READ,
        P.HUGGING_FACE_SECRET,
        P.KUBERNETES,
        P.RESULTS_ACCESS,
        memory_mib=512,
    ),
    _step(
        "submit-job",
        P.CLUSTER_READ,
        P.FILE_SYSTEM_READ,
        P.HUGGING_FACE_SECRET,
        P.RELAY_SECRET,
        P.KUBERNETES,
        P.RESULTS_ACCESS,
        memory_mib=512,
    ),
    _step("ensure-job-started", P.CLUSTER_READ, P.KUBERNETES, memory_mib=512),
    _step("await-job", P.SEND_TASK_RESULT),
    # Looks at the cluster when nothing was heard of it, as conclude-run does.
    _step(
        "save-results",
        P.CLUSTER_READ,
        P.FILE_SYSTEM_READ,
        P.KUBERNETES,
        P.RESULTS_ACCESS,
        memory_mib=512,
    ),
    _step("verify-results", P.ARTIFACTS_READ, memory_mib=512),
    _step(
        "push",
        P.CLUSTER_READ,
        P.HUGGING_FACE_SECRET,
        P.KUBERNETES,
        memory_mib=512,
    ),
    _step("leave-unsaved", P.CLUSTER_READ, P.KUBERNETES, P.BUS_PUT, memory_mib=512),
    # Looks at the cluster when nothing was heard of it.
    _step("conclude-run", P.CLUSTER_READ, P.KUBERNETES, memory_mib=512),
    # Takes the run out of a cluster that stays.
    _step("release-run", P.CLUSTER_READ, P.KUBERNETES, P.RESULTS_ACCESS, memory_mib=512),
    # Also ends the wait of the runs that get its nodes.
    _step("release-lease", *_FOLLOW_UP),
)

CLUSTER_STEPS: Final = (
    _step("prepare-cluster", *_LOOK_FIRST, memory_mib=512),
    # These two look at a file system that exists: nodes are made in its zone, and reach it.
    # Also looks at an existing EKS cluster, and makes the little that a run needs there.
    _step(
        "ensure-cluster",
        P.CLUSTER_CREATE,
        P.CLUSTER_READ,
        P.EXISTING_CLUSTERS_JOIN,
        P.NETWORK_CREATE,
        P.NETWORK_READ,
        P.FILE_SYSTEM_READ,
        P.KUBERNETES,
        memory_mib=512,
    ),
    # Counts the nodes before it takes any.
    # It and the next one delete what is in a zone that was given up.
    _step(
        "ensure-node-group",
        P.NODE_GROUP_CREATE,
        P.NODE_REPLACE,
        P.NODE_GROUP_DELETE,
        P.CLUSTER_READ,
        P.NETWORK_CREATE,
        P.NETWORK_READ,
        P.FILE_SYSTEM_READ,
        P.KUBERNETES,
        memory_mib=512,
    ),
    _step(
        "ensure-file-system",
        P.FILE_SYSTEM_CREATE,
        P.FILE_SYSTEM_READ,
        P.FILE_SYSTEM_DELETE,
        P.NETWORK_READ,
    ),
    _step("install-plugin", P.ADDON_CREATE, P.CLUSTER_READ, P.KUBERNETES, memory_mib=512),
    _step("run-check", P.CLUSTER_READ, P.FILE_SYSTEM_READ, P.KUBERNETES, memory_mib=512),
    # A cluster that has failed and that no run leases drains at once.
    # A resize that has failed is taken back by a further pass.
    _step("conclude-cluster", P.START_CLUSTER, *_FOLLOW_UP),
)

TEARDOWN_STEPS: Final = (
    _step("begin-teardown", P.SEND_TASK_RESULT, P.READ_CLUSTER_WORKFLOW, P.CLOCK),
    _step("release-job", P.CLUSTER_READ, P.KUBERNETES, memory_mib=512),
    _step(
        "release-file-system",
        P.FILE_SYSTEM_READ,
        P.FILE_SYSTEM_DELETE,
        P.DATA_LINK_READ,
        P.DATA_LINK_DELETE,
    ),
    _step(
        "release-node-group",
        P.CLUSTER_READ,
        P.NODE_GROUP_DELETE,
        P.KUBERNETES,
        memory_mib=512,
    ),
    # These two also delete what landed after its own release: a creation that was on its way.
    _step(
        "release-cluster",
        P.CLUSTER_READ,
        P.CLUSTER_DELETE,
        P.EXISTING_CLUSTERS_LEAVE,
        P.NODE_GROUP_DELETE,
        P.KUBERNETES,
        memory_mib=512,
    ),
    _step(
        "release-network",
        P.CLUSTER_READ,
        P.NETWORK_READ,
        P.NETWORK_DELETE,
        P.FILE_SYSTEM_READ,
        P.FILE_SYSTEM_DELETE,
    ),
    # Finds what a dying workflow created at the last moment, and deletes it.
    _step(
        "verify-released",
        P.CLUSTER_READ,
        P.CLUSTER_DELETE,
        P.EXISTING_CLUSTERS_LEAVE,
        P.NODE_GROUP_DELETE,
        P.FILE_SYSTEM_READ,
        P.FILE_SYSTEM_DELETE,
        P.DATA_LINK_READ,
        P.DATA_LINK_DELETE,
        P.NETWORK_READ,
        P.NETWORK_DELETE,
        P.KUBERNETES,
        memory_mib=512,
    ),
    _step("conclude-teardown", *_FIND_LEFT, P.KUBERNETES, memory_mib=512),
)

# Invoked by the schedule that is the clock of a cluster, not by a workflow. It begins the workflow
# of one whose nodes are of a capacity block.
KEEP_CLOCK: Final = _step("keep-clock", P.START_CLUSTER, *_FOLLOW_UP)

# What lambdas.steps makes handlers of.
STEPS: Final = (*TRAIN_STEPS, *CLUSTER_STEPS, *TEARDOWN_STEPS, KEEP_CLOCK)

RECORDER: Final = Function(
    name="recorder",
    handler="lambdas.recorder.handler",
    permissions=_STEP
    | _FIND_LEFT
    | _FOLLOW_UP
    | {P.START_TRAIN, P.START_CLUSTER, P.RELAY_SECRET}
    # A run that trains is backed up, and the backup verified. Its next attempt gets another machine
    # where one was to blame.
    | {P.KUBERNETES, P.ARTIFACTS_READ, P.NODE_REPLACE},
    timeout_s=120,
    memory_mib=512,
)
TEARDOWN_STARTER: Final = Function(
    name="start-teardown",
    handler="lambdas.start_teardown.handler",
    permissions=frozenset({P.TABLE_READ, P.START_TEARDOWN}),
)
# A custom resource of the workflow stack: whether the functions may leave the network.
CHECK_REACH: Final = Function(
    name="check-reach",
    handler="lambdas.check_reach.handler",
    permissions=frozenset({P.TABLE_READ, P.CLUSTER_READ}),
    timeout_s=120,
)
REAPER: Final = Function(
    name="reaper",
    handler="lambdas.reaper.handler",
    permissions=_STEP
    | _FIND_LEFT
    | {P.START_TRAIN, P.START_CLUSTER, P.READ_CLUSTER_WORKFLOW, P.START_TEARDOWN}
    | _FOLLOW_UP
    | {P.KUBERNETES, P.RESULTS_ACCESS, P.FILE_SYSTEM_ROOM}
    # Deletes what the account has of clusters that no record explains.
    | {
        P.CLUSTER_DELETE,
        P.NODE_GROUP_DELETE,
        P.FILE_SYSTEM_DELETE,
        P.DATA_LINK_DELETE,
        P.NETWORK_DELETE,
    },
    timeout_s=120,
    memory_mib=512,
)
BOT: Final = Function(
    name="bot",
    handler="bot.lambda_handler.handler",
    permissions=_STEP
    | _FOLLOW_UP
    # A cluster is created by command.
    | {P.SLACK_SECRET, P.HUGGING_FACE_SECRET, P.START_TRAIN, P.START_CLUSTER, P.SLACK_SECRET_WRITE}
    # A run may go on from what another one has left.
    | {P.INSTANCE_TYPES_READ, P.PREFLIGHT, P.DATASETS_LIST, P.ARTIFACTS_READ}
    # A cluster may use a file system that exists, and an existing EKS cluster.
    | {P.EXISTING_FILE_SYSTEMS_READ, P.FILE_SYSTEM_ROOM, P.EXISTING_CLUSTERS_READ},
    timeout_s=10,
    memory_mib=1024,  # CPU is sold by memory; the 3 s acknowledgement includes the cold start
    package=Package.BOT,
)
NOTIFIER: Final = Function(
    name="notifier",
    handler="bot.notifier_handler.handler",
    # It starts runs whose cards had to wait, uploads logs that are saved, and rotates the token. It
    # has the rules of channels, so it stops what has used up the budget of a channel's month.
    permissions=_STEP
    | _FOLLOW_UP
    | {P.SLACK_SECRET, P.SLACK_SECRET_WRITE, P.START_TRAIN, P.ARTIFACTS_READ},
    timeout_s=120,
    memory_mib=512,
    package=Package.BOT,
)

FUNCTIONS: Final = (
    *STEPS,
    RECORDER,
    TEARDOWN_STARTER,
    CHECK_REACH,
    REAPER,
    BOT,
    NOTIFIER,
)

RULES: Final = (
    Rule(
        name="relay-batches",
        bus="product",
        event_pattern={"source": [EVENT_SOURCE], "detail-type": [RELAY_BATCH_DETAIL_TYPE]},
        function=RECORDER.name,
    ),
    Rule(
        name="drained-clusters",
        bus="product",
        event_pattern={"source": [EVENT_SOURCE], "detail-type": [CLUSTER_DRAINED_DETAIL_TYPE]},
        function=TEARDOWN_STARTER.name,
    ),
    # The bot does not reach clusters; it answers what it is asked of them through the table.
    Rule(
        name="wanted-nodes",
        bus="product",
        event_pattern={"source": [EVENT_SOURCE], "detail-type": [NODES_WANTED_DETAIL_TYPE]},
        function=RECORDER.name,
    ),
    # An execution that someone stops, or that runs out of time, never reaches its own release.
    Rule(
        name="dead-executions",
        bus="default",
        event_pattern={
            "source": ["aws.states"],
            "detail-type": ["Step Functions Execution Status Change"],
            "detail": {"status": ["ABORTED", "FAILED", "TIMED_OUT"]},
        },
        function=RECORDER.name,
    ),
)

SCHEDULES: Final = (
    Schedule(name="reaper", rate_s=900, function=REAPER.name),
    # A minute is the shortest rate that EventBridge has.
    Schedule(name="refresh-cards", rate_s=60, function=NOTIFIER.name),
)

# Settings that only functions with one of these permissions read: long ones, because Lambda takes
# 4 KB of variables. Every function gets all others.
READERS: Final = {
    "cluster_role_arn": {P.CLUSTER_CREATE},
    "node_role_arn": {P.NODE_GROUP_CREATE},
    "relay_role_arn": {P.CLUSTER_CREATE},
    "saver_role_arn": {P.RESULTS_ACCESS},
    "stager_role_arn": {P.CLUSTER_CREATE},
    "metrics_role_arn": {P.CLUSTER_CREATE},
    "fsx_csi_role_arn": {P.ADDON_CREATE},
    "public_api": {P.CLUSTER_CREATE},
    "api_cidrs": {P.CLUSTER_CREATE},
    "functions_security_group_id": {P.CLUSTER_CREATE, P.KUBERNETES},
    "cluster_access_role_arns": {P.CLUSTER_CREATE, P.EXISTING_CLUSTERS_READ},
    "slack_secret_id": {P.SLACK_SECRET},
    "rules_file": {P.SLACK_SECRET},
    "hugging_face_secret_id": {P.HUGGING_FACE_SECRET},
    "file_systems": {P.EXISTING_FILE_SYSTEMS_READ},
    "reservations": {P.PREFLIGHT},
    "relay_secret_id": {P.RELAY_SECRET},
    "schedule_group": {P.CLOCK},
    "keep_clock_function_arn": {P.CLOCK},
    "scheduler_role_arn": {P.CLOCK},
}

ROUTES: Final = (
    Route(method="POST", path="/slack/events", function=BOT.name),
    # Where browsers install the app in another workspace.
    Route(method="GET", path="/slack/install", function=BOT.name),
    Route(method="GET", path="/slack/oauth_redirect", function=BOT.name),
)

# The notifier reads the table's stream: new events and new states, in order, one shard at a time.
# A batch that fails is halved until the record that fails is alone, and that one is a dead letter
# after an hour: Slack may be away for minutes, and one bad record must not delay the rest.
STREAM_CONSUMER: Final = NOTIFIER.name
# A batch costs what its runs cost, however many records each has: so none falls behind.
STREAM_BATCH_SIZE: Final = 1000
STREAM_RETRIES: Final = 50
STREAM_MAX_AGE_S: Final = 3600

# EventBridge and the scheduler hand their events to Lambda's own queue, so only the function's
# destination sees an event that was tried in vain; their own dead letter queues never do.
ASYNCHRONOUS: Final = frozenset(
    {rule.function for rule in RULES}
    | {schedule.function for schedule in SCHEDULES}
    | {KEEP_CLOCK.name}
)


# The queue for what functions of a package were given in vain.
DEAD_LETTERS: Final = {
    Package.LAMBDAS: DEAD_LETTER_QUEUES[0],
    Package.BOT: DEAD_LETTER_QUEUES[1],
}

# The synthesized state machines; a function's ARN stands in them as ${ensure-cluster} and so on.
MACHINES: Final = {name: f"lambdas/{name}.asl.json" for name in ("cluster", "train", "teardown")}

# The synthesized policies of every role.
POLICIES: Final = "lambdas/policies.json"


def variables_of(function: Function, variables: Mapping[str, str]) -> dict[str, str]:
    """Choose the settings' variables that the function reads; empty ones mean the same
    as absent.
    """
    unread = {
        PREFIX + name.upper()
        for name, readers in READERS.items()
        if not readers & function.permissions
    }
    return {name: value for name, value in variables.items() if value and name not in unread}


def get_function(name: str) -> Function:
    """Look a function up by name; an unknown name is a programming error."""
    return next(function for function in FUNCTIONS if function.name == name)
