"""No generated start above a channel's limits begins before somebody has agreed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stationmaster.commands.permitting import wish_of
from stationmaster.domain.approvals import Limits, approval_for
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.errors import UserError
from stationmaster.domain.run.aggregate import start_run
from stationmaster.domain.run.events import RunPhase
from tests.support.factories import START, make_requested

LINES = st.builds(
    lambda *words: " ".join(filter(None, words)),
    st.sampled_from(["tiny-llama", "llama2-7b", "resnet50"]),
    st.sampled_from(["", "nodes=1", "nodes=2:8", "nodes=4", "nodes=64"]),
    st.sampled_from(["", *(f"instance={each}" for each in INSTANCES)]),
    st.sampled_from(["", "steps=1", "steps=100000"]),
    st.sampled_from(["", "keep=1s", "keep=12h", "keep=7d"]),
    st.sampled_from(["", "capacity=spot", "preset=smoke", "precision=fp32"]),
)
LIMITS = st.builds(
    Limits,
    usd=st.sampled_from([0, 0.01, 10, 500, 1e6]),
    usd_per_hour=st.sampled_from([0, 0.5, 43.92, 100, 1e4]),
    gpus=st.sampled_from([0, 1, 8, 16, 512]),
    keep_hours=st.sampled_from([0, 0.5, 12, 200]),
    instance_types=st.sampled_from([(), ("p4d.24xlarge", "m5.2xlarge")]),
    iam_above_usd=st.sampled_from([0, 100]),
)


def is_above(limits: Limits, start: StartRun) -> bool:
    """Whether the start is above a limit, counted by its plan and the catalogue alone."""
    plan = start.plan
    pairs = (
        (limits.usd, plan.estimated_cost_usd),
        (limits.usd_per_hour, plan.price_per_hour_usd),
        (limits.gpus, plan.nodes * INSTANCES[plan.instance_type].num_gpus),
        (limits.keep_hours, start.options.keep_s / 3600),
    )
    is_listed = plan.instance_type in limits.instance_types
    return is_listed or any(0 < most < asked for most, asked in pairs)


@settings(max_examples=400)
@given(LINES, LIMITS)
def test_start_above_a_limit_never_begins_without_an_approval(line: str, limits: Limits) -> None:
    try:
        start = parse_command(line)
    except UserError:
        return
    assert isinstance(start, StartRun)

    approval = approval_for(limits, wish_of(start), approvers=["U0LEAD"], now=START)
    asked = start.requested(command=line, team_id="T1", channel_id="C1", user_id="U1")
    run = start_run(make_requested(request=asked, approval=approval))

    assert run.awaits_approval is is_above(limits, start)
    assert (run.phase is RunPhase.AWAITING_APPROVAL) is run.awaits_approval
    assert approval is None or approval.by_iam is (0 < limits.iam_above_usd < approval.wish.usd)
