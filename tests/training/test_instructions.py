"""Fine-tuning data: every form of rows, what is learned of them, and who gets which when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub_stand_in import HubStandIn, Repository
from tokenizers import Tokenizer

from stationmaster.domain.errors import BadParameter
from training.config import TrainerConfig, parse_config
from training.data.docstrings import docstring_pairs
from training.data.examples import read_examples
from training.data.instructions import PreparedInstructions, prepare_instructions
from training.data.packed import InstructionSource
from training.task import IGNORED_LABEL

LENGTH = 64
Hundred = tuple[PreparedInstructions, TrainerConfig]


def config_for(dataset: Path | str, cache_dir: Path, **overrides: str) -> TrainerConfig:
    keys = {"dataset": str(dataset), "sequence_length": str(LENGTH), "eval_samples": "4"}
    keys |= {"steps": "6"} | overrides
    return parse_config(
        [
            "llama2-7b-finetune",
            "preset=smoke",
            *(f"{key}={value}" for key, value in keys.items()),
            "--output-dir",
            str(cache_dir / "out"),
        ],
        {"STATIONMASTER_CACHE_DIR": str(cache_dir)},
    )


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def numbered(count: int) -> list[dict[str, Any]]:
    """Examples that differ: the answer of number n is n, n times."""
    return [
        {"prompt": f"Say {n}.", "response": " ".join([f"train{n}"] * (1 + n % 7))}
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Hundred:
    root = tmp_path_factory.mktemp("hundred")
    config = config_for(write_rows(root / "rows.jsonl", numbered(100)), root)
    return prepare_instructions(config), config


def source_of(
    prepared: PreparedInstructions, config: TrainerConfig, *, rank: int = 0, world_size: int = 1
) -> InstructionSource:
    return InstructionSource(prepared, config.recipe.training, rank=rank, world_size=world_size)


def responses_in(prepared: PreparedInstructions, source_batches: Iterator[Any]) -> list[str]:
    """What a reader of the targets alone would read, one entry an example."""
    tokenizer = Tokenizer.from_file(str(prepared.tokenizer))
    end = tokenizer.token_to_id("<|endoftext|>")
    found = []
    for batch in source_batches:
        for targets_T in batch.targets.tolist():
            response: list[int] = []
            for target in targets_T:
                if target == end:
                    found.append(tokenizer.decode(response))
                    response = []
                elif target != IGNORED_LABEL:
                    response.append(target)
            assert not response
    return found


def test_only_responses_and_their_end_are_learned_and_the_last_ones_held_out(
    hundred: Hundred,
) -> None:
    prepared, config = hundred
    number = prepared.manifest.num_sequences
    recipe = config.recipe.with_overrides({"global_batch_size": str(number)})
    source = source_of(prepared, replace(config, recipe=recipe))

    learned = responses_in(prepared, source.micro_batches(0))
    held_out = [
        list(source_of(prepared, config, rank=rank, world_size=2).evaluation_batches())
        for rank in range(2)
    ]

    assert Counter(learned) == Counter(row["response"] for row in numbered(100)[:96])
    assert len(held_out[0]) == len(held_out[1]) >= 1
    assert prepared.manifest.num_tokens / (number * (LENGTH + 1)) > 0.9  # nearly full
    evaluated = [text for part in held_out for text in responses_in(prepared, iter(part))]
    assert Counter(evaluated) == Counter(row["response"] for row in numbered(100)[96:])


def test_a_sequence_of_several_examples_says_where_each_begins_when_asked(hundred: Hundred) -> None:
    prepared, config = hundred
    end = Tokenizer.from_file(str(prepared.tokenizer)).token_to_id("<|endoftext|>")
    asked = replace(config, recipe=config.recipe.with_overrides({"document_mask": "true"}))

    plain = next(source_of(prepared, config).micro_batches(0))
    batch = next(source_of(prepared, asked).micro_batches(0))

    known = plain.targets[:, :-1] != IGNORED_LABEL
    assert (plain.targets[:, :-1][known] == plain.inputs[:, 1:][known]).all()
    assert plain.positions is None
    assert batch.positions is not None
    begins = torch.ones_like(batch.inputs, dtype=torch.bool)
    begins[:, 1:] = batch.inputs[:, :-1] == end
    assert torch.equal(batch.positions == 0, begins)
    assert begins.sum() > len(begins)
    # Examples begin with a prompt, which nobody learns: no target is lost.
    assert torch.equal(batch.targets, plain.targets)


def test_a_long_example_is_cut_and_counted_and_a_long_prompt_left_out(tmp_path: Path) -> None:
    rows = [
        *numbered(20),
        {"prompt": "Short.", "response": " ".join(f"word{n}" for n in range(LENGTH))},
        {"prompt": " ".join(f"word{n}" for n in range(LENGTH)), "response": "never seen"},
    ]
    config = config_for(
        write_rows(tmp_path / "a.jsonl", rows), tmp_path, eval_samples="0", eval_every="0"
    )

    manifest = prepare_instructions(config).manifest

    assert (manifest.num_examples, manifest.num_truncated, manifest.num_left_out) == (21, 1, 1)


@pytest.mark.parametrize(
    ("row", "prompt", "response"),
    [
        ({"prompt": "Where to? ", "response": "Home."}, "Where to? ", "Home."),
        ({"prompt": "Where to?", "response": "Home."}, "Where to?\n", "Home."),
        (
            {"instruction": "Add.", "input": "1 and 2", "output": "3"},
            "### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n### Response:\n",
            "3",
        ),
        (
            {"instruction": "Greet.", "input": "", "output": "Hello"},
            "the request.\n\n### Instruction:\nGreet.\n\n### Response:\n",
            "Hello",
        ),
        (
            {"id": "1", "dialogue": "A: Tea?\r\nB: Yes.", "summary": "B has tea."},
            "Summarize this dialog:\nA: Tea?\r\nB: Yes.\n---\nSummary:\n",
            "B has tea.",
        ),
    ],
)
def test_each_form_of_a_row_is_one_prompt_and_one_response(
    row: dict[str, str], prompt: str, response: str, tmp_path: Path
) -> None:
    (example,) = read_examples(str(write_rows(tmp_path / "one.jsonl", [row])))

    (first, learned), (second, learned_too) = example
    assert first.endswith(prompt)
    assert (second, learned, learned_too) == (response, False, True)


def test_every_turn_of_the_assistant_is_learned(tmp_path: Path) -> None:
    turns = [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Bye"),
        ("assistant", "Goodbye"),
    ]
    row = {"messages": [{"role": role, "content": content} for role, content in turns]}

    (example,) = read_examples(str(write_rows(tmp_path / "one.jsonl", [row])))

    assert [text for text, is_response in example if is_response] == ["Hello", "Goodbye"]
    assert "".join(text for text, _ in example).startswith(
        "### System:\nBe brief.\n\n### User:\nHi"
    )


def test_an_array_holds_the_same_examples_as_lines(tmp_path: Path) -> None:
    rows = [*numbered(5), {"prompt": 'Say,\n"it".', "response": "it, and\nmore"}]
    (tmp_path / "array.json").write_text(json.dumps(rows, indent=1))

    found = list(read_examples(str(tmp_path / "array.json")))

    assert found == list(read_examples(str(write_rows(tmp_path / "rows.jsonl", rows))))
    assert len(found) == 6


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{not json", r"b\.jsonl:3 is not JSON"),
        ('["a"]', r"b\.jsonl:3 is list, expected an object"),
        ('{"question": "a", "answer": "b"}', r"b\.jsonl:3 has the keys question, answer; expected"),
        ('{"prompt": "a", "response": null}', r"b\.jsonl:3: response is 'None', expected a text"),
        (
            '{"messages": [{"role": "user", "content": "a"}]}',
            r"b\.jsonl:3 has no message of the as",
        ),
        ('{"messages": [{"from": "human"}]}', r"b\.jsonl:3: .* expected role and content"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(
    line: str, sentence: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_rows(data / "a.jsonl", numbered(3))
    rows = [json.dumps(row) for row in numbered(4)]
    rows[2] = line
    (data / "b.jsonl").write_text("\n".join(rows))
    (tmp_path / "cache").mkdir()

    with pytest.raises(BadParameter, match=sentence):
        prepare_instructions(config_for(data, tmp_path / "cache"))
    assert not list((tmp_path / "cache" / "instructions").glob("*/"))


def test_a_data_set_that_is_nowhere_or_too_small_to_hold_any_out_is_refused(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "few.jsonl", numbered(4))

    with pytest.raises(BadParameter, match=r'dataset="/no/such" is not on this machine'):
        prepare_instructions(config_for("/no/such", tmp_path))
    with pytest.raises(BadParameter, match="all held out by eval_samples=4"):
        prepare_instructions(config_for(data, tmp_path))


def test_the_cache_is_used_and_contents_decide(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", numbered(30))
    first = prepare_instructions(config_for(data, tmp_path))
    stamp = (first.directory / "train.tokens").stat().st_mtime_ns

    again = prepare_instructions(config_for(data, tmp_path))
    write_rows(data, numbered(31))
    changed = prepare_instructions(config_for(data, tmp_path))

    assert again == first
    assert (again.directory / "train.tokens").stat().st_mtime_ns == stamp
    assert changed.identity != first.identity


def test_docstrings_are_questions_and_answers_enough_to_train_on(tmp_path: Path) -> None:
    pairs = docstring_pairs()
    prepared = prepare_instructions(config_for("python-docstrings", tmp_path))

    assert len(pairs) == len(dict(pairs)) == 2000
    answers = dict(pairs)
    assert any(question.startswith("What does json.") for question in answers)
    assert prepared.manifest.num_examples + prepared.manifest.num_eval_examples == 2000
    stored = np.fromfile(prepared.directory / "train.targets", dtype=np.bool_)
    assert 0.3 < stored.mean() < 0.9


def test_a_data_set_of_the_hub_is_read_once_with_its_own_validation_split(
    hub: HubStandIn, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_rows(source / "train.jsonl", numbered(40))
    write_rows(source / "validation.jsonl", [{"prompt": "p", "response": "held out"}] * 9)
    hub.datasets["stand-in/talks"] = Repository(source)
    config = config_for("hub:stand-in/talks", tmp_path)

    prepared = prepare_instructions(config)
    hub.requests.clear()
    again = prepare_instructions(config)

    assert (prepared.manifest.num_examples, prepared.manifest.num_eval_examples) == (40, 4)
    assert again == prepared
    assert hub.requests == []
    evaluated = source_of(prepared, config).evaluation_batches()
    assert responses_in(prepared, evaluated) == ["held out"] * 4
