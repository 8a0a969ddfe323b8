"""What cards and receipts show of runs, in each state that a person asks about."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from any_blocks import assert_slack_takes
from cluster_blocks import make_cluster as kept_cluster
from run_blocks import (
    NOW,
    REQUEST,
    RESULTS,
    RUN_ID,
    START,
    URI,
    buttons,
    event,
    in_phase,
    make_run,
    progress,
    running,
    saved,
    seen,
    unsaved,
)

from bot.blocks.card import card_milestone, run_card
from bot.blocks.elements import Content
from bot.blocks.progress import loss_chart
from bot.blocks.receipt import run_receipt
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.leases import Lease
from stationmaster.domain.cluster.resources import Resource, ResourceStatus
from stationmaster.domain.cluster.spec import FileSystemSpec, Reservation, Window, spec_for_any
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.restoring import ResumePoint
from stationmaster.domain.run import changes
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.attempts import Attempt, first_assignment
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.failures import Failure
from stationmaster.domain.run.kept import Backup, Backups, Export, Pushed
from stationmaster.domain.run.pods import Pod
from stationmaster.domain.run.speeds import Speeds
from stationmaster.domain.run.staging import Staging
from stationmaster.domain.run.view import RunView
from stationmaster.settings import Settings
from tests.support.factories import make_event, make_request


def apply(view: RunView, event: ev.RunEvent) -> RunView:
    return replace(view, run=changes.apply(view.run, event))


def of(kind: ResourceKind, name: str, **values: object) -> Resource:
    return Resource(kind=kind, name=name, requested_at=START, **values)


def pods(**phases: str) -> dict[str, Pod]:
    return {name: Pod(name=name, phase=phase) for name, phase in phases.items()}


def staged(work: str, **values: object) -> RunView:
    done = {"done_bytes": 36_200_000_000, "total_bytes": 145_000_000_000}
    return in_phase(
        RunPhase.STAGING, staging=Staging(cluster_id="warm", work=work, **(done | values))
    )


def linked(*, is_linked: bool) -> RunView:
    staging = Staging(
        cluster_id="warm", work="linking", data_id="d", root="d/files", linked=is_linked
    )
    request = make_request(overrides=DATA, link_reason="a copy takes about 75 min")
    return in_phase(RunPhase.SUBMITTING, staging=staging, request=request)


def asked(**values: object) -> dict[str, object]:
    return {"request": make_request(**values)}


def ranged(**spec: object) -> RunView:
    """A run on 2:8 nodes that leases six."""
    view = running(request=REQUEST.model_copy(update={"nodes": 8, "min_nodes": 2}))
    lease = Lease(run_id=RUN_ID, nodes=6, granted_at=START)
    changed = {"spec": view.cluster.spec.model_copy(update=spec), "leases": {RUN_ID: lease}}
    return replace(view, cluster=view.cluster.model_copy(update=changed))


def backed_up(backups: Backups, *phases: RunPhase, **values: object) -> RunView:
    run = {"backups": backups, "training_started_at": NOW, "progress": progress(60)}
    return in_phase(RunPhase.RUNNING, *phases, **(run | values))


DATA = {"dataset": "s3://research-data/imagenet"}
P4D = asked(recipe="llama2-7b", instance_type="p4d.24xlarge")
SLOW = Speeds(num_skipped=2, samples_per_s=(0.125,) * 10)
OUT_OF_MEMORY = Failure(pod="w-1", restarts=0, at=START, exit_code=137, reason="OOMKilled")
KILLED = {"reason": f"{OUT_OF_MEMORY.sentence}; it failed", "failures": [OUT_OF_MEMORY]}
LOST_NCCL = Failure(
    pod="w-0",
    restarts=0,
    at=START,
    exit_code=1,
    line="DistBackendError: NCCL error",
    evidence="NCCL WARN Bootstrap : no socket interface found <eth9>",
)
PREPARING = make_event(ev.TrainingPreparing, waits_for="libraries", at=START)
KUEUE = "Kueue has not admitted the job to queue night yet: 2 more CPUs needed"
WAITS = "capacity block cr-1 starts at 2026-01-05 11:30 UTC, nothing is made before"
STOPS = "stopped because capacity block cr-1 ends at 2026-01-07 11:30 UTC"
COMMAND = asked(program=("torchrun", "a b.py"), image="registry.example.com/x:1")
FRAMEWORK = asked(recipe="megatron-llama3-8b", instance_type="p5.48xlarge")
GATED = "meta-llama/Llama-3.1-8B is gated: <accept> its licence"
NEWEST = Backup(step=4200, uri=URI, num_bytes=2**30, manifest_sha256="0" * 64, saved_at=NOW)
BACKED = Backups(number=1, newest=NEWEST)
DENIED = Backups(number=2, newest=NEWEST, failed="S3 refuses <the saver>: AccessDenied")
PUSH = asked(push_to="lab/tiny")
PUSHED = PUSH | {"pushed": Pushed(repository="lab/tiny", revision="0123456789ab" * 3)}
NOT_PUSHED = PUSH | {"not_pushed": "the hub <refuses>"}
ID = "fs-0123456789abcdef0"
THEIRS = spec_for_any(
    get_instance("m5.2xlarge"),
    nodes=2,
    file_system_gib=1200,
    existing=FileSystemSpec(storage_gib=4800, mbps_per_tib=200, existing_id=ID),
)


def paid(began: float, *entered: tuple[RunPhase, float], **values: object) -> RunView:
    """A run that pays since its first phase, and when its trainer began: minutes before now."""
    phases = [(phase, NOW - timedelta(minutes=minutes)) for phase, minutes in entered]
    group = of(ResourceKind.NODE_GROUP, "n", price_per_hour_usd=36.0)
    values["resources"] = {"n": group.model_copy(update={"requested_at": phases[0][1]})}
    started = {"training_started_at": NOW - timedelta(minutes=began), "progress": progress(30)}
    return make_run(phases=phases, phase=phases[-1][0], **started, **values)


TO_ITS_END = (
    *((RunPhase.REQUESTED, 7), (RunPhase.PROVISIONING, 6), (RunPhase.VALIDATING, 5)),
    *((RunPhase.STAGING, 4), (RunPhase.RUNNING, 3), (RunPhase.SAVING, 2), (RunPhase.SUCCEEDED, 1)),
)
SET_BACK = [*zip((RunPhase.RUNNING, RunPhase.RECOVERING) * 3, range(6, 0, -1), strict=True)]


def guest() -> RunView:
    """A run that has ended in somebody else's EKS cluster."""
    view = in_phase(
        RunPhase.SUCCEEDED,
        request=REQUEST.model_copy(update={"eks_name": "theirs"}),
        teardown=TeardownStatus.COMPLETED,
        torn_down_at=NOW,
    )
    spec = THEIRS.model_copy(update={"eks_name": "theirs"})
    return replace(view, cluster=view.cluster.model_copy(update={"spec": spec}))


CARDS = [
    (
        running(
            progress=progress(40, tokens_per_s=2048.0, step_time_s=0.5),
            first_loss_nats=8.3,
            loss_points=[(step, 8.3 - step / 10) for step in range(1, 41)],
            resources={
                "cluster": of(
                    ResourceKind.CLUSTER, "x", status=ResourceStatus.ACTIVE, price_per_hour_usd=6.0
                )
            },
        ),
        [
            *("66%", "step 40 of 60", "8.300", "4.250", "2.05 K tokens/s", "about 10s", "$0.70"),
            *("<@U0OPERATOR>", "\u2588" * 16 + "\u2591" * 8),
        ],
        [],
    ),
    (
        running(
            attempts=[
                Attempt(
                    **dict(first_assignment(RUN_ID, REQUEST.model_copy(update={"nodes": 5}))),
                    started_at=START,
                )
            ]
        ),
        ["5 \u00d7 m5.2xlarge"],
        [],
    ),
    *(
        (
            apply(
                running(progress=progress(40)),
                event(ev.TrainingEvaluated, **({"step": 40, "loss_nats": 2.0} | figures)),
            ),
            [said],
            [],
        )
        for figures, said in (
            ({"perplexity": 7.389}, "loss 2.000, perplexity 7.4"),
            ({"loss_nats": None}, "loss is not finite"),
            ({"top1": 0.5, "top5": 0.75}, "top-1 50.0%, top-5 75.0%"),
        )
    ),
    (
        running(pods=pods(a="Running", b="Pending", c="Running", d="Running", e="Failed")),
        ["pods: 1 failed, 1 pending, 3 running"],
        [],
    ),
    (running(plugins=["fsx-csi"]), [], ["pods:", "Bring the data", "fsx-csi", "kept", "is slow"]),
    (in_phase(RunPhase.SUBMITTING, RunPhase.FAILED, pods=pods(a="Failed")), [], ["pods:"]),
    (
        in_phase(
            RunPhase.PROVISIONING,
            plugins=["fsx-csi"],
            resources={
                "c": of(
                    ResourceKind.CLUSTER,
                    "c",
                    status=ResourceStatus.ACTIVE,
                    active_at=START + timedelta(seconds=90),
                ),
                "n": of(ResourceKind.NODE_GROUP, "n"),
            },
        ),
        ["\u2713 cluster  _1m 30s_", "\u25cf nodes", "plugins: fsx-csi"],
        [],
    ),
    (staged("copying"), ["*Bringing the data*", "36.2 GB of 145 GB copied, 25%"], []),
    (staged("preparing", data_id="d"), ["36.2 GB of 145 GB prepared, 25%"], []),
    (staged("converting"), ["36.2 GB of 145 GB of weights downloaded and converted, 25%"], []),
    (in_phase(**asked(overrides=DATA)), ["Bring the data"], []),
    (linked(is_linked=True), ["linked, not copied: a copy takes about 75 min"], []),
    (linked(is_linked=False), [], ["not copied"]),
    (running(**P4D, speeds=SLOW), ["training is slow: 0.125 samples a second, and the plan"], []),
    (running(speeds=SLOW), [], ["is slow"]),
    *(
        (view, ["Resumed from step 40 after a restart"], [])
        for view in (
            running(resumed_from_step=40, num_restarts=1),
            saved(RunPhase.SUCCEEDED, resumed_from_step=40, num_restarts=1),
        )
    ),
    (
        running(resumed_from_step=60, **asked(resume_from=ResumePoint(run_id="r", step=60))),
        ["Resumed from step 60"],
        ["restart"],
    ),
    (make_run(**asked(keep_s=7200)), ["cluster kept 2h after it"], []),
    (ranged(nodes=6), ["6 of 2:8 nodes \u00d7 m5.2xlarge"], []),
    (ranged(nodes=8, min_nodes=2), ["2:8 nodes \u00d7 m5.2xlarge"], ["of 2:8"]),
    (
        in_phase(
            *(RunPhase.PROVISIONING, RunPhase.VALIDATING, RunPhase.SUBMITTING, RunPhase.QUEUED),
            reason=KUEUE,
        ),
        [KUEUE, "queued", "Submitting the job"],
        ["ait for nodes", "aiting for nodes"],
    ),
    (in_phase(RunPhase.QUEUED, reason=WAITS), [WAITS], []),
    (
        running(stop_requested_by="", stop_why=STOPS),
        [f"Being {STOPS}", "stopping"],
        ["Stop this run?"],
    ),
    (in_phase(RunPhase.STOPPED, stop_why=STOPS), [STOPS], []),
    # A failure: why, where, and what to type.
    (
        in_phase(
            *(RunPhase.PROVISIONING, RunPhase.FAILED),
            reason="file system: AWS says <no capacity>",
            trainer_failure="CUDA out of memory",
        ),
        [
            "file system: AWS says &lt;no capacity&gt;",
            "trainer: CUDA out of memory",
            "\u2717\u2002*Provision*  _1m 00s_ \u00b7 *Failed*",
        ],
        ["Save the results", "Validate"],
    ),
    (
        in_phase(RunPhase.FAILED, **KILLED),
        [
            "> *the kernel killed the process because the container used more memory",
            "> pod w-1 exited with code 137 (OOMKilled); it failed",
            "*What to do*\\nstart it again with less in memory",
            "`/train plan tiny-llama instance=TYPE`\\nIt was typed as `/train tiny-llama",
        ],
        ["OOMKilled exit code"],
    ),
    (
        in_phase(RunPhase.FAILED, reason=f"{LOST_NCCL.sentence}; it failed", failures=[LOST_NCCL]),
        [
            "> *NCCL_SOCKET_IFNAME leaves NCCL no network interface",
            "> pod w-0: NCCL WARN Bootstrap : no socket interface found &lt;eth9&gt;",
            "NCCL error; it failed",
            "*What to do*\\nremove NCCL_SOCKET_IFNAME",
        ],
        [],
    ),
    (
        in_phase(RunPhase.FAILED, reason="the workflow was stopped from outside: <x>"),
        ["> the workflow was stopped from outside: &lt;x&gt;", "type its command again"],
        [],
    ),
    (
        in_phase(RunPhase.FAILED, reason="no known words"),
        ["> no known words", "*What to do*\\n`/train preflight tiny-llama`"],
        [],
    ),
    *(
        (in_phase(phase, **KILLED), ["> *the kernel killed the process"], ["What to do"])
        for phase in (RunPhase.RECOVERING, RunPhase.SAVING)
    ),
    (
        in_phase(RunPhase.SAVING, reason="pod w-0 failed: KeyError"),
        ["\u274c tiny-llama: failed, saving results", "KeyError"],
        ["stop_run"],
    ),
    (in_phase(RunPhase.SAVING), ["\U0001f4be tiny-llama: saving results"], ["stop_run"]),
    # Results: where they are and how to use them, or why there are none.
    (
        saved(RunPhase.SUCCEEDED),
        [
            f"`{URI}`  7 files, 12.6 GiB, loss 4.250",
            r"--to my-model --bucket a-bucket\nAutoModelForCausalLM",  # a line each
            r"AutoModelForCausalLM.from_pretrained(\"my-model/model\")",  # in JSON
            "Save the results",
        ],
        ["pushed"],
    ),
    (saved(RunPhase.SUCCEEDED, emulated_speed=720.0), ["--to my-model"], ["--bucket"]),
    (
        saved(RunPhase.SUCCEEDED, **asked(recipe="resnet50")),
        ["AutoModelForImageClassification"],
        ["AutoModelForCausalLM"],
    ),
    (
        saved(RunPhase.FAILED, reason="KeyError"),
        [URI, "\u2717\u2002*Train*", "\u2713\u2002Save the results"],
        ["from_pretrained"],
    ),
    (
        unsaved(unsaved_reason="", reason="the loss is <nan>"),
        [
            "\u2717\u2002*Train*",
            "*Saving the results*",
            "*Training failed:* the loss is &lt;nan&gt;",
        ],
        [],
    ),
    (
        unsaved(unsaved_reason="", reason="stopped by U0X", stop_requested_by="U0X"),
        ["Stop requested by <@U0X>", "\U0001f6d1 tiny-llama: stopped, saving results"],
        ["Training failed", "stop_run"],
    ),
    (
        saved(RunPhase.SUCCEEDED, **COMMAND),
        [
            "--to my-results --bucket a-bucket",
            "ls -R my-results/output",
            "image `registry.example.com/x:1`",
            "command `torchrun 'a b.py'`",
        ],
        ["from_pretrained"],
    ),
    (
        in_phase(
            RunPhase.RUNNING,
            **COMMAND,
            progress=progress(60).model_copy(update={"total_steps": 0}),
            training_started_at=NOW,
        ),
        ["step 60"],
        ["of 0", "%", "saving and finishing"],
    ),
    (
        unsaved(),
        ["*The results are not saved:* S3 refuses &lt;the saver&gt;: AccessDenied", "an hour*"],
        [],
    ),
    (
        unsaved(unsaved_reason="", results_lost="its file system is gone"),
        ["*No result:* its file system is gone"],
        [],
    ),
    (
        unsaved(unsaved_reason="", results_given_up_by="U0X"),
        ["*No result:* given up by <@U0X>"],
        [],
    ),
    (
        replace(unsaved(), cluster=kept_cluster(spec=THEIRS)),
        [
            f"file system `{ID}`, not in the price, stays",
            f"They are on file system `{ID}` only",
            "End without saving",
            f"stay on file system {ID} only, and are not saved",
        ],
        ["deleted with its file system"],
    ),
    (
        saved(RunPhase.SUCCEEDED, **FRAMEWORK, export=Export(ended_at=NOW)),
        [r"AutoModelForCausalLM.from_pretrained(\"my-model/model\")"],
        ["No model"],
    ),
    (
        saved(RunPhase.SUCCEEDED, **FRAMEWORK, export=Export(ended_at=NOW, reason=GATED)),
        [
            "*No model:* meta-llama/Llama-3.1-8B is gated: &lt;accept&gt; its licence",
            "ls -R my-results/output",
        ],
        ["from_pretrained"],
    ),
    (saved(RunPhase.SUCCEEDED, **FRAMEWORK), [], ["from_pretrained"]),
    (saved(**PUSH), ["the model is being pushed to `lab/tiny`"], []),
    (guest(), ["guest in EKS cluster `theirs`, not in the price"], []),
    (paid(9.9, (RunPhase.RUNNING, 9.9)), [], ["oodput"]),
    (paid(10, (RunPhase.RUNNING, 10)), ["*Goodput*\\n100%"], []),
    (paid(2.5, *TO_ITS_END), ["goodput 7%"], []),
    # Backups, while there is no result.
    (backed_up(BACKED), ["backup of step 4,200 (1.00 GiB)"], []),
    (backed_up(Backups(number=1, is_running=True)), ["a backup is being made"], []),
    (backed_up(Backups()), [], ["backup"]),
    (
        backed_up(DENIED),
        ["S3 refuses &lt;the saver&gt;: AccessDenied. It is tried again", "backup of step 4,200"],
        [],
    ),
    (
        backed_up(BACKED, RunPhase.SAVING, unsaved_reason="cluster r is gone"),
        ["*The results are not saved:* cluster r is gone", "*Newest backup:* step 4,200"],
        [],
    ),
    (saved(RunPhase.SUCCEEDED, backups=DENIED), [], ["ackup"]),
]


def done(**values: object) -> RunView:
    return in_phase(
        RunPhase.SUCCEEDED,
        teardown=TeardownStatus.COMPLETED,
        torn_down_at=NOW,
        final_cost_usd=0.31,
        **values,
    )


def with_nodes(**spec: object) -> RunView:
    view = done()
    changed = view.cluster.spec.model_copy(update=spec)
    return replace(view, cluster=view.cluster.model_copy(update={"spec": changed}))


GONE = {"status": ResourceStatus.DELETED, "deleted_at": START + timedelta(minutes=6)}
BLOCK = Reservation(
    reservation_id="cr-0123456789abcdef0",
    zone="us-west-2b",
    window=Window(starts_at=NOW, ends_at=NOW + timedelta(days=2)),
)


RECEIPTS = [
    (
        guest(),
        [
            f"EKS cluster `theirs`, its nodes and plugins, and file system `{ID}` stay as they "
            "were, and are not in this bill."
        ],
        [],
    ),
    (
        done(
            resources={
                "f": of(ResourceKind.FILE_SYSTEM, "fs-1", price_per_hour_usd=1.0, **GONE),
                "c": of(ResourceKind.CLUSTER, "was-refused", refused_at=START, **GONE),
            }
        ),
        ["Nothing billable is left", "file system `fs-1`  _6m 00s, $0.10_", "$0.31"],
        ["was-refused", "emulated", "paid for when", "at their price on demand"],
    ),
    (
        in_phase(
            RunPhase.FAILED,
            teardown=TeardownStatus.FAILED,
            teardown_reason="cluster is still there",
            left_behind=["cluster stationmaster-x"],
        ),
        ["`cluster stationmaster-x`", "cluster is still there"],
        ["Nothing billable is left"],
    ),
    (saved(RunPhase.SUCCEEDED), [URI], []),
    (
        paid(2.5, *TO_ITS_END),
        [
            "Goodput 7%: 30s training of 7m 00s paid; starting 1m 30s, provisioning 1m 00s, "
            "validation 1m 00s, data 1m 00s, saving 1m 00s, others 1m 00s; $68.36 per million tok",
        ],
        ["emulated"],
    ),
    (paid(6, *SET_BACK, folded={"phases": 2}), ["Goodput at least 33%"], []),
    (saved(RunPhase.SUCCEEDED, **COMMAND), ["open: its command decides"], []),
    (with_nodes(reservation=BLOCK), ["paid for when it was bought, and are not in this"], []),
    (with_nodes(is_spot=True), ["at their price on demand, the most that they can cost"], []),
]


@pytest.mark.parametrize(
    ("draw", "view", "present", "absent"),
    [*((run_card, *row) for row in CARDS), *((run_receipt, *row) for row in RECEIPTS)],
)
def test_card_and_receipt_show_what_a_person_wants_to_know(draw, view, present, absent):
    content = draw(view, now=NOW)

    shown = seen(content)
    assert [words for words in present if words not in shown] == []
    assert [words for words in absent if words in shown] == []
    assert_slack_takes(content)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (saved(RunPhase.SUCCEEDED, **PUSHED), "*Pushed* to `lab/tiny`, revision `0123456789ab`"),
        (saved(RunPhase.SUCCEEDED, **NOT_PUSHED), "*Not pushed* to `lab/tiny`: the hub &lt;refus"),
        (saved(RunPhase.SUCCEEDED), "link_results"),
        *(
            (
                backed_up(BACKED, RunPhase.SAVING, RunPhase.FAILED, **values),
                f"*Newest backup:* step 4,200 (1.00 GiB) in `{URI}`\\n```/train resume {RUN_ID}```",
            )
            for values in (
                {"results_lost": "the file system is gone"},
                {"results_given_up_by": "U7"},
                {},
            )
        ),
    ],
)
def test_card_and_receipt_say_the_same_of_what_is_left(view, words):
    for content in (run_card(view, now=NOW), run_receipt(view, now=NOW)):
        assert words in seen(content)


def test_command_that_ended_well_without_a_step_says_that_nothing_shows_that_it_trained():
    for shown, said in ((None, True), (progress(5), False)):
        view = saved(RunPhase.SUCCEEDED, **COMMAND, progress=shown)
        assert ("Ended without a step" in seen(run_card(view, now=NOW))) is said


def test_command_that_kept_nothing_says_so_in_place_of_a_folder():
    for kept, said in ((False, True), (True, False)):
        results = RESULTS.model_copy(update={"has_output": kept})
        view = saved(RunPhase.FAILED, **COMMAND, results=results, progress=None)
        shown = seen(run_card(view, now=NOW))
        assert ("wrote nothing below `$STATIONMASTER_OUTPUT_DIR`" in shown) is said
        assert ("my-results/output" in shown) is not said
        assert (f"/train resume {RUN_ID}" in shown) is not said
        assert ("it starts there" in shown) is said
    there = asked(program=("/a/b.py",), directory="$STATIONMASTER_OUTPUT_DIR")
    kept_nothing = RESULTS.model_copy(update={"has_output": False})
    shown = seen(run_card(saved(RunPhase.FAILED, **there, results=kept_nothing), now=NOW))
    assert "what it wrote elsewhere is not kept" in shown
    assert "it starts there" not in shown


@pytest.mark.parametrize(
    "views",
    [
        [unsaved(unsaved_reason=""), unsaved(), unsaved(unsaved_reason="", passes=2), saved()],
        [saved(**values) for values in (PUSH, PUSHED, NOT_PUSHED)],
        [backed_up(backups) for backups in (Backups(), BACKED, DENIED)],
        [
            saved(RunPhase.SUCCEEDED, **FRAMEWORK),
            saved(RunPhase.SUCCEEDED, **FRAMEWORK, export=Export(ended_at=NOW, reason=GATED)),
        ],
        [
            running(),
            running(stop_requested_by="U0X"),
            running(stop_why="its block ends"),
            apply(running(), event(ev.PhaseChanged, phase=RunPhase.RECOVERING)),
        ],
    ],
)
def test_milestone_moves_with_news_that_must_not_be_late(views):
    assert len({card_milestone(view) for view in views}) == len(views)
    one, other = (running(progress=progress(step)) for step in (1, 2))
    assert card_milestone(one) == card_milestone(other)


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        (make_run(), ["stop_run"]),
        (running(pods=pods(w="Running")), ["stop_run", "show_logs"]),
        (running(pods=pods(w="Running"), stop_requested_by="U0X"), ["show_logs"]),
        (in_phase(RunPhase.FAILED), ["edit_run"]),
        (in_phase(RunPhase.FAILED, **KILLED), ["type_command", "edit_run"]),
        *(
            (in_phase(RunPhase.FAILED, **KILLED, **asked(**wish)), ["edit_run"])
            for wish in ({"overrides": {"micro_batch_size": "1"}}, {"recipe": "of-long-ago"})
        ),
        (
            saved(RunPhase.FAILED, reason="x", last_checkpoint_step=40),
            ["resume_command", "edit_run", "link_results"],
        ),
        (
            saved(RunPhase.STOPPED, last_checkpoint_step=40, **COMMAND),
            ["resume_command", "edit_run", "link_results"],
        ),
        (unsaved(unsaved_reason=""), []),
        (unsaved(), ["save_again", "give_up_results"]),
        (saved(RunPhase.SUCCEEDED), ["edit_run", "link_results"]),
    ],
)
def test_card_has_the_buttons_that_make_sense(view, shown):
    assert buttons(run_card(view, now=NOW)) == shown


@pytest.mark.parametrize(
    ("view", "asks", "deny"),
    [
        (make_run(), "everything it created is deleted", "Keep it running"),
        (unsaved(), "They exist nowhere else.", "Keep them"),
    ],
)
def test_button_that_ends_something_asks_first(view, asks, deny):
    elements = run_card(view, now=NOW).blocks[-1]["elements"]

    (dangerous,) = [each for each in elements if each.get("style") == "danger"]
    assert asks in dangerous["confirm"]["text"]["text"]
    assert dangerous["confirm"]["deny"]["text"] == deny


@pytest.mark.parametrize(
    ("phase", "reason", "known", "expected"),
    [
        ("Pending", "ErrImagePull", {}, "waits for pods to start: ErrImagePull"),
        ("Running", "", {}, "waits for the trainer, which starts on every node"),
        ("Running", "", {"preparing": PREPARING}, "waits for libraries"),
        ("Running", "", {"training_started_at": NOW}, "waits for its first step"),
        (
            *("Running", ""),
            {"preparing": PREPARING, "training_started_at": NOW},
            "waits for its first step",
        ),
    ],
)
def test_card_names_what_a_run_waits_for_until_its_first_step(phase, reason, known, expected):
    two = {"a": Pod(name="a", phase="Running"), "b": Pod(name="b", phase=phase, reason=reason)}

    card = run_card(running(pods=two, **known), now=NOW)

    assert expected in seen(card)
    assert expected in card.text
    begun = running(pods=two, progress=progress(1))
    assert "waits for" not in seen(run_card(begun, now=NOW))


def test_card_of_a_recovered_run_keeps_one_line_a_phase():
    run = running()
    for index, phase in enumerate((RunPhase.RECOVERING, RunPhase.RUNNING)):
        run = apply(run, event(ev.PhaseChanged, index, phase=phase))

    card = run_card(run, now=NOW)
    (plan,) = [each for each in card.blocks if each["type"] == "plan"]
    shown = seen(card.in_text())

    tasks = [(each["status"], each["title"].split(" \u00b7")[0]) for each in plan["tasks"]]
    assert tasks == [
        ("complete", "Requested"),
        ("in_progress", "Training"),
        ("pending", "Save the results"),
    ]
    assert "\u2713\u2002Requested \u00b7 Provision  _1m 00s_ \u00b7 Validate" in shown
    assert shown.count("Train") == 1
    assert "\u25cf\u2002*Training*" in shown
    assert "\u25cb\u2002Save the results \u00b7 Done" in shown


LOSSES = [(step, 8.0 - step / 60) for step in range(1, 61)]
STEP_40 = progress(40, step_time_s=0.5)
RUNS = {
    "running": running(progress=STEP_40, loss_points=LOSSES),
    "stopping": running(progress=STEP_40, stop_requested_by="U0X"),
    "failed": saved(RunPhase.FAILED, **KILLED, last_checkpoint_step=40, loss_points=LOSSES),
    "stopped": saved(RunPhase.STOPPED, stop_requested_by="U0X", pods=pods(w="Running")),
    "done": saved(RunPhase.SUCCEEDED, loss_points=LOSSES),
}


@pytest.mark.parametrize(
    ("name", "order"),
    [
        (
            "running",
            [
                "tiny-llama: training, loss 4.250, about 10s left",
                *("66%", "*Loss*", "*Time left*", "data_visualization", "\u2713\u2002Requested"),
                *(f"`{RUN_ID}`", "`/train tiny-llama`", "updated", "stop_run"),
            ],
        ),
        ("stopping", ['tiny-llama: stopping, loss 4.250"', "Stop requested by"]),
        (
            "failed",
            [
                "tiny-llama: failed at step 60",
                *("*the kernel killed", "exited with code 137", "*What to do*"),
                *(
                    f"/train resume {RUN_ID}",
                    "Rerun with",
                    "Links",
                    "planned",
                    "data_visualization",
                    '"status": "error"',
                ),
            ],
        ),
        ("stopped", ["stopped, loss 4.250", "*Stopped* by <@U0X>", "Run again", "Links", "Logs"]),
        (
            "done",
            [
                *(
                    "succeeded, loss 4.250, $",
                    URI,
                    "link_results",
                    "Cost so far $",
                    "planned $0.50",
                ),
                *("ended after", "100%", "data_visualization", "\u2713\u2002Requested", "*Done*"),
            ],
        ),
    ],
)
def test_card_begins_with_what_matters_most(name, order):
    shown = seen(run_card(RUNS[name], now=NOW))

    places = [shown.find(words) for words in order]
    assert -1 not in places
    assert places == sorted(places)


def test_what_resumes_asks_first_and_shows_its_command_and_a_form_runs_again():
    (row,) = [b for b in run_card(RUNS["failed"], now=NOW).blocks if b["type"] == "actions"]

    resume, fixed, again = row["elements"][:3]
    assert json.loads(fixed["value"]) == {"text": f"rerun {RUN_ID} micro_batch_size=1"}
    assert json.loads(resume["value"]) == {"text": f"resume {RUN_ID}"}
    assert json.loads(again["value"]) == {"run_id": RUN_ID}
    assert resume["confirm"]["text"]["text"] == f"`/train resume {RUN_ID}`"
    assert ("style" in resume, "confirm" in again) == (True, False)


@pytest.mark.parametrize(
    ("points", "labels"),
    [
        ([], []),
        ([(1, 2.0)], []),
        ([(1, 2.0), (2, float("nan")), (3, 1.0)], ["1", "3"]),
        (LOSSES, [*(str(n * 59 // 19) for n in range(1, 20)), "60"]),
    ],
)
def test_chart_of_a_loss_has_twenty_points_at_most_and_the_newest_as_it_is(points, labels):
    drawn = loss_chart(points)

    data = [point for block in drawn for point in block["chart"]["series"][0]["data"]]
    assert [point["label"] for point in data] == labels
    assert [point["value"] for point in data][-1:] == [loss for _, loss in points if labels][-1:]
    assert_slack_takes(Content("loss", [*drawn]))
    if points is LOSSES:
        assert data[0]["value"] == pytest.approx(8.0 - 2 / 60, rel=1e-5)


def test_first_card_mentions_nobody_as_a_post_pings():
    assert "<@" not in seen(run_card(make_run(), now=NOW))
    assert "by <@U0OPERATOR>" in seen(run_card(in_phase(RunPhase.PROVISIONING), now=NOW))


def test_card_of_native_blocks_says_the_same_in_text():
    card = run_card(RUNS["running"], now=NOW)

    plain = card.in_text()

    assert {"plan", "data_visualization"} < {block["type"] for block in card.blocks}
    assert {block["type"] for block in plain.blocks} == {"header", "section", "context", "actions"}
    assert "*Loss*\\ntraining `\u2588\u2588" in seen(plain)


def test_loss_that_is_not_finite_or_that_nobody_prints_is_shown_as_that():
    diverged = progress(40, loss_nats=None)
    run = running(progress=diverged, first_loss_nats=8.3, loss_points=[(1, 8.3), (2, 8.2)])
    silent = apply(running(), progress(12, loss_nats=None, has_loss=False))

    card = run_card(run, now=NOW)

    assert card.text.endswith("loss is not finite")
    assert "8.300 \u2192 *not finite*" in seen(card)
    assert "final loss is not finite" in seen(run_receipt(run, now=NOW))
    assert run_card(silent, now=NOW).text.endswith("step 12 of 60")
    assert "Loss" not in seen(run_card(silent, now=NOW))
    assert "loss" not in seen(run_receipt(silent, now=NOW))


def test_card_links_the_dashboard_at_the_times_in_which_the_run_trained():
    settings = Settings(region="eu-west-1", table_name="t", bus_name="b")
    page = "https://eu-west-1.console.aws.amazon.com/cloudwatch/home?region=eu-west-1"
    page += "#dashboards/dashboard/stationmaster?start=2026-01-02T09:00:00.000Z&amp;end="
    assert settings.model_copy(update={"emulated_speed": 9.0}).dashboard_url == ""
    began = {"training_started_at": START.replace(microsecond=7)}
    ended = saved(RunPhase.SUCCEEDED, **began, job_ended_at=START)
    for view, end in [
        (running(**began), "null"),
        (ended, "2026-01-02T09:00:00.000Z"),
        (running(), None),
    ]:
        text = seen(run_card(replace(view, dashboard_url=settings.dashboard_url), now=NOW))
        assert (f"<{page}{end}|dashboard>" in text, "|dashboard>" in text) == (end is not None,) * 2
        assert "|dashboard>" not in seen(run_card(view, now=NOW))
