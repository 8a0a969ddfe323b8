"""The storage check's Jobs and the script that they run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stationmaster.checks.storage import SCRIPT, job_name, render_jobs
from stationmaster.domain.ids import ClusterId

RUN_ID = "tiny-llama-0123abcd"


def test_storage_checks_are_one_for_each_node_and_know_each_other():
    jobs = render_jobs(RUN_ID, hostnames=["node-b", "node-a"], image="training:1")

    pods = [job["spec"]["template"]["spec"] for job in jobs]
    selectors = [pod["nodeSelector"]["kubernetes.io/hostname"] for pod in pods]
    assert selectors == ["node-a", "node-b"]
    assert all(pod["containers"][0]["command"][-2:] == ["node-a", "node-b"] for pod in pods)
    assert {job["spec"]["backoffLimit"] for job in jobs} == {0}


def test_storage_checks_open_directories_as_root_and_check_as_the_training_user(tmp_path: Path):
    (job,) = render_jobs(RUN_ID, hostnames=["node-a"], image="training:1")
    pod = job["spec"]["template"]["spec"]
    (opening,), (checking,) = pod["initContainers"], pod["containers"]
    directories = [str(tmp_path / path.lstrip("/")) for path in opening["command"][3:]]

    subprocess.run([sys.executable, "-I", "-c", opening["command"][2], *directories], check=True)

    assert opening["securityContext"]["runAsUser"] == 0
    assert opening["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert checking["securityContext"]["runAsNonRoot"] is True
    assert "runAsUser" not in checking["securityContext"]
    assert opening["command"][4:] == ["/fsx/runs", "/fsx/data"]
    assert opening["command"][3] == checking["command"][3]
    assert [os.stat(path).st_mode & 0o7777 for path in directories] == [0o1777] * 3


def test_storage_check_leaves_directories_that_are_there_as_they_are(tmp_path: Path):
    (job,) = render_jobs(RUN_ID, hostnames=["node-a"], image="training:1")
    (opening,) = job["spec"]["template"]["spec"]["initContainers"]
    theirs, new = tmp_path / "runs", tmp_path / "data"
    theirs.mkdir(mode=0o750)

    arguments = [opening["command"][2], str(theirs), str(new)]
    subprocess.run([sys.executable, "-I", "-c", *arguments], check=True)

    assert theirs.stat().st_mode & 0o7777 == 0o750
    assert new.stat().st_mode & 0o7777 == 0o1777
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "runs"]


def test_storage_check_name_of_a_long_node_name_leaves_room_for_the_pod_suffix():
    run_id, nodes = "r" * 45, ["ip-10-0-0-1.us-west-2.compute.internal", "ip-10-0-0-2"]
    name = job_name(run_id, nodes[0], nodes=nodes)

    assert len(name) + len("-abcde") <= 63
    assert name == job_name(run_id, nodes[0], nodes=nodes[::-1])
    assert name != job_name(run_id, nodes[1], nodes=nodes)


@pytest.mark.parametrize(
    "other",
    [
        {"hostnames": ["a", "c"]},
        {"hostnames": ["a"]},
        {"pass_number": 2},
        {"cluster_id": ClusterId("other")},
    ],
    ids=lambda other: next(iter(other)),
)
def test_storage_checks_of_other_nodes_passes_or_clusters_do_not_meet(other):
    def jobs_of(**values) -> tuple[set[str], set[str]]:
        usual = {"cluster_id": RUN_ID, "hostnames": ["b", "a"], "image": "training:1"}
        made = usual | values
        jobs = render_jobs(made.pop("cluster_id"), **made)
        pods = [job["spec"]["template"]["spec"]["containers"][0] for job in jobs]
        names = {job["metadata"]["name"] for job in jobs}
        return names, {pod["command"][3] for pod in pods}

    names, directories = jobs_of()
    other_names, other_directories = jobs_of(**other)

    assert jobs_of(hostnames=["a", "b"]) == (names, directories)
    assert len(directories) == len(other_directories) == 1
    assert directories != other_directories
    assert not names & other_names


def run_script(
    directory: Path, own: str, wait_s: str, *nodes: str, **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", SCRIPT, str(directory), own, wait_s, *nodes],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def test_storage_check_script_on_two_nodes_passes_on_both(tmp_path: Path):
    started = [run_script(tmp_path, own, "30", "a", "b") for own in ("a", "b")]

    outputs = [process.communicate(timeout=1800)[0] for process in started]

    assert [process.returncode for process in started] == [0, 0]
    assert all("saw 2 nodes" in output for output in outputs)
    assert list(tmp_path.iterdir()) == [], "what was only written to be read is gone"


def test_storage_check_fails_where_runs_could_not_write(tmp_path: Path):
    (job,) = render_jobs(RUN_ID, hostnames=["node-a"], image="training:1")
    (variable,) = job["spec"]["template"]["spec"]["containers"][0]["env"]
    missing = str(tmp_path / "runs")

    process = run_script(tmp_path / "check", "a", "5", "a", **{variable["name"]: missing})
    output = process.communicate(timeout=1800)[0]

    assert variable["value"] == "/fsx/runs"
    assert process.returncode == 1
    assert f"{missing} cannot be written by user {os.getuid()}" in output


def test_storage_check_script_without_the_other_node_fails_and_names_it(tmp_path: Path):
    process = run_script(tmp_path, "a", "0", "a", "b")

    output = process.communicate(timeout=1800)[0]

    assert process.returncode == 1
    assert "no file of b after 0 s" in output


def test_storage_check_script_with_torn_data_of_another_node_fails(tmp_path: Path):
    (tmp_path / "b").write_bytes(os.urandom(64))

    process = run_script(tmp_path, "a", "5", "a", "b")
    output = process.communicate(timeout=1800)[0]

    assert process.returncode == 1
    assert "the file of b has other contents" in output


def test_storage_check_script_where_nothing_can_be_written_says_why(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")

    process = run_script(blocked / "check", "a", "5", "a")
    output = process.communicate(timeout=1800)[0]

    assert process.returncode == 1
    assert "Not a directory" in output
