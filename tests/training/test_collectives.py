"""The collectives that the gate measures: their values, their speed, and how they are printed."""

from __future__ import annotations

import os

import pytest
import torch
from forked_ranks import results, start_ranks

from stationmaster.diagnosis.nccl.log import read_log
from stationmaster.diagnosis.nccl.machines import contradictions
from training import collectives


def _measure(rank: int, out: str, arguments: list[str]) -> None:
    if rank == 0:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
    node = {"NODE_NAME": f"node-{'abc'[rank]}", "LOCAL_RANK": "0"}
    assert collectives.main(arguments, {**os.environ, **node}) == 0


def test_tables_of_two_nodes_are_read_by_the_parser_of_nccl_tests(tmp_path):
    out = tmp_path / "log"

    words = ["--max-bytes", str(1 << 20), "--factor", "8"]
    results(start_ranks(_measure, str(out), words, world_size=2))

    reduced, sent = read_log(out.read_text().splitlines()).tables
    assert (reduced.operation, sent.operation) == ("all_reduce", "broadcast")
    for table in (reduced, sent):
        assert table.hosts == {"node-a", "node-b"}
        assert [row.size_bytes for row in table.rows] == [8 << 3 * n for n in range(6)]
        assert (table.max_bytes, table.is_complete, table.was_checked) == (8 << 15, True, True)
        assert table.num_wrong == 0
        assert all(row.judged.time_us > 0 for row in table.rows)
        operation = table.operation or ""
        assert contradictions(table.rows, operation=operation, num_ranks=2) == []


def test_each_node_of_three_is_measured_with_two_others_first(tmp_path):
    out = tmp_path / "log"

    results(start_ranks(_measure, str(out), ["--pairs", "--max-bytes", "4096"], world_size=3))

    *pairs, reduced, _ = read_log(out.read_text().splitlines()).tables
    assert [sorted(pair.hosts) for pair in pairs] == [
        ["node-a", "node-b"],
        ["node-b", "node-c"],
        ["node-a", "node-c"],
    ]
    assert [[row.size_bytes for row in pair.rows] for pair in pairs] == [[4096]] * 3
    assert len(reduced.hosts) == 3


def test_no_node_is_in_two_pairs_at_once():
    assert collectives.rounds_of_pairs(4) == [[(0, 1), (2, 3)], [(1, 2), (3, 0)]]


def _corrupt(_rank: int) -> None:
    device = collectives._join(os.environ)

    def damage(tensor):
        tensor[5] += 1

    for operation in (collectives.ALL_REDUCE, collectives.BROADCAST):
        tensor = torch.empty(64, device=device)
        assert collectives._compare(operation, tensor, damage, None) == 1
        assert collectives._compare(operation, tensor, lambda _: None, None) == 0


def test_one_wrong_value_is_counted():
    results(start_ranks(_corrupt, world_size=1))


@pytest.mark.parametrize("words", [["--max-bytes", "6"], ["--max-bytes", "1M"], ["--factor", "1"]])
def test_sizes_that_cannot_be_sent_are_refused(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        collectives.parse(words)

    assert words[1] in capsys.readouterr().err
