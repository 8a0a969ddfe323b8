"""What a person looks at: one run of a channel, its newest, the logs of its pods, the audit."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice, takewhile
from typing import Final

from stationmaster.aws.delivery_store import of_run
from stationmaster.domain.audit import Entry
from stationmaster.domain.bus import LogTail
from stationmaster.domain.commands.requests import ShowAudit, ShowLogs
from stationmaster.domain.durations import moment, typed_duration
from stationmaster.domain.errors import NotPossibleNow, RunNotFound
from stationmaster.domain.identities import ARN
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.resume_from import NEWEST
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.view import RunView
from stationmaster.domain.teams import in_team, split
from stationmaster.log_keys import learn
from stationmaster.services import Services

# How far back a run is looked for by its name.
MOST_NAMED: Final = 100
# A refusal is one sentence, and names no more pods than these.
_PODS_NAMED: Final = 8
# Entries of a channel's audit; what is older is in the export.
_MOST_SHOWN: Final = 20
_MOST_READ: Final = 2_000
_MOST_ASKED: Final = 500  # for the name of a person


def describe_run(services: Services, run_id: RunId | None, *, channel_id: str) -> RunView:
    """Return one run with its cluster; None means the newest of the channel.

    Raises:
        RunNotFound: no such run in this channel.
    """
    run = find_run(services, run_id, channel_id=channel_id)
    learn(run_id=run.run_id)
    return view_run(services, run)


def list_runs(services: Services, *, channel_id: str) -> list[RunView]:
    """Return the channel's newest runs with their clusters, newest first."""
    runs = services.runs.list_recent(limit=10, channel_id=channel_id)
    return [view_run(services, run) for run in runs]


def view_run(services: Services, run: Run) -> RunView:
    """Return the run with the cluster of its newest attempt, if it has come to one."""
    found = services.cluster_states.find(run.cluster_id) if run.cluster_id is not None else None
    return RunView(run, found, services.settings.dashboard_url)


def show_logs(
    services: Services, wanted: ShowLogs, *, channel_id: str
) -> tuple[Run, list[LogTail]]:
    """Return the newest log lines of a run's pods; they stay readable after the teardown.

    Raises:
        RunNotFound: no such run in this channel.
        NotPossibleNow: it has no such pod, or no line with that text or of that time.
    """
    run = find_run(services, wanted.run_id, channel_id=channel_id)
    learn(run_id=run.run_id)
    tails = services.runs.log_tails(run.run_id)
    if tails and wanted.pod:
        names = [tail.pod.removeprefix(f"{run.run_id}-") for tail in tails]
        pod = wanted.pod.removeprefix(f"{run.run_id}-")
        if pod not in names:
            known = ", ".join(names[:_PODS_NAMED])
            raise NotPossibleNow(
                f'run {run.run_id} has no pod "{pod[:80]}" that has written anything; it has '
                f"{known}",
                suggestion=f"/train logs {run.run_id} {names[0]}",
            )
        tails = [tails[names.index(pod)]]
    if tails and (wanted.grep or wanted.since_s):
        since = services.now() - timedelta(seconds=wanted.since_s) if wanted.since_s else None
        found = [(tail, tail.lines_with(wanted.grep, since=since)) for tail in tails]
        newest = max(tail.at for tail in tails)
        tails = [tail.model_copy(update={"lines": lines}) for tail, lines in found if lines]
        if not tails:
            what = f' with "{wanted.grep[:80]}"' if wanted.grep else ""
            when = f" of the last {typed_duration(wanted.since_s)}" if wanted.since_s else ""
            raise NotPossibleNow(
                f"no line{what}{when} is among the newest of its pods, the last of which was "
                f"written at {moment(newest)}; the whole logs are saved with the results",
                suggestion=f"/train logs {run.run_id}",
            )
    return run, tails


def find_run(services: Services, label: str | None, *, channel_id: str) -> Run:
    """Return one run of a channel, by its id or by its name; None and `last` mean the newest.

    Of several with one name it is the newest.

    Raises:
        RunNotFound: no such run in this channel.
    """
    if label is None or label == NEWEST:
        for run in services.runs.list_recent(limit=1, channel_id=channel_id):
            return run
        raise RunNotFound("there is no run in this channel yet; start one with /train RECIPE")
    run_of_id = services.runs.find(RunId(label))
    # A run of another channel is answered like one that does not exist; where its card has moved to
    # is its channel, too.
    if run_of_id is not None and (
        run_of_id.request.channel_id == channel_id
        or services.deliveries.load(of_run(run_of_id.run_id)).channel_id == channel_id
    ):
        return run_of_id
    for run in services.runs.list_recent(limit=MOST_NAMED, channel_id=channel_id):
        if run.request.name == label:
            return run
    raise RunNotFound(f'no run is called "{label[:60]}" in this channel; see /train list')


def show_audit(services: Services, wanted: ShowAudit, *, channel_id: str) -> list[Entry]:
    """Return the newest entries that are asked for, newest first."""
    about = wanted.about
    if about == NEWEST:
        about = find_run(services, about, channel_id=channel_id).run_id
    user_id = known_id(services, wanted.person, channel_id)
    begin = services.now() - timedelta(seconds=wanted.since_s)
    newest = islice(services.audit.newest_first(channel_id), _MOST_READ)
    found = (
        entry
        for entry in takewhile(lambda each: not wanted.since_s or each.at >= begin, newest)
        if entry.about.startswith(about) and (not wanted.person or entry.user_id == user_id)
    )
    return [*islice(found, _MOST_SHOWN)]


def known_id(services: Services, person: str, channel_id: str) -> str:
    """Return the id of a person, whose name the channel's audit knows, also an earlier one."""
    if person.startswith(ARN):
        return person
    if person[:1] in ("U", "W") and person.isupper():
        return in_team(split(channel_id)[0], person)
    entries = islice(services.audit.newest_first(channel_id), _MOST_ASKED)
    return next((entry.user_id for entry in entries if entry.user_name == person), "")
