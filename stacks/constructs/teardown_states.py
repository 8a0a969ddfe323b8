"""The teardown workflow: delete a cluster in dependency order, and prove that it is gone.

Committed as lambdas/teardown.asl.json. A deletion that fails does not stop the next one: whatever
can still be deleted costs nothing from then on, and VerifyReleased, which lists what is tagged with
the cluster, decides whether the teardown succeeded. Where the results of a run are not saved, what
is needed to save them stays. Training nodes go first, and wait for nothing but the last checkpoint
of such a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from stacks.constructs.states import ANY_ERROR, CLUSTER_ID, ERROR, NOTHING_MORE, TURN, StepStates
from stationmaster.domain.errors import ResultsHeld
from stationmaster.domain.names import SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP

COMMENT: Final = "Stationmaster: delete a cluster, and prove that it is gone"

# Seven stretches of an hour each at most, by the steps' own limits; twice that cannot be reached.
MACHINE_LIMIT: Final = cdk.Duration.hours(12)


def teardown_states(scope: Construct, functions: Mapping[str, lambda_.IFunction]) -> sfn.IChainable:
    """Chain the states of the teardown workflow; `functions` by registry name."""
    states = StepStates(scope, functions, owner=CLUSTER_ID)
    failure = states.last_resort("ConcludeTeardownFailed", "conclude-teardown", payload=ERROR)
    failure.next(states.failed("TeardownFailed", "$.error"))

    # From the last to the first: each stretch's Catch names the one after it.
    verify = _verify(scope, states, failure)
    network = _release(states, "Network", catch=verify, error="network").next(verify)
    # The cluster holds the network's security group in use.
    cluster = _release(states, "Cluster", every_s=30, catch=network, error="cluster").next(network)
    system_nodes = _release_system_nodes(states, cluster, failure)
    parts = _release_training_nodes_and_file_system(scope, states).next(system_nodes)
    # A refusal to begin (the cluster is not known) must not delete anything. What may still create
    # is waited for, so that nothing appears behind the deletion's back.
    return states.loop(
        "BeginTeardown",
        subject="ClusterWorkflow",
        question="ClusterWorkflowOver?",
        every_s=10,
        catch=failure,
    ).next(parts)


def _release(
    states: StepStates,
    what: str,
    function: str = "",
    *,
    every_s: int = 15,
    payload: Mapping[str, Any] = NOTHING_MORE,
    catch: sfn.IChainable,
    error: str = "",
) -> sfn.Chain:
    """Delete one part of the cluster; `error` names what was caught where the next step sees it."""
    return states.loop(
        f"Release{what}",
        function,
        subject=f"{what}Release",
        question=f"{what}Released?",
        every_s=every_s,
        payload=payload,
        catch=catch,
        error_path=f"$.{error}_error" if error else "$.error",
    )


def _verify(scope: Construct, states: StepStates, failure: sfn.IChainable) -> sfn.Chain:
    """List what is tagged with the cluster until nothing is left, and only then say so."""
    conclude = states.step("ConcludeTeardown", "conclude-teardown")
    conclude.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    conclude.next(sfn.Succeed(scope, "TornDown"))
    return states.loop(
        "VerifyReleased", subject="Release", question="Released?", every_s=30, catch=failure
    ).next(conclude)


def _release_training_nodes_and_file_system(scope: Construct, states: StepStates) -> sfn.Parallel:
    """Delete the training nodes at once; beside them the jobs, and then the file system.

    Training nodes are the dearest part, and nothing that is saved needs them. The file system goes
    after the pods that mount it. A Parallel stops its other branches when one fails, so each branch
    ends well whatever happens to it.
    """
    training = _release(
        states,
        "TrainingNodes",
        "release-node-group",
        payload={"node_group": TRAINING_NODE_GROUP},
        catch=sfn.Succeed(scope, "TrainingNodesLeftToVerification"),
    ).next(sfn.Succeed(scope, "TrainingNodesGone"))
    left = sfn.Succeed(scope, "FileSystemLeftToVerification")
    file_system = _release(states, "FileSystem", catch=left)
    file_system = file_system.next(sfn.Succeed(scope, "FileSystemGone"))
    job = _release(states, "Job", every_s=10, catch=file_system, error="job").next(file_system)
    parallel = sfn.Parallel(scope, "ReleaseNodesAndFileSystem", result_path=sfn.JsonPath.DISCARD)
    return parallel.branch(training).branch(job)


def _release_system_nodes(
    states: StepStates, cluster: sfn.IChainable, failure: sfn.IChainable
) -> sfn.Chain:
    """Delete the system nodes; where results are held, nothing more is deleted this time."""
    task = states.step(
        "ReleaseSystemNodes",
        "release-node-group",
        payload={"node_group": SYSTEM_NODE_GROUP, **TURN},
        result_path="$.step",
    )
    task.add_catch(failure, errors=[ResultsHeld.__name__], result_path="$.error")
    task.add_catch(cluster, errors=ANY_ERROR, result_path="$.system_nodes_error")
    return states.around(
        task,
        subject="SystemNodesRelease",
        question="SystemNodesReleased?",
        every_s=15,
    ).next(cluster)
