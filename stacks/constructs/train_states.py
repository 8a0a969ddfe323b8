"""The train workflow: from a requested run to the release of its lease, whatever happens.

Committed as lambdas/train.asl.json. Every failure goes through SaveAfterFailure, PushAfterFailure,
ConcludeFailure, ReleaseRunAfterFailure and ReleaseAfterFailure, so that no path keeps paying; only
a run that succeeded has something to push. What cannot be saved ends the execution without a
release: another one, started by a person or by the reaper, finds the run in phase saving and comes
to SaveAfterFailure as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from stacks.constructs.states import ANY_ERROR, ERROR, NOTHING_MORE, RUN_ID, StepStates

COMMENT: Final = "Stationmaster: get a cluster, train there, save the results, release it"

# AwaitJob's limit comes from the run's plan (steps/prepare_run.py) and ends through its Catch, and
# so through a release. The machine's own limit cannot be caught, so it lies days above the longest
# waits (for nodes and for the job) and all that the steps' limits add up to, and below the year
# that AWS allows.
MACHINE_LIMIT: Final = cdk.Duration.days(364)

# The relay reports every 20 s and the recorder passes that on as the heartbeat: 45 in a row missed.
HEARTBEAT_LIMIT: Final = cdk.Duration.minutes(15)

# A run in a queue waits for as long as others train, and training takes weeks; one with a capacity
# block waits for its start, which AWS sells eight weeks ahead. It costs nothing meanwhile, and
# people see what it waits for and can stop it. A cluster's own workflow ends by its steps' limits,
# or by its own, within hours; this is the guard behind both.
CLUSTER_LIMIT: Final = cdk.Duration.days(60)


def train_states(scope: Construct, functions: Mapping[str, lambda_.IFunction]) -> sfn.IChainable:
    """Chain the states of the train workflow; `functions` by registry name."""
    states = StepStates(scope, functions, owner=RUN_ID)
    unsaved = _leave_unsaved(scope, states)
    failure = _after_failure(scope, states, unsaved)

    prepare = states.step("PrepareRun", "prepare-run", result_path="$")
    prepare.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    acquire = states.wait_for_token(
        "AcquireCluster",
        "acquire-cluster",
        limit=sfn.Timeout.duration(CLUSTER_LIMIT),
        catch=failure,
    )
    stage = states.loop(
        "StageData",
        "stage-data",
        subject="Data",
        question="DataStaged?",
        every_s=10,
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
    # Silence is not retried: without the relay neither loss nor the job's end nor a stop can be
    # seen, and waiting another quarter of an hour would pay for a cluster that nobody watches.
    await_job = states.wait_for_token(
        "AwaitJob",
        "await-job",
        limit=sfn.Timeout.at("$.await_limit_s"),
        heartbeat=sfn.Timeout.duration(HEARTBEAT_LIMIT),
        catch=failure,
    )
    save = _save(states, "SaveResults", "VerifyResults", subject="Saving", unsaved=unsaved)
    conclude = states.step("ConcludeRun", "conclude-run")
    conclude.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    push = _push(states, "PushResults", subject="Push", instead=conclude)
    leave = _leave(states, "ReleaseRun", "RunRelease", "RunReleased?", catch=failure)
    release = states.step("ReleaseLease", "release-lease")
    release.add_catch(failure, errors=ANY_ERROR, result_path="$.error")
    # What prepare-run knows spares a plain run three calls that would only answer "ready".
    stage = states.unless("BringsData", "$.brings_data", stage, instead=submit)
    push = states.unless("PushesModel", "$.pushes_model", push, instead=conclude)
    leave = states.unless("LeavesCluster", "$.leaves_cluster", leave, instead=release)

    return (
        prepare.next(acquire)
        .next(stage)
        .next(submit)
        .next(started)
        .next(await_job)
        .next(save)
        .next(push)
        .next(conclude)
        .next(leave)
        .next(release)
        .next(sfn.Succeed(scope, "RunSucceeded"))
    )


def _save(
    states: StepStates,
    save: str,
    verify: str,
    *,
    subject: str,
    unsaved: sfn.IChainable,
    payload: Mapping[str, Any] = NOTHING_MORE,
) -> sfn.Chain:
    """Bring what the run leaves to the bucket, and compare the bucket with its manifest."""
    check = states.step(verify, "verify-results")
    check.add_catch(unsaved, errors=ANY_ERROR, result_path="$.saving_error")
    return states.loop(
        save,
        "save-results",
        subject=subject,
        question=f"{subject}Done?",
        every_s=10,
        payload=payload,
        catch=unsaved,
        error_path="$.saving_error",
    ).next(check)


def _push(states: StepStates, name: str, *, subject: str, instead: sfn.IChainable) -> sfn.Chain:
    """Push the model to the hub, where that was asked for; what goes wrong fails nothing."""
    return states.loop(
        name,
        "push",
        subject=subject,
        question=f"{subject}Over?",
        every_s=10,
        catch=instead,
        error_path="$.push_error",
    )


def _leave_unsaved(scope: Construct, states: StepStates) -> sfn.IChainable:
    """Record why nothing is saved, and end without a release: the file system has to stay."""
    error = {"error": sfn.JsonPath.object_at("$.saving_error")}
    leave = states.last_resort("LeaveUnsaved", "leave-unsaved", payload=error)
    return leave.next(states.failed("RunNotSaved", "$.saving_error"))


def _after_failure(scope: Construct, states: StepStates, unsaved: sfn.IChainable) -> sfn.IChainable:
    """Save what there is, record how the run ended, release it, and end by its name."""
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
        # All is recorded and released: no crash, so no failed execution and no alarm.
        .otherwise(sfn.Succeed(scope, "RunFailed"))
    )
    conclude = states.last_resort(
        "ConcludeFailure",
        "conclude-run",
        payload=ERROR,
        result_path="$.conclusion",
    )
    release = states.last_resort("ReleaseAfterFailure", "release-lease")
    leave = _leave(
        states,
        "ReleaseRunAfterFailure",
        "RunReleaseAfterFailure",
        "RunReleasedAfterFailure?",
        catch=release,
        error_path="$.release_error",
    )
    release.next(outcome)
    save = _save(
        states,
        "SaveAfterFailure",
        "VerifyAfterFailure",
        subject="LateSaving",
        unsaved=unsaved,
        payload=ERROR,
    )
    # A run that succeeded may have been saved late.
    push = _push(states, "PushAfterFailure", subject="LatePush", instead=conclude)
    push = states.unless("PushesModelLate", "$.pushes_model", push, instead=conclude)
    leave = states.unless("LeavesClusterLate", "$.leaves_cluster", leave, instead=release)
    # A job that began to train after save-results had found nothing to save is saved after all.
    concluded = (
        sfn.Choice(scope, "TrainedMeanwhile")
        .when(sfn.Condition.string_equals("$.conclusion.outcome", "saving"), save)
        .otherwise(leave.next(release))
    )
    return save.next(push).next(conclude).next(concluded)


def _leave(
    states: StepStates,
    name: str,
    subject: str,
    question: str,
    *,
    catch: sfn.IChainable,
    error_path: str = "$.error",
) -> sfn.Chain:
    """Take the run out of a cluster that stays, before its nodes are leased to the next."""
    return states.loop(
        name,
        "release-run",
        subject=subject,
        question=question,
        every_s=5,
        catch=catch,
        error_path=error_path,
    )
