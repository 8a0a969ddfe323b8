"""Runs in which AWS refuses calls of the happy path: once with a throttle, or for good.

The refusals are made by run: the local mode's own calls, and other runs', go through.
"""

from __future__ import annotations

from collections.abc import Iterable

from workflow_scenarios import Scenario, simple

from bench.sweeps.rules import ApiFault, Fault
from bench.sweeps.world import World
from stationmaster.aws.kinds import actions_by_module


def operations(actions: Iterable[str]) -> set[tuple[str, str]]:
    """The calls behind IAM actions; tags are part of the call that creates."""
    calls = {action.partition(":")[::2] for action in actions}
    return {call for call in calls if call[1] != "TagResource"}


KINDS = actions_by_module().values()
# Every operation that the functions of a run call from its request to its receipt; a test compares
# this list with the calls of a run that nothing disturbed. A run that creates none of a kind, such
# as a placement group, only lists it.
OPERATIONS = [
    ("dynamodb", "GetItem"),
    ("dynamodb", "PutItem"),
    ("dynamodb", "TransactWriteItems"),
    ("eks", "AssociateAccessPolicy"),
    ("eks", "CreateAccessEntry"),
    ("eks", "CreateAddon"),
    ("eks", "CreateCluster"),
    ("eks", "CreateNodegroup"),
    ("eks", "CreatePodIdentityAssociation"),
    ("eks", "DeleteCluster"),
    ("eks", "DeleteNodegroup"),
    ("eks", "DescribeAddon"),
    ("eks", "DescribeCluster"),
    ("eks", "DescribeNodegroup"),
    ("eks", "ListNodegroups"),
    ("events", "PutEvents"),
    ("s3", "GetObject"),
    ("secretsmanager", "GetSecretValue"),
    ("stepfunctions", "DescribeExecution"),
    ("stepfunctions", "SendTaskSuccess"),
    ("stepfunctions", "StartExecution"),
    *sorted(operations(a for k in KINDS for a in (*k.create, *k.change, *k.read, *k.delete))),
]
# Called only when a batch of the relay meets a wait that it cannot resolve: not in every run.
OCCASIONAL = {("stepfunctions", "SendTaskHeartbeat")}

# One or two of each kind: the request of each dear thing, its deletion, a look, the table, the bus
# and the workflows. All of them would take minutes. SendTaskSuccess could not be among them:
# without it the wait for the job ends with its heartbeat, a quarter of an hour later.
REFUSED = [
    ("dynamodb", "TransactWriteItems"),
    ("ec2", "CreateSecurityGroup"),
    ("eks", "CreateCluster"),
    ("eks", "CreateNodegroup"),
    ("eks", "DeleteCluster"),
    ("eks", "DescribeCluster"),
    ("events", "PutEvents"),
    ("fsx", "CreateFileSystem"),
    ("fsx", "DeleteFileSystem"),
    ("stepfunctions", "StartExecution"),
]

# A state machine makes 6 further attempts at a step: no run may meet more throttles in one step.
NUM_THROTTLED_RUNS = 6
UNDISTURBED = "api: none refused"
_THROTTLES = {
    "ec2": "RequestLimitExceeded",
    "s3": "SlowDown",
    "dynamodb": "ProvisionedThroughputExceededException",
}


def throttled_name(part: int) -> str:
    """Name of one of the runs that share the throttles."""
    return f"api: throttled {part}"


def refused_name(service: str, operation: str) -> str:
    """Name of the run in which an operation is refused for good."""
    return f"api: {service} {operation} refused"


def api_scenarios() -> list[Scenario]:
    """The runs with throttles, the runs with refusals, and one with neither."""
    throttled = [
        simple(
            throttled_name(part),
            *(
                ApiFault(service, operation, _THROTTLES.get(service, "ThrottlingException"), 1)
                for service, operation in OPERATIONS[part::NUM_THROTTLED_RUNS]
            ),
        )
        for part in range(NUM_THROTTLED_RUNS)
    ]
    refused = [_refused(service, operation) for service, operation in REFUSED]
    return [simple(UNDISTURBED), *throttled, *refused]


def _refused(service: str, operation: str) -> Scenario:
    code = "UnauthorizedOperation" if service == "ec2" else "AccessDeniedException"

    def play(world: World, name: str) -> str:
        # What the teardown meets needs no training before it.
        early = [Fault("install-plugin")] if operation.startswith("Delete") else []
        run_id = world.request(name, ApiFault(service, operation, code), *early)
        world.until_still(run_id)
        return run_id

    return Scenario(refused_name(service, operation), play)
