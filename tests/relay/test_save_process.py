"""The saver as its Job in the local cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.utils import FailToCreateError, create_from_dict
from saving_world import BUCKET, SavedRun

from stationmaster.aws.artifacts import Artifacts
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import NAMESPACE
from stationmaster.domain.results import SavedLine, SavingLine, results_uri
from stationmaster.local.aws import LocalAws
from stationmaster.relay.job_output import ByteProgress
from stationmaster.relay.save import main
from stationmaster.rendering.metadata import run_labels
from stationmaster.rendering.saver_job import render_saving
from stationmaster.rendering.shared_volume import SharedStorage, render_storage
from tests.support.cluster_fixtures import Cluster, eventually, start_cluster

REPOSITORY = Path(__file__).parents[2]
CLUSTER = ClusterId("warm")


@pytest.fixture(scope="module")
def cluster(aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with one system node and the claim of a file system."""
    environment = {
        **aws.environment(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
    }
    started = start_cluster(tmp_path_factory.mktemp("saver"), pod_environment=environment)
    started.add_nodes(node_group="system")
    started.core.create_namespace({"metadata": {"name": NAMESPACE}})
    started.local.install_addon("aws-fsx-csi-driver")
    started.file_systems["fs-1"] = tmp_path_factory.mktemp("fsx")
    for item in render_storage(CLUSTER, SharedStorage("fs-1", "fs-1.fsx", "abcdefgh", 1200)):
        create_from_dict(started.api, item)
    yield started
    started.close()


def put_on_file_system(cluster: Cluster, run: SavedRun) -> None:
    folder = cluster.file_systems["fs-1"] / "runs"
    folder.mkdir(exist_ok=True)
    run.directory.rename(folder / run.run_id)


def start_job(cluster: Cluster, run: SavedRun) -> None:
    objects = render_saving(
        run.facts, cluster_id=CLUSTER, image="relay:1", bucket=BUCKET, region=run.aws.region
    )
    for item in objects:
        try:
            create_from_dict(cluster.api, item)
        except FailToCreateError:  # what runs share is there already
            assert item["kind"] != "Job"


def end_of(cluster: Cluster, run: SavedRun) -> tuple[str, str]:
    """Why the Job ended, and the last line of its last pod."""

    def ended() -> Any:
        job = cluster.batch.read_namespaced_job(f"{run.run_id}-save", NAMESPACE)
        return job.status.conditions

    reason = eventually(ended, "the end of the saver's Job")[-1].reason
    pods = cluster.core.list_namespaced_pod(
        NAMESPACE, label_selector=f"job-name={run.run_id}-save"
    ).items
    log = cluster.core.read_namespaced_pod_log(pods[-1].metadata.name, NAMESPACE)
    return reason, log.splitlines()[-1]


def test_job_saves_files_and_the_logs_of_training_pods(cluster: Cluster, run: SavedRun) -> None:
    put_on_file_system(cluster, run)
    script = "echo first; [ -e started ] && exit 0; touch started; exit 1"
    trainer = {
        "name": "pytorch",
        "image": "training:1",
        "command": ["sh", "-c", script],
        "workingDir": "/work",
        "volumeMounts": [{"name": "work", "mountPath": "/work"}],
    }
    cluster.core.create_namespaced_pod(
        NAMESPACE,
        {
            "metadata": {"name": "trainer", "labels": run_labels(run.run_id, "training")},
            "spec": {
                "restartPolicy": "OnFailure",
                "containers": [trainer],
                "volumes": [{"name": "work", "emptyDir": {}}],
            },
        },
    )
    eventually(
        lambda: cluster.pod("trainer", NAMESPACE).status.phase == "Succeeded", "the pod's end"
    )

    start_job(cluster, run)
    reason, line = end_of(cluster, run)

    verified = Artifacts.connect(BUCKET).verify(run.run_id)
    said = SavedLine.model_validate_json(line)
    assert reason == "CompletionsReached"
    assert said.uri == results_uri(BUCKET, run.run_id)
    assert said.num_files == len(verified.manifest.files)
    assert said.num_bytes == verified.manifest.num_bytes
    assert said.manifest_sha256 == verified.manifest_sha256
    log = run.stored()["logs/trainer.log"].decode().splitlines()
    # Each line of the pod's with its time.
    assert [text.split(" ", 1)[-1] for text in log] == [
        "restarted 1 times; this is the run before the last",
        "first",
        "this is the last run",
        "first",
    ]


def test_job_is_not_repeated_when_s3_refuses(cluster: Cluster, run: SavedRun) -> None:
    put_on_file_system(cluster, run)
    run.aws.inject("s3", "PutObject", "AccessDenied", times=99)

    start_job(cluster, run)
    reason, line = end_of(cluster, run)

    assert reason == "PodFailurePolicy"
    assert "was refused: AccessDenied" in line


def variables(run: SavedRun) -> dict[str, str]:
    return {
        "STATIONMASTER_ARTIFACTS_BUCKET": BUCKET,
        "STATIONMASTER_RUN_DIRECTORY": str(run.directory),
        "STATIONMASTER_RUN_FACTS": run.facts.model_dump_json(),
        "AWS_REGION": run.aws.region,
    }


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"AWS_REGION": ""}, "variable AWS_REGION is empty"),
        ({"STATIONMASTER_ARTIFACTS_BUCKET": ""}, "STATIONMASTER_ARTIFACTS_BUCKET is empty"),
        ({"STATIONMASTER_RUN_FACTS": "{}"}, "STATIONMASTER_RUN_FACTS is not understood: run_id"),
        ({"KUBECONFIG": "/nowhere/kubeconfig"}, "the cluster's API is not known"),
    ],
)
def test_bad_setting_is_one_sentence_and_exit_code_2(
    run: SavedRun, capsys: pytest.CaptureFixture[str], changed: dict[str, str], said: str
) -> None:
    code = main(variables(run) | changed)

    (line,) = capsys.readouterr().out.splitlines()
    assert code == EXIT_MISUNDERSTOOD
    assert said in line


def test_progress_is_printed_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    seldom, often = (
        ByteProgress(
            lambda done, total: SavingLine(saved_bytes=done, total_bytes=total), every_s=every_s
        )
        for every_s in (3600, 0)
    )
    for progress in (seldom, often):
        progress.expect(10)
        progress.add(4)
        progress.expect(5)
        progress.add(6)

    lines = [SavingLine.model_validate_json(text) for text in capsys.readouterr().out.splitlines()]
    assert [(line.saved_bytes, line.total_bytes) for line in lines] == [(4, 10), (10, 15)]
