"""on= and keep=: what is read, refused with a command, and said in the plan."""

from __future__ import annotations

import pytest

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster import changes
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.leases import Waiting
from stationmaster.domain.cluster.spec import spec_for, spec_for_any
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.requests import ShowPlan
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.planning.recipe_lookup import get_recipe
from tests.support.factories import START, make_cluster_event
from tests.support.plans import make_plan
from tests.support.typed import finding, kept, parse, refused

HOUR = 3_600


def test_start_takes_a_cluster_and_a_keep_together():
    start = parse("tiny-llama on=team-a keep=2h nodes=2 steps=5")

    assert isinstance(start, StartRun)
    assert (start.options.on, start.options.keep_s, start.options.cluster_id) == (
        "team-a",
        2 * HOUR,
        "team-a-0a1b2c3d",
    )
    assert start.overrides == {"steps": "5"}
    assert start.words == "tiny-llama nodes=2 on=team-a keep=2h steps=5"


def test_plan_on_a_cluster_creates_nothing_and_costs_a_share():
    cluster = kept()

    plan = parse("plan tiny-llama on=team-a nodes=1").request.plan

    own = make_plan("tiny-llama", nodes=1)
    assert plan.on_cluster == "team-a"
    assert plan.will_create == []
    assert plan.price_per_hour_usd == pytest.approx(cluster.spec.price_per_hour_usd / 4, abs=0.01)
    assert plan.time_to_first_step_s < own.time_to_first_step_s / 10
    assert plan.estimated_cost_usd < own.estimated_cost_usd


def test_plan_on_a_cluster_uses_its_machines_and_at_most_its_nodes():
    gpus = kept(spec_for_any(get_instance("p5.48xlarge"), nodes=1, file_system_gib=2400))

    plan = parse("llama2-7b on=team-a", find_cluster=finding(gpus)).plan

    assert (plan.instance_type, plan.nodes) == ("p5.48xlarge", 1)


def test_plan_writes_checkpoints_to_the_file_system_of_the_cluster():
    def written_s(gib):
        spec = spec_for_any(get_instance("p4d.24xlarge"), nodes=2, file_system_gib=gib)
        return parse(
            "llama2-7b on=team-a", find_cluster=finding(kept(spec))
        ).plan.checkpoint_write_s

    assert written_s(2400) == pytest.approx(2 * written_s(4800), rel=0.01)


def test_keep_is_priced_in_the_plan():
    plan = parse_command("plan tiny-llama keep=2h").request.plan

    note = plan.warnings[0]
    assert note.startswith("keep=2h: the cluster stays for 2h after the run")
    assert f"up to ${2 * plan.price_per_hour_usd:,.2f} more" in note


def test_plan_says_in_which_place_the_run_would_wait():
    held = make_cluster_event(cl.LeaseGranted, cluster_id="team-a-0a1b2c3d", run_id="r", nodes=3)
    busy = changes.apply(kept(), held)

    plan = parse("plan tiny-llama on=team-a nodes=2", find_cluster=finding(busy)).request.plan

    assert "has 1 of 4 nodes free" in plan.warnings[0]
    assert "place 1" in plan.warnings[0]


def test_run_for_which_the_queue_has_no_place_is_refused_when_typed():
    waiting = [Waiting(run_id=f"r-{number}", nodes=1, since=START) for number in range(100)]
    full = kept().model_copy(update={"queue": waiting})

    with pytest.raises(NotPossibleNow, match="100 runs wait for nodes of cluster team-a"):
        parse("tiny-llama on=team-a", find_cluster=finding(full))


@pytest.mark.parametrize(
    ("text", "words", "suggestion"),
    [
        ("tiny-llama on=team-b nodes=1", "team-b", "/train plan tiny-llama nodes=1"),
        (
            "tiny-llama on=team-a nodes=8",
            "nodes=8 is more than cluster team-a has: 4; use 1 to 4",
            "/train plan tiny-llama on=team-a nodes=2",
        ),
        (
            "tiny-llama instance=m5.4xlarge on=team-a",
            "instance=m5.4xlarge is not what cluster team-a has: m5.2xlarge",
            "/train plan tiny-llama on=team-a instance=m5.2xlarge",
        ),
        ("llama2-7b on=team-a", "m5.2xlarge has no GPU", "/train plan llama2-7b"),
    ],
)
def test_start_that_its_cluster_cannot_run_is_answered_with_a_command(text, words, suggestion):
    error = refused(text)

    assert words in str(error)
    assert error.suggestion == suggestion
    assert isinstance(parse(suggestion.removeprefix("/train ")), ShowPlan)


def test_model_that_does_not_fit_its_cluster_is_offered_no_other_machines():
    small = kept(spec_for_any(get_instance("g5.xlarge"), nodes=2, file_system_gib=2400))

    start = parse("llama2-7b on=team-a", find_cluster=finding(small))

    assert not start.plan.fits
    assert "instance=" not in (start.fitting_words or "")
    assert "leave on= out" in start.plan.misfits[0] or start.fitting_words


def test_cluster_that_does_not_offer_its_devices_refuses_a_recipe_that_needs_them():
    without = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="p4d.24xlarge")
    cut_off = spec_for_any(get_instance("p4d.24xlarge"), nodes=2, file_system_gib=2400)
    cut_off = cut_off.model_copy(update={"num_efa": 0})

    for spec, devices in ((without, "GPUs"), (cut_off, "EFA interfaces")):
        error = refused("llama2-7b on=team-a", find_cluster=finding(kept(spec)))

        assert f"does not offer its {devices}" in str(error)


def test_cluster_is_looked_up_in_a_channel_only():
    with pytest.raises(NotPossibleNow, match="type the command in the channel"):
        parse_command("tiny-llama on=team-a")
