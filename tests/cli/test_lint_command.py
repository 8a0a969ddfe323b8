"""`stationmaster lint`: what it prints, its exit codes, and what it says of bad input."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

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
