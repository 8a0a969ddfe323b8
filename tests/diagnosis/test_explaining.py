"""What is named as the cause where several pods, events and nodes say different things."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.cli.diagnose import shown
from stationmaster.diagnosis.explaining import Context, Role, Source, explain, time_of
from stationmaster.diagnosis.matching import MAX_EVIDENCE
from stationmaster.diagnosis.reading import read_source

WATCHDOG = (
    "[rank0]:[E1120 18:05:11.42 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=91, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600081 milliseconds before timing out."
)
RESET = "torch.distributed.DistNetworkError: Connection reset by peer"
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SOCKET = "p5-worker-0:1:1 [0] NCCL INFO Using network Socket"
NO_PLUGIN = "p5-worker-0:1:1 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so."
EFA = "p5-worker-0:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)"
PODS = "NAME       READY   STATUS      RESTARTS   AGE\nfsdp-w-1   0/1     OOMKilled   0          1m"
DMESG = "[9.1] NVRM: Xid (PCI:0000:53:00): 79, pid=1, GPU has fallen off the bus."


CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text())


def log(name, *lines):
    return Source(name=name, lines=lines)


def found(*sources, **context):
    return [(each.rule, each.role.value) for each in explain(sources, Context(**context))]


def test_killed_pod_explains_what_the_others_printed():
    findings = explain([log("w-0", WATCHDOG, RESET, CHILD), read_source("pods.txt", PODS)])

    assert [(each.rule, each.role) for each in findings] == [
        ("oom-host", Role.CAUSE),
        ("nccl-watchdog", Role.CONSEQUENCE),
        ("peer-gone", Role.CONSEQUENCE),
        ("child-failed", Role.CONSEQUENCE),
    ]
    assert (findings[0].source, findings[0].line, findings[0].subject) == (
        "pods.txt",
        2,
        "fsdp-w-1",
    )


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([log("w", OUT_OF_MEMORY, CHILD)], [("oom-gpu", "cause"), ("child-failed", "consequence")]),
        (
            [log("w", OUT_OF_MEMORY), log("node", DMESG)],
            [("xid-lost-gpu", "cause"), ("oom-gpu", "also")],
        ),
        ([log("w", RESET, CHILD)], [("peer-gone", "consequence"), ("child-failed", "consequence")]),
        ([log("w", SOCKET)], [("net-socket", "note")]),
        (
            [log("w", SOCKET, OUT_OF_MEMORY)],
            [("oom-gpu", "cause"), ("net-socket", "note")],
        ),
        ([log("w", NO_PLUGIN, EFA)], []),
        ([log("w", NO_PLUGIN), log("other", EFA)], [("net-plugin", "note")]),
        (
            [log("all", f"[pod/w-0/pytorch] {NO_PLUGIN}", f"[pod/w-1/pytorch] {EFA}")],
            [("net-plugin", "note")],
        ),
        (
            [
                log(
                    "all",
                    f"[pod/w-0/pytorch] {NO_PLUGIN}",
                    f"[pod/w-0/pytorch] {EFA}",
                    f"[pod/w-1/pytorch] {NO_PLUGIN}",
                )
            ],
            [("net-plugin", "note")],
        ),
        (
            [log("w", "Traceback (most recent call last):", "KeyError: 'model'", CHILD)],
            [("unexplained", "cause"), ("child-failed", "consequence")],
        ),
        ([log("w", "config.yaml: no such key", CHILD)], [("unexplained", "cause")]),
        ([], []),
    ],
    ids=lambda value: "",
)
def test_root_cause_comes_first_and_every_finding_has_its_part(sources, expected):
    assert found(*sources)[: max(len(expected), 1)] == expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_saved_file_is_explained_rightly(case):
    assert dict(found(read_source("file", case["text"]))) == case["found"]


def test_warning_without_a_rule_is_quoted_whole_with_its_object():
    (first, *_) = explain([read_source("e", CASES["warning that no rule knows"]["text"])])

    assert first.evidence.endswith("didn't satisfy existing pods anti-affinity rules.")
    assert (first.subject, first.line) == ("trainer-2", 3)


def test_files_that_only_have_consequences_say_what_to_look_at():
    stuck = (
        "[rank3]:[E1 ProcessGroupNCCL.cpp:1870] [PG ID 0 Rank 3] ProcessGroupNCCL's watchdog got "
        "stuck for 480 seconds without making progress"
    )

    text = "\n".join(shown(explain([log("w", stuck)])))

    assert "not in these files" in text
    assert "py-spy dump --pid PID` of rank 3" in text


def test_line_that_names_a_failure_is_said_to_be_unexplained():
    stamped = [
        f"[pod/w-0/pytorch] 2026-11-20T18:00:0{second}.5Z {text}"
        for second, text in enumerate(
            ("Traceback (most recent call last):", "  f()", "KeyError: 1")
        )
    ]

    (finding,) = explain([log("w", *stamped)])

    assert (finding.line, finding.evidence) == (3, "KeyError: 1")
    assert "no rule explains this line" in finding.diagnosis
    assert "/train logs RUN" in finding.remedy


def test_causes_of_one_rank_are_ordered_by_time_and_counted_once():
    sources = [
        log("late", f"2026-11-20T18:00:09Z {OUT_OF_MEMORY}", OUT_OF_MEMORY),
        log("early", f"2026-11-20T18:00:05Z {OUT_OF_MEMORY}"),
        log("first", "2026-11-20T18:00:01Z OSError: [Errno 28] No space left on device: '/a'"),
    ]

    findings = explain(sources)

    assert [each.rule for each in findings] == ["disk-full", "oom-gpu"]
    assert (findings[1].source, findings[1].count) == ("early", 3)


def test_two_gpus_that_failed_are_two_findings():
    other = DMESG.replace("53:00", "64:00")

    assert found(log("a", DMESG, DMESG), log("b", other)) == [
        ("xid-lost-gpu", "cause"),
        ("xid-lost-gpu", "also"),
    ]


@pytest.mark.parametrize(
    ("num_efa", "rules"), [(0, []), (1, ["net-socket"]), (None, ["net-socket"])]
)
def test_missing_efa_is_a_finding_only_where_the_instance_has_it(num_efa, rules):
    assert [rule for rule, _ in found(log("w", SOCKET), num_efa=num_efa)] == rules


@given(st.lists(st.text(max_size=200), max_size=20), st.sampled_from(["", "x" * 5000]))
def test_any_text_is_explained_without_an_error_and_with_short_evidence(texts, long):
    findings = explain([log("w", *texts, long + OUT_OF_MEMORY[-5:], long[:900] + OUT_OF_MEMORY)])

    assert findings[0].rule == "oom-gpu"
    assert all(len(each.evidence) <= MAX_EVIDENCE for each in findings)
    assert "CUDA out of memory" in findings[0].evidence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20T18:00:01.123456789Z x", "2026-11-20T18:00:01.123456+00:00"),
        ("[2026-11-20 18:00:01,5] x", "2026-11-20T18:00:01.500000+00:00"),
        ("2026-11-20T18:00:01+02:00 x", "2026-11-20T18:00:01+02:00"),
        ("2026-13-40 18:00:01 x", None),
        ("step 3", None),
    ],
)
def test_time_of_a_line_is_read(text, expected):
    at = time_of(text)

    assert (at and at.isoformat()) == expected
