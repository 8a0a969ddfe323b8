"""What `stationmaster diagnose` prints."""

import io
import json
import sys

import pytest

from stationmaster.cli import diagnose
from stationmaster.cli.main import main

WATCHDOG = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600081 milliseconds"
)
PODS = "NAME   READY   STATUS      RESTARTS   AGE\nw-1    0/1     OOMKilled   0          1m\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "w-0.log").write_text(f"step 1\n{WATCHDOG}\n{WATCHDOG}\n")
    (tmp_path / "pods.txt").write_text(PODS)
    return [str(tmp_path / "w-0.log"), str(tmp_path / "pods.txt")]


def test_cause_is_printed_with_its_evidence_and_what_to_do(files, capsys):
    assert main(["diagnose", *files]) == 0

    printed = capsys.readouterr().out
    cause, _, followed = printed.partition("Followed from it")
    assert "used more memory than its limit" in cause
    assert f"{files[1]}:2 (w-1): OOMKilled" in cause
    assert "do: start it again with less in memory" in cause
    assert "waited 600000 ms in ALLREDUCE" in followed
    assert f"{files[0]}:2, and 1 more" in followed


def test_json_has_the_findings_with_the_root_cause_first(files, capsys):
    assert main(["diagnose", *files, "--json"]) == 0

    cause, consequence = json.loads(capsys.readouterr().out)
    assert (cause["rule"], cause["severity"], cause["line"]) == ("oom-host", "error", 2)
    assert {"source", "evidence", "diagnosis", "remedy"} <= set(cause)
    assert (consequence["rule"], consequence["source"]) == ("nccl-watchdog", files[0])


def test_files_that_only_have_consequences_say_so(files, capsys):
    assert main(["diagnose", files[0]]) == 0

    printed = capsys.readouterr().out
    assert printed.startswith("Root cause\n  not in these files")
    assert "kubectl logs POD" in printed


def test_log_without_a_failure_says_so(tmp_path, capsys):
    (tmp_path / "a.log").write_text("step 1\n")

    assert main(["diagnose", str(tmp_path / "a.log"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["diagnose", str(tmp_path / "a.log")]) == 0
    assert "nothing that is known as a failure" in capsys.readouterr().out


def test_standard_input_is_read_and_the_instance_decides_about_efa(monkeypatch, capsys):
    text = io.TextIOWrapper(io.BytesIO(b"w:1:1 [0] NCCL INFO Using network Socket\n\xff\n"))
    monkeypatch.setattr(sys, "stdin", text)

    assert main(["diagnose", "-", "--instance", "m5.2xlarge", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.log", None, "no such file"),
        ("", None, "is a directory"),
        ("a\0b", None, "give a file"),
        ("empty.log", "\n", "is empty"),
        ("job.yaml", "apiVersion: v1\nkind: ConfigMap\n", "stationmaster lint FILE"),
        ("packed.log", "step 1\n\0\0\0\0\n", "is no text"),
        ("deep.yaml", f"kind: List\nitems: {'[' * 200_000}", "nested more than 100 levels"),
        ("bomb.yaml", "kind: List\na: &a {<<: [*a]}\nitems: []\n", "line 2 has the alias *a"),
    ],
)
def test_bad_file_gets_one_sentence_and_exit_code_2(tmp_path, capsys, name, content, words):
    if content is not None:
        (tmp_path / name).write_text(content)

    assert main(["diagnose", f"{tmp_path}/{name}"]) == 2

    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_file_that_is_too_large_gets_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(diagnose, "_MAX_BYTES", 9)
    (tmp_path / "pod.log").write_text("more than 9")

    assert main(["diagnose", f"{tmp_path}/pod.log"]) == 2
    assert "give its end" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_log_in_colours_and_any_encoding_is_read_and_shown_without_them(tmp_path, capsys, encoding):
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    text = (
        f"{mark}step 1\r\n\x1b[31mtorch.OutOf\x1b[0mMemoryError: CUDA out of memory \x07\u202e.\n"
    )
    (tmp_path / "pod.log").write_bytes(text.encode(encoding))

    assert main(["diagnose", f"{tmp_path}/pod.log"]) == 0

    assert "pod.log:2: torch.OutOfMemoryError: CUDA out of memory   .\n" in capsys.readouterr().out


def test_unknown_instance_is_refused(files, capsys):
    assert main(["diagnose", files[0], "--instance", "p5.48xlrge"]) == 2
    assert "p5.48xlarge" in capsys.readouterr().err
