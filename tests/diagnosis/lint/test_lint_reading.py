"""YAML with lines: duplicate keys, aliases, templates, and text that would keep a reader busy."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from lint_manifests import JOB, STORAGE, findings

from stationmaster.diagnosis.lint.reading import read

NAMES = st.text("abcxyz", min_size=1, max_size=4)
SCALARS = st.none() | st.booleans() | st.integers(-9, 99) | st.text("ab :#-'\"\n$", max_size=6)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, TREES, min_size=1, max_size=3))
def test_reads_what_a_plain_reader_reads(tree):
    text = yaml.safe_dump(tree)

    assert [document.data for document in read(text)] == [tree]


def test_each_value_knows_its_line_over_documents_and_blocks():
    text = "# first\na: 1\n---\nb:\n  - c: |\n      one\n      two\n  - 2\n"

    first, second = read(text)

    assert first.line(("a",)) == 2
    assert [second.line(path) for path in (("b",), ("b", 0, "c"), ("b", 1))] == [4, 5, 8]
    assert second.line(("b", 0, "gone", 3)) == 5


def test_one_document_that_is_not_yaml_leaves_the_others():
    text = f"a: [\n---\n{STORAGE}"

    found = findings(text)

    assert [(each.rule, each.severity) for each in found] == [("yaml", "error")]
    assert read(text)[1].data["kind"] == "PersistentVolume"


@pytest.mark.parametrize(
    ("text", "rule", "line"),
    [
        ("kind: A\nkind: B\napiVersion: v1", "yaml-key-twice", 2),
        ("kind: A\n<<: *nowhere\n", "yaml", 2),
        ("kind: &a [*a]\n", "yaml", 1),
        ("kind: A\n? [x]\n: 1\n", "yaml", 2),
        ("kind: A\nx: \tb: c\n", "yaml", 2),
        ("kind: A\nx: " + "[" * 5000, "yaml-too-large", 2),
        ("kind: A\nx: " + "{a: " * 200, "yaml-too-large", 2),
        ("- only\n- a list\n", "not-an-object", 1),
        ("kind: A\n", "not-an-object", 1),
    ],
)
def test_text_that_no_reader_should_take_is_named_with_its_line(text, rule, line):
    assert (rule, line) in {(each.rule, each.line) for each in findings(text)}


def test_aliases_are_expanded_with_a_limit():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]

    found = findings("\n".join(lines))

    assert [(each.rule, each.line) for each in found] == [("yaml-too-large", 6)]


def test_aliases_and_merged_keys_are_read():
    text = "base: &b {x: 1, y: 2}\none:\n  <<: *b\n  y: 3\ntwo: *b\n"

    (document,) = read(text)

    assert document.data["one"] == {"y": 3, "x": 1}
    assert document.data["two"] == {"x": 1, "y": 2}
    assert document.line(("two", "x")) == 5


@pytest.mark.parametrize(
    "text",
    [
        "x: 1:30\n",
        "x: " + "9" * 6000 + "\n",
        "x: .inf\ny: 0o7\nz: 0x_\n",
        "x: !!int abc\ny: !custom [1]\nz: !!binary aa==\n",
        '"\\n7": 1\n',
        "\x00",
        "%YAML 9.9\n---\na: 1\n",
        "{{ if .Values.x }}\na: {{ .Values.b }}\n{{ end }}\n",
    ],
)
def test_odd_values_are_read_without_an_error_of_python(text):
    assert isinstance(findings(text), list)


def test_placeholders_where_yaml_has_no_place_for_them_leave_the_rest_readable():
    text = JOB.replace("{name: NCCL_DEBUG, value: WARN}", "{name: NCCL_DEBUG, value: ${LEVEL}}")
    text = text.replace("      restartPolicy: OnFailure\n", "      ${POLICY}\n")
    text = text.replace("replicas: 2\n", "replicas: ${NODES:-2}\n", 1)
    lines = text.splitlines()

    found = [(each.rule, lines[each.line - 1].strip()) for each in findings(text)]

    assert ("template-unresolved", "- {name: NCCL_DEBUG, value: ${LEVEL}}") in found
    assert ("template-unresolved", "${POLICY}") in found
    assert ("template-default", "replicas: ${NODES:-2}") in found
    assert "yaml" not in {rule for rule, _ in found}


def test_finding_in_a_script_has_the_line_of_the_script():
    script = "[bash, -c, x]"
    text = JOB.replace(
        "[torchrun, --nproc_per_node=8, /app/train.py, --output_dir=/fsx/llama]", script
    ).replace(
        script,
        "\n                - bash\n                - -c\n                - |\n"
        "                  set -e\n                  export NCCL_ALGO=Ring\n"
        "                  torchrun \\\n                    --nproc_per_node=4 /app/train.py\n",
    )
    lines = text.splitlines()

    found = {each.rule: lines[each.line - 1].strip() for each in findings(text)}

    assert found["env-policy"] == "export NCCL_ALGO=Ring"
    assert found["processes"] == "torchrun \\"
