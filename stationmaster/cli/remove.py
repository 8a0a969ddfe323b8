"""The end of a deployment: `stationmaster drain` and `stationmaster remove`.

The first takes no new starts and says what is open. The second says what is in the way of removing
it and what stays, and deletes its stacks; what holds results and history is left to a person.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from botocore.exceptions import ClientError

from stationmaster.aws.calls import aws_call, listed, make_client
from stationmaster.cli.deployed import bot_settings
from stationmaster.domain.errors import BadCommand, PermanentError
from stationmaster.domain.names import TAG_CLUSTER_ID, TAG_DEPLOYMENT
from stationmaster.services import Services

_MOST_SHOWN: Final = 20
# Each one needs those after it.
_STACKS: Final = ("observability", "bot", "workflow", "images", "network", "data")
# By the service in their ARNs: what stays when the stacks are deleted, and what deletes it.
_STAYS: Final = {
    "dynamodb": "aws dynamodb update-table --table-name {0} --no-deletion-protection-enabled; "
    "aws dynamodb delete-table --table-name {0}",
    "s3": "aws s3api delete-bucket --bucket {0}   # empty it first, old versions included",
    "secretsmanager": "aws secretsmanager delete-secret --secret-id {1}",
    "kms": "aws kms schedule-key-deletion --key-id {0}   # last: without it nothing above is read",
}


def remove(arguments: argparse.Namespace) -> int:
    """List, or delete the stacks; 1 where something is in the way.

    Raises:
        BadCommand: the deployment's name was not typed again.
    """
    name = arguments.deployment
    tagged = _tagged(name)
    in_the_way = [*_open(name), *(arn for arn, tags in tagged.items() if TAG_CLUSTER_ID in tags)]
    stacks = [each for each in (f"{name}-{part}" for part in _STACKS) if _exists(each)]
    for what, found in (
        ("in the way", in_the_way),
        ("stacks that are deleted, with logs and images", stacks),
        ("stays, until you type", _stays(tagged)),
    ):
        print("\n".join([f"{what}:", *(f"  {each}" for each in found or ["nothing"])]))
    if arguments.dry_run or in_the_way:
        if in_the_way:
            print(f"stop the runs and delete the clusters first; {len(in_the_way)} are in the way")
        return 1 if in_the_way else 0
    if arguments.yes != name:
        raise BadCommand(f"nothing was deleted; to delete the stacks, add --yes {name}")
    client = make_client("cloudformation", region=None)
    for stack in stacks:
        print(f"deleting {stack} ...", flush=True)
        with aws_call(f"deleting stack {stack}"):
            client.delete_stack(StackName=stack)
            # Lambda's interfaces in a network keep their group for up to 40 minutes.
            waiter = client.get_waiter("stack_delete_complete")
            waiter.wait(StackName=stack, WaiterConfig={"Delay": 15, "MaxAttempts": 240})
    print("done; the app in Slack and the CDK's own stack CDKToolkit stay as well")
    return 0


def _tagged(deployment: str) -> dict[str, set[str]]:
    """List what carries the deployment's tag: the keys of all tags, by ARN."""
    client = make_client("resourcegroupstaggingapi", region=None)
    filters: Any = [{"Key": TAG_DEPLOYMENT, "Values": [deployment]}]
    what = f"listing what carries the tag of {deployment}"
    found = listed(client, "get_resources", "ResourceTagMappingList", what, TagFilters=filters)
    return {each["ResourceARN"]: {tag["Key"] for tag in each["Tags"]} for each in found}


def _open(deployment: str) -> list[str]:
    try:
        settings = bot_settings(argparse.Namespace(deployment=deployment))
    except PermanentError as exc:
        # Without its stacks there is no run either; somebody's role that may not look is no answer.
        if _exists(f"{deployment}-bot"):
            raise
        print(f"runs are not looked for: {exc}")
        return []
    return open_names(Services(settings))


def _exists(stack: str) -> bool:
    client = make_client("cloudformation", region=None)
    with aws_call(f"looking for stack {stack}"):
        try:
            client.describe_stacks(StackName=stack)
        except ClientError as exc:
            if "does not exist" in str(exc):
                return False
            raise
    return True


def _stays(tagged: dict[str, set[str]]) -> list[str]:
    kept = []
    for service, command in _STAYS.items():
        for arn in sorted(tagged):
            if arn.split(":")[2] == service and TAG_CLUSTER_ID not in tagged[arn]:
                kept.append(command.format(arn.rpartition("/")[2].rpartition(":")[2], arn))
    return kept


def drain(arguments: argparse.Namespace) -> int:
    """Switch it on or off, or look; 0 where nothing is open or starts are taken, else 1."""
    reason = arguments.reason.strip()
    if not (reason.isprintable() and 0 < len(reason) <= 200):
        raise BadCommand(f'--reason "{reason[:40]}": expected a sentence of 1 to 200 characters')
    services = Services(bot_settings(arguments))
    if arguments.switch == "on":
        services.guard.drain(reason, at=services.now())
    elif arguments.switch == "off":
        services.guard.undrain()
    drained = services.guard.drained()
    if drained is None:
        print("starts are taken")
        return 0
    since, why = drained
    print(f"no new starts since {since:%Y-%m-%d %H:%M} UTC: {why}")
    left = open_names(services)
    print("\n".join([*left[:_MOST_SHOWN], f"{len(left) or 'nothing'} is open"]))
    return 1 if left else 0


def open_names(services: Services) -> list[str]:
    """List the runs and clusters that have not ended, as a person names them."""
    clusters = services.cluster_states.list_open()
    return [
        *(f"run {run.run_id}: {run.phase.value}" for run in services.runs.list_open()),
        *(f"cluster {each.label}: {each.phase.value}" for each in clusters),
    ]
