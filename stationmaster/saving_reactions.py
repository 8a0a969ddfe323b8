"""Carries out what is decided of the saving of results: once more, or not for now.

Called by commands and steps. What is tried again is recorded first, and then a new execution of the
run's workflow is started, named after the count that was recorded: so both happen once.
"""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.cluster_upkeep import let_go_of_unsaved
from stationmaster.domain.cluster.keeping import outlives
from stationmaster.domain.reactions.ending import LeaveUnsaved
from stationmaster.domain.reactions.run import Reaction
from stationmaster.domain.reactions.workflow import Do
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import ResultsUnsaved, SavingRequested
from stationmaster.services import Services


def settle_saving(services: Services, run: Run, reactions: Iterable[Reaction]) -> Run:
    """Try again, or give up for now, where that was decided."""
    for reaction in reactions:
        if reaction is Do.SAVE_AGAIN:
            run = save_once_more(services, run)
        elif isinstance(reaction, LeaveUnsaved):
            run = results_unsaved(services, run, reason=reaction.reason)
    return run


def save_once_more(services: Services, run: Run, *, user_id: str = "") -> Run:
    """Record that saving is tried again, and start the workflow that does it."""
    event = SavingRequested(
        **services.run_stamp(run.run_id, "results.saving_requested", run.passes), user_id=user_id
    )
    run = services.runs.record(run.run_id, [event])
    services.workflows.start_train(run.run_id, run.passes)
    return run


def results_unsaved(services: Services, run: Run, *, reason: str) -> Run:
    """Record that saving gave up for now; once for each execution of the workflow.

    A cluster that nobody else uses is torn down as far as that loses nothing: its training nodes
    are the dearest thing it has, and saving does without them.
    """
    event = ResultsUnsaved(
        **services.run_stamp(run.run_id, "results.unsaved", run.passes), reason=reason
    )
    run = services.runs.record(run.run_id, [event])
    cluster = services.cluster_states.find(run.cluster_id) if run.cluster_id is not None else None
    if cluster is None or cluster.is_going_away:
        return run
    if outlives(cluster, run.run_id):
        let_go_of_unsaved(services, cluster)
    else:
        services.bus.cluster_drained(cluster.cluster_id)
    return run
