"""`stationmaster nccl-report` as it is typed."""

from __future__ import annotations

import io
import json
import sys

import pytest

from stationmaster.cli.main import main
from tests.support.nccl_logs import efa, ramp, sockets, whole

GOOD = "\n".join(whole(ramp(78), efa()))
SOCKETS = "\n".join(whole(ramp(2.38), sockets()))


@pytest.fixture
def typed(tmp_path, capsys):
    """Run the command on a log; gives the exit code, what was printed, and the errors."""

    def run(log: str | bytes, *arguments: str, instance="p4d.24xlarge", nodes="2"):
        path = tmp_path / "nccl.log"
        path.write_bytes(log if isinstance(log, bytes) else log.encode())
        code = main(
            ["nccl-report", str(path), "--instance", instance, "--nodes", nodes, *arguments]
        )
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_good_log_passes_with_its_table(typed):
    code, printed, _ = typed(GOOD)

    assert code == 0
    assert "all_reduce on 2 x p4d.24xlarge, 16 ranks" in printed
    assert "EFA, 4 of 4 interfaces, GPUDirect RDMA" in printed
    assert "NCCL 2.27.7+cuda12.9, aws-ofi-nccl 1.16.3-aws" in printed
    assert "PASS  2 x p4d.24xlarge" in printed
    assert "1.00 GiB" in printed
    assert "\n 1.00 KiB" not in printed
    assert "next" not in printed


def test_failing_log_exits_with_1_and_says_what_to_do(typed):
    code, printed, _ = typed(SOCKETS)

    assert code == 1
    assert "FAIL  2 x p4d.24xlarge" in printed
    assert "fail NCCL used sockets instead of EFA" in printed
    assert "next put aws-ofi-nccl into the image" in printed
    assert "to find a slow one" not in printed


def test_json_has_the_fields_of_the_contract(typed):
    code, printed, _ = typed(SOCKETS, "--json")

    report = json.loads(printed)

    assert code == 1
    assert (report["verdict"], report["transport"], report["num_nics"]) == ("fail", "socket", None)
    assert report["peak_busbw_gbps"] == report["judged_busbw_gbps"] == 2.38
    assert (report["judged_size_bytes"], report["floor_busbw_gbps"]) == (1 << 30, 35)
    assert report["wrong_values"] == 0
    assert report["rows"][0].items() >= {"size_bytes": 8, "busbw_gbps": 0.0}.items()
    assert set(report["rows"][0]) >= {"size_bytes", "time_us", "algbw_gbps", "busbw_gbps"}
    assert all(isinstance(reason, str) for reason in report["reasons"])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "latin-1"])
def test_log_in_another_encoding_is_read(typed, encoding):
    code, printed, _ = typed(f"# température\r\n{GOOD}".encode(encoding), "--json")

    assert code == 0
    assert len(json.loads(printed)["rows"]) == 28


def test_long_log_with_carriage_returns_only_is_read(typed):
    # Where a reader of fixed blocks would cut, there is the middle of the last row.
    lead = "." * (65_536 - 40 - GOOD.rindex("  1073741824") - 1) + "\n"

    code, printed, _ = typed((lead + GOOD).replace("\n", "\r"), "--json")

    assert code == 0
    assert len(json.loads(printed)["rows"]) == 28


def test_log_comes_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))

    assert main(["nccl-report", "-", "--instance", "p4d.24xlarge", "--nodes", "2"]) == 0
    assert "PASS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("log", "instance", "words"),
    [
        ("", "p4d.24xlarge", "has no output of nccl-tests; give the log of its launcher"),
        (b"\x00\xff\xfe\x1b[31m" * 5000, "p4d.24xlarge", "has no output of nccl-tests"),
        (b"\xff\xfe\x00", "p4d.24xlarge", "has no output of nccl-tests"),
        (GOOD, "p4d.24xlarg", 'instance type "p4d.24xlarg" is not in the catalogue'),
    ],
)
def test_bad_input_is_one_sentence(typed, log, instance, words):
    code, printed, errors = typed(log, instance=instance)

    assert (code, printed) == (2, "")
    assert words in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("nodes", ["0", "-1", "two", "2.5", "999999", "\u0662"])
def test_number_of_nodes_is_a_number(capsys, nodes):
    with pytest.raises(SystemExit) as stopped:
        main(["nccl-report", "-", "--instance", "p5.48xlarge", f"--nodes={nodes}"])

    assert stopped.value.code == 2
    assert f'"{nodes}" is no number of nodes' in capsys.readouterr().err


def test_plot_is_written_with_the_report(typed, tmp_path):
    path = tmp_path / "busbw.png"

    code, printed, _ = typed(SOCKETS, "--plot", str(path))

    assert code == 1
    assert "FAIL" in printed
    assert path.read_bytes().startswith(b"\x89PNG")


def test_several_logs_are_set_side_by_side_against_the_fastest(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    files = {"four": GOOD, "none": SOCKETS}
    paths = [tmp_path / name for name in files]
    for path, log in zip(paths, files.values(), strict=True):
        path.write_text(log)
    machines = ["--instance", "p4d.24xlarge", "--nodes", "2"]
    several = ["nccl-report", *map(str, paths), *machines]

    code = main([*several, "--plot", str(tmp_path / "png")])
    printed = " ".join(capsys.readouterr().out.split())
    main([*several, "--json"])
    both = json.loads(capsys.readouterr().out)
    twice = main(["nccl-report", str(paths[0]), str(paths[0]), *machines])

    assert code == 1
    assert "EFA, 4 of 4 interfaces, GPUDirect RDMA 78 100% PASS" in printed
    assert "2.38 3% FAIL" in printed
    assert f"{paths[1]}: NCCL used sockets" in printed
    assert (tmp_path / "png").read_bytes().startswith(b"\x89PNG")
    assert [report["verdict"] for report in both] == ["pass", "fail"]
    assert (twice, "each once" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(
    ("log", "name", "words"),
    [
        (SOCKETS, "no-folder/busbw.png", "cannot be written: no such file or directory"),
        (sockets()[0], "busbw.png", "a chart needs 2 sizes of messages, got 0"),
    ],
)
def test_plot_that_cannot_be_made_is_bad_input(typed, tmp_path, log, name, words):
    code, printed, errors = typed(log, "--plot", str(tmp_path / name))

    assert (code, printed) == (2, "")
    assert words in errors
    assert not (tmp_path / name).exists()
