"""What a person asks of runs: plan, start, stop, list, status, logs."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from stationmaster.commands.finding import refuse_late_stop
from stationmaster.commands.guarding import check_limits, spending_of_run, write_guarded
from stationmaster.commands.looking import find_run
from stationmaster.commands.permitting import Actor, acting, approval_of, wish_of
from stationmaster.domain import rules
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.datasets import SharedPath, read_shared_path
from stationmaster.domain.errors import (
    NotPossibleNow,
    StationmasterError,
)
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.own_code import IN_OUTPUT
from stationmaster.domain.keys.push_to import refuse_push
from stationmaster.domain.keys.registry import Options
from stationmaster.domain.names import SHARED_MOUNT
from stationmaster.domain.planning.frameworks.rules import why_no_converter, why_no_image
from stationmaster.domain.planning.machine_checks import offer_warnings
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.planning.requirements import check_data
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.rules import Act
from stationmaster.domain.run.aggregate import Run, new_run_id, start_run
from stationmaster.domain.run.events import (
    ResultsGivenUp,
    RunRequested,
    StopRequested,
)
from stationmaster.domain.trackers import read_tracker
from stationmaster.log_keys import learn
from stationmaster.saving_reactions import save_once_more
from stationmaster.services import Services
from stationmaster.waiting import settle_wait

logger = logging.getLogger(__name__)


# Chat platforms deliver a command again under a new id when an answer is late; a person who means a
# second run of the very same words waits longer than that.
SAME_WORDS_WINDOW: Final = timedelta(seconds=30)


@dataclass(frozen=True)
class Announced:
    """What became of the card of a run that is about to be written."""

    take_back: Callable[[], None]
    """Deletes that card."""
    is_posted: bool = True
    """Otherwise it is posted later, and the run starts then."""


Announce = Callable[[Run], Announced]


def plan_run(services: Services, start: StartRun, *, channel_id: str) -> Plan:
    """Return the plan of a request, with what EC2 says against its machines; creates nothing.

    Raises:
        UserError: its pods could not read their data, or it may not push its model.
    """
    _check_data(services, start, channel_id=channel_id)
    _check_push(services, start)
    _check_tracker(services, start)
    plan = offered_plan(services, start)
    missing = _missing_image(services, start)
    return plan.model_copy(update={"warnings": [missing, *plan.warnings]}) if missing else plan


def _check_data(services: Services, start: StartRun, *, channel_id: str) -> None:
    """Refuse data that the run's pods could not read, or that is another channel's run's.

    A command knows itself what it can read.
    """
    is_on_file_system = "dataset" in start.overrides and isinstance(start.resolved.data, SharedPath)
    if not start.options.program or is_on_file_system:
        check_data(start.resolved, on_cluster=start.options.cluster_id is not None)
    for key in ("dataset", "weights"):
        path = read_shared_path(value := start.overrides.get(key, ""))
        owner = path.run_directory if path is not None else None
        if owner is None:
            continue
        run = services.runs.find(RunId(owner)) if owner else None
        if run is None or run.request.channel_id != channel_id:
            raise NotPossibleNow(
                f"{key}={value} is in the directory of runs, and there this channel may read those "
                "of its own runs only; copy what is to be shared to another directory"
            )


def _check_tracker(services: Services, start: StartRun) -> None:
    tracker = read_tracker(start.options.track)
    if tracker is None or not tracker.variables:
        return
    needed, lacks = tracker.variables[0], ""
    if needed not in services.secrets.tracking():
        lacks = f"has no {needed} in its secret"
    elif start.options.eks_name and not services.settings.hugging_face_token_in_eks_clusters:
        lacks = f"keeps its {needed} from existing EKS clusters"
    if lacks:
        what = f"track={start.options.track}"
        raise NotPossibleNow(f"{what}: this deployment {lacks}; see docs/deploy.md")


def _check_push(services: Services, start: StartRun) -> None:
    if not start.options.push_to:
        return
    if start.options.eks_name and not services.settings.hugging_face_token_in_eks_clusters:
        raise NotPossibleNow(
            f"push_to={start.options.push_to} needs the deployment's token of the Hugging Face hub "
            f"in the existing EKS cluster {start.options.eks_name}; its owner allows that with "
            "hugging_face_token_in_eks_clusters in cdk.json"
        )
    refuse_push(
        start.options.push_to,
        organisations=services.settings.push_organisations,
        has_token=services.secrets.hugging_face_token() is not None,
    )


def _missing_image(services: Services, start: StartRun) -> str | None:
    """Say why the deployment cannot run the recipe's framework or etcd; None where it can."""
    framework, settings = start.resolved.framework, services.settings
    if not start.options.image and not settings.image_of(framework):
        is_this_machine = settings.emulated_speed is not None
        return why_no_image(start.resolved, is_this_machine=is_this_machine)
    if start.resolved.weights_to_convert and not start.options.program and not settings.nemo_image:
        return why_no_converter(start.resolved)
    is_local = settings.emulated_speed is not None
    if is_local and (missing := _missing_folder(start.options)):
        return missing
    if is_local and start.resolved.training.rendezvous == "etcd" and shutil.which("etcd") is None:
        return (
            "rendezvous=etcd needs etcd 3.4 or 3.5, and this machine has none (Debian, Ubuntu: "
            "apt install etcd-server); use rendezvous=c10d"
        )
    return None


def _missing_folder(options: Options) -> str | None:
    """Say what a custom command names that this machine, which runs it, does not have."""
    directory = options.directory
    if (
        directory
        and not directory.startswith((SHARED_MOUNT, IN_OUTPUT))
        and not Path(directory).is_dir()
    ):
        return f"directory={directory} is no folder of this machine; give one that is there"
    if options.venv and not Path(options.venv, "bin", "python").exists():
        return f"venv={options.venv} has no bin/python; give the folder of a virtual environment"
    return None


def offered_plan(services: Services, start: StartRun) -> Plan:
    """Plan a request whose data was checked, with EC2's objections to its machines."""
    recipe = start.resolved
    # Machines without GPUs are offered everywhere.
    if not recipe.needs_gpu:
        return start.plan
    try:
        offer = services.instance_types.describe(start.plan.instance_type)
    except StationmasterError as error:
        # A person's command does not fail because a side question did.
        logger.warning("instance type not described", extra={"reason": str(error)})
        return start.plan
    warnings = offer_warnings(recipe, get_instance(start.plan.instance_type), offer)
    return start.plan.model_copy(update={"warnings": [*warnings, *start.plan.warnings]})


def request_run(
    services: Services,
    start: StartRun,
    who: Actor,
    *,
    request_id: str,
    announce: Announce | None = None,
    study: tuple[RunId, ...] = (),
) -> tuple[Run, bool]:
    """Write the run and start its workflow; both once for each request.

    Args:
        request_id: the delivery's own id (Slack's trigger_id); the same id is the same run.
        who: whose words are the command.
        announce: posts the run's card where the run is to be followed, before anything is written
            or started. When it raises, nothing is started. Where the card has to wait, the notifier
            posts it and starts the run; without `announce` it only posts it.
        study: the runs of the study that it is one of; its own id is the `request_id` then.

    Returns:
        The run, and whether this call created it.

    Raises:
        UserError: its pods could not read their data, or it may not push its model.
        NotPossibleNow: the model does not fit in the memory of what was asked for, or more would
            run than the deployment allows.
        NotPermitted: the person may start nothing in this channel.
    """
    run_id = new_run_id(start.recipe, dedup_key=f"{who.team_id}/{request_id}")
    run_id = RunId(request_id) if study else run_id
    with acting(services, who, rules.START, about=run_id):
        run, created = _request(services, start, who, run_id, announce, study)
    learn(run_id=run.run_id)
    # Also for a run that exists: an earlier delivery may have ended between the two.
    if not run.awaits_card and not run.awaits_approval:
        services.workflows.start_train(run.run_id)
    return run, created


def _request(
    services: Services,
    start: StartRun,
    who: Actor,
    run_id: RunId,
    announce: Announce | None,
    study: tuple[RunId, ...],
) -> tuple[Run, bool]:
    check_start(services, start, channel_id=who.channel_id)
    plan = start.plan
    request = start.requested(
        command=who.words,
        team_id=who.team_id,
        channel_id=who.channel_id,
        user_id=who.user_id,
        study=study,
    )
    if (its := services.rules.of(who.channel_id)) is not None:
        request = request.model_copy(update={"detections": its.detections})
    requested = RunRequested(
        **services.run_stamp(run_id, "requested"),
        request=request,
        price_per_hour_usd=plan.price_per_hour_usd,
        estimated_cost_usd=plan.estimated_cost_usd,
        emulated_speed=services.settings.emulated_speed,
        approval=approval_of(services, wish_of(start), channel_id=who.channel_id)
        if not request.goes_with_study  # what its cluster buys was asked for with that
        else None,
    )
    existing, dedup_key = asked_already(services, run_id, who, at=requested.at)
    if existing is not None:
        return existing, False
    return _create(services, requested, dedup_key=dedup_key, announce=announce)


def check_start(services: Services, start: StartRun, *, channel_id: str) -> None:
    """Refuse what could not train, before anything is written; raises as request_run."""
    _check_data(services, start, channel_id=channel_id)
    _check_push(services, start)
    _check_tracker(services, start)
    if missing := _missing_image(services, start):
        raise NotPossibleNow(missing)
    if not start.plan.fits:
        # A plan, because what fits may cost more than what was asked for.
        remedy = f"/train plan {start.fitting_words}" if start.fitting_words else None
        raise NotPossibleNow(f"{start.recipe} {start.plan.misfits[0]}", suggestion=remedy)


def asked_already(
    services: Services, run_id: RunId, who: Actor, *, at: datetime
) -> tuple[Run | None, str]:
    """Return the run that this request has started, or the same words; and their key."""
    typed = " ".join((who.same or who.words).split())
    words = "\x1f".join((who.team_id, who.channel_id, who.user_id, typed))
    dedup_key = hashlib.sha256(words.encode()).hexdigest()
    find = partial(services.runs.find_request, run_id, at=at)
    existing = find(dedup_key=dedup_key)
    while existing is not None and existing.run_id != run_id and _is_over(existing):
        # The same words are meant once more, for example with a script that was edited.
        dedup_key = hashlib.sha256(f"{dedup_key}{existing.run_id}".encode()).hexdigest()
        existing = find(dedup_key=dedup_key)
    return existing, dedup_key


def _create(
    services: Services, requested: RunRequested, *, dedup_key: str, announce: Announce | None
) -> tuple[Run, bool]:
    """Announce and write a new run."""
    asked = spending_of_run(requested)
    limits = check_limits(services, asked)  # before its card is posted
    announced = announce(start_run(requested)) if announce is not None else Announced(lambda: None)
    requested = requested.model_copy(update={"awaits_card": not announced.is_posted})
    try:
        run, created = write_guarded(
            services,
            asked,
            requested.run_id,
            lambda also: services.runs.create(
                requested,
                dedup_key=dedup_key,
                dedup_until=requested.at + SAME_WORDS_WINDOW,
                also=also,
            ),
            limits=limits,
        )
    except StationmasterError:
        announced.take_back()
        raise
    if run.run_id != requested.run_id:
        announced.take_back()  # the same words have started another run in this very moment
    return run, created


def _is_over(run: Run) -> bool:
    return run.is_stopping or run.phase.is_terminal


def stop_run(services: Services, run_id: RunId, who: Actor) -> Run:
    """Ask a run to stop; its workflow then ends and tears everything down.

    Of a run whose results are saved, it ends the push of its model to the hub.

    Raises:
        RunNotFound, NotPossibleNow: there is no such run, or it has ended.
        NotPermitted: the run is another's.
    """
    run = find_run(services, run_id, channel_id=who.channel_id)
    with acting_on_run(services, who, rules.STOP, run):
        refuse_late_stop(run)
        stop = StopRequested(**services.run_stamp(run.run_id, "stop"), user_id=who.user_id)
        run = services.runs.record(run.run_id, [stop])
    # A workflow that waits for its job is woken; one that is busy asks before its next step.
    settle_wait(services, run.run_id, decide(run, stop, POLICY))
    return run


def acting_on_run(
    services: Services, who: Actor, act: Act, run: Run
) -> AbstractContextManager[None]:
    learn(run_id=run.run_id)
    return acting(services, who, act, about=run.run_id, owner=run.request.user_id)


def save_again(services: Services, run_id: RunId, who: Actor) -> Run:
    """Try once more to save what a run leaves, after saving gave up for now.

    Raises:
        RunNotFound, NotPossibleNow: there is no such run, or nothing to try again.
        NotPermitted: the run is another's.
    """
    run = find_run(services, run_id, channel_id=who.channel_id)
    with acting_on_run(services, who, rules.SAVE_AGAIN, run):
        _check_unsaved(run)
        return save_once_more(services, run, user_id=who.user_id)


def give_up_results(services: Services, run_id: RunId, who: Actor) -> Run:
    """Let the run end without its results; they are deleted with its file system.

    Raises:
        RunNotFound, NotPossibleNow: there is no such run, or saving has not given up.
        NotPermitted: the run is another's.
    """
    run = find_run(services, run_id, channel_id=who.channel_id)
    with acting_on_run(services, who, rules.GIVE_UP, run):
        _check_unsaved(run)
        stamp = services.run_stamp(run.run_id, "results.given_up")
        run = services.runs.record(run.run_id, [ResultsGivenUp(**stamp, user_id=who.user_id)])
        services.workflows.start_train(run.run_id, run.passes)
        return run


def _check_unsaved(run: Run) -> None:
    if not run.has_unsaved_results or not run.unsaved_reason:
        standing = "are being saved" if run.has_unsaved_results else "are not waiting to be saved"
        raise NotPossibleNow(f"the results of run {run.run_id} {standing}")
