"""What local mode deploys of the product: everything that `lambdas.registry` lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lambdas import registry
from stationmaster.aws.table import table_definition
from stationmaster.local.aws import DeploymentSpec, FunctionSpec, StreamSpec


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
