"""The rules, and what is named as the cause where pods, events and nodes say different things."""

from __future__ import annotations

import re
import string
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.cli.diagnose import shown
from stationmaster.cli.main import make_parser
from stationmaster.diagnosis.explaining import Context, Role, Source, explain, time_of
from stationmaster.diagnosis.matching import MAX_EVIDENCE, MAX_TEXT, RULE, RULES, hints_of, matches
from stationmaster.diagnosis.reading import read_source
from stationmaster.diagnosis.rules import Rank, Severity, Where
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.commands.table import TYPED_SUBCOMMANDS
from stationmaster.domain.keys.names import KEY_MEANINGS, key_names

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


LINES = yaml.safe_load((Path(__file__).parent / "rule_lines.yaml").read_text())
HEALTHY = sorted((Path(__file__).parent / "healthy").iterdir())
ANYWHERE = frozenset(Where)
KEYS = {*KEY_MEANINGS, *(key for recipe in CATALOGUE.values() for key in key_names(recipe))}


def rules_of(text, where=ANYWHERE):
    return [match.rule.id for match in matches(text, where)]


def test_every_rule_has_a_line_that_it_holds_for_and_one_that_it_does_not():
    assert set(LINES) == set(RULE)
    assert len(RULE) == len(RULES)
    assert all(each["holds"] and each["near"] for each in LINES.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_holds_for_its_lines_and_not_for_those_that_come_near(rule):
    held, near = LINES[rule.id]["holds"], LINES[rule.id]["near"]

    assert [rule.id in rules_of(text, rule.where) for text in held] == [True] * len(held)
    assert [rule.id in rules_of(text) for text in near] == [False] * len(near)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_is_well_formed(rule):
    words = [f"{rule.diagnosis} {rule.remedy}"]
    fields = {name for text in words for _, name, _, _ in string.Formatter().parse(text) if name}

    assert fields <= set(re.compile(rule.pattern).groupindex) | set(Context.__slots__)
    assert min(len(hint) for hint in hints_of(rule.pattern)) > 3
    assert rule.source
    assert not rule.diagnosis.endswith(".")
    assert not rule.unless or rule.unless in RULE
    assert (rule.rank >= Rank.SLOW) <= (rule.severity is not Severity.ERROR)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_pattern_takes_no_longer_for_lines_that_are_made_against_it(rule):
    patterns = [re.compile(each, re.IGNORECASE) for each in (rule.pattern, rule.not_in)]
    texts = LINES[rule.id]["holds"] + LINES[rule.id]["near"]
    begun = [text[: len(text) * part // 4] for text in texts for part in (1, 2, 3, 4)]

    started = time.process_time()
    for begin in begun:
        for more in (" ", "a", "1", "a ", begin or "-"):
            for pattern in patterns:
                pattern.search((begin + more * MAX_TEXT)[:MAX_TEXT])

    # A hundredth of it is usual; one that goes back over its own repetitions takes many times it.
    assert time.process_time() - started < 0.5


def test_remedies_name_commands_and_keys_that_exist():
    verbs = {row.name for row in TYPED_SUBCOMMANDS}
    commands = make_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for rule in RULES:
        typed = re.findall(r"/train ([\w.{}-]+)", rule.remedy)
        assert {word for word in typed if word not in {"RECIPE", "{recipe}"}} <= {
            verb.split()[0] for verb in verbs
        }, rule.id
        ours = set(re.findall(r"stationmaster ([\w-]+) ", rule.remedy))
        assert ours <= set(commands), rule.id
        channel = re.sub(r"`(?:kubectl|aws) [^`]*`", "", rule.remedy)
        assert set(re.findall(r"(?<![\w/-])([a-z][a-z_]+)=", channel)) <= KEYS, rule.id


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.name)
def test_no_rule_holds_for_what_healthy_runs_print(path):
    source = read_source(path.name, path.read_text())

    assert source.lines or source.seen or "Normal" in path.read_text()
    assert explain([source]) == []
