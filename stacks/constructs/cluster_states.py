"""The cluster workflow: from a requested cluster to one that is ready, or has failed and says why.

Built by the workflow stack and by `stacks.generate`, which commits it as lambdas/cluster.asl.json.
Every end goes through a conclusion, which also ends the wait of the runs that lease the cluster. It
releases nothing: the cluster is released when its last lease is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from stacks.constructs.states import ANY_ERROR, CLUSTER_ID, ERROR, StepStates
from stationmaster.domain.names import SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP

COMMENT: Final = "Stationmaster: provision a cluster, install its plugins, and check it"

# Four stretches of an hour each at most, by the steps' own limits; thrice that cannot be reached.
MACHINE_LIMIT: Final = cdk.Duration.hours(12)


def cluster_states(scope: Construct, functions: Mapping[str, lambda_.IFunction]) -> sfn.IChainable:
    """The chain of the cluster workflow; `functions` by registry name."""
    states = StepStates(scope, functions, owner=CLUSTER_ID)
    failure = _after_failure(scope, states)

    prepare = states.step("PrepareCluster", "prepare-cluster", result_path="$")
    prepare.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    control_plane = states.loop(
        "EnsureCluster",
        "ensure-cluster",
        subject="Cluster",
        question="ClusterReady?",
        every_s=30,  # a control plane takes 8 to 12 minutes
        catch=failure,
    )
    conclude = states.step("ConcludeCluster", "conclude-cluster")
    conclude.add_catch(failure, errors=ANY_ERROR, result_path="$.error")

    return (
        prepare.next(control_plane)
        .next(_provision_capacity(scope, states, failure))
        .next(_for_each_plugin(scope, states, failure))
        .next(_for_each_check(scope, states, failure))
        .next(conclude)
        .next(sfn.Succeed(scope, "ClusterConcluded"))
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
                payload={"node_group": node_group},
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
            payload=item,
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
            payload=item,
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
        item_selector={**CLUSTER_ID, item_name: sfn.JsonPath.string_at("$$.Map.Item.Value")},
        result_path=sfn.JsonPath.DISCARD,
    )


def _after_failure(scope: Construct, states: StepStates) -> sfn.IChainable:
    """Record how it ended, tell the runs that wait, and end the execution accordingly."""
    conclude = states.last_resort(
        "ConcludeFailure", "conclude-cluster", payload=ERROR, result_path="$.conclusion"
    )
    outcome = (
        sfn.Choice(scope, "ClusterOutcome")
        .when(
            sfn.Condition.string_equals("$.conclusion.outcome", "failed"),
            # A name of our own: a caught States.* name is reserved and not accepted here.
            sfn.Fail(scope, "ClusterFailed", error="ClusterFailed", cause_path="$.error.Cause"),
        )
        # Nobody leased it any more, or it had been concluded as ready and only the answer was lost.
        .otherwise(sfn.Succeed(scope, "ClusterConcludedBefore"))
    )
    return conclude.next(outcome)
