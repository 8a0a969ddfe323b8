"""Studies, and what a person types about runs that were there before: rerun, compare, diff, cost.

What is typed of a study becomes a run each, and what they measured is set against one another.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.requests import StudyRuns
from stationmaster.domain.commands.resuming import asked_run
from stationmaster.domain.comparing import study_of
from stationmaster.domain.errors import RunNotFound, UserError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.keys.questions import AskedRun
from stationmaster.domain.names import study_cluster
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.speeds import Speeds
from tests.support.factories import make_request, make_run
from tests.support.typed import RULES, RUN, finding, kept, refused, start_of


def test_each_value_of_each_key_is_a_run_that_has_the_cluster_for_itself():
    study = parse_command(
        "study tiny-llama on=team-a nodes=1,2 seed=1,2 steps=9", find_cluster=finding(kept())
    )

    assert isinstance(study, StudyRuns)
    runs = [(each.options.nodes, each.overrides["seed"]) for each in study.starts]
    assert runs == [(1, "1"), (1, "2"), (2, "1"), (2, "2")]
    assert all(each.options.alone and each.overrides["steps"] == "9" for each in study.starts)


def test_without_on_the_runs_are_planned_for_one_cluster_that_does_for_all_of_them():
    study = parse_command("study llama2-7b nodes=2,4 efa=on,off steps=50 file_system=4800")

    assert isinstance(study, StudyRuns)
    assert study.cluster is not None
    spec, plans = study.cluster.spec, [each.plan for each in study.starts]
    assert (spec.nodes, spec.file_system.storage_gib) == (4, 4800)
    assert spec.num_efa == spec.instance.num_efa > 0
    assert plans[0].price_per_hour_usd == pytest.approx(spec.price_per_hour_usd / 2, abs=0.01)
    in_turn = sum(plan.estimated_duration_s for plan in plans)
    assert in_turn + 1_800 < study.cluster.ttl_s < in_turn + 3_600
    assert all(each.options.alone for each in study.starts)
    commands = parse_command('study tiny-llama nodes=1,2 command="a, b"', own_code=RULES)
    assert commands.cluster.ttl_s == 8 * 3600


def test_run_of_a_study_is_asked_for_again_on_a_cluster_of_its_own():
    ids = (RunId("tiny-llama-0000aaaa"), RunId("tiny-llama-0000bbbb"))
    own = make_request(study=ids, alone=True, cluster_id=study_cluster(ids))

    assert not asked_run(ids[0], own).words.keys() & {"on", "alone"}


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("", "two to 6 runs in all, got 1 of"),
        ("tiny-llama on=team-a nodes=1", "two to 6 runs in all, got 1 of"),
        ("tiny-llama nodes=1,2x", "nodes=2x is not accepted"),
        ("tiny-llama nods=1,2", "did you mean nodes"),
        ("tiny-llama nodes=1 file_system=1200,2400", "would be the same: without on="),
        ("llama2-7b instance=p4d.24xlarge,p5.48xlarge", "type one value of what that is made of"),
        ("tiny-llama nodes=2,2", "and no value twice"),
        ("tiny-llama on=team-a nodes=1,2 seed=1,2,3,4", "two to 6 runs in all, got 8 of"),
        (
            "tiny-llama on=team-a nodes=1,5",
            "nodes=5 is more than cluster team-a has: 4; use 1 to 4$",
        ),
        ("tiny-llama on=team-a nodes=1,", "nodes= has no value"),
    ],
)
def test_study_that_cannot_be_run_is_refused_in_a_sentence(typed: str, says: str):
    with pytest.raises(UserError, match=says):
        parse_command(f"study {typed}", find_cluster=finding(kept()))


def ran(nodes: int, samples_per_s: float | None, losses: list[float]) -> Run:
    speeds = () if samples_per_s is None else (samples_per_s, samples_per_s, 9999.0)
    request = make_request(nodes=nodes, overrides={"global_batch_size": "8"})
    return make_run().model_copy(
        update={
            "request": request,
            "attempts": [],
            "speeds": Speeds(samples_per_s=speeds),
            "loss_points": list(enumerate(losses, start=1)),
            "price_per_hour_usd": 36.0 * nodes,
        }
    )


def test_speeds_are_set_against_linear_scaling_and_costs_against_one_loss():
    study = study_of([ran(1, 10.0, [5, 4, 3, 2]), ran(4, 30.0, [5, 2.5]), ran(2, 15.0, [3.0, 2])])

    one, four, two = study.runs
    assert [each.of_linear for each in study.runs] == [1.0, 0.75, 0.75]
    assert study.target_loss == 2.5
    # Step 4 of 8 samples at 10 a second; 0.01 USD a second.
    assert (one.target, one.target_usd) == (timedelta(seconds=3.2), pytest.approx(0.032))
    assert four.target == timedelta(seconds=2 * 8 / 30)
    tokens = 10.0 * make_request().resolved.training.sequence_length
    assert one.tokens_per_s == tokens
    assert one.usd_per_million == pytest.approx(0.01 / tokens * 1e6)
    assert two.samples_per_s == 15.0


def test_an_epoch_takes_its_steps_times_the_usual_step():
    speeds = Speeds(step_times=(2.0, 2.0, 50.0))
    run = ran(1, 10.0, [5]).model_copy(update={"steps_per_epoch": 12.5, "speeds": speeds})

    assert (run.epoch_s, ran(1, 10.0, [5]).epoch_s) == (25.0, None)


def test_run_that_never_trained_has_no_figures_and_takes_none_from_the_others():
    study = study_of([ran(1, None, []), ran(2, 15.0, [3.0, 2])])

    never, did = study.runs
    assert (never.samples_per_s, never.of_linear, never.usd_per_million) == (None, None, None)
    assert (did.samples_per_s, did.of_linear, did.target) == (15.0, None, None)
    assert study.target_loss is None


def asked(**request: object):
    """Knows one run, which was asked for like this."""
    run = asked_run(RUN, make_request(**request))

    def find(label: str) -> AskedRun:
        if label not in ("last", RUN):
            raise RunNotFound(f'no run is called "{label}" in this channel')
        return run

    return find


@pytest.mark.parametrize(
    ("request_of", "typed", "words"),
    [
        ({}, "", "tiny-llama nodes=2 instance=m5.2xlarge"),
        (
            {"overrides": {"steps": "60", "seed": "7"}, "name": "books", "keep_s": 3600},
            "seed=8 nodes=1",
            "tiny-llama nodes=1 instance=m5.2xlarge keep=1h steps=60 seed=8",
        ),
        ({"overrides": {"steps": "60"}}, "preset=smoke", "tiny-llama preset=smoke steps=60"),
        ({"min_nodes": 1}, "name=again", "tiny-llama nodes=1:2 instance=m5.2xlarge name=again"),
        (
            {"cluster_id": ClusterId("team-a")},
            "",
            "tiny-llama nodes=2 instance=m5.2xlarge on=team-a",
        ),
        ({"nodes": 8, "keep_s": 60}, "on=team-a", "tiny-llama nodes=4 on=team-a keep=1m"),
    ],
)
def test_rerun_is_a_start_of_what_the_run_was_asked_for_with_typed_keys_over_it(
    request_of, typed, words
):
    cluster = kept()
    start = start_of(
        f"rerun {RUN} {typed}", find_asked=asked(**request_of), find_cluster=finding(cluster)
    )

    assert sorted(start.words.split()) == sorted(words.split())
    assert start.options.resume_from is None


def test_rerun_has_the_file_system_that_was_typed_and_not_the_one_that_was_planned():
    brought = {"overrides": {"dataset": "s3://bucket/text"}, "file_system_gib": 4800}
    typed = asked(**brought, command="/train tiny-llama file_system=4800")

    assert "file_system" not in asked(**brought)("last").words
    assert typed("last").words["file_system"] == "4800"


@pytest.mark.parametrize(
    ("text", "said", "suggestion"),
    [
        ("rerun", "/train rerun needs a run first", "/train list"),
        ("rerun lr=1", "/train rerun needs a run first", "/train list"),
        ("rerun other", 'no run is called "other"', None),
        (f"rerun {RUN} nodes=2 nodes=3", "nodes is given twice", None),
        (f"rerun {RUN} steps=+5", "add resume_from=RUN", "/train plan tiny-llama"),
        (f"keep {RUN} 4h", "did you mean /train cluster extend", f"/train cluster extend {RUN} 4h"),
        ("keep team-a", "did you mean /train cluster extend", "/train cluster extend team-a"),
        ("keep", "did you mean /train cluster extend", "/train cluster list"),
        ("price tiny-llama nodes=2", "did you mean /train cost", "/train plan tiny-llama nodes=2"),
        ("cost tinyllama nodes=0", 'a month such as 2026-11, got "tinyllama', "/train plan tiny"),
        ("cost run-1", 'got "run-1"', "/train status run-1"),
        ("cost 2026-13", 'got "2026-13"', "/train status 2026-13"),
        ("cost 2026-11 2026-12", 'got "2026-11 2026-12"', "/train status 2026-11"),
        ("compare a", 'takes two to 6 runs, by id or name, got "a"', "/train list"),
        ("compare a b a", 'got "a" twice', "/train list"),
        ("compare a b c d e f g", 'got "a b c d e f g"', "/train list"),
        ("diff a b c", 'takes two runs, by id or name, got "a b c"', "/train list"),
        (f"clone {RUN}", "did you mean /train rerun", f"/train rerun {RUN}"),
        ("clone other", "did you mean /train rerun", "/train list"),
        (f"rerun {RUN} --seed 8", 'write seed=8 for "--seed 8"', f"/train rerun {RUN} seed=8"),
        (f"teardown {RUN}", "did you mean /train stop", f"/train stop {RUN}"),
    ],
)
def test_words_about_a_run_that_are_not_accepted_say_what_is(text, said, suggestion):
    error = refused(text, find_asked=asked())

    assert said in str(error)
    assert (error.suggestion or "").startswith(suggestion or "")


def test_keep_of_a_run_on_a_kept_cluster_extends_that_cluster():
    find = asked(cluster_id=ClusterId("team-a-0a1b2c3d"))

    assert refused(f"keep {RUN} 1h", find_asked=find).suggestion == (
        "/train cluster extend team-a-0a1b2c3d 1h"
    )
