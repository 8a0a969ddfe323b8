"""What a run leaves is saved, described, verified and held: each step alone, and its faults."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from stationmaster import commands
from stationmaster.domain.cluster.events import (
    ClusterPhase,
    LeaseGranted,
    ResourceCreated,
    ResourceRequested,
)
from stationmaster.domain.errors import (
    NotPossibleNow,
    ResultDamaged,
    ResultsHeld,
    SavingFailed,
    TransientError,
)
from stationmaster.domain.names import NAMESPACE, cluster_name
from stationmaster.domain.reactions.ending import SAVE_AGAIN_AFTER
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.attempts import attempt_id
from stationmaster.domain.run.events import AttemptStarted, RunPhase
from stationmaster.jobs.live_run import LiveRun
from stationmaster.jobs.result_facts import result_facts
from stationmaster.services import Services
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_run import conclude_run
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.leave_unsaved import leave_unsaved
from stationmaster.steps.reap import reap
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_file_system import release_file_system
from stationmaster.steps.release_job import release_job
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.release_node_group import release_node_group
from stationmaster.steps.save_results import save_results
from stationmaster.steps.submit_job import submit_job
from stationmaster.steps.verify_released import verify_released
from stationmaster.steps.verify_results import verify_results
from tests.support.artifacts_world import BUCKET, SavedRun, save_run
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import (
    end_job,
    in_cluster,
    jobs_of_run,
    kubelet_says,
    machine_lost,
    ready_for_job,
    running_pod,
    trained,
)
from tests.support.kill_acts import killed

SPEED = IDLE
FILES = {"model/config.json": b"{}", "metrics.jsonl": b"{}\n"}
DENIED = {"Error": "SavingFailed", "Cause": "access is denied"}
PYTORCH_JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
VOLUMES = "/api/v1/persistentvolumes"


@pytest.fixture(name="trained")
def trained_account(account: Account) -> Account:
    """A run whose job is in the cluster, and has trained."""
    trained(account)
    return account


def saves(account: Account, **arguments: object) -> bool:
    return save_results(account.services, account.run_id, **arguments)["ready"]


def bring(account: Account, files: dict[str, bytes] | None = None) -> SavedRun:
    return save_run(account.aws.client("s3"), account.run_id, FILES if files is None else files)


def unsaved(account: Account) -> Account:
    """Saving has given up for now."""
    saves(account)
    leave_unsaved(account.services, account.run_id, error=DENIED)
    return account


def test_job_that_still_trains_is_deleted_before_its_results_are_saved(trained: Account):
    stop = {"Error": "TrainingFailed", "Cause": "the loss is nan"}

    assert not saves(trained, error=stop)

    assert in_cluster(trained)[PYTORCH_JOBS] == []
    assert jobs_of_run(trained, "save") == ["save"]
    assert (trained.run.phase, trained.run.reason) == (RunPhase.SAVING, "the loss is nan")
    assert not saves(trained, error=stop)
    end_job(trained, "save", "Complete")
    assert saves(trained, error=stop)


def test_saving_that_two_executions_start_in_one_moment_is_one_job(trained: Account):
    """A step of a killed execution goes on for a while, beside the one that replaces it."""
    trained.enter(RunPhase.SAVING)
    about = {"kind": ResourceKind.FILE_SYSTEM, "name": cluster_name(trained.cluster_id)}
    trained.happen_to_cluster(ResourceRequested, price_per_hour_usd=1.0, **about)

    def start_another() -> datetime:
        trained.services.now = trained.now
        trained.late += timedelta(hours=1)
        save_results(Services(trained.settings, now=trained.now), trained.run_id)
        return trained.now() + timedelta(hours=1)

    trained.services.now = start_another

    assert not saves(trained)

    assert jobs_of_run(trained, "save") == ["save"]


def test_saved_result_is_recorded_once_and_ends_the_hold(trained: Account):
    saves(trained)
    saved = bring(trained)

    for _ in range(2):
        verify_results(trained.services, trained.run_id)
        conclude_run(trained.services, trained.run_id)

    (event,) = trained.events("results.saved")
    assert (event.uri, event.num_files) == (f"s3://{BUCKET}/runs/{trained.run_id}/", 2)
    assert not event.has_output
    assert event.num_bytes == saved.manifest.num_bytes
    assert trained.run.phase is RunPhase.SUCCEEDED
    release_lease(trained.services, trained.run_id)
    assert trained.cluster.open_leases == []


def throttled(account: Account) -> None:
    account.aws.inject("s3", "HeadObject", "SlowDown", times=20)


@pytest.mark.parametrize(
    ("breaks", "error", "words"),
    [
        (throttled, TransientError, "503"),
        (
            lambda account: bring(account).put("metrics.jsonl", b"{?\n"),
            ResultDamaged,
            r"metrics\.jsonl has",
        ),
    ],
    ids=["throttled", "flipped"],
)
def test_what_cannot_be_verified_is_not_saved_until_it_can(trained: Account, breaks, error, words):
    saves(trained)
    bring(trained)
    breaks(trained)

    with pytest.raises(error, match=words):
        verify_results(trained.services, trained.run_id)
    assert trained.run.has_unsaved_results

    trained.aws.clear_injected()
    bring(trained)
    verify_results(trained.services, trained.run_id)
    assert trained.run.results is not None


def test_saving_that_fails_is_recorded_and_can_be_tried_again(trained: Account):
    saves(trained)
    end_job(trained, "save", "Failed", "the pod failed")

    with pytest.raises(SavingFailed, match="the pod failed"):
        saves(trained)
    for _ in range(2):
        leave_unsaved(trained.services, trained.run_id, error=DENIED)

    (event,) = trained.events("results.unsaved")
    assert event.reason == "access is denied"
    assert jobs_of_run(trained, "save") == []
    commands.save_again(
        trained.services,
        trained.run_id,
        who=commands.Actor(channel_id=trained.run.request.channel_id, user_id="U2"),
    )
    assert not saves(trained)
    assert jobs_of_run(trained, "save") == ["save"]
    assert trained.services.workflows.train_status(trained.run_id, 2) == "RUNNING"


def test_results_are_lost_with_their_file_system(trained: Account):
    for found in trained.services.file_systems.list_tagged(trained.cluster_id):
        trained.services.file_systems.release(trained.cluster_id, found.file_system_id)
    trained.aws.finish_lifecycles()

    assert saves(trained)

    (event,) = trained.events("results.lost")
    assert event.reason.startswith("the file system of cluster")
    assert not trained.run.has_unsaved_results


def test_file_system_that_a_list_leaves_out_is_not_given_up(trained: Account):
    (found,) = trained.services.file_systems.list_tagged(trained.cluster_id)
    about = {"kind": ResourceKind.FILE_SYSTEM, "name": cluster_name(trained.cluster_id)}
    trained.happen_to_cluster(ResourceRequested, **about)
    trained.happen_to_cluster(ResourceCreated, resource_id=found.file_system_id, **about)
    _, fsx = trained.aws.identities.account.sources
    fsx.file_system(found.file_system_id)["Tags"] = []

    assert not saves(trained)

    assert trained.run.has_unsaved_results
    assert trained.events("results.lost") == []


def test_only_what_is_not_saved_can_be_saved_again_or_given_up(trained: Account):
    saves(trained)
    about = {"who": commands.Actor(channel_id=trained.run.request.channel_id, user_id="U2")}

    for command in (commands.save_again, commands.give_up_results, commands.stop_run):
        with pytest.raises(NotPossibleNow, match="being saved"):
            command(trained.services, trained.run_id, **about)
    unsaved(trained)
    commands.give_up_results(trained.services, trained.run_id, **about)

    assert trained.run.results_given_up_by == "U2"
    with pytest.raises(NotPossibleNow, match="not waiting to be saved"):
        commands.save_again(trained.services, trained.run_id, **about)


def torn_down_to(account: Account) -> None:
    assert account.call(begin_teardown)
    assert account.cluster.phase is ClusterPhase.RELEASING


def test_teardown_waits_for_results_that_are_being_saved(trained: Account):
    saves(trained)
    torn_down_to(trained)
    trained.finish(release_job)

    assert not trained.call(release_file_system)

    assert jobs_of_run(trained, "save") == ["save"]
    assert in_cluster(trained)[VOLUMES] == [f"{trained.cluster_id}-fsx"]
    bring(trained)
    verify_results(trained.services, trained.run_id)
    trained.finish(release_job)
    assert in_cluster(trained)[VOLUMES] == []
    assert "DeleteFileSystem" in trained.changes(release_file_system)


def test_teardown_keeps_what_unsaved_results_need(trained: Account):
    unsaved(trained)
    torn_down_to(trained)
    trained.finish(release_job)
    held = [
        (release_file_system, {}),
        (release_node_group, {"node_group": "system"}),
        (release_cluster, {}),
        (verify_released, {}),
    ]
    trained.aws.forget_calls()

    sentence = f"the results of run {trained.run_id} are not saved: access is denied; "
    for step, arguments in held:
        with pytest.raises(ResultsHeld, match=sentence):
            trained.call(step, **arguments)
    assert trained.call(release_node_group, node_group="training")

    assert not [call for _, call in trained.aws.calls if call.startswith("Delete")]
    assert [lease.run_id for lease in trained.cluster.open_leases] == [trained.run_id]
    assert in_cluster(trained)[VOLUMES] == [f"{trained.cluster_id}-fsx"]


def with_training_nodes(account: Account) -> None:
    account.call(ensure_node_group, node_group="training")
    account.aws.finish_lifecycles()


def test_training_nodes_go_when_nothing_is_written_there_any_more(trained: Account):
    services, cluster_id = trained.services, trained.cluster_id
    with_training_nodes(trained)
    saves(trained)
    torn_down_to(trained)
    name = running_pod(trained, "training")
    trained.aws.forget_calls()

    assert not trained.call(release_node_group, node_group="training")
    assert ("eks", "DeleteNodegroup") not in trained.aws.calls
    with machine_lost(trained):
        assert not trained.call(release_node_group, node_group="training")
        assert ("eks", "DeleteNodegroup") in trained.aws.calls, "nobody writes there"
        assert services.kubernetes(cluster_id).exists("v1", "Pod", name=name)
        trained.call(release_job)
        assert services.kubernetes(cluster_id).exists("v1", "Pod", name=name), "not forced"
        services.kubernetes(cluster_id).forget_pod(name)
    trained.aws.finish_lifecycles()
    assert trained.call(release_node_group, node_group="training")


def test_training_nodes_wait_for_a_last_checkpoint_no_longer_than_allowed(trained: Account):
    with_training_nodes(trained)
    saves(trained)
    torn_down_to(trained)
    name = running_pod(trained, "training")
    assert not trained.call(release_node_group, node_group="training")
    trained.aws.forget_calls()

    trained.late += timedelta(seconds=trained.settings.release_job_timeout_s + 1)
    trained.call(release_node_group, node_group="training")

    assert ("eks", "DeleteNodegroup") in trained.aws.calls
    trained.services.kubernetes(trained.cluster_id).forget_pod(name)
    trained.aws.finish_lifecycles()
    assert trained.call(release_node_group, node_group="training")


def test_reaper_saves_again_after_an_hour(trained: Account):
    trained.services.workflows.start_train(trained.run_id)
    killed(trained, "train", trained.run_id)
    unsaved(trained)
    reap(trained.services)
    assert trained.run.passes == 1

    trained.late += SAVE_AGAIN_AFTER + timedelta(seconds=1)
    reap(trained.services)

    assert (trained.run.passes, trained.run.unsaved_reason) == (2, "")
    assert trained.services.workflows.train_status(trained.run_id, 2) == "RUNNING"


DIGEST = f"sha256:{'5a' * 32}"


@pytest.mark.parametrize(
    ("image_id", "added"),
    [
        (f"123456789012.dkr.ecr.us-west-2.amazonaws.com/training@{DIGEST}", f"@{DIGEST}"),
        (f"docker-pullable://registry.example.com/training@{DIGEST}", f"@{DIGEST}"),
        (DIGEST, ""),  # the node's own id of an image that was never in a registry
        ("", ""),
    ],
)
def test_result_names_the_image_as_the_registry_had_it_when_pods_ran(
    account: Account, image_id: str, added: str
):
    ready_for_job(account)
    submit_job(account.services, account.run_id)
    kubelet_says(account, {"imageID": image_id})

    facts = result_facts(LiveRun(account.services, account.run), outcome=RunPhase.SUCCEEDED)

    assert facts.image == account.settings.training_image + added


def test_result_of_an_image_that_was_named_by_its_digest_keeps_it(account: Account):
    image = f"registry.example.com/team/trainer@{DIGEST}"
    ready_for_job(account)
    submit_job(account.services, account.run_id)
    kubelet_says(account, {"imageID": f"registry.example.com/team/trainer@sha256:{'0b' * 32}"})
    run = account.run
    run = run.model_copy(update={"request": run.request.model_copy(update={"image": image})})

    facts = result_facts(LiveRun(account.services, run), outcome=RunPhase.SUCCEEDED)

    assert facts.image == image


def test_result_of_a_run_on_a_kept_cluster_has_the_run_s_own_share_of_the_cost(account: Account):
    account.keep(ClusterPhase.PROVISIONING, ClusterPhase.VALIDATING, ClusterPhase.READY, nodes=4)
    guest = account.guest("half")
    guest.happen_to_cluster(LeaseGranted, run_id=guest.run_id, nodes=2)
    guest.happen(
        AttemptStarted,
        attempt_id=attempt_id(guest.run_id, 1),
        cluster_id=guest.cluster_id,
        placement=guest.run.placement,
        job=guest.run_id,
        rendezvous_id=guest.run_id,
    )
    nodes = {"kind": ResourceKind.NODE_GROUP, "name": "training"}
    account.happen_to_cluster(ResourceRequested, price_per_hour_usd=12.0, **nodes)
    account.pass_time()

    facts = result_facts(LiveRun(account.services, guest.run), outcome=RunPhase.STOPPED)

    assert (facts.cost_usd, facts.cluster_cost_usd) == (144.0, 288.0)


def test_result_says_how_much_of_its_paid_time_the_run_trained(account: Account):
    ready_for_job(account)
    about = {"kind": ResourceKind.FILE_SYSTEM, "name": cluster_name(account.cluster_id)}
    account.happen_to_cluster(ResourceRequested, price_per_hour_usd=1.0, **about)
    account.pass_time()

    facts = result_facts(LiveRun(account.services, account.run), outcome=RunPhase.STOPPED)

    assert facts.goodput == 0.0
