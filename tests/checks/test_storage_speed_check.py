"""The Jobs that measure a file system in passes that run every check, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from stationmaster.checks import storage, storage_speed
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import LiveCluster, Verdict
from stationmaster.kubernetes.views import BatchJobView, PodView
from tests.support.check_world import NODES, CheckWorld

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

    assert (theirs.verdict, "others may use it now" in theirs.sentence) == (Verdict.GOOD, True)
    assert look(alone).verdict is Verdict.GOOD
    assert unknown.figures.keys() == {"nodes", "write_mbps", "read_mbps"}


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
