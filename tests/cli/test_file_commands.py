"""`stationmaster lint` and `diagnose`: what they print, and what they say of bad input."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from stationmaster.cli import diagnose
from stationmaster.cli.main import main
from stationmaster.kubernetes.manifests import MANIFESTS

POD = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n  - name: a\n"
IMAGE = "    image: nvidia/cuda:12.8.0\n"
TOKEN = "    env:\n    - name: HF_TOKEN\n      value: hf_abcdefghijklmnopqrstuvwx\n"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "pod.yaml"
    path.write_text(POD + IMAGE + TOKEN)
    return path


def test_findings_are_shown_as_a_linter_does_with_file_line_rule_and_fix(manifest, capsys):
    assert main(["lint", str(manifest)]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{manifest}:11: error secret-in-clear  HF_TOKEN has its value")
    assert lines[1].startswith("    fix: put it into a Secret")
    assert lines[2:] == ["1 error in 1 object of 1 file"]
    assert "hf_abc" not in "".join(lines)


def test_findings_as_json_have_the_contracts_fields(manifest, capsys):
    assert main(["lint", "--json", str(manifest)]) == 1

    (finding,) = json.loads(capsys.readouterr().out)
    assert list(finding)[:5] == ["rule", "severity", "path", "message", "fix"]
    assert (finding["file"], finding["line"]) == (str(manifest), 11)
    assert finding["path"] == "spec.containers[0].env[0].value"


def test_warnings_alone_exit_with_0(manifest, capsys):
    manifest.write_text(POD + "    image: nvidia/cuda\n")

    assert main(["lint", str(manifest)]) == 0

    assert ": warning image-tag  " in capsys.readouterr().out


def test_folders_and_piped_text_are_read_and_other_files_of_a_folder_are_not(
    manifest, capsys, monkeypatch
):
    (manifest.parent / "values.yaml").write_text("image: x\n")
    (manifest.parent / "notes.txt").write_text("no YAML: [")
    piped = io.TextIOWrapper(io.BytesIO((POD + IMAGE).encode()))
    monkeypatch.setattr("sys.stdin", piped)
    manifest.write_text(POD + IMAGE)

    assert main(["lint", str(manifest.parent), "-", "--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    assert {(each["rule"], Path(each["file"]).name) for each in found} == {
        ("not-an-object", "values.yaml"),
        ("same-object", "-"),
    }


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (None, [], '"{path}" cannot be read: no such file or directory; give a manifest'),
        (b"# Title\n\nsome: text: here\n", [], '"{path}" is no manifest: line 3: not YAML'),
        (b"a: 1\n", [], '"{path}" has no Kubernetes object'),
        (b"", [], '"{path}" has no Kubernetes object'),
        (b"\n" * 900_000, [], '"{path}" has no Kubernetes object'),
        (b"\xff\xfe", [], '"{path}" is no text: byte 0'),
        (b"a" * (2 * 1024 * 1024 + 1), [], '"{path}" is larger than 2 MiB'),
        (POD.encode(), ["--instance", "p4d.24xlrge"], "did you mean p4d.24xlarge"),
        (POD.encode(), ["--instance", ""], 'instance type "" is not in the catalogue'),
    ],
)
def test_bad_input_is_one_sentence_and_exits_with_2(tmp_path, capsys, content, arguments, message):
    path = tmp_path / "some.yaml"
    if content is not None:
        path.write_bytes(content)

    assert main(["lint", str(path), *arguments]) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    assert message.format(path=path) in shown.err
    assert len(shown.err.splitlines()) == 1


def test_nothing_is_found_in_the_repositorys_own_manifests(capsys):
    assert main(["lint", str(MANIFESTS)]) == 0

    assert capsys.readouterr().out.startswith("nothing found in ")


def test_folder_without_a_manifest_is_bad_input(tmp_path, capsys):
    assert main(["lint", str(tmp_path)]) == 2

    assert f'no file below "{tmp_path}" ends in .yaml' in capsys.readouterr().err


def test_name_and_line_of_a_broken_manifest_is_a_finding(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(POD + "   image: [\n")

    assert main(["lint", str(path)]) == 1

    assert f"{path}:8: error yaml  not YAML: " in capsys.readouterr().out


def test_control_characters_of_a_manifest_are_not_printed(manifest, capsys):
    manifest.write_text(POD + '    image: "x\\e[31m\\n:1"\n')

    main(["lint", str(manifest)])

    assert "\x1b" not in capsys.readouterr().out


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
