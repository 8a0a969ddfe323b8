"""Published logs of nccl-tests, rebuilt from their figures, get the verdicts that they deserve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stationmaster.diagnosis.nccl.log import read_log
from stationmaster.diagnosis.nccl.report import NcclReport
from stationmaster.diagnosis.nccl.verdict import judge
from stationmaster.domain.catalogue.instances import CATALOGUE, get_instance
from stationmaster.domain.catalogue.nccl_floors import floor_for
from tests.support.nccl_logs import GIB, efa, head, info, ramp, sockets, table, tail, whole


def report(lines, instance="p4d.24xlarge", nodes=2) -> NcclReport:
    return judge(read_log(lines), get_instance(instance), num_nodes=nodes)


def p5(lines) -> list[str]:
    return [line.replace("A100-SXM4-40GB", "H100 80GB HBM3") for line in lines]


# The figures of one AWS blog of 2022 on 2 x p4d.24xlarge, NCCL's ring, 8 B to 1 GiB: with all four
# EFA interfaces, with one, with sockets.
FOUR_EFA = whole(ramp(42.03, latency=630), efa(None), old=True, operation=None, average=8.24)
ONE_EFA = whole(ramp(5.89), efa(None, devices=1), old=True, operation=None, average=3.02)
NO_EFA = whole(ramp(2.38), sockets(), old=True, operation=None, average=0.97)

PUBLISHED = {
    "2 x p4d of 2022": (
        FOUR_EFA,
        "p4d.24xlarge",
        2,
        "warn",
        "efa",
        ["42.03 GB/s at 1.00 GiB, below the limit of 65", "NCCL_ALGO=Ring", "take 630 us"],
    ),
    "2 x p4d with one EFA": (
        ONE_EFA,
        "p4d.24xlarge",
        2,
        "fail",
        "efa",
        ["5.89 GB/s at 1.00 GiB, below the limit of 35", "one EFA interface of four"],
    ),
    "2 x p4d without the plugin": (
        NO_EFA,
        "p4d.24xlarge",
        2,
        "fail",
        "socket",
        ["sockets instead of EFA on node-a, node-b: its plugin for EFA was not found", "2.38 GB/s"],
    ),
    "2 x p4de, current": (
        whole(ramp(78.33, latency=164, largest=2 * GIB), efa(4)),
        "p4de.24xlarge",
        2,
        "pass",
        "efa",
        ["above the limit of 65", "all of its 4 interfaces"],
    ),
    "2 x p4d, one interface on a current stack": (
        whole(ramp(20), efa(1, devices=1)),
        "p4d.24xlarge",
        2,
        "fail",
        "efa",
        ["1 of 4 EFA interfaces were found", "on a current stack"],
    ),
    "1 x p4d": (
        whole(ramp(230.77, latency=20, ranks=8), [], ranks=8, hosts=("node-a",)),
        "p4d.24xlarge",
        1,
        "pass",
        "unknown",
        ["230.77 GB/s at 1.00 GiB, above the limit of 200"],
    ),
    "2 x p5, NCCL 2.18, up to 2 GiB": (
        p5(whole(ramp(437.79, largest=2 * GIB), efa(32))),
        "p5.48xlarge",
        2,
        "pass",
        "efa",
        ["437.79 GB/s at 2.00 GiB, above the limit of 380", "all of its 32 interfaces"],
    ),
    "2 x p5 with half of the interfaces": (
        p5(whole(ramp(218, largest=2 * GIB), efa(None, devices=4))),
        "p5.48xlarge",
        2,
        "fail",
        "efa",
        ["typical of half the EFA interfaces"],
    ),
    "no line about the network": (
        p5(whole(ramp(437.79, largest=2 * GIB), [])),
        "p5.48xlarge",
        2,
        "warn",
        "unknown",
        ["no line of the log proves that EFA was used; sockets are not known to be so fast"],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_log_gets_its_verdict_and_reasons(name):
    lines, instance, nodes, verdict, transport, words = PUBLISHED[name]

    found = report(lines, instance, nodes)

    assert (found.verdict, found.transport) == (verdict, transport), found.reasons
    assert [word for word in words if word not in "\n".join(found.reasons)] == []


GOOD = [*head(), *efa(), *table(ramp(78)), *tail()]


def test_good_log_passes_without_anything_to_do():
    found = report(GOOD)

    assert found.verdict == "pass"
    assert found.next_steps == []
    assert (found.num_nics, found.gpudirect, found.wrong_values) == (4, True, 0)
    assert (found.plugin_version, found.nccl_version) == ("1.16.3-aws", "2.27.7+cuda12.9")
    assert (found.judged_size_bytes, found.floor_busbw_gbps) == (GIB, 35)
    assert len(found.rows) == 28
    assert found.rows[-1].busbw_gbps == 78


def without(*parts: str) -> list[str]:
    return [line for line in GOOD if not any(part in line for part in parts)]


def changed(old: str, new: str) -> list[str]:
    lines = [line.replace(old, new) for line in GOOD]
    assert lines != GOOD
    return lines


def with_row(size: int, **change) -> list[str]:
    rows = [replace(row, **change) if row.size == size else row for row in ramp(78)]
    return [*head(), *efa(), *table(rows), *tail()]


def with_hosts(*hosts: str) -> list[str]:
    return [*head(hosts=hosts), *efa(), *table(ramp(78)), *tail()]


MUTATED = {
    "the published row of 1 MiB with the figures of 1 GiB": (
        with_row(1 << 20, time=4607, busbw=233),
        "fail",
        "the row of 1.00 MiB contradicts itself: 4607 us give a bus bandwidth of 0.427 GB/s",
    ),
    "a faster bandwidth than size and time give": (
        with_row(GIB, busbw=80),
        "fail",
        "it says 80 GB/s",
    ),
    "wrong values in place": (
        with_row(1 << 20, in_place_wrong="3"),
        "fail",
        "3 values are wrong in all_reduce, first at 1.00 MiB",
    ),
    "an error that is no rounding": (with_row(GIB, wrong="2e-01"), "fail", "1 value is wrong"),
    "an error that is no number": (with_row(GIB, wrong="nan"), "fail", "1 value is wrong"),
    "wrong values by the last lines": (
        changed("values : 0 OK", "values : 7 FAILED"),
        "fail",
        "7 values are wrong",
    ),
    "results not compared": (
        [line.replace("      0", "    N/A") if "float" in line else line for line in GOOD],
        "warn",
        "did not compare its results",
    ),
    "no GPUDirect": (
        changed("/GDRDMA", ""),
        "warn",
        "messages went through the host's memory",
    ),
    "no word on GPUDirect, and slow": (
        [*head(), *efa(devices=0), *table(ramp(50)), *tail()],
        "warn",
        "no line of the log says whether GPUDirect RDMA was used",
    ),
    "no word on GPUDirect, and fast": (
        [*head(), *efa(devices=0), *table(ramp(78)), *tail()],
        "pass",
        "above the limit",
    ),
    "one node with fewer interfaces": (
        [
            line.replace("found 4 nics", "found 3 nics") if "node-b" in line else line
            for line in GOOD
        ],
        "fail",
        "3 of 4 EFA interfaces were found on node-b",
    ),
    "one node with sockets": (
        [*GOOD, info("node-b", "Using network Socket")],
        "fail",
        "NCCL used sockets instead of EFA on node-b",
    ),
    "libfabric over TCP": (
        changed("provider is efa, fabric is efa-direct", "Provider is tcp;ofi_rxm"),
        "fail",
        "libfabric sent over tcp;ofi_rxm instead of EFA",
    ),
    "no EFA provider, no channels": (
        [*without("NET/", "Using network"), info("a", "NET/OFI No eligible providers were found")],
        "fail",
        "libfabric found no EFA interface",
    ),
    "a plugin that hangs on broadcasts": (
        changed("1.16.3-aws", "1.18.0"),
        "fail",
        "aws-ofi-nccl 1.18.0 hangs in large broadcasts",
    ),
    "a plugin after the fix": (changed("1.16.3-aws", "1.20.0"), "pass", "above the limit"),
    "cut before the last lines": (
        without("Out of bounds", "Avg bus"),
        "warn",
        'the line "Avg bus bandwidth" is missing',
    ),
    "cut in the middle": (
        [*head(largest=8 * GIB), *efa(), *table(ramp(78))],
        "fail",
        "did not end: the log stops at 1.00 GiB of 8.00 GiB",
    ),
    "small messages only": (
        [*head(largest=1 << 27), *efa(), *table(ramp(60, largest=1 << 27)), *tail()],
        "fail",
        "nothing to judge: its largest message has 128 MiB",
    ),
    "one node of two": (
        with_hosts("node-a"),
        "fail",
        "the test ran on 1 node, not on 2 nodes",
    ),
    "one node of two, without its head": (
        [*efa(), *table(ramp(230, ranks=8)), *tail()],
        "fail",
        "the test ran on 8 ranks, not on 2 nodes",
    ),
    "a head of which the beginning is missing": (
        [*[line for line in head() if "node-a" not in line], *efa(), *table(ramp(78)), *tail()],
        "pass",
        "above the limit",
    ),
    "each process alone": (
        [
            *[line.replace(f"Rank {n:2}", "Rank  0") for n, line in enumerate(head()[5:])],
            *table([replace(row, busbw=0) for row in ramp(78)]),
            *tail(),
        ],
        "fail",
        "each process tested itself alone",
    ),
    "two tests that printed into one log": (
        [
            *[line for line in head(ranks=8) for _ in range(2)],
            *efa(),
            *table(
                [row for row in ramp(78, ranks=8) for row in (row, replace(row, time=row.time + 9))]
            ),
            *tail(),
        ],
        "fail",
        "several tests that ran at once",
    ),
    "no receiver": (
        [*head(), info("a", "x").replace("INFO x", "WARN NET/OFI: Unresponsive receiver")],
        "fail",
        "measured nothing; NCCL warned: NET/OFI: Unresponsive receiver",
    ),
    "a log that lost its signs": (
        [line.replace("#", "") for line in GOOD],
        "pass",
        "above the limit",
    ),
    "one node of two, in a log that lost its signs": (
        [line.replace("#", "") for line in with_hosts("node-a")],
        "fail",
        "the test ran on 1 node, not on 2 nodes",
    ),
    "GPUs of another type": (changed("A100-SXM4-40GB", "H200"), "fail", "p4d.24xlarge has A100"),
    "more than the machines can": (
        [*head(), *efa(), *table(ramp(300)), *tail()],
        "warn",
        "more than these instances are known to reach",
    ),
    "begun and nothing measured": (head(), "fail", "all_reduce began and measured nothing"),
    "NCCL and no test": ([info("a", "cudaDriverVersion 12040")], "fail", "no test has begun"),
}


@pytest.mark.parametrize("name", MUTATED)
def test_good_log_with_one_change_gets_another_verdict(name):
    lines, verdict, words = MUTATED[name]

    found = report(lines)

    assert found.verdict == verdict, found.reasons
    assert words in "\n".join(found.reasons)


def test_plugin_that_was_tried_under_other_names_is_no_reason():
    lines = [info("node-a", "NET/Plugin : No plugin found (libnccl-net.so)"), *GOOD]

    assert report(lines).verdict == "pass"


def test_interfaces_that_nobody_counts_are_a_warning_where_it_is_slow():
    slow, fast, four = (
        report([*head(), *efa(None, devices=devices), *table(ramp(peak)), *tail()])
        for devices, peak in ((1, 50), (1, 78), (4, 50))
    )

    verdicts = [
        next(finding.verdict for finding in one.findings if "interfaces were found" in finding.text)
        for one in (slow, fast, four)
    ]
    assert verdicts == ["warn", "pass", "pass"]


def test_one_gpu_says_nothing_of_a_network():
    rows = [replace(row, busbw=0) for row in ramp(78, ranks=2)]
    lines = [*head(ranks=1, hosts=("solo",), gpu="A10G"), *table(rows), *tail()]

    found = report(lines, "g5.8xlarge", 1)

    assert (found.verdict, found.reasons) == ("fail", [found.reasons[0]])
    assert "one GPU tested itself" in found.reasons[0]


def test_all_to_all_is_known_by_its_rows():
    row = f"{GIB} 16777216 float none -1 17318.42 62.00 58.12 0 17318.42 62.00 58.12 N/A"
    lines = [*GOOD, *head(operation=None), *table([])[:3], row, *tail()]

    found = report(lines)

    assert [test.operation for test in found.tests] == ["all_reduce", "alltoall"]
    assert (found.verdict, found.wrong_values) == ("pass", 0)


def test_instance_without_efa_is_not_blamed_for_sockets():
    lines = [*head(ranks=2, gpu="A10G"), *sockets(), *table(ramp(1.2, ranks=2)), *tail()]

    found = report(lines, "g5.xlarge")

    assert (found.verdict, found.transport) == ("warn", "socket")
    assert "sockets" not in "\n".join(found.reasons)


def test_latency_of_many_nodes_is_not_judged():
    hosts = tuple("abcdefgh")
    lines = whole(ramp(45, ranks=64, latency=400), efa(hosts=hosts), ranks=64, hosts=hosts)

    assert "small messages" in "\n".join(report(FOUR_EFA).reasons)
    assert "small messages" not in "\n".join(report(lines, nodes=8).reasons)


def test_time_with_two_digits_leaves_room_for_its_rounding():
    # 12.6 s: nccl-tests prints 1.3e+07 where seven digits do not suffice.
    row = "17179869184 4294967296 float sum -1 1.3e+07 1.36 2.56 0 1.3e+07 1.36 2.56 0"

    assert "contradicts" not in "\n".join(report([*head(), row]).reasons)


def test_broadcast_after_all_reduce_is_read_and_needs_no_floor():
    rows = ramp(40, operation="broadcast")
    broadcast = [*head(operation="broadcast"), *table(rows, operation="broadcast"), *tail()]

    both, alone = report([*GOOD, *broadcast]), report([*efa(), *broadcast])

    assert [test.operation for test in both.tests] == ["all_reduce", "broadcast"]
    assert (both.verdict, both.operation, both.peak_busbw_gbps) == ("pass", "all_reduce", 78)
    assert (alone.verdict, alone.operation) == ("warn", "broadcast")
    assert "no floor is known for broadcast" in "\n".join(alone.reasons)


def test_instance_without_a_floor_warns_and_says_so():
    lines = whole(ramp(9, ranks=2), efa(1), ranks=2, gpu="Tesla T4")

    found = report(lines, "g4dn.8xlarge")

    assert found.verdict == "warn"
    assert found.floor_busbw_gbps is None
    assert "no floor is known for all_reduce on 2 x g4dn.8xlarge" in "\n".join(found.reasons)


@pytest.mark.parametrize(
    ("instance", "nodes", "size", "fail", "warn"),
    [
        ("p4d.24xlarge", 2, GIB, 35, 65),
        ("p4d.24xlarge", 8, GIB, 20, 30),
        ("p5.48xlarge", 2, GIB, 250, 300),
        ("p5en.48xlarge", 16, 2 * GIB, 250, 380),
        ("p6-b200.48xlarge", 2, 8 * GIB, 300, 450),
        ("p6-b200.48xlarge", 4, 16 * GIB, 250, 320),
        ("g6e.48xlarge", 2, GIB, 17.5, 29.75),
        ("p5.4xlarge", 2, GIB, None, None),
        ("m5.2xlarge", 2, GIB, None, None),
    ],
)
def test_floors_are_by_instance_nodes_and_size(instance, nodes, size, fail, warn):
    floor = floor_for(get_instance(instance), operation="all_reduce", num_nodes=nodes)
    limits = floor.limits_at(size) if floor else None

    assert (limits.fail_below_gbps, limits.warn_below_gbps) == (fail, warn) if limits else not fail


def test_every_floor_lies_below_its_reference_and_has_a_source():
    floors = [
        floor
        for instance in CATALOGUE.values()
        for nodes in (1, 2, 3, 4, 16, 64)
        if (floor := floor_for(instance, operation="all_reduce", num_nodes=nodes))
    ]

    assert len(floors) > 60
    for floor in floors:
        assert floor.source
        assert floor.limits_at(floor.limits[0].min_size_bytes - 1) is None
        for limits in floor.limits:
            assert 0 < limits.fail_below_gbps < limits.warn_below_gbps < floor.reference_gbps
