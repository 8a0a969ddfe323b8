"""What a person types to use another run's result: resume, resume_from=, weights=, steps=+N."""

from __future__ import annotations

import pytest

from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.requests import ShowPlan
from stationmaster.domain.commands.resuming import continued_words
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.errors import (
    NotPossibleNow,
    UserError,
)
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.keys.questions import FoundFileSystem, SavedRun
from stationmaster.domain.restoring import RestoringOrder, ResumePoint
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.rendering import job_spec
from stationmaster.rendering.training_pod import command
from tests.support.factories import make_request
from tests.support.typed import (
    CONSTANT,
    FILES,
    RUN,
    STEP,
    STORAGE,
    channel,
    described,
    finding,
    kept,
    saved,
)

WITHOUT = RunId("tiny-llama-0000bbbb")


def read(text: str, *runs: SavedRun, cluster=None):
    return parse_command(
        text, find_saved=channel(*(runs or (saved(),))), find_cluster=finding(cluster or kept())
    )


def refused(text: str, *runs: SavedRun) -> UserError:
    with pytest.raises(UserError) as caught:
        read(text, *runs)
    return caught.value


@pytest.mark.parametrize("label", [RUN, "last", f"{RUN}@60"])
def test_resume_is_a_start_with_the_runs_own_keys(label):
    start = read(f"resume {label} steps=+40")

    assert isinstance(start, StartRun)
    assert (start.recipe, start.options.nodes, start.options.instance_type) == (
        "tiny-llama",
        2,
        "m5.2xlarge",
    )
    assert start.overrides == {"schedule": "constant", "steps": "100"}
    assert start.options.resume_from == ResumePoint(run_id=RUN, step=STEP)
    assert start.words == (
        f"tiny-llama nodes=2 instance=m5.2xlarge resume_from={RUN}@60 schedule=constant steps=100"
    )


def test_resume_keeps_how_the_job_is_run_and_its_queue_only_in_the_same_cluster():
    options = JobOptions(queue="night", priority_class="high", host_network=True, nccl_debug="INFO")
    on_kept = saved(job_options=options)
    guest = saved(job_options=options, eks_name="theirs", file_system=STORAGE)

    alone = read(f"resume {RUN} steps=+40", on_kept)
    again = continued_words(guest, {}, at="", cluster=None)
    elsewhere = continued_words(guest, {}, at="", cluster=kept())

    assert alone.options.job_options == JobOptions(host_network=True, nccl_debug="INFO")
    assert {"queue=night", "priority_class=high", "host_network=true"} <= set(again)
    assert not {"queue=night", "priority_class=high"} & set(elsewhere)


def test_resume_keeps_the_range_of_nodes_unless_a_cluster_has_fewer_than_its_least():
    ranged = saved(asked=4, min_nodes=2)

    assert "nodes=2:4" in read("resume last steps=+40", ranged).words
    assert "nodes=1:2" in read("resume last steps=+40 nodes=1:2", ranged).words
    on_cluster = read("resume last steps=+40 on=team-a", ranged)
    assert (on_cluster.options.min_nodes, on_cluster.options.nodes) == (2, 4)


def test_resume_stays_on_the_file_system_that_existed_unless_a_cluster_has_another():
    overrides = CONSTANT | {"dataset": "/fsx/books"}
    before = saved(overrides=overrides, file_system=STORAGE)

    def resumed(text):
        return parse_command(
            text,
            find_saved=channel(before),
            find_cluster=finding(kept()),
            find_file_system=lambda _: FoundFileSystem(spec=STORAGE, zone="us-west-2a"),
        )

    alone = resumed("resume last steps=+40")
    assert alone.options.file_system == STORAGE
    assert "file_system=fs-0123456789abcdef0" in alone.words
    assert resumed("resume last steps=+40 on=team-a").options.file_system is None
    assert resumed("resume last steps=+40 file_system=2400").options.file_system_gib == 2400


@pytest.mark.parametrize(
    ("typed", "mbps_per_tib"),
    [
        ("", 200),
        ("file_system=2400", 200),
        ("file_system_type=persistent-500", 500),
        ("file_system=fs-0123456789abcdef0", None),
        ("on=team-a", None),
    ],
)
def test_resume_makes_a_file_system_of_the_runs_type_unless_it_makes_none(typed, mbps_per_tib):
    start = parse_command(
        f"resume last steps=+40 {typed}".strip(),
        find_saved=channel(saved(file_system_mbps_per_tib=200)),
        find_cluster=finding(kept()),
        find_file_system=lambda _: FoundFileSystem(spec=STORAGE, zone="us-west-2a"),
    )

    assert start.options.file_system_mbps_per_tib == mbps_per_tib
    assert ("file_system_type=" in start.words) == (mbps_per_tib is not None)


def test_plan_trains_and_costs_the_steps_that_are_left():
    whole = read("plan tiny-llama nodes=2 schedule=constant steps=100").request.plan
    shown = read("plan tiny-llama nodes=2 schedule=constant steps=100 resume_from=last")

    assert isinstance(shown, ShowPlan)
    plan = shown.request.plan
    assert plan.estimated_duration_s < whole.estimated_duration_s
    assert plan.warnings[0] == f"resumes from {RUN} at step 60: steps 61 to 100 are trained"
    assert "0.0 MB come back from the artifacts bucket" in plan.warnings[1]


def test_run_that_was_stopped_is_resumed_to_its_own_end_without_words():
    stopped = saved(step=40, files=FILES[3:], overrides=CONSTANT)
    stopped.manifest.__dict__["files"] = (
        described(f"checkpoint/step-{40:08d}/complete.json"),
        *stopped.manifest.files,
    )

    start = read("resume last", stopped)

    assert start.options.resume_from == ResumePoint(run_id=RUN, step=40)
    assert start.resolved.training.steps == STEP


@pytest.mark.parametrize(
    ("keys", "is_told"),
    [
        ({"schedule": "cosine", "steps": "60"}, True),
        ({"schedule": "constant", "steps": "60"}, False),
    ],
)
def test_plan_says_what_more_steps_mean_for_a_falling_rate(keys, is_told):
    start = read("resume last steps=+40", saved(overrides=keys))

    told = [note for note in start.plan.warnings if "falls to the last step" in note]
    assert bool(told) is is_told


def test_warm_up_that_was_cut_by_a_short_run_is_not_made_longer():
    short = saved(step=3, overrides={"schedule": "constant", "steps": "3"}, files=())
    short.manifest.__dict__["files"] = (described("checkpoint/step-00000003/complete.json"),)
    assert short.resolved.training.warmup_steps == 3

    start = read("resume last steps=+40", short)

    assert start.resolved.training.warmup_steps == 3


def test_other_size_is_allowed_and_the_plan_says_what_it_means():
    same, other = (read(f"resume last steps=+40 nodes={nodes}") for nodes in (2, 4))

    assert not any("is spread over" in note for note in same.plan.warnings)
    assert any(
        "was written on 2 x m5.2xlarge and is spread over 4 x m5.2xlarge" in note
        for note in other.plan.warnings
    )


def test_kept_clusters_machines_stand_for_those_of_the_run():
    start = read("resume last steps=+40 on=team-a", saved(nodes=8))

    assert (start.options.cluster_id, start.options.nodes, start.options.instance_type) == (
        ClusterId("team-a-0a1b2c3d"),
        4,
        None,
    )


FRAMEWORK = {"recipe": "megatron-llama3-8b", "overrides": {}}


@pytest.mark.parametrize(
    ("recipe", "of"),
    [("tiny-llama", saved()), ("llama3.1-8b", saved(files=FILES[3:], **FRAMEWORK))],
    ids=["own-trainer", "framework"],
)
def test_weights_of_a_run_are_its_final_model(recipe, of):
    start = read(f"{recipe} weights={RUN}", of)

    assert start.options.weights_from == RUN
    assert start.overrides == {"weights": RUN}
    assert f"starts from the trained model of run {RUN}" in start.plan.warnings


def test_frameworks_run_without_a_model_or_with_another_recipe_is_refused():
    ran = ("torchrun", "pretrain_gpt.py")
    without = saved(files=("logs/pod.log", "output/checkpoints/x"), ran=ran, **FRAMEWORK)

    assert str(refused(f"llama3.1-8b weights={RUN}", without)).endswith(
        "has no trained model, because none was made of what its program has saved; it has output/"
    )
    whole = saved(files=FILES[3:], **FRAMEWORK)
    assert "are of another model" in str(refused(f"tiny-llama weights={RUN}", whole))
    assert f"weights={RUN} takes its model" in str(refused("resume last", whole))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("resume", "needs a run first: its id, or last"),
        ("resume steps=+5", "needs a run first"),
        ("resume nobody-0000cccc", 'no run is called "nobody-0000cccc"'),
        ("resume last resume_from=last", "says already which run is resumed"),
        ("resume last@40 steps=+5", "no checkpoint of step 40; it has saved step 60"),
        ("resume last@x steps=+5", "is not accepted: expected a run's id or last, or RUN@STEP"),
        ("tiny-llama resume_from=@60", "expected a run's id or last"),
        ("tiny-llama steps=+5", "means more than another run had; add resume_from=RUN"),
        ("resume last steps=+x", "steps=+x is not accepted: expected + and a whole number"),
        ("resume last steps=+9999999999", "expected + and a whole number"),
        ("resume last steps=+99999999", "steps="),
        ("resume last", "has trained 60 steps already, and steps=60 leaves none"),
        ("resume last steps=+5 nodez=3", "did you mean nodes"),
        ("resume last steps=+5 batch=1 foo", "expected key=value"),
        ("mixtral-8x7b preset=smoke resume_from=last", "cannot be continued as mixtral-8x7b"),
        (
            "resume last steps=+5 sequence_length=64 seed=5",
            "that run was trained with seed=1234 and not 5, sequence_length=",
        ),
        ("resume last steps=+5 dataset=c4", "dataset=python-code and not c4"),
        (f"mixtral-8x7b preset=smoke weights={RUN}", "are of another model"),
        (f"tiny-llama weights={RUN[:-1]}9", "no run is called"),
    ],
)
def test_what_cannot_be_resumed_is_refused_with_one_sentence(text, said):
    error = refused(text)

    assert said in str(error)
    assert not (error.suggestion or "").startswith(("/train tiny-llama resume", "/train resume"))


@pytest.mark.parametrize(
    ("text", "files", "said"),
    [
        ("resume last", FILES[3:], "has no checkpoint to resume from; weights= takes its model"),
        (f"tiny-llama weights={WITHOUT}", FILES[:4], f"result of run {WITHOUT} has no trained mod"),
    ],
)
def test_result_without_what_is_wanted_is_refused(text, files, said):
    error = refused(text, saved(WITHOUT, step=STEP if "weights" in text else None, files=files))

    assert isinstance(error, NotPossibleNow)
    assert said in str(error)


def test_run_of_epochs_is_resumed_by_steps_or_by_other_epochs():
    counted = saved(overrides={"epochs": "2", "schedule": "constant"})

    more = read(f"resume {RUN} steps=+40", counted)
    other = read(f"resume {RUN} epochs=3", counted)

    # What it has trained is known by its checkpoint only.
    assert more.overrides == {"schedule": "constant", "steps": "100"}
    assert other.overrides == {"epochs": "3", "schedule": "constant"}
    assert any("61 to the end of its epochs are" in each for each in other.plan.warnings)
    assert read(f"resume {RUN} epochs=3", saved()).overrides["epochs"] == "3"


def test_run_without_steps_left_gets_a_plan_that_has_some():
    error = refused("resume last")

    assert error.suggestion.startswith("/train plan tiny-llama nodes=2")
    assert isinstance(read(error.suggestion.removeprefix("/train ")), ShowPlan)


def resumed_request(**values):
    return make_request(
        resume_from=ResumePoint(run_id=RUN, step=STEP),
        weights_from=WITHOUT,
        overrides={"weights": WITHOUT, **CONSTANT},
        **values,
    )


def test_request_orders_what_comes_back():
    request = resumed_request()

    assert request.restoring_order(RunId("next")) == RestoringOrder(
        run_id=RunId("next"),
        checkpoint=ResumePoint(run_id=RUN, step=STEP),
        model_of=WITHOUT,
    )
    assert request.brings_data
    assert make_request().restoring_order(RunId("next")) is None


def test_job_starts_from_what_came_back():
    request = resumed_request()
    assignment = first_assignment(RunId("next"), request)

    words = command(job_spec(request, assignment, run_id=RunId("next"), image="training:1"))

    restored = "/fsx/runs/next/restored"
    assert f"weights={restored}/model" in words
    assert f"tokenizer={restored}/model" in words
    assert words[-2:] == ["--resume-from", f"{restored}/checkpoint/step-{STEP:08d}"]
