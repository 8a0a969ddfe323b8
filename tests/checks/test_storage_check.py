"""The storage check: its Jobs, the script that they run, the speed, and what is said of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from stationmaster.checks import storage, storage_speed
from stationmaster.checks.storage import SCRIPT, job_name, render_jobs
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import LiveCluster, Verdict
from stationmaster.kubernetes.views import BatchJobView, PodView
from tests.support.check_world import NODES, CheckWorld
from tests.support.patience import PATIENCE_S

RUN_ID = "tiny-llama-0123abcd"
SPEC = spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge")
MADE = SPEC.file_system
SEEN = [storage.job_name("c-1", name, nodes=NODES) for name in NODES]
SPEEDS = [storage_speed.job_name("c-1", name, nodes=NODES) for name in NODES]


def printed(mbps: float, *, node: str = "n") -> str:
    moved = {"num_bytes": int(mbps * 1_000_000), "seconds": 1}
    about = {"node": node, "file_system": "lustre", "read_from": "x", "cache": "O_DIRECT"}
    line = {"stationmaster": 1, "kind": "file_system_speed", "write": moved, "read": moved}
    return json.dumps(line | about)


def half(share: float) -> str:
    """What each of two nodes prints that reach this share of what was bought."""
    return printed(share * MADE.storage_gib / 1024 * MADE.mbps_per_tib / 2)


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

    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in started]

    assert [process.returncode for process in started] == [0, 0]
    assert all("saw 2 nodes" in output for output in outputs)
    assert list(tmp_path.iterdir()) == [], "what was only written to be read is gone"


def test_storage_check_fails_where_runs_could_not_write(tmp_path: Path):
    (job,) = render_jobs(RUN_ID, hostnames=["node-a"], image="training:1")
    (variable,) = job["spec"]["template"]["spec"]["containers"][0]["env"]
    missing = str(tmp_path / "runs")

    process = run_script(tmp_path / "check", "a", "5", "a", **{variable["name"]: missing})
    output = process.communicate(timeout=PATIENCE_S)[0]

    assert variable["value"] == "/fsx/runs"
    assert process.returncode == 1
    assert f"{missing} cannot be written by user {os.getuid()}" in output


@pytest.mark.parametrize(
    ("left", "place", "wait_s", "nodes", "says"),
    [
        ("", "", "0", "ab", "no file of b after 0 s"),
        ("b", "", "5", "ab", "the file of b has other contents"),
        ("file", "file/check", "5", "a", "Not a directory"),
    ],
    ids=["other node is silent", "torn data", "nothing can be written"],
)
def test_storage_check_script_that_fails_says_why(
    tmp_path: Path, left: str, place: str, wait_s: str, nodes: str, says: str
) -> None:
    if left:
        (tmp_path / left).write_bytes(os.urandom(64))

    process = run_script(tmp_path / place, "a", wait_s, *nodes)
    output = process.communicate(timeout=PATIENCE_S)[0]

    assert process.returncode == 1
    assert says in output


@dataclass
class Storing(CheckWorld):
    """The Jobs of the storage check, by their states."""

    check = "storage"
    jobs: dict[str, str]
    stray_pod: str = ""

    def batch_jobs(self, *, labels):
        assert labels == {"stationmaster/cluster-id": "c-1", "stationmaster/check": "storage"}
        return [
            BatchJobView(name=name, succeeded=state == "succeeded", failed=state == "failed")
            for name, state in self.jobs.items()
        ]

    def checking(self):
        shown = [name for name, state in self.jobs.items() if state == "pod failed"]
        return [
            PodView(name=f"{name}-x", phase="Failed", exit_code=1)
            for name in [*shown, *([self.stray_pod] if self.stray_pod else [])]
        ]

    def last_log_line(self, pod):
        return "storage check failed on n-1: why"


def seen(storing: Storing, passes: int = 1):
    return storage.look(LiveCluster(storing, "c-1", SPEC, passes))


N1, N2 = (storage.job_name("c-1", name, nodes=["n-1", "n-2"]) for name in ("n-1", "n-2"))


@pytest.mark.parametrize(
    ("jobs", "stray_pod", "verdict", "sentence"),
    [
        ({}, "", "missing", "the storage check was just started"),
        ({N1: "succeeded"}, "", "missing", "the storage check was just started"),
        ({N1: "succeeded", N2: "running"}, "", "waiting", "its pods are starting"),
        ({N1: "succeeded", N2: "succeeded"}, "", "good", "2 nodes wrote to the file system"),
        (
            {N1: "succeeded", N2: "succeeded", "of-other-nodes": "failed"},
            "of-other-nodes",
            "good",
            "2 nodes wrote to the file system",
        ),
        (
            {N1: "succeeded", N2: "pod failed"},
            "",
            "bad",
            f"pod {N2}-x exited with 1: storage check failed on n-1: why",
        ),
        ({N1: "succeeded", N2: "failed"}, "", "bad", "a storage check job failed and its pod is"),
    ],
)
def test_storage_is_judged_by_the_jobs_of_the_nodes_that_are_there(
    jobs, stray_pod, verdict, sentence
):
    finding = seen(Storing(jobs, stray_pod=stray_pod))

    assert finding.verdict == verdict
    assert finding.sentence.startswith(sentence)


@dataclass
class Failing(Storing):
    """A cluster in which a Job fails as soon as anything of the check has been listed."""

    def batch_jobs(self, *, labels):
        listed = super().batch_jobs(labels=labels)
        self.jobs = {**self.jobs, N1: "failed"}
        return listed

    def checking(self):
        has_failed = self.jobs[N1] == "failed"
        self.jobs = {**self.jobs, N1: "failed"}
        return [PodView(name=f"{N1}-x", phase="Failed" if has_failed else "Running", exit_code=1)]


def test_job_that_fails_while_it_is_looked_at_is_judged_by_what_its_pod_said():
    finding = seen(Failing({N1: "running", N2: "running"}))

    assert finding.verdict is Verdict.BAD
    assert finding.sentence == f"pod {N1}-x exited with 1: storage check failed on n-1: why"


def test_storage_is_checked_on_the_nodes_that_no_job_is_on():
    alone = storage.job_name("c-1", "n-1", nodes=["n-1"])

    assert seen(Storing({}, training_on=("n-2",))).verdict is Verdict.MISSING
    one = seen(Storing({alone: "succeeded"}, training_on=("n-2",)))
    assert (one.figures, one.sentence) == (
        {"nodes": 1},
        "1 node wrote to the file system and read it",
    )
    assert seen(Storing({alone: "succeeded"})).verdict is Verdict.MISSING
    assert seen(Storing({}, training_on=NODES)).verdict is Verdict.GOOD


def test_storage_check_of_an_earlier_pass_proves_nothing():
    earlier = Storing({N1: "succeeded", N2: "succeeded"})

    assert seen(earlier).verdict is Verdict.GOOD
    assert seen(earlier, passes=2).verdict is Verdict.MISSING


@dataclass
class Measuring(CheckWorld):
    """Jobs on two nodes that have ended with a line each."""

    check = "storage"
    lines: dict[str, str]
    failed: tuple[str, ...] = ()

    def checking(self):
        ended = [PodView(name=f"{job}-x", phase="Succeeded") for job in self.lines]
        return ended + [
            PodView(name=f"{job}-x", phase="Failed", exit_code=1) for job in self.failed
        ]

    def batch_jobs(self, *, labels):
        done = [BatchJobView(name=name, succeeded=True) for name in self.lines]
        return done + [BatchJobView(name=name, failed=True) for name in self.failed]

    def end_line(self, pod):
        return self.lines[pod.removesuffix("-x")]

    def last_log_line(self, pod):
        return "not measured on n-2"


def look(measuring: Measuring, *, is_full: bool = True, **of_file_system: object):
    made = MADE.model_copy(update=of_file_system)
    spec = SPEC.model_copy(update={"file_system": made})
    return storage.look(LiveCluster(measuring, "c-1", spec, is_full=is_full))


def ended(*lines: str) -> Measuring:
    return Measuring(dict.fromkeys(SEEN, "") | dict(zip(SPEEDS, lines, strict=False)))


@pytest.mark.parametrize(
    ("share", "verdict", "words"),
    [
        (0.9, Verdict.GOOD, "90% of the"),
        (0.6, Verdict.GOOD, "checkpoints take longer than planned"),
        (0.3, Verdict.BAD, "another file_system_type="),
    ],
)
def test_speed_is_judged_after_all_nodes_have_read_each_other(share, verdict, words):
    finding = look(ended(half(share), half(share)))

    assert finding.verdict is verdict
    assert finding.sentence.startswith(
        "2 nodes wrote to the file system and read each other; wrote"
    )
    assert words in finding.sentence
    assert finding.figures.keys() == {
        *("nodes", "write_mbps", "read_mbps", "write_bought_mbps", "read_bought_mbps")
    }


def test_node_that_alone_is_slow_is_the_bad_one():
    finding = look(ended(printed(99, node="n-1"), printed(9, node="n-2")))

    assert (finding.verdict, [*finding.bad_nodes]) == (Verdict.BAD, ["n-2"])
    assert look(ended(half(0.3), half(0.3))).bad_nodes == {}


def test_speed_is_measured_only_in_a_full_pass_and_silence_is_no_pass():
    one = ended(half(1))
    one.lines |= {SPEEDS[1]: ""}
    killed = ended(half(1))
    killed.failed = (SPEEDS[1],)

    assert look(ended(), is_full=False).verdict is Verdict.GOOD
    assert look(ended()).verdict is Verdict.MISSING
    assert look(one).verdict is Verdict.BAD
    assert look(one).sentence == f"the pod of Job {SPEEDS[1]} printed no speed"
    assert look(killed).sentence == f"pod {SPEEDS[1]}-x exited with 1: not measured on n-2"
    assert look(killed).verdict is Verdict.BAD


def test_file_system_that_others_may_use_is_never_failed():
    slow = half(0.1)
    alone = Measuring({storage.job_name("c-1", "n-1", nodes=["n-1"]): ""}, training_on=("n-2",))
    alone.lines[storage_speed.job_name("c-1", "n-1", nodes=["n-1"])] = slow

    theirs = look(ended(slow, slow), existing_id="fs-1")
    unknown = look(ended(slow, slow), existing_id="fs-1", mbps_per_tib=200)
    claim = look(ended(slow, slow), existing_id="pvc:ml/data", mbps_per_tib=250)

    assert (theirs.verdict, "others may use it now" in theirs.sentence) == (Verdict.GOOD, True)
    assert look(alone).verdict is Verdict.GOOD
    for each in (unknown, claim):
        assert each.figures.keys() == {"nodes", "write_mbps", "read_mbps"}


def test_nodes_write_little_of_the_file_system_and_at_most_ten_gib():
    assert storage_speed.node_bytes(1200, 24) == 1 << 30
    assert storage_speed.node_bytes(1200, 2) == 10 << 30


def test_measuring_pods_fit_beside_one_that_asks_for_as_much_as_training():
    (seeing,) = storage.render_jobs("c-1", hostnames=["a"], image="t:1")
    (measuring,) = storage.render_speed_jobs("c-1", hostnames=["a"], image="t:1", storage_gib=1200)

    asked = [
        job["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
        for job in (seeing, measuring)
    ]
    assert asked[0] == asked[1]
