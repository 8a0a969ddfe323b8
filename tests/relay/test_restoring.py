"""Bringing a result back: whole and as it was saved, resumed without reading anything twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from saving_world import BUCKET, Report, SavedRun

from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_REFUSED
from stationmaster.domain.ids import RunId
from stationmaster.domain.restoring import RestoringOrder, ResumePoint
from stationmaster.domain.results import MANIFEST_FILE, manifest_sha256, results_prefix
from stationmaster.domain.staged_data import StagedLine, read_staging_line
from stationmaster.relay.config import RestoringConfig
from stationmaster.relay.restore import main, restore
from stationmaster.relay.s3 import Refused
from stationmaster.relay.staging.source import OF_RESULTS, SourceBucket

NEXT = RunId("tiny-llama-00000002")


def order(run: SavedRun, *, step: int | None = 60, model: bool = False) -> RestoringOrder:
    return RestoringOrder(
        run_id=NEXT,
        checkpoint=None if step is None else ResumePoint(run_id=run.run_id, step=step),
        model_of=run.run_id if model else None,
        manifests={run.run_id: manifest_sha256(run.stored().get(MANIFEST_FILE, b""))},
    )


def variables(wanted: RestoringOrder, directory: Path) -> dict[str, str]:
    return {
        "STATIONMASTER_RESTORING_ORDER": wanted.model_dump_json(),
        "STATIONMASTER_ARTIFACTS_BUCKET": BUCKET,
        "STATIONMASTER_RUN_DIRECTORY": str(directory),
        "AWS_REGION": "us-west-2",
    }


def bring_back(
    wanted: RestoringOrder, directory: Path, *, report: Report | None = None, **more: Any
) -> StagedLine:
    config = RestoringConfig.from_variables(variables(wanted, directory))
    connect = partial(
        SourceBucket.connect, region="us-west-2", connections=8, attempts=1, advice=OF_RESULTS
    )
    return restore(config, connect, report=report or Report(), **more)


def contents(directory: Path) -> dict[str, bytes]:
    root = directory / "restored"
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "restored.json"
    }


def remove(run: SavedRun, path: str) -> None:
    boto3.client("s3").delete_object(Bucket=BUCKET, Key=results_prefix(run.run_id) + path)


def test_checkpoint_and_model_lie_as_in_the_result(run: SavedRun, tmp_path: Path) -> None:
    run.save()
    report = Report()

    staged = bring_back(order(run, model=True), tmp_path / "next", report=report)

    names = ("checkpoint/step-00000060/", "checkpoint/huggingface/", "model/")
    saved = {path: data for path, data in run.stored().items() if path.startswith(names)}
    assert contents(tmp_path / "next") == saved
    assert (staged.num_files, staged.num_bytes) == (len(saved), sum(map(len, saved.values())))
    assert (staged.root, staged.was_there) == ("restored", False)
    assert report.expected == sum(report.arrived) == staged.num_bytes


def test_output_of_a_command_lies_where_the_command_writes_again(
    run: SavedRun, tmp_path: Path
) -> None:
    run.facts = run.facts.model_copy(update={"program": ("torchrun", "a.py")})
    run.write("output/deep/ckpt.pt", b"weights")
    run.save()
    wanted = RestoringOrder(
        run_id=NEXT,
        output_of=run.run_id,
        manifests={run.run_id: manifest_sha256(run.stored()[MANIFEST_FILE])},
    )

    staged, again = (bring_back(wanted, tmp_path / "next") for _ in range(2))

    assert (tmp_path / "next/output/deep/ckpt.pt").read_bytes() == b"weights"
    assert contents(tmp_path / "next") == {}
    assert (staged.data_id, staged.num_files) == (run.run_id, 1)
    assert (staged.was_there, again.was_there) == (False, True)


def test_result_with_another_manifest_than_was_recorded_is_not_brought_back(
    run: SavedRun, tmp_path: Path
) -> None:
    run.save()
    wanted = order(run)
    run.facts = run.facts.model_copy(update={"seed": 6})
    run.save()

    with pytest.raises(Refused, match=r"is not the manifest that was verified.*recorded"):
        bring_back(wanted, tmp_path / "next")

    assert contents(tmp_path / "next") == {}


def test_what_is_there_is_found_and_not_read_again(large: SavedRun, tmp_path: Path) -> None:
    large.save()
    wanted = order(large, model=True)
    bring_back(wanted, tmp_path / "next")
    large.aws.forget_calls()

    again = bring_back(wanted, tmp_path / "next")

    assert again.was_there
    assert large.calls("GetObject") == 2  # the manifest, for each of the two


def test_another_order_is_not_taken_for_the_one_that_is_there(
    run: SavedRun, tmp_path: Path
) -> None:
    run.save()
    bring_back(order(run), tmp_path / "next")
    assert not any(path.startswith("model/") for path in contents(tmp_path / "next"))

    staged = bring_back(order(run, step=None, model=True), tmp_path / "next")

    assert not staged.was_there
    assert (tmp_path / "next/restored/model/model.safetensors").read_bytes() == b"few weights"


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (None, "nothing was saved of that run"),
        ("manifest.json", "the result of run .* is not complete"),
        ("checkpoint/step-00000060/weights.pt", r"step-00000060/weights\.pt is not in the bucket"),
        ("", "use a larger file system"),
    ],
)
def test_result_that_is_not_whole_or_has_no_room_is_refused(
    run: SavedRun, tmp_path: Path, gone: str | None, said: str
) -> None:
    if gone is not None:
        run.save()
    wanted = order(run)
    if gone:
        remove(run, gone)

    with pytest.raises(Refused, match=said):
        bring_back(wanted, tmp_path / "next", free_bytes=lambda _: 10)


def test_file_that_was_changed_on_disk_is_refused_and_read_again(
    run: SavedRun, tmp_path: Path
) -> None:
    run.save()
    bring_back(order(run), tmp_path / "next")
    root = tmp_path / "next/restored"
    (root / "restored.json").unlink()
    weights = root / "checkpoint/step-00000060/weights.pt"
    weights.write_bytes(b"NEWER")
    copied = root / ".partial-checkpoint/copied.jsonl"
    copied.parent.mkdir()
    copied.write_text('{"path":"checkpoint/step-00000060/weights.pt","num_bytes":5}\n')

    with pytest.raises(Refused, match=r"weights\.pt is damaged"):
        bring_back(order(run), tmp_path / "next")
    bring_back(order(run), tmp_path / "next")

    assert weights.read_bytes() == b"newer"


def test_missing_right_names_the_bucket_of_results(run: SavedRun, tmp_path: Path) -> None:
    run.save()
    wanted = order(run)
    run.aws.inject("s3", "GetObject", "AccessDenied", times=99)

    with pytest.raises(Refused, match=r"was refused: AccessDenied: .* may read runs/ of"):
        bring_back(wanted, tmp_path / "next")


def test_program_says_lines_and_exit_codes(
    run: SavedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.save()
    given = variables(order(run), tmp_path / "next")

    ends = [
        main(given),
        main(given | {"STATIONMASTER_RESTORING_ORDER": order(run, step=1).model_dump_json()}),
        main(given | {"STATIONMASTER_ARTIFACTS_BUCKET": "nobodys"}),
        main(given | {"STATIONMASTER_RESTORING_ORDER": f'{{"run_id":"{NEXT}"}}'}),
    ]

    first, last, *sentences = capsys.readouterr().out.splitlines()
    assert ends == [0, EXIT_MISUNDERSTOOD, EXIT_REFUSED, EXIT_MISUNDERSTOOD]
    assert isinstance(read_staging_line(last), StagedLine)
    assert '"kind":"staging"' in first
    assert "no checkpoint of step 1; its checkpoint is of step 60" in sentences[0]
    assert "bucket nobodys does not exist; it is the artifacts bucket" in sentences[1]
    assert "no checkpoint, model or output is asked for" in sentences[2]
