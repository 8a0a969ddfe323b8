"""What local mode deploys of the product, everything that `lambdas.registry` lists, and the
policies that its roles get, as a deployment would give them.

`lambdas/policies.json` has these as synthesized; its placeholders become the names of the local
account. A deployment's functions and state machines are called stationmaster-NAME, the local ones
NAME.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lambdas import registry
from stationmaster.aws.table import table_definition
from stationmaster.local.aws import Deployment, DeploymentSpec, FunctionSpec, LocalAws, StreamSpec


def product(
    environment: Mapping[str, str], *, deployment: str, artifacts_bucket: str, repository: Path
) -> DeploymentSpec:
    """Return what is deployed, by `lambdas.registry`; functions get their variables."""
    return DeploymentSpec(
        tables=[table_definition(deployment)],
        buckets=[artifacts_bucket],
        buses=[deployment],
        schedule_groups=[deployment],
        queues=[f"{deployment}-{queue}" for queue in registry.DEAD_LETTERS.values()],
        functions=[
            FunctionSpec(
                name=function.name,
                handler=function.handler,
                timeout_s=function.timeout_s,
                environment=registry.variables_of(function, environment),
                on_failure=_dead_letters(deployment, function.name)
                if function.name in registry.ASYNCHRONOUS
                else "",
            )
            for function in registry.FUNCTIONS
        ],
        state_machines={
            name: (repository / path).read_text() for name, path in registry.MACHINES.items()
        },
        rules=[
            replace(rule, bus=deployment if rule.bus == "product" else rule.bus)
            for rule in registry.RULES
        ],
        schedules=registry.SCHEDULES,
        streams=[
            StreamSpec(
                table=deployment,
                function=registry.STREAM_CONSUMER,
                batch_size=registry.STREAM_BATCH_SIZE,
                max_retry_attempts=registry.STREAM_RETRIES,
                max_record_age_s=registry.STREAM_MAX_AGE_S,
                bisect_batch=True,
                on_failure=_dead_letters(deployment, registry.STREAM_CONSUMER),
            )
        ],
        routes=registry.ROUTES,
    )


def _dead_letters(deployment: str, function: str) -> str:
    return f"{deployment}-{registry.DEAD_LETTERS[registry.get_function(function).package]}"


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
