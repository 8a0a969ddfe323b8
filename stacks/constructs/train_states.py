"""The train workflow: from a requested run to its release, whatever happens on the way.

Built by the workflow stack and by `stacks.generate`, which commits it as lambdas/train.asl.json.
Every failure goes through ConcludeFailure and ReleaseAfterFailure, so that no path keeps paying.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from aws_cdk import aws_stepfunctions_tasks as tasks
from constructs import Construct

from stacks.constructs.states import ANY_ERROR, ERROR, PASSING_ERRORS, RUN_ID, StepStates
from stationmaster.domain.names import SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP

COMMENT: Final = "Stationmaster: provision, validate, train, release"

# AwaitJob's limit comes from the run's plan (steps/prepare_run.py) and ends through its Catch, and
# so through a release. The machine's own limit cannot be caught, so it lies days above the longest
# wait and everything that the steps' limits add up to, and below the year that AWS allows.
MACHINE_LIMIT: Final = cdk.Duration.days(364)

# The relay reports every 20 s and the recorder passes that on as the heartbeat: 45 in a row missed.
HEARTBEAT_LIMIT: Final = cdk.Duration.minutes(15)


def train_states(scope: Construct, functions: Mapping[str, lambda_.IFunction]) -> sfn.IChainable:
    """The chain of the train workflow; `functions` by registry name."""
    states = StepStates(scope, functions)
    failure = _after_failure(scope, states)

    prepare = states.step("PrepareRun", "prepare-run", result_path="$")
    prepare.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    cluster = states.loop(
        "EnsureCluster",
        "ensure-cluster",
        subject="Cluster",
        question="ClusterReady?",
        every_s=30,  # a control plane takes 8 to 12 minutes
        catch=failure,
    )
    submit = states.step("SubmitJob", "submit-job")
    submit.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    started = states.loop(
        "EnsureJobStarted",
        "ensure-job-started",
        subject="JobStart",
        question="JobStarted?",
        every_s=5,
        catch=failure,
    )
    conclude = states.step("ConcludeRun", "conclude-run")
    conclude.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    release = states.step("ReleaseRun", "release-run")
    release.add_catch(failure, errors=ANY_ERROR, result_path="$.error")

    return (
        prepare.next(cluster)
        .next(_provision_capacity(scope, states, failure))
        .next(_for_each_plugin(scope, states, failure))
        .next(_for_each_check(scope, states, failure))
        .next(submit)
        .next(started)
        .next(_await_job(scope, functions["await-job"], failure))
        .next(conclude)
        .next(release)
        .next(sfn.Succeed(scope, "RunSucceeded"))
    )


def _provision_capacity(
    scope: Construct, states: StepStates, failure: sfn.IChainable
) -> sfn.Parallel:
    """Nodes and file system take 5 to 15 minutes each, so they are created side by side."""
    parallel = sfn.Parallel(scope, "ProvisionCapacity", result_path=sfn.JsonPath.DISCARD)
    for node_group in (SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP):
        subject = f"{node_group.capitalize()}Nodes"
        parallel.branch(
            states.loop(
                f"Ensure{subject}",
                "ensure-node-group",
                subject=subject,
                question=f"{subject}Ready?",
                every_s=15,
                payload={**RUN_ID, "node_group": node_group},
            ).next(sfn.Succeed(scope, f"{subject}Provisioned"))
        )
    parallel.branch(
        states.loop(
            "EnsureFileSystem",
            "ensure-file-system",
            subject="FileSystem",
            question="FileSystemReady?",
            every_s=15,
        ).next(sfn.Succeed(scope, "FileSystemProvisioned"))
    )
    parallel.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    return parallel


def _for_each_plugin(scope: Construct, states: StepStates, failure: sfn.IChainable) -> sfn.Map:
    item = {"plugin": sfn.JsonPath.string_at("$.plugin")}
    plugins = _map(scope, "InstallPlugins", items="$.plugins", item_name="plugin")
    plugins.item_processor(
        states.loop(
            "InstallPlugin",
            "install-plugin",
            subject="Plugin",
            question="PluginReady?",
            every_s=10,
            payload={**RUN_ID, **item},
        ).next(sfn.Succeed(scope, "PluginInstalled"))
    )
    plugins.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    return plugins


def _for_each_check(scope: Construct, states: StepStates, failure: sfn.IChainable) -> sfn.Map:
    item = {"check": sfn.JsonPath.string_at("$.check")}
    checks = _map(scope, "Validate", items="$.checks", item_name="check")
    checks.item_processor(
        states.loop(
            "RunCheck",
            "run-check",
            subject="Check",
            question="CheckPassed?",
            every_s=10,
            payload={**RUN_ID, **item},
        ).next(sfn.Succeed(scope, "CheckDone"))
    )
    checks.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    return checks


def _map(scope: Construct, name: str, *, items: str, item_name: str) -> sfn.Map:
    """A map over a list of names; the list is short, so all of it runs at once."""
    return sfn.Map(
        scope,
        name,
        items_path=items,
        item_selector={**RUN_ID, item_name: sfn.JsonPath.string_at("$$.Map.Item.Value")},
        result_path=sfn.JsonPath.DISCARD,
    )


def _await_job(
    scope: Construct, function: lambda_.IFunction, failure: sfn.IChainable
) -> tasks.LambdaInvoke:
    """Hand out a task token and wait until the recorder resolves it.

    Only a call that failed is made again; it stores a new token over the old one. Silence is not
    retried: without the relay neither loss nor the job's end nor a stop can be seen, and waiting
    another quarter of an hour would pay for a cluster that nobody watches.
    """
    task = tasks.LambdaInvoke(
        scope,
        "AwaitJob",
        lambda_function=function,
        integration_pattern=sfn.IntegrationPattern.WAIT_FOR_TASK_TOKEN,
        payload=sfn.TaskInput.from_object({**RUN_ID, "task_token": sfn.JsonPath.task_token}),
        retry_on_service_exceptions=False,
        heartbeat_timeout=sfn.Timeout.duration(HEARTBEAT_LIMIT),
        task_timeout=sfn.Timeout.at("$.await_limit_s"),
        result_path=sfn.JsonPath.DISCARD,
    )
    task.add_retry(
        errors=PASSING_ERRORS,
        interval=cdk.Duration.seconds(2),
        backoff_rate=2,
        max_attempts=6,
        max_delay=cdk.Duration.seconds(60),
        jitter_strategy=sfn.JitterType.FULL,
    )
    task.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    return task


def _after_failure(scope: Construct, states: StepStates) -> sfn.IChainable:
    """Record how the run ended, release it, and end the execution accordingly."""
    outcome = (
        sfn.Choice(scope, "RunOutcome")
        .when(
            sfn.Condition.string_equals("$.conclusion.outcome", "stopped"),
            sfn.Succeed(scope, "RunStopped"),
        )
        # The run had been concluded as a success, and only confirming or releasing it failed.
        .when(
            sfn.Condition.string_equals("$.conclusion.outcome", "succeeded"),
            sfn.Succeed(scope, "RunReleasedLate"),
        )
        .otherwise(
            # A name of our own: a caught States.* name is reserved and not accepted here.
            sfn.Fail(scope, "RunFailed", error="RunFailed", cause_path="$.error.Cause")
        )
    )
    conclude = states.last_resort(
        "ConcludeFailure",
        "conclude-run",
        payload={**RUN_ID, **ERROR},
        result_path="$.conclusion",
    )
    release = states.last_resort("ReleaseAfterFailure", "release-run", payload=RUN_ID)
    return conclude.next(release).next(outcome)
