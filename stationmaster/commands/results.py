"""What a person uses of the results of runs that have ended, in a new command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.commands.looking import find_run
from stationmaster.domain.commands.resuming import asked_run, repeated_words, saved_run
from stationmaster.domain.errors import (
    NotPossibleNow,
    PermanentError,
    ResultMissing,
    RunNotFound,
)
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.questions import AskedRun, SavedRun
from stationmaster.domain.keys.resume_from import NEWEST
from stationmaster.domain.results import (
    MANIFEST_FILE,
    METRICS_FILE,
    MODEL,
    SAMPLES_FILE,
    ResultFile,
    ResultManifest,
)
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.spelling import typed_word
from stationmaster.services import Services

LINK_S: Final = 3600
MAX_LINKS: Final = 12


def find_saved_run(services: Services, label: str, *, channel_id: str) -> SavedRun:
    """Return a run of the channel that has ended, with the manifest of its result.

    Args:
        label: a run's id, or `last` for the newest that has ended.

    Raises:
        RunNotFound: no such run in this channel.
        NotPossibleNow: it has not ended, has saved nothing, or its manifest cannot be read.
    """
    _refuse_no_bucket(services)
    run = find_labelled(services, label, channel_id=channel_id)
    if not run.phase.is_terminal:
        raise NotPossibleNow(
            f"run {run.run_id} is {run.phase.value}; its result can be used when it has ended"
        )
    return saved_run(run.run_id, run.request, run.placement, read_result(services, run))


def find_asked_run(services: Services, label: str, *, channel_id: str) -> AskedRun:
    """Return a run of the channel as it was asked for; `label` as for `find_saved_run`.

    Raises:
        RunNotFound: no such run in this channel.
    """
    run = find_labelled(services, label, channel_id=channel_id)
    return asked_run(run.run_id, run.request)


def words_of(services: Services, run_id: RunId, *, channel_id: str) -> str:
    """Return a run as it was asked for, as it is typed after /train.

    Raises:
        RunNotFound: no such run in this channel.
    """
    asked = find_asked_run(services, run_id, channel_id=channel_id)
    pairs = repeated_words(asked, {}, cluster=None)
    return " ".join([asked.recipe, *map(typed_word, pairs)])


@dataclass(frozen=True)
class Links:
    """Addresses of files of a result, for a person to open."""

    run_id: RunId
    files: tuple[tuple[ResultFile | None, str], ...]
    """Each with its address; None stands for the manifest."""
    num_others: int
    """Files without a link."""
    seconds: int


def link_results(services: Services, run_id: RunId, *, channel_id: str) -> Links:
    """Link to the files of a result that people open: manifest, model and metrics.

    Raises:
        RunNotFound: no such run in this channel.
        NotPossibleNow: it has saved no result, or the manifest cannot be read.
    """
    run = find_run(services, run_id, channel_id=channel_id)
    if run.results is None:
        raise NotPossibleNow(f"run {run_id} has saved no result")
    run_id = run.run_id  # it may have been named
    manifest, artifacts = read_result(services, run), services.quick_artifacts
    wanted = sorted(
        (file for file in manifest.files if _is_opened(file.path)),
        key=lambda file: (file.path.startswith(f"{MODEL}/"), file.path),
    )[: MAX_LINKS - 1]
    files: list[tuple[ResultFile | None, str]] = [
        (file, artifacts.link(run_id, file.path, seconds=LINK_S)) for file in wanted
    ]
    first = (None, artifacts.link(run_id, MANIFEST_FILE, seconds=LINK_S))
    return Links(run_id, (first, *files), len(manifest.files) - len(files), LINK_S)


def _is_opened(path: str) -> bool:
    return path.startswith(f"{MODEL}/") or path in (METRICS_FILE, SAMPLES_FILE)


def _refuse_no_bucket(services: Services) -> None:
    if not services.settings.artifacts_bucket:
        raise NotPossibleNow("this deployment keeps no results: it has no artifacts bucket")


def read_result(services: Services, run: Run) -> ResultManifest:
    """Read the manifest of what a run has saved.

    Raises:
        NotPossibleNow: it has saved nothing, or that cannot be used.
        TransientError: S3 does not answer.
    """
    _refuse_no_bucket(services)
    try:
        recorded = run.saved_manifest
        return services.quick_artifacts.read(run.run_id, recorded=recorded).manifest
    except ResultMissing as exc:
        why = f" ({run.unsaved_reason})" if run.unsaved_reason else ""
        raise NotPossibleNow(f"run {run.run_id} has saved nothing{why}") from exc
    except PermanentError as exc:
        raise NotPossibleNow(f"the result of run {run.run_id} cannot be used: {exc}") from exc


def find_labelled(services: Services, label: str, *, channel_id: str) -> Run:
    """Return a run of the channel by its id, its name, or `last` for the newest that has ended.

    Raises:
        RunNotFound: no such run in this channel.
    """
    if label != NEWEST:
        return find_run(services, RunId(label), channel_id=channel_id)
    for run in services.runs.list_recent(limit=50, channel_id=channel_id):
        if run.phase.is_terminal:
            return run
    raise RunNotFound("no run of this channel has ended yet; start one with /train RECIPE")
