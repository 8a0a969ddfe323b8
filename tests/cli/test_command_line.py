"""What the command line says to what it is given, and its exit codes."""

import json

import pytest

from stationmaster.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["plan", "tiny-llama", "nodes=2"], 0, "fits"),
        (["plan", "llama2-7b", "nodes=1", "instance=g5.12xlarge"], 1, "does not fit"),
        (["render", "tiny-llama", "learning_rate=fast"], 2, "expected a number"),
        (["local", "run", "train tiny-llama"], 2, "expected /train"),
        (
            ["local", "run", "/train help", "--fault", "gremlins"],
            2,
            'fault "gremlins" is not known',
        ),
        (["local", "run", "/train help", "--speed", "0"], 2, "expected 1 or more"),
        (["local", "run", "/train help", "--state-dir", "/proc/no"], 2, "/proc/no: No such file"),
        (["local", "run", "/train help", "--state-dir", "/"], 2, "--state-dir"),
        (["local", "up", "--state-dir", ""], 2, '--state-dir: "" is no folder; give its path'),
        (["local", "up", "--port", "80000"], 2, '"80000" is no port; give 0 (a free one) to 65535'),
        (["local", "run", "/train help", "--port", "http"], 2, '"http" is no port'),
        (["local", "run", "/train help", "--timeout", "nan"], 2, '"nan" is no time'),
        (["slack-manifest", "--url", "http://x"], 2, "https://"),
    ],
)
def test_command_line_answers_with_its_exit_code_and_one_sentence(
    arguments, code, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    try:
        returned = main(arguments)
    except SystemExit as end:  # of argparse
        returned = end.code

    printed = capsys.readouterr()
    assert returned == code, printed.err
    assert words in printed.out + printed.err


@pytest.mark.parametrize("catalogue", ["recipes", "instances"])
def test_catalogues_print_json_with_the_contract_fields(catalogue, capsys):
    assert main([catalogue, "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    names = {row["name"] for row in rows}
    if catalogue == "recipes":
        assert names >= {"tiny-llama", "llama2-7b"}
        assert {
            "name",
            "framework",
            "model",
            "num_parameters",
            "default_instance",
            "default_nodes",
            "keys",
        } <= rows[0].keys()
    else:
        assert names >= {"p4d.24xlarge", "p5.48xlarge", "g5.xlarge"}
