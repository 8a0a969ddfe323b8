"""Tables of nccl-tests are read through whatever launchers, loggers and terminals do to them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stationmaster.diagnosis.nccl.log import NcclLog, read_log
from stationmaster.diagnosis.nccl.operations import bus_factor, ranks_of_factor
from stationmaster.diagnosis.nccl.verdict import judge
from stationmaster.domain.catalogue.instances import get_instance
from tests.support.nccl_logs import Figures, efa, head, info, ramp, table, tail, whole

PREFIXES = (
    "",
    "[1,0]<stdout>:",
    "0: ",
    "node-a: ",
    "[pod/nccl-tests-launcher-x7k2p/launcher] ",
    "nccl-tests-launcher-x7k2p launcher ",
    "2026-11-22T10:00:00.123456789Z ",
    "2026-11-22 10:00:00 ",
    "[2026-11-22 10:00:00] ",
    " | 2026-11-22T10:00:00.208-07:00 | ",
    "[pod/a/b] [1,0]<stdout>:0: ",
)
NOISE = (
    info("node-b", "Channel 00/0 : 9[1] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA"),
    info("8h200-2", "comm 0x7f17c8000dc0 rank 9 nranks 16 cudaDev 1 busId 101d0 - Init COMPLETE"),
    "Warning: Permanently added '10.0.0.7' (ED25519) to the list of known hosts.",
    "",
    "#",
)

figures = st.builds(
    Figures,
    size=st.just(0),
    time=st.floats(1, 900_000).map(lambda value: float(f"{value:.4g}")),
    busbw=st.floats(0, 999).map(lambda value: round(value, 2)),
    wrong=st.sampled_from(["0", "0", "0", "12", "N/A", "1e+06"]),
    in_place_wrong=st.sampled_from(["0", "N/A", "3"]),
)


@st.composite
def tables(draw) -> tuple[list[Figures], list[str], bool]:
    """Figures, the lines that have them, and whether the version that prints them is an old one."""
    rows = draw(st.lists(figures, min_size=1, max_size=12))
    rows = [
        Figures(8 << index, row.time, row.busbw, row.wrong, row.in_place_wrong)
        for index, row in enumerate(rows)
    ]
    old = draw(st.booleans())
    operation = draw(st.sampled_from(["all_reduce", "broadcast", "all_gather"]))
    lines = table(rows, old=old, operation=operation)
    if draw(st.booleans()):
        lines = [*head(operation=operation, largest=rows[-1].size), *lines]
    if draw(st.booleans()):
        lines += tail()
    return rows, lines, old


@st.composite
def distorted(draw, lines: list[str]) -> list[str]:
    """The same lines as somebody's log has them."""
    kept = []
    for line in lines:
        kept += draw(st.lists(st.sampled_from(NOISE), max_size=2))
        kept += draw(broken(line)) if "float" in line else [line]
    prefix = draw(st.sampled_from(PREFIXES))
    squeeze = draw(st.sampled_from(["as is", "collapsed", "tabs"]))
    colour = draw(st.booleans())
    end = draw(st.sampled_from(["", "\n", "\r\n", "\r"]))
    result = []
    for line in kept:
        text = line
        if squeeze == "collapsed":
            text = " ".join(line.split())
        elif squeeze == "tabs":
            text = re.sub(" {2,}", "\t", line)
        if colour:
            text = f"\x1b[1;32m{text}\x1b[0m\x1b[K"
        result.append(f"{prefix}{text}{end}")
    return ["".join(result)] if end and draw(st.booleans()) else result


@st.composite
def broken(draw, line: str) -> list[str]:
    """A row, perhaps with a line of another rank in its middle: each half is printed at once."""
    halves = len(line) - len(line.rstrip())
    words = list(re.finditer(r"\S+", line))
    cut = draw(st.sampled_from(["whole", "whole", "before values", "between halves"]))
    if cut == "whole":
        return [line]
    place = words[-8].start() if cut == "before values" else words[-4].start()
    return [line[:place] + draw(st.sampled_from(NOISE[:2])), line[place:] + " " * halves]


def read_figures(log: NcclLog) -> list[tuple[int, float, float]]:
    return [
        (row.size_bytes, row.out_of_place.time_us, row.in_place.busbw_gbps)
        for found in log.tables
        for row in found.rows
        if row.out_of_place and row.in_place
    ]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_table_survives_every_mix_of_distortions(data):
    rows, lines, _ = data.draw(tables())

    log = read_log(data.draw(distorted(lines)))

    printed = [(row.size, _printed(row.time), row.busbw) for row in rows]
    assert read_figures(log) == printed
    assert len(log.tables) == 1


@settings(max_examples=60, deadline=None)
@given(tables(), st.data())
def test_truncated_table_keeps_its_whole_rows(made, data):
    rows, lines, _ = made
    text = "\n".join(lines)
    cut = data.draw(st.integers(0, len(text)))

    found = read_figures(read_log([text[:cut]]))

    printed = [(row.size, _printed(row.time), row.busbw) for row in rows]
    num_whole = sum("float" in line for line in text[:cut].split("\n")[:-1])
    assert found[:num_whole] == printed[:num_whole]
    assert len(found) <= num_whole + 1


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.binary(max_size=60).map(lambda data: data.decode("latin-1")),
            st.sampled_from([*whole(ramp(78, largest=1 << 12), efa()), *NOISE]),
            st.text("0123456789.- #float sumN/Aeinf\t\r", max_size=60).map("8 2 float ".__add__),
        ),
        max_size=25,
    )
)
def test_no_lines_raise(lines):
    log = read_log(lines)

    report = judge(log, get_instance("p4d.24xlarge"), num_nodes=2)

    assert report.verdict == "fail"
    assert report.reasons


@pytest.mark.parametrize("glue", ["node-a", "8h200-2", "ip-10-0-0-1.ec2.internal"])
def test_line_glued_to_the_end_of_a_half_costs_its_check_only(glue):
    lines = table([Figures(8, 100, 1.5)], operation="all_reduce")
    place = lines[-1].index("  0  ") + 3 if "  0  " in lines[-1] else lines[-1].index(" 0 ") + 2
    first = lines[-1][:place] + info(glue, "Launch mode Parallel")

    log = read_log([*lines[:-1], first, lines[-1][place:]])

    row = log.tables[0].rows[0]
    assert (row.out_of_place.time_us, row.in_place.time_us) == (100, 100)
    assert (row.out_of_place.num_wrong, row.in_place.num_wrong) == (None, 0)


@pytest.mark.parametrize(
    ("line", "time", "wrong"),
    [
        ("8 2 float sum -1 164.3 0.00 0.00 0 163.3 0.00 0.00 0", 164.3, 0),
        ("8 2 float sum 164.3 0.00 0.00 5e-07 163.3 0.00 0.00 5e-07", 164.3, 0),
        ("8 2 float 0 45.82 0.00 0.00 N/A 38.17 0.00 0.00 N/A", 45.82, None),
        ("8 2 float none 0 45 0.00 0.00 2 38.17 0.00 0.00 0", 45, 2),
        ("8 2 bfloat16 sum -1 164.3 0.00 0.00 0", 164.3, 0),
        ("8 2 float sum -1 164 0.1 0.1 0 163 0.1 0.1 0 2026-11-22 10:00:00", 164, 0),
        ("8 2 int8 sum -1 1.3e+07 0.00 0.00 1e+06 163.3 0.00 0.00 0", 1.3e7, 10**6),
        ('{"log":"  8 2 float sum -1 164.3 0.00 0.00 0 163.3 0.00 0.00 0\\n"}', 164.3, 0),
    ],
)
def test_row_without_a_header_is_read(line, time, wrong):
    row = read_log([line]).tables[0].rows[0]

    assert (row.size_bytes, row.count) == (8, 2)
    assert (row.out_of_place.time_us, row.out_of_place.num_wrong) == (time, wrong)


def test_row_with_columns_per_iteration_is_read():
    header = "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time"
    half = "100.5 8.51 15.95 0 99.1 102.2 101.0 1.5"

    row = read_log([header, f"1048576 262144 float sum -1 {half} {half}"]).tables[0].rows[0]

    assert (row.out_of_place.busbw_gbps, row.in_place.time_us) == (15.95, 100.5)


@pytest.mark.parametrize(
    ("lines", "operation"),
    [
        (["+ mpirun -np 16 /opt/nccl-tests/build/broadcast_perf -b 8"], "broadcast"),
        (["# Collective test starting: alltoall_perf"], "alltoall"),
        ([], "all_reduce"),
    ],
)
def test_operation_comes_from_a_line_or_from_the_rows(lines, operation):
    rows = table(ramp(78))

    assert read_log([*lines, *rows]).tables[0].operation == operation


def test_operation_that_nothing_tells_is_asked_for():
    lines = table(ramp(40, operation="all_gather"), operation="all_gather")

    log = read_log(lines)
    assert log.tables[0].operation is None
    report = judge(log, get_instance("p4d.24xlarge"), num_nodes=2)
    assert (report.verdict, report.reasons[0]) == ("fail", "the log does not say what was measured")

    assert read_log(lines, operation="all_gather").tables[0].operation == "all_gather"


def test_head_of_a_second_test_ends_one_that_was_cut():
    cut = [*head(), *table(ramp(78))]
    lines = [*cut, *whole(ramp(40, operation="broadcast"), [], operation="broadcast")]

    found = read_log(lines).tables

    assert [(one.operation, one.is_complete) for one in found] == [
        ("all_reduce", False),
        ("broadcast", True),
    ]


def test_head_of_an_unnamed_test_ends_one_that_was_cut():
    cut = [*head(operation=None), *table(ramp(78), old=True)]

    found = read_log([*cut, *cut]).tables

    assert [len(one.rows) for one in found] == [28, 28]


def test_line_that_is_printed_twice_is_one_row():
    lines = [line for line in table(ramp(78)) for _ in range(2)]

    assert len(read_log(lines).tables[0].rows) == 28


def test_row_that_took_no_time_is_no_row():
    found = read_log(["8 2 float sum -1 0.00 0.00 0.00 0 0.00 0.00 0.00 0"]).tables[0]

    assert found.rows == []


@pytest.mark.parametrize("ranks", [2, 8, 16, 32, 64])
def test_factor_and_ranks_are_inverse(ranks):
    assert bus_factor("all_reduce", 16) == 1.875
    for operation in ("all_reduce", "all_gather"):
        factor = bus_factor(operation, ranks)
        assert factor is not None
        assert ranks_of_factor(operation, factor) == ranks


@pytest.mark.parametrize(
    ("text", "kind", "nics", "direct"),
    [
        ("NET/OFI Selected Provider is efa (found 16 nics)", "efa", 16, None),
        ("NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)", "efa", 32, None),
        ("NET/OFI Initializing aws-ofi-nccl 1.7.4-aws", "efa", None, None),
        ("Using network AWS Libfabric", "efa", None, None),
        ("Using network Libfabric", "efa", None, None),
        ("Channel 00/0 : 1[1] -> 8[0] [send] via NET/Libfabric/3/GDRDMA", "efa", None, True),
        ("Channel 00/0 : 1[1] -> 8[0] [send] via net/aws libfabric/3", "efa", None, False),
        (
            "Channel 00/0 : 1[1] -> 8[0] [send] via NET/Libfabric/3(8)/GDRDMA/Shared",
            "efa",
            None,
            True,
        ),
        ("NET/Libfabric : GPU Direct RDMA Enabled for HCA 0 'rdmap79s0'", "unknown", None, True),
        ("NET/Libfabric : GPU Direct RDMA Disabled for HCA 0 'rdmap79s0'", "unknown", None, False),
        ("GPU Direct RDMA Disabled for GPU 0 / HCA 3 (distance 9 > 5)", "unknown", None, None),
        ("Using network Socket", "socket", None, None),
        ("NET/Socket : Using [0]eth0:10.0.0.1<0>", "socket", None, None),
        ("Initialized NET plugin Socket", "socket", None, None),
        ("Channel 00 : 9[1] -> 0[0] [receive] via NET/Socket/0", "socket", None, None),
        ("NET/OFI Selected Provider is tcp;ofi_rxm", "socket", None, None),
        ("NET/Plugin: Could not find: libnccl-net.so", "unknown", None, None),
        ("NET/Plugin : No plugin found (libnccl-net.so)", "unknown", None, None),
        ("Bootstrap : Using eth0:10.0.0.1<0>", "unknown", None, None),
    ],
)
def test_transport_is_what_nccl_says_that_it_uses(text, kind, nics, direct):
    found = read_log([info("node-a", text)]).transport

    assert (found.kind, found.num_nics, found.has_gpudirect) == (kind, nics, direct)


@pytest.mark.parametrize(
    ("texts", "kind", "nics", "direct"),
    [
        (
            ["Initializing aws-ofi-nccl 1.7.4", "No eligible providers were found"],
            "unknown",
            None,
            None,
        ),
        (
            ["Selected provider is efa (found 3 nics)", "Selected provider is efa (found 4 nics)"],
            "efa",
            3,
            None,
        ),
        (["via NET/AWS Libfabric/0/GDRDMA", "via NET/AWS Libfabric/1"], "efa", None, False),
        (
            ["via NET/AWS Libfabric/1", "GPU Direct RDMA Enabled for HCA 0"],
            "efa",
            None,
            False,
        ),
    ],
)
def test_worst_of_several_lines_counts(texts, kind, nics, direct):
    lines = [info("node-a", text if "NET/" in text else f"NET/OFI {text}") for text in texts]

    found = read_log(lines).transport

    assert (found.kind, found.num_nics, found.has_gpudirect) == (kind, nics, direct)


def test_socket_that_is_only_opened_is_not_used():
    lines = [info("node-a", "NET/Socket : Using [0]eth0:10.0.0.1<0>"), *efa()]

    assert read_log(lines).transport.kind == "efa"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NCCL version 2.18.5+cuda12.2", "2.18.5+cuda12.2"),
        ("# nccl-tests version 2.19.6 nccl-headers=22304 nccl-library=22304", "2.23.4"),
        ("# nccl-tests version 2.19.6 nccl-headers=2708 nccl-library=2708", "2.7.8"),
    ],
)
def test_version_of_nccl_is_read(line, version):
    assert read_log([line]).transport.nccl_version == version


def _printed(time: float) -> float:
    decimals = 0 if time >= 10_000 else 1 if time >= 100 else 2
    return float(f"{time:.{decimals}f}")
