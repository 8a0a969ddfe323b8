"""What a person asks of several runs together: what differs, what came of it, what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stationmaster.commands.looking import known_id, view_run
from stationmaster.commands.results import find_labelled, read_result
from stationmaster.domain.catalogue.defects import defect_of
from stationmaster.domain.commands.requests import ShowCost
from stationmaster.domain.comparing import Facts, differences, facts_of
from stationmaster.domain.errors import BadCommand, NotPossibleNow, StationmasterError
from stationmaster.domain.results import ResultManifest
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services
from stationmaster.spending import Bill, month_of


@dataclass(frozen=True)
class Comparison:
    """Several runs of a channel, in the order in which they were named."""

    runs: tuple[RunView, ...]
    differs: tuple[tuple[str, tuple[str, ...]], ...]
    """Each name with the value of each run."""
    notes: tuple[str, ...] = ()
    """What is not known, and which versions are known to be bad."""


def compare_runs(services: Services, labels: Sequence[str], *, channel_id: str) -> Comparison:
    """Compare what runs were asked for.

    Raises:
        RunNotFound, BadCommand: one of them is not there, or two are the same.
    """
    views = [
        view_run(services, find_labelled(services, label, channel_id=channel_id))
        for label in labels
    ]
    ids = [view.run.run_id for view in views]
    for place, run_id in enumerate(ids):
        if run_id in ids[:place]:
            raise BadCommand(
                f"{labels[ids.index(run_id)]} and {labels[place]} are one run, {run_id}; name "
                "another one",
                suggestion="/train list",
            )
    return compare(views)


def compare(views: Sequence[RunView]) -> Comparison:
    """Compare what runs were asked for."""
    facts = [facts_of(view.run.request, view.run.placement) for view in views]
    return Comparison(tuple(views), tuple(differences(facts)))


def diff_runs(services: Services, labels: Sequence[str], *, channel_id: str) -> Comparison:
    """Compare also what was saved of the runs: image, code, versions, seed, data.

    Raises:
        RunNotFound, BadCommand: as `compare_runs`.
    """
    compared = compare_runs(services, labels, channel_id=channel_id)
    facts: list[Facts] = []
    notes: list[str] = []
    for view in compared.runs:
        run, manifest = view.run, None
        try:
            manifest = read_result(services, run)
        except StationmasterError as error:
            notes.append(f"image, code, versions and data are not compared: {error}")
        facts.append(facts_of(run.request, run.placement, manifest))
        notes += [f"{run.run_id} has {bad}" for bad in _defects(run.request, manifest)]
    return replace(compared, differs=tuple(differences(facts)), notes=tuple(notes))


def _defects(request: TrainingRequest, manifest: ResultManifest | None) -> list[str]:
    """Name the versions of a run that must not be used, by its image's tag and its manifest."""
    from stationmaster.diagnosis.lint.versions import versions_of  # brings YAML and all rules

    image = manifest.image if manifest is not None else request.image or ""
    versions = versions_of(image) | dict(manifest.versions if manifest is not None else {})
    found = ((version, defect_of(package, version)) for package, version in versions.items())
    return [
        f"{defect.name} {version}, which {defect.what}: {defect.remedy}"
        for version, defect in found
        if defect is not None
    ]


def channel_cost(services: Services, wanted: ShowCost, *, channel_id: str) -> Bill:
    """Add up a month of a channel.

    Raises:
        NotPossibleNow: nobody of that name is known in the channel.
    """
    user_id = known_id(services, wanted.person, channel_id) if wanted.person else ""
    if wanted.person and not user_id:
        raise NotPossibleNow(
            f"nobody called @{wanted.person[:60]} has started anything in this channel lately; "
            "/train cost shows everybody",
            suggestion="/train cost",
        )
    bill = month_of(services, wanted.month, channels={channel_id})
    spent = tuple(each for each in bill.spent if user_id in ("", each.user_id))
    return replace(bill, spent=spent)
