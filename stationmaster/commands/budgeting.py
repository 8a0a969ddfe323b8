"""Another budget for a run that has not ended."""

from __future__ import annotations

from dataclasses import replace

from stationmaster.commands.guarding import spending_of_run, write_guarded
from stationmaster.commands.looking import find_run, view_run
from stationmaster.commands.permitting import Actor, acting, has_role
from stationmaster.domain import rules
from stationmaster.domain.errors import NotPermitted, NotPossibleNow
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import BudgetChanged
from stationmaster.log_keys import learn
from stationmaster.services import Services
from stationmaster.spending import reserved_usd


def change_budget(services: Services, label: str, who: Actor, *, usd: float) -> Run:
    """Give a run another budget, for all that it costs.

    Raises:
        RunNotFound, NotPossibleNow: there is no such run, it ends, has cost as much already, or
            the month of the channel has no room for it.
        NotPermitted: the run is another's, or somebody else has to agree.
    """
    run = find_run(services, label, channel_id=who.channel_id)
    learn(run_id=run.run_id)
    with acting(services, who, rules.CHANGE_BUDGET, about=run.run_id, owner=run.request.user_id):
        if run.is_ending:
            raise NotPossibleNow(f"run {run.run_id} ends or has ended, and gets no other budget")
        spent = view_run(services, run).cost_usd(services.now())
        if usd <= spent:
            raise NotPossibleNow(
                f"run {run.run_id} has cost ${spent:,.2f} already, so usd={usd:g} would end it now",
                suggestion=f"/train stop {run.run_id}",
            )
        if usd > reserved_usd(run):
            _refuse_alone(services, run, who, usd)
        stamp = services.run_stamp(run.run_id, "budget.changed", run.version)
        changed = BudgetChanged(**stamp, usd=usd, user_id=who.user_id)
        asked = spending_of_run(run)
        more = max(0.0, usd - reserved_usd(run)) if asked.usd else 0.0
        return write_guarded(
            services,
            replace(asked, is_run=False, usd_per_hour=0.0, gpus=0, usd=more),
            run.run_id,
            lambda also: services.runs.record(run.run_id, [changed], also=also),
        )


def _refuse_alone(services: Services, run: Run, who: Actor, usd: float) -> None:
    """Refuse what is above the channel's limit, unless an approver gives it to somebody else."""
    its = services.rules.of(who.channel_id)
    if its is None or not 0 < its.approval.usd < usd:
        return
    how = f"an approver other than {run.request.user_id} types this command"
    if its.approval.approvals > 1 or 0 < its.approval.iam_above_usd < usd:
        how = f"/train stop it, and /train resume {run.run_id} budget={usd:g} asks for it"
    elif who.user_id != run.request.user_id and has_role(
        services, who.user_id, who.channel_id, rules.Role.APPROVER
    ):
        return
    limit = f"${its.approval.usd:,.2f} may be spent without an approval, and usd={usd:g} is more"
    raise NotPermitted(f"{limit}; {how}")
