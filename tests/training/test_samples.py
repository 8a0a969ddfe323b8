"""Texts that a trained language model writes at the end of its run."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from trainer_runs import Workspace, of_kind, train_here

from stationmaster.domain.progress_lines import Sample
from training.samples import PROMPT_TOKENS, generate, prompts_of
from training.task import IGNORED_LABEL, Batch


def batch(*rows: list[int], ignored: tuple[int, ...]) -> Batch:
    """Rows of tokens, of which each one's first `ignored` targets are not learned."""
    targets = torch.tensor(rows)
    for row, count in enumerate(ignored):
        targets[row, :count] = IGNORED_LABEL
    return Batch(inputs=torch.tensor(rows), targets=targets)


@pytest.mark.parametrize(
    ("ignored", "length"),
    [
        pytest.param(0, PROMPT_TOKENS, id="a few tokens where all are learned"),
        pytest.param(17, 18, id="up to the response"),
    ],
)
def test_prompt_ends_where_what_is_learned_begins(ignored: int, length: int) -> None:
    row = list(range(40))

    assert prompts_of([batch(row, ignored=(ignored,))], number=3) == [row[:length]]


def test_rows_that_fill_a_gap_are_no_prompts_and_no_more_are_taken_than_asked_for() -> None:
    row = list(range(20))

    prompts = prompts_of(
        [batch(row, row, ignored=(20, 0)), batch(row, row, row, ignored=(0, 0, 0))], number=3
    )

    assert len(prompts) == 3


def test_trained_model_continues_texts_of_its_data(workspace: Workspace) -> None:
    lines = train_here(workspace, "steps=4", "checkpoint_every=4", "--samples=3")

    (finished,) = of_kind(lines, "finished")
    samples = [Sample.model_validate(each) for each in finished["samples"]]
    written = (workspace.output_dir / "samples.jsonl").read_text().splitlines()
    assert [Sample.model_validate_json(line) for line in written] == samples
    texts = " ".join(path.read_text() for path in workspace.text_dir.glob("*.txt"))
    assert len(samples) == 3
    assert all(each.prompt.strip() and each.prompt.strip() in texts for each in samples)
    assert all(each.text for each in samples)

    model = workspace.output_dir / "model"
    assert generate(model, [[5, 6, 7], [8]]) == generate(model, [[5, 6, 7], [8]])


def test_model_whose_samples_fail_is_finished_without_them(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    (workspace.output_dir / "samples.jsonl").mkdir(parents=True)

    with caplog.at_level(logging.WARNING):
        lines = train_here(
            workspace, "steps=2", "checkpoint_every=2", "warmup_steps=1", "--samples=3"
        )

    (finished,) = of_kind(lines, "finished")
    assert finished["samples"] == []
    assert any("no samples were generated" in one.getMessage() for one in caplog.records)
    assert json.loads((workspace.output_dir / "model/stationmaster.json").read_text())["step"] == 2
