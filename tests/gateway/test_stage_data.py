"""The step that brings a run's data, against a cluster whose pods say what a test lets them say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stationmaster.domain.datasets import Preparation
from stationmaster.domain.errors import DataNotStaged, PermanentError, RunStopped
from stationmaster.domain.exit_codes import EXIT_REFUSED
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import cluster_name
from stationmaster.domain.restoring import ResumePoint
from stationmaster.domain.run.events import DataStaged, RunPhase, StopRequested
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.domain.run.staging import Staging
from stationmaster.domain.staged_data import StagedLine, StagingLine
from stationmaster.jobs.bringing import staging_labels
from stationmaster.local.cluster import LocalCluster
from stationmaster.steps.release_job import release_job
from stationmaster.steps.stage_data import stage_data
from tests.support.aws_fixtures import until as eventually
from tests.support.cluster_fixtures import local_cluster
from tests.support.kubernetes_gateway_fixtures import (
    CLUSTER_ID,
    NAMESPACE,
    REQUEST,
    RUN_ID,
    add_nodes,
)
from tests.support.kubernetes_gateway_world import World

REQUESTED = REQUEST.model_copy(update={"overrides": {"dataset": "s3://research-data/books"}})
STAGE, RESTORE, LOOK = (f"stationmaster.relay.{name}" for name in ("stage", "restore", "look"))
PREPARE = "training.prepare"
COPIED = StagedLine(
    data_id="copied",
    root="copied/files",
    preparation=Preparation.TOKENS,
    num_files=2,
    num_bytes=900,
    counts={"files": 2},
    was_there=False,
    seconds=1.5,
)
UNPREPARED = COPIED.model_copy(update={"preparation": Preparation.NONE})
PREPARED = COPIED.model_copy(
    update={
        "data_id": "prepared",
        "root": "prepared/files",
        "preparation": Preparation.NONE,
        "counts": {"tokens": 300},
    }
)
# Says what is in the file of its module, and ends with its code once that is known.
PROGRAM = """\
#!/bin/sh
echo "$@" >> "{said}/$2.calls"
until [ -e "{said}/$2.code" ]; do cat "{said}/$2" 2>/dev/null; sleep 0.05; done
cat "{said}/$2" 2>/dev/null
exit "$(cat "{said}/$2.code")"
"""


class Programs:
    """What the pods print, and how they end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def say(self, module: str, text: str) -> None:
        (self._directory / module).parent.mkdir(exist_ok=True)
        (self._directory / module).write_text(f"{text}\n")

    def end(self, module: str, text: str, *, code: int = 0) -> None:
        self.say(module, text)
        begun = self._directory / f"{module}.begun"
        begun.write_text(str(code))
        begun.rename(self._directory / f"{module}.code")  # pods look while it is written

    def calls(self, module: str) -> list[str]:
        path = self._directory / f"{module}.calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    said = tmp_path / "said"
    said.mkdir()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "python"
    program.write_text(PROGRAM.format(said=said))
    program.chmod(0o755)
    return Programs(said)


@pytest.fixture
def cluster(tmp_path: Path, programs: Programs) -> Iterator[LocalCluster]:
    """A cluster whose pods find the tests' python before any other."""
    shared = tmp_path / "fsx"
    shared.mkdir()
    programs_first = {"programs": str(tmp_path / "bin"), "file_system_dir": lambda handle: shared}
    cluster = local_cluster(tmp_path / "state", **programs_first)
    cluster.install_addon("aws-fsx-csi-driver")
    yield cluster
    cluster.stop(grace_s=0.2)


@pytest.fixture
def request_() -> TrainingRequest:
    """What was asked for; tests may name another one."""
    return REQUESTED


@pytest.fixture
def ready(cluster: LocalCluster, world: World, request_: TrainingRequest) -> World:
    """A run whose cluster has been validated."""
    add_nodes(cluster, group="system")
    add_nodes(cluster, group="training")
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING, request=request_)
    return world


def staging_of(world: World) -> Staging:
    staging = world.runs.load(RUN_ID).staging
    assert staging is not None
    return staging


def until(world: World, kind: str) -> None:
    eventually(lambda: stage_data(world, RUN_ID) and world.events(kind))


IN_PLACE = REQUEST.model_copy(update={"overrides": {"dataset": "/fsx/books"}})


@pytest.mark.parametrize("request_", [IN_PLACE])
def test_data_that_is_there_is_looked_at_by_a_job_and_not_copied(
    ready: World, tmp_path: Path, programs: Programs
) -> None:
    (tmp_path / "fsx" / "books").mkdir()
    (tmp_path / "fsx" / "books" / "a.txt").write_text("text")
    line = UNPREPARED.model_copy(update={"data_id": "", "root": "", "num_files": 1})

    programs.end(LOOK, line.text())
    until(ready, "data.staged")

    assert stage_data(ready, RUN_ID) == {"ready": True}
    staging = staging_of(ready)
    assert (staging.looked, staging.root, staging.num_files) == (True, "", 1)
    assert programs.calls(LOOK) == ["-m stationmaster.relay.look"]
    assert programs.calls(STAGE) == programs.calls(PREPARE) == []


def test_data_is_copied_and_prepared_and_its_progress_reported(
    ready: World, programs: Programs
) -> None:
    assert stage_data(ready, RUN_ID) == {"ready": False}
    programs.say(STAGE, StagingLine(staged_bytes=450, total_bytes=900).text())
    until(ready, "data.reported")
    staging = staging_of(ready)
    assert (staging.work, staging.done_bytes, staging.total_bytes) == ("copying", 450, 900)
    programs.end(STAGE, COPIED.text())
    until(ready, "data.staged")
    programs.end(PREPARE, PREPARED.text())

    eventually(lambda: stage_data(ready, RUN_ID)["ready"])

    staging = staging_of(ready)
    assert ready.runs.load(RUN_ID).phase is RunPhase.STAGING
    assert (staging.root, staging.num_bytes) == ("prepared/files", 900)
    assert [event.work for event in ready.events("data.staged")] == ["copying", "preparing"]
    (copy,) = programs.calls(STAGE)
    # One on each of the run's two nodes.
    prepare = programs.calls(PREPARE)
    assert len(prepare) == 2
    assert prepare[0].startswith("-m training.prepare tokens copied --tokenizer bpe --vocab-size ")
    assert stage_data(ready, RUN_ID) == {"ready": True}
    assert copy == "-m stationmaster.relay.stage"


def test_job_whose_pods_are_gone_is_started_again(ready: World, programs: Programs) -> None:
    programs.end(STAGE, UNPREPARED.text())
    stage_data(ready, RUN_ID)
    labels = staging_labels(RUN_ID, "copying")
    eventually(lambda: ready.gateway.batch_jobs(labels=labels)[0].succeeded)
    (pod,) = ready.gateway.pods(labels=labels)
    ready.gateway.delete("v1", "Pod", name=pod.name, namespace=NAMESPACE)
    eventually(lambda: not ready.gateway.pods(labels=labels))

    eventually(lambda: stage_data(ready, RUN_ID)["ready"])

    assert len(programs.calls(STAGE)) == 2


def test_pod_that_finds_no_node_ends_the_run_with_what_the_cluster_says(
    cluster: LocalCluster, world: World
) -> None:
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING, request=REQUESTED)
    stage_data(world, RUN_ID)
    labels = staging_labels(RUN_ID, "copying")
    eventually(lambda: any(pod.unschedulable for pod in world.gateway.pods(labels=labels)))
    assert stage_data(world, RUN_ID) == {"ready": False}

    world.late_s = world.settings.job_start_timeout_s + 1

    with pytest.raises(DataNotStaged, match=r"-stage did not start after .*is not scheduled"):
        stage_data(world, RUN_ID)


LINKED = REQUESTED.model_copy(update={"link_reason": "it is large"})


@pytest.mark.parametrize("request_", [LINKED])
def test_linked_data_is_looked_at_once_it_is_available_and_not_copied(
    ready: World, programs: Programs
) -> None:
    ready.data_links.lifecycle = "CREATING"
    assert [stage_data(ready, RUN_ID)["ready"] for _ in range(3)] == [False] * 3
    (link,) = ready.data_links.made
    assert (link.file_system_id, link.path) == ("fs-1", "/linked")
    assert link.source == "s3://research-data/books/"
    assert [event.name for event in ready.events("resource.requested")] == [
        cluster_name(CLUSTER_ID)
    ]
    assert not ready.gateway.batch_jobs(labels=staging_labels(RUN_ID, "linking"))
    ready.data_links.lifecycle = "AVAILABLE"
    programs.end(STAGE, UNPREPARED.text())

    eventually(lambda: stage_data(ready, RUN_ID)["ready"])

    staging = staging_of(ready)
    assert (staging.linked, staging.root, staging.num_bytes) == (True, "copied/files", 900)
    assert [event.work for event in ready.events("data.staged")] == ["linking"]
    assert "dra-12345678" in [each.resource_id for each in ready.events("resource.created")]
    assert stage_data(ready, RUN_ID) == {"ready": True}


@pytest.mark.parametrize("request_", [LINKED])
@pytest.mark.parametrize(
    ("lifecycle", "refusal", "said"),
    [
        ("FAILED", None, "FSx could not link s3://research-data/books/: no access"),
        ("AVAILABLE", PermanentError("unable to validate access"), "unable to validate access"),
    ],
)
def test_data_that_cannot_be_linked_is_copied_and_the_reason_recorded_once(
    ready: World, programs: Programs, lifecycle: str, refusal: Exception | None, said: str
) -> None:
    ready.data_links.lifecycle, ready.data_links.refusal = lifecycle, refusal
    programs.end(STAGE, UNPREPARED.text())

    eventually(lambda: stage_data(ready, RUN_ID)["ready"])

    (unlinked,) = ready.events("data.unlinked")
    assert unlinked.reason == said
    staging = staging_of(ready)
    assert (staging.linked, staging.root) == (False, "copied/files")
    assert [event.work for event in ready.events("data.staged")] == ["copying"]


@pytest.mark.parametrize("request_", [LINKED])
def test_link_that_takes_too_long_is_given_up_for_a_copy(ready: World) -> None:
    ready.data_links.lifecycle = "CREATING"
    stage_data(ready, RUN_ID)

    ready.late_s = ready.settings.provision_timeout_s + 1
    stage_data(ready, RUN_ID)

    (unlinked,) = ready.events("data.unlinked")
    assert "the link of s3://research-data/books/ is still CREATING after" in unlinked.reason


@pytest.mark.parametrize("request_", [LINKED])
def test_linked_data_that_is_not_what_s3_lists_is_copied(ready: World, programs: Programs) -> None:
    programs.end(STAGE, "a.txt has changed", code=EXIT_REFUSED)

    eventually(lambda: stage_data(ready, RUN_ID) and ready.events("data.unlinked"))

    (unlinked,) = ready.events("data.unlinked")
    assert unlinked.reason == "the linked data cannot be used: a.txt has changed"
    programs.end(STAGE, UNPREPARED.text())
    eventually(lambda: stage_data(ready, RUN_ID)["ready"])
    assert [event.work for event in ready.events("data.staged")] == ["copying"]


RESUMED = REQUEST.model_copy(
    update={"resume_from": ResumePoint(run_id=RunId("tiny-llama-0000aaaa"), step=60)}
)
RESTORED = UNPREPARED.model_copy(update={"data_id": "tiny-llama-0000aaaa", "root": "restored"})


def test_job_has_all_of_its_time_to_start_however_long_the_one_before_took(
    cluster: LocalCluster, world: World
) -> None:
    request = RESUMED.model_copy(update={"overrides": REQUESTED.overrides})
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING, request=request)
    stage_data(world, RUN_ID)
    world.late_s = world.settings.job_start_timeout_s + 1
    fields = RESTORED.model_dump(exclude={"stationmaster", "kind", "run_id", "seq", "at"})
    about = {"event_id": "e", "run_id": RUN_ID, "at": world.now(), "cluster_id": CLUSTER_ID}
    world.runs.record(RUN_ID, [DataStaged(**about, work="restoring", **fields)])
    stage_data(world, RUN_ID)
    labels = staging_labels(RUN_ID, "copying")

    eventually(lambda: any(pod.unschedulable for pod in world.gateway.pods(labels=labels)))

    assert stage_data(world, RUN_ID) == {"ready": False}


# The pods' python names a program by its second word.
CONVERTER = "org/model"
OF_MEGATRON = REQUEST.model_copy(
    update={"recipe": "megatron-llama3-8b", "overrides": {"weights": CONVERTER}}
)


@pytest.mark.parametrize(
    ("request_", "module", "said"),
    [
        (REQUESTED, STAGE, "the data could not be brought"),
        (REQUESTED, PREPARE, "the data could not be brought"),
        (IN_PLACE, LOOK, "the data cannot be trained on"),
        (RESUMED, RESTORE, "the saved result could not be brought back"),
        (OF_MEGATRON, CONVERTER, "the weights could not be converted"),
    ],
)
def test_refusal_of_a_program_ends_the_run_with_its_sentence(
    ready: World, programs: Programs, module: str, said: str
) -> None:
    programs.end(STAGE, COPIED.text())
    programs.end(module, "there is no room for it", code=EXIT_REFUSED)

    with pytest.raises(DataNotStaged, match=f"{said}: there is no room"):
        eventually(lambda: stage_data(ready, RUN_ID)["ready"])


def test_stop_ends_the_staging_and_the_teardown_takes_its_pods(
    ready: World, programs: Programs
) -> None:
    stage_data(ready, RUN_ID)
    eventually(lambda: programs.calls(STAGE))
    stop = StopRequested(event_id="stop", run_id=RUN_ID, at=ready.now(), user_id="U1")
    ready.runs.record(RUN_ID, [stop])

    with pytest.raises(RunStopped):
        stage_data(ready, RUN_ID)

    eventually(lambda: release_job(ready, RUN_ID)["ready"])
    assert not ready.gateway.pods(labels=staging_labels(RUN_ID, "copying"))
