"""The cluster workflow: from a requested cluster to one that is ready, or has failed and says why.

Committed as lambdas/cluster.asl.json. Every end goes through a conclusion, which also ends the wait
of the runs that lease the cluster. It releases nothing: the cluster is released with its last
lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from stacks.constructs.states import ANY_ERROR, CLUSTER_ID, ERROR, StepStates
from stationmaster.domain.errors import NodesToReplace, ZoneChanged
from stationmaster.domain.names import SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP

COMMENT: Final = "Stationmaster: provision a cluster, install its plugins, and check it"

# Four stretches of an hour each at most, by the steps' own limits, an hour more for each further
# zone in which AWS has no nodes (a deployment has six at most), and for two replacements of nodes.
MACHINE_LIMIT: Final = cdk.Duration.hours(12)


# Which pass over the cluster it is: the first makes it, further ones check or resize it.
PASS: Final[Mapping[str, Any]] = {"pass_number": sfn.JsonPath.number_at("$.pass_number")}


def cluster_states(scope: Construct, functions: Mapping[str, lambda_.IFunction]) -> sfn.IChainable:
    """Chain the states of the cluster workflow; `functions` by registry name."""
    states = StepStates(scope, functions, owner=CLUSTER_ID)
    failure = _after_failure(scope, states)

    prepare = states.step("PrepareCluster", "prepare-cluster", payload=PASS, result_path="$")
    prepare.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    # A control plane takes 8 to 12 minutes.
    control_plane = states.loop("EnsureCluster", subject="Cluster", every_s=30, catch=failure)
    plugin = {"plugin": sfn.JsonPath.string_at("$.plugin")}
    install = states.loop("InstallPlugin", subject="Plugin", every_s=10, payload=plugin)
    plugins = _for_each(scope, "InstallPlugins", install, item="plugin", last="PluginInstalled")
    plugins.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    name = {"check": sfn.JsonPath.string_at("$.check")}
    check = states.loop(
        "RunCheck", subject="Check", question="CheckPassed?", every_s=10, payload=name
    )
    checks = _for_each(scope, "Validate", check, item="check", last="CheckDone")
    checks.add_catch(
        _replace_nodes(states, failure).next(checks),
        errors=[NodesToReplace.__name__],
        result_path=sfn.JsonPath.DISCARD,
    )
    checks.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    conclude = states.step("ConcludeCluster", "conclude-cluster", payload=PASS)
    conclude.add_catch(failure, errors=ANY_ERROR, result_path="$.error")

    return (
        prepare.next(control_plane)
        .next(_provision_capacity(scope, states, failure))
        .next(plugins)
        .next(checks)
        .next(conclude)
        .next(sfn.Succeed(scope, "ClusterConcluded"))
    )


def _provision_capacity(
    scope: Construct, states: StepStates, failure: sfn.IChainable
) -> sfn.Parallel:
    """Make nodes and file system side by side: each takes 5 to 15 minutes.

    Where FSx has no storage in a zone that has the nodes already, all steps are called again.
    """
    parallel = sfn.Parallel(scope, "ProvisionCapacity", result_path=sfn.JsonPath.DISCARD)
    for node_group in (SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP):
        subject = f"{node_group.capitalize()}Nodes"
        parallel.branch(
            states.loop(
                f"Ensure{subject}",
                "ensure-node-group",
                subject=subject,
                every_s=15,
                payload={"node_group": node_group},
            ).next(sfn.Succeed(scope, f"{subject}Provisioned"))
        )
    file_system = states.loop("EnsureFileSystem", subject="FileSystem", every_s=15)
    parallel.branch(file_system.next(sfn.Succeed(scope, "FileSystemProvisioned")))
    again = sfn.Wait(scope, "WaitForNextZone", time=sfn.WaitTime.duration(cdk.Duration.seconds(15)))
    again.next(parallel)
    parallel.add_catch(again, errors=[ZoneChanged.__name__], result_path=sfn.JsonPath.DISCARD)
    parallel.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    return parallel


def _replace_nodes(states: StepStates, failure: sfn.IChainable) -> sfn.Chain:
    """Bring other nodes for those that failed a check; then all checks begin anew."""
    return states.loop(
        "ReplaceNodes",
        "ensure-node-group",
        subject="OtherNodes",
        question="NodesReplaced?",
        every_s=15,
        payload={"node_group": TRAINING_NODE_GROUP},
        catch=failure,
    )


def _for_each(scope: Construct, name: str, loop: sfn.Chain, *, item: str, last: str) -> sfn.Map:
    """Run `loop` for each name of the short list `$.<item>s`, all at once."""
    each = sfn.Map(
        scope,
        name,
        items_path=f"$.{item}s",
        item_selector={**CLUSTER_ID, item: sfn.JsonPath.string_at("$$.Map.Item.Value")},
        result_path=sfn.JsonPath.DISCARD,
    )
    each.item_processor(loop.next(sfn.Succeed(scope, last)))
    return each


def _after_failure(scope: Construct, states: StepStates) -> sfn.IChainable:
    """Record how it ended, resume the runs that wait, and end by its name."""
    conclude = states.last_resort(
        "ConcludeFailure", "conclude-cluster", payload={**PASS, **ERROR}, result_path="$.conclusion"
    )
    outcome = (
        sfn.Choice(scope, "ClusterOutcome")
        .when(
            sfn.Condition.string_equals("$.conclusion.outcome", "failed"),
            # All is recorded: no crash, so no failed execution and no alarm.
            sfn.Succeed(scope, "ClusterFailed"),
        )
        # Nobody leased it any more, or it had been concluded as ready and only the answer was lost.
        .otherwise(sfn.Succeed(scope, "ClusterConcludedBefore"))
    )
    return conclude.next(outcome)
