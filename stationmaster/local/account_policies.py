"""Gives the roles of local mode's account the policies that a deployment would give them.

`lambdas/policies.json` has them as synthesized; its placeholders become the names of the local
account. A deployment's functions and state machines are called stationmaster-NAME, the local ones
NAME.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lambdas import registry
from stationmaster.local.aws import Deployment, LocalAws

_PLACEHOLDER = re.compile(r"\$\{([^}]+)\}")
_FUNCTION = re.compile(r"\w+/Functions/([a-z-]+?)(-logs)?\.Arn")
_QUEUE = re.compile(r"(\w+)/DeadLetters\.Arn")
_KEY: Final = "stationmaster"
# Roles besides those of functions: by their path in the stacks, the name that local mode gives.
ROLES: Final = {
    "workflow/ClusterRoles/Cluster": "cluster",
    "workflow/ClusterRoles/Nodes": "nodes",
    "workflow/ClusterRoles/Relay": "relay",
    "workflow/ClusterRoles/Saver": "saver",
    "workflow/ClusterRoles/Stager": "stager",
    "workflow/ClusterRoles/FsxCsi": "fsx-csi",
    "workflow/ClockRole": "scheduler",
}


def give_roles(
    aws: LocalAws, made: Deployment, *, text: str, deployment: str, table: str, bucket: str
) -> None:
    """Make a principal of each function's role and of each role of `ROLES`.

    `text` is that of `lambdas/policies.json`; the bus has the deployment's name.

    Raises:
        PolicyError: the policies name or ask for what local mode does not know.
    """
    key = aws.identities.account.arn(f"kms:key/{_KEY}")
    aws.identities.account.keys |= dict.fromkeys((table, bucket, "secretsmanager"), key)
    text = text.replace("${deployment}-", "")
    values = _values(aws, made, text, deployment=deployment, table=table, bucket=bucket)
    functions = {function.name for function in registry.FUNCTIONS}
    for path, role in json.loads(text).items():
        name = path.partition("/Roles/")[2]
        name = name if name in functions else ROLES.get(path, "")
        if name:
            arn = made.role_arns.get(name) or aws.identities.account.arn(
                f"iam:role/{deployment}-{name}"
            )
            aws.identities.add(name, role_arn=arn, role=role, values=values)


def committed_policies(repository: Path) -> str:
    """Return the text that `make generate` has written."""
    return (repository / registry.POLICIES).read_text()


def _values(
    aws: LocalAws, made: Deployment, text: str, *, deployment: str, table: str, bucket: str
) -> Mapping[str, str]:
    """Return what every placeholder of the text stands for; one that is not known stays out."""
    arn = aws.identities.account.arn
    known: dict[str, Any] = {
        "AWS::AccountId": aws.account_id,
        "AWS::Partition": "aws",
        "AWS::Region": aws.region,
        "deployment": deployment,
        # As the settings of local mode say: whatever a person has in this account.
        "dataset-bucket": "*",
        "eks-cluster": "*",
        "data/Artifacts.Arn": arn(f"s3:{bucket}"),
        "data/Bus.Arn": arn(f"events:event-bus/{deployment}"),
        "data/Key.Arn": arn(f"kms:key/{_KEY}"),
        "data/Table.Arn": arn(f"dynamodb:table/{table}"),
        "data/Table.StreamArn": arn(f"dynamodb:table/{table}/stream/1"),
        "data/SlackSecret": made.secret_arns["slack"],
        "data/HuggingFaceSecret": made.secret_arns["huggingface"],
        "data/RelaySecret": made.secret_arns["relay"],
        "network/Vpc": made.vpc_id,
        "network/FlowLogs.Arn": arn("logs:log-group:flow-logs"),
        **{f"{path}.Arn": made.role_arns[name] for path, name in ROLES.items()},
    }
    for name in set(_PLACEHOLDER.findall(text)) - set(known):
        if function := _FUNCTION.fullmatch(name):
            group = arn(f"logs:log-group:/aws/lambda/{function[1]}:*")
            known[name] = group if function[2] else aws.function_arn(function[1])
        elif queue := _QUEUE.fullmatch(name):
            known[name] = arn(f"sqs:{queue[1]}-dead-letters")
    return known
