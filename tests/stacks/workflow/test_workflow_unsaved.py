"""Saving that fails, with the real saver and the local S3: what stays, what is said, and the retry.

The results are bytes on the file system of a run's own cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from stationmaster import commands
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID
from stationmaster.domain.reactions.ending import SAVE_AGAIN_AFTER
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.results import results_prefix
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from stationmaster.steps.parts.leftovers import find_left
from stationmaster.steps.reap import reap
from tests.chaos.rules import Fault
from tests.chaos.world import World

READS_THE_CHANNEL = True
WEIGHTS = b"weights" * 1000
FILE = "model/model.safetensors"


def train(world: World, name: str) -> str:
    """A run that has trained and whose model lies on its file system."""
    run_id = world.request(name, plan="waits")
    world.until_awaiting(run_id)
    place = world.directory_of(run_id) / FILE
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(WEIGHTS)
    return run_id


def saved(world: World, run_id: str) -> Run:
    """The run once it has ended and nothing of it is left but its result, which is whole."""
    run = world.until_rested(run_id, torn_down=True)
    assert run.phase is RunPhase.SUCCEEDED
    assert run.results is not None
    assert find_left(world.services, run_id) == []
    assert in_bucket(world, run_id) == WEIGHTS
    return run


def in_bucket(world: World, run_id: str) -> bytes:
    assert world.mode.settings is not None
    found = world.aws.client("s3").get_object(
        Bucket=world.mode.settings.artifacts_bucket, Key=results_prefix(run_id) + FILE
    )
    return bytes(found["Body"].read())


def deny(world: World) -> None:
    world.aws.inject("s3", "PutObject", "AccessDenied", times=1000)


def delete_bucket(world: World) -> None:
    assert world.mode.settings is not None
    s3, bucket = world.aws.client("s3"), world.mode.settings.artifacts_bucket
    found = s3.list_object_versions(Bucket=bucket)
    for each in (*found.get("Versions", []), *found.get("DeleteMarkers", [])):
        s3.delete_object(Bucket=bucket, Key=each["Key"], VersionId=each["VersionId"])
    s3.delete_bucket(Bucket=bucket)


def bring_back(world: World) -> None:
    world.aws.clear_injected()
    s3 = world.aws.client("s3")
    assert world.mode.settings is not None
    names = [each["Name"] for each in s3.list_buckets()["Buckets"]]
    if world.mode.settings.artifacts_bucket not in names:
        s3.create_bucket(
            Bucket=world.mode.settings.artifacts_bucket,
            CreateBucketConfiguration={"LocationConstraint": world.aws.region},
        )


def by_button(world: World, run_id: str) -> None:
    """A person clicks on the run's card."""
    world.click(run_id, "tiny-llama: saving", "save_again")


def by_reaper(world: World, run_id: str) -> None:
    """An hour later, by itself."""
    assert world.mode.settings is not None
    soon = Services(world.mode.settings, now=lambda: datetime.now(UTC) + timedelta(minutes=50))
    reap(soon)
    assert world.services.runs.load(run_id).passes == 1
    late = datetime.now(UTC) + SAVE_AGAIN_AFTER
    reap(Services(world.mode.settings, now=lambda: late))


BROKEN = [
    pytest.param(deny, "AccessDenied", by_button, id="denied"),
    pytest.param(
        delete_bucket, "does not exist; deploy the data stack", by_reaper, id="bucket gone"
    ),
]


@pytest.mark.parametrize(("breaks", "said", "again"), BROKEN)
def test_results_that_cannot_be_saved_stay_with_their_price_until_a_retry_saves_them(
    world: World,
    breaks: Callable[[World], None],
    said: str,
    again: Callable[[World, str], None],
) -> None:
    run_id = train(world, f"not saved: {said}")
    breaks(world)
    world.let_end(run_id)
    world.until_unsaved(run_id)

    services = world.services
    run, cluster = services.runs.load(run_id), services.cluster_states.load(run_id)
    assert said in run.unsaved_reason
    gone = {each.kind for each in cluster.resources.values() if each.deleted_at is not None}
    assert gone == {ResourceKind.NODE_GROUP}
    assert cluster.phase is ClusterPhase.RELEASING
    card = world.card(run_id, "tiny-llama: saving")
    assert said in card
    assert "an hour*" in card

    bring_back(world)
    world.runtime.mend_run(run_id)
    again(world, run_id)

    assert saved(world, run_id).passes == 2
    assert len(world.outcome(run_id).events_of("results.saving_requested")) == 1


def test_saver_that_is_killed_in_the_middle_is_started_again_and_loses_nothing(
    world: World,
) -> None:
    run_id = train(world, "saver is killed")
    # It asks for its first upload again and again, until it is killed.
    world.aws.inject("s3", "PutObject", "SlowDown", times=1000)
    world.let_end(run_id)
    gateway, saver = world.services.kubernetes(run_id), {LABEL_RUN_ID: run_id, LABEL_ROLE: "saving"}
    world.until(lambda: gateway.pods(labels=saver), "the saver starts")
    world.aws.forget_calls()
    world.until(lambda: ("s3", "PutObject") in world.aws.calls, "the saver uploads")

    (pod,) = gateway.pods(labels=saver)
    gateway.delete("v1", "Pod", name=pod.name)
    world.aws.clear_injected()

    run = saved(world, run_id)
    assert (run.passes, world.outcome(run_id).events_of("results.unsaved")) == (1, [])


def test_results_are_not_given_up_while_they_are_saved_again(world: World) -> None:
    run_id = train(world, "deleted too late")
    deny(world)
    world.let_end(run_id)
    world.until_unsaved(run_id)
    bring_back(world)
    held = world.runtime.hold(run_id, "save-results")

    world.click(run_id, "tiny-llama: saving", "save_again")
    world.until(held.reached.is_set, "it is tried again")
    with pytest.raises(NotPossibleNow, match="are being saved"):
        world.give_up(run_id)
    held.released.set()

    assert saved(world, run_id).results_given_up_by == ""


@pytest.mark.parametrize("saved", [True, False], ids=["saved at last", "given up"])
def test_cluster_that_is_deleted_with_unsaved_results_keeps_them_and_says_so(
    world: World, saved: bool
) -> None:
    lab = world.create_cluster(f"unsaved-{saved}".lower(), nodes=2)
    world.until_ready(lab.cluster_id)
    name = f"not saved at first {saved}"
    run_id = world.request(name, Fault("save-results"), cluster_id=lab.cluster_id)
    services = world.services
    world.until(lambda: services.runs.load(run_id).unsaved_reason, "saving gives up for now")
    assert services.cluster_states.load(lab.cluster_id).phase is ClusterPhase.READY

    world.delete_cluster(lab.cluster_id)

    clusters = services.cluster_states
    world.until(
        lambda: clusters.load(lab.cluster_id).teardown is TeardownStatus.FAILED, "it is held"
    )
    held = clusters.load(lab.cluster_id)
    assert held.teardown_reason.startswith(f"the results of run {run_id} are not saved: broken")
    there = [each.kind for each in held.resources.values() if each.deleted_at is None]
    assert {ResourceKind.FILE_SYSTEM, ResourceKind.CLUSTER} <= set(there)
    card = world.card(run_id, "tiny-llama: saving")
    assert "The results are not saved:* broken by the test" in card
    assert "an hour*" in card
    assert "are not saved: broken" in world.card(lab.cluster_id, f"cluster {lab.name}: teardown")
    assert services.runs.load(run_id).phase is RunPhase.SAVING
    world.runtime.mend_run(run_id)
    if saved:
        world.save_again(run_id)
    else:
        world.give_up(run_id)

    gone = world.until_gone(lab.cluster_id)
    assert (gone.billable_left, find_left(services, lab.cluster_id)) == ([], [])
    run = world.until_out(run_id)
    assert (run.phase, run.results is not None) == (RunPhase.SUCCEEDED, saved)
    for again in (commands.save_again, commands.give_up_results):
        with pytest.raises(NotPossibleNow, match="not waiting to be saved"):
            again(services, run_id, channel_id=run.request.channel_id, user_id="U2")
