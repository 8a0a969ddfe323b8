"""What a measured speed is worth against what was bought."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stationmaster.diagnosis.file_system_speed import SPEEDS, Bought, NodeSpeed, judge, read_speed
from stationmaster.domain.planning.cost import FILE_SYSTEM_USD_PER_GIB_MONTH

# 2.4 TiB of PERSISTENT-250: 586 MB/s to write and to read.
BOUGHT = Bought(storage_gib=2400, mbps_per_tib=250, client_gbps=100, is_shared=False)


def line(node: str, *, write: float, read: float, kind: str = "lustre", seconds: float = 10) -> str:
    moved = {
        name: {"num_bytes": int(mbps * seconds * 1_000_000), "seconds": seconds}
        for name, mbps in (("write", write), ("read", read))
    }
    about = {"node": node, "file_system": kind, "read_from": "x", "cache": "O_DIRECT"}
    return json.dumps({"stationmaster": 1, "kind": "file_system_speed"} | about | moved)


def speed(node: str, **figures: object) -> NodeSpeed:
    found = read_speed(line(node, **figures))  # type: ignore[arg-type]
    assert found is not None
    return found


def both(write: float, read: float, **more: object) -> list[NodeSpeed]:
    """Two nodes that reach so much together."""
    return [speed(name, write=write / 2, read=read / 2, **more) for name in ("n-1", "n-2")]


@pytest.mark.parametrize(
    ("write", "read", "level", "words"),
    [
        (586, 586, "pass", ["wrote 586 MB/s and read 586 MB/s together (lustre, O_DIRECT), 100%"]),
        (470, 586, "pass", ["80% of the 586 MB/s to write that were bought"]),
        (1100, 900, "pass", ["burst credits allow up to 1172 for a time"]),
        (586, 468, "warn", ["80% of the 586 MB/s to read", "checkpoints take longer than planned"]),
        (294, 586, "warn", ["50% of the 586 MB/s to write"]),
        (586, 292, "fail", ["50% of the 586 MB/s to read", "another file_system_type="]),
        (0, 586, "fail", ["0% of the 586 MB/s to write"]),
    ],
)
def test_slower_of_writing_and_reading_decides(write, read, level, words):
    judged = judge(both(write, read), BOUGHT)

    assert judged.level == level
    assert [word for word in words if word not in judged.sentence] == []
    assert judged.figures == {
        "write_mbps": write,
        "read_mbps": read,
        "write_bought_mbps": 586,
        "read_bought_mbps": 586,
    }
    assert all(str(round(figure)) in judged.sentence for figure in judged.figures.values())


def test_nodes_are_added_up_over_the_time_of_the_slowest():
    quick, slow = speed("n-1", write=600, read=600), speed("n-2", write=100, read=300)

    judged = judge([quick, speed("n-2", write=100, read=300, seconds=30)], BOUGHT)

    assert judged.figures["write_mbps"] == round((600 * 10 + 100 * 30) / 30)
    assert judge([quick, slow], BOUGHT).figures["write_mbps"] == 700


def test_node_that_is_far_slower_than_the_others_is_named():
    slow = [speed("n-1", write=90, read=90), *both(180, 180), speed("n-4", write=20, read=90)]
    even = [speed("n-1", write=50, read=50), speed("n-2", write=60, read=60)]

    judged = judge(slow, BOUGHT)

    assert judged.level == "fail"
    assert "; node n-4 wrote 20 MB/s, the others 90: replace it" in judged.sentence
    assert "file_system_type" not in judged.sentence
    assert "replace" not in judge(even, BOUGHT).sentence


@pytest.mark.parametrize(
    ("bought", "level"),
    [
        (BOUGHT, "fail"),
        (replace(BOUGHT, is_shared=True), "warn"),
        (replace(BOUGHT, mbps_per_tib=None), "figures"),
        (replace(BOUGHT, mbps_per_tib=40), "figures"),
        # Two nodes of 1 Gbps cannot do more than 250 MB/s.
        (replace(BOUGHT, client_gbps=1.0), "pass"),
        (replace(BOUGHT, storage_gib=1024, mbps_per_tib=125), "pass"),
    ],
)
def test_what_was_bought_decides_what_a_speed_is_worth(bought, level):
    assert judge(both(200, 200), bought).level == level


def test_scratch_writes_half_as_fast_as_it_reads():
    scratch = replace(BOUGHT, storage_gib=2048, mbps_per_tib=200)

    assert judge(both(200, 400), scratch).level == "pass"


def test_other_file_system_than_lustre_is_measured_and_not_judged():
    judged = judge(both(1, 1, kind="ext4"), BOUGHT)
    (alone,) = (judge([speed("n-1", write=5, read=5, kind="")], BOUGHT),)

    assert (judged.level, judged.figures) == ("figures", {"write_mbps": 1, "read_mbps": 1})
    assert judged.sentence == "wrote 1 MB/s and read 1 MB/s together (ext4, O_DIRECT)"
    assert alone.sentence.endswith("(unknown, O_DIRECT, its own files)")


def test_line_that_is_no_measurement_is_none():
    assert read_speed("") is None
    assert read_speed(line("n", write=1, read=1, seconds=0)) is None


def test_every_type_that_is_made_has_a_speed():
    assert SPEEDS.keys() == FILE_SYSTEM_USD_PER_GIB_MONTH.keys()
