"""What the threads of runs and kept clusters say of events, and what they leave out."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from run_blocks import (
    DENIED,
    NOW,
    REQUEST,
    RUN_ID,
    START,
    URI,
    event,
    in_phase,
    make_cluster,
    progress,
    running,
    seen,
    unsaved,
)

from bot.blocks import mrkdwn as md
from bot.blocks.card import card_milestone, run_card
from bot.blocks.cluster_thread import cluster_message
from bot.blocks.thread import thread_message
from stationmaster.domain.approvals import Approval, Wish
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.events import RoomLow
from stationmaster.domain.cluster.resources import Resource, ResourceStatus
from stationmaster.domain.detected import Detection, Kind
from stationmaster.domain.reactions.run import POLICY
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.results import Recovery
from stationmaster.domain.run import changes
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.attempts import first_assignment, next_assignment
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.failures import Failure
from stationmaster.domain.run.kept import Backup, Backups
from stationmaster.domain.run.view import RunView
from tests.support.factories import make_request

POD = f"{RUN_ID}-worker-0"
PROCESS = "process 0 was killed by SIGKILL"
FAILED = f"pod w-1 failed: {PROCESS}"
STOPS = "stopped because capacity block cr-1 ends at 2026-01-07 11:30 UTC"
WAITS = "capacity block cr-1 starts at 2026-01-05 11:30 UTC, nothing is made before"
OUT_OF_MEMORY = Failure(pod="w-1", restarts=0, at=START, exit_code=137, reason="OOMKilled")
RESUMED = f"resumed from step 40, 5 steps again, after {OUT_OF_MEMORY.sentence}"
WHY = " ".join(f"node-{number} offers 0 of 8 GPUs;" for number in range(20)) + " look at its log"
NEWEST = Backup(step=4200, uri=URI, num_bytes=2**30, manifest_sha256="0" * 64, saved_at=NOW)
SIZE = {"uri": URI, "num_files": 7, "num_bytes": 1024, "manifest_sha256": "0"}
STAGED = {
    "cluster_id": "c",
    "data_id": "d",
    "root": "d",
    "preparation": "none",
    "num_files": 3,
    "num_bytes": 1_500_000_000,
    "counts": {"files": 3},
    "seconds": 12.0,
}
SPIKE = Detection(
    kind=Kind.SPIKE, attempt=1, at=NOW, evidence="the loss jumped to 6", remedy="look at the data"
)
STOPPING = unsaved(unsaved_reason="", stop_requested_by="U0X")


def pod(index: int = 0, **values: object) -> ev.PodChanged:
    return event(ev.PodChanged, index, **({"pod": POD} | values))


def phase(of: RunPhase, reason: str = "", index: int = 0, **values: object) -> ev.PhaseChanged:
    return event(ev.PhaseChanged, index, phase=of, reason=reason, **values)


def process(index: int = 0, **values: object) -> ev.ProcessFailed:
    return event(ev.ProcessFailed, index, **({"pod": "w-1", "process": PROCESS} | values))


def recovered() -> RunView:
    """A run that was set back twice, for nine seconds each."""
    view = running()
    for index, of in enumerate((RunPhase.RECOVERING, RunPhase.RUNNING) * 2):
        entered = phase(of, RESUMED, index, at=NOW + timedelta(seconds=9 * index))
        view = replace(view, run=changes.apply(view.run, entered))
    return view


TOLD = [
    (
        [
            pod(0, phase="Pending", node="n1"),
            pod(1, phase="Failed", reason="OOMKilled", exit_code=137),
            pod(2, phase="Running", node="n1", restarts=1),
        ],
        running(),
        [
            "\u2717 `worker-0` ended with exit code 137 (OOMKilled)",
            "\u2713 `worker-0` running on `n1`, restart 1",
        ],
    ),
    (
        [pod(n, pod=f"{RUN_ID}-worker-{n}", phase="Running", node="n") for n in range(9)],
        running(),
        [f"\u2713 {', '.join(f'`worker-{n}`' for n in range(6))} and 3 more running"],
    ),
    (
        [
            process(pod=POD, process="process 0 exited with code 1", line="E: x"),
            process(1, pod=POD, process="exited with code 75", lost_peer=True),
        ],
        running(),
        ["\u2717 `worker-0`: process 0 exited with code 1: E: x"],
    ),
    (
        [phase(RunPhase.RUNNING, RESUMED, 3, at=NOW + timedelta(seconds=27))],
        recovered(),
        [
            f"\u25b8 *training continues* after 9s, restart 2: {RESUMED}",
            "> *the kernel killed the process because the container used more memory than its "
            "limit; what it keeps in /dev/shm counts*",
        ],
    ),
    (
        [
            event(ev.TrainingResumed, step=1000),
            phase(RunPhase.RUNNING, f"resumed from step 1,000 after {FAILED}", 1),
        ],
        running(),
        [f"\u25b8 *training*: resumed from step 1,000 after {FAILED}"],
    ),
    (
        [
            event(ev.CapacityEnding, reason="AWS takes the nodes back"),
            event(ev.StopRequested, 1, user_id="", why=STOPS),
        ],
        running(stop_requested_by="", stop_why=STOPS),
        ["\u26a0\ufe0f AWS takes the nodes back", f"\U0001f6d1 the run is {STOPS}"],
    ),
    (
        [phase(RunPhase.QUEUED, WAITS)],
        in_phase(RunPhase.QUEUED, reason=WAITS),
        [f"\u25b8 *queued*: {WAITS}"],
    ),
    (
        [
            event(ev.TroubleDetected, detection=SPIKE),
            event(ev.JobDisappeared, 1, job="j"),  # to be made anew
        ],
        running(detections=[SPIKE]),
        ["\u26a0\ufe0f *the loss jumped to 6*. To do: look at the data"],
    ),
    *(
        (
            [event(ev.NodeTakenBack, node="ip-10-0-1-7")],
            running(last_checkpoint_step=step),
            [
                "\u26a0\ufe0f spot node `ip-10-0-1-7` is being taken back by AWS; the run goes on "
                f"from its last checkpoint{said} once there is another node"
            ],
        )
        for step, said in ((None, ""), (1200, ", step 1,200,"))
    ),
    (
        [phase(RunPhase.SAVING, "stopped by U0X")],
        STOPPING,
        ["\u25b8 *saving results*"],  # who asked for it was said with the request
    ),
    (
        [process(line="step 9"), pod(phase="Failed", exit_code=1)],
        running(stop_requested_by="U0X"),
        [
            f"\u25b8 `w-1` ended at the stop: {PROCESS}: step 9",
            "\u25b8 `worker-0` ended with exit code 1",
        ],
    ),
    (
        [phase(RunPhase.SAVING, "the loss is nan")],
        STOPPING,
        ["\u2717 *training failed* <@U0OPERATOR>: the loss is nan; its results are being saved"],
    ),
    (
        [
            event(cl.SizeSettled, nodes=6, reason="no capacity"),
            event(ev.NodesLeased, attempt_id="a", nodes=6, price_per_hour_usd=1.0),
        ],
        running(request=REQUEST.model_copy(update={"nodes": 8, "min_nodes": 2})),
        [
            "\u26a0\ufe0f it goes on with 6 nodes: no capacity",
            "\u25b8 it has 6 nodes of 2:8",
        ],
    ),
    (
        [event(ev.ResultsLost, reason="gone")],
        running(backups=Backups(number=1, newest=NEWEST)),
        [
            "\u2717 nothing can be saved: gone",
            f"\U0001f4be *Newest backup:* step 4,200 (1.00 GiB) in `{URI}`",
            f"```/train resume {RUN_ID}```",
        ],
    ),
]


PASSED = Recovery(
    attempt=2,
    why="killed",
    step=60,
    resumed_step=50,
    resumed_sample=1600,
    repeated_steps=10,
    repeated_tokens=40_960,
    lost_s=121,
    lost_usd=1.21,
    loss_before=2.5,
    loss_after=2.4,
    loss_z=-0.44,
    compared=10,
    equal=9,
)
FIRST = first_assignment(RUN_ID, REQUEST)
ABOVE = {"loss_before": 2.0, "loss_after": 9.0, "loss_z": 3.1}
BARE = Recovery(
    attempt=1, why="w", step=60, resumed_step=60, repeated_steps=0, lost_s=9, lost_usd=0
)
SAID = [
    (phase(RunPhase.RUNNING), "\u25b8 *training*"),
    (
        event(ev.TrainingRecovered, recovery=PASSED),
        "\u2713 *recovered* by attempt 2 of 3: resumed at step 50 (sample 1,600), 10 steps "
        "repeated (41 K tokens), 2m 01s and $1.21 lost; 9 of 10 repeated steps with the same loss "
        "to the last bit; loss 2.400 after 2.500: within its band (z -0.4)",
    ),
    (
        event(ev.TrainingRecovered, recovery=BARE.model_copy(update=ABOVE)),
        "\u26a0\ufe0f *recovered*: resumed at step 60, 0 steps repeated, 9s and $0.00 lost; loss "
        "9.000 after 2.000: *above* its band (z +3.1)",
    ),
    (
        event(ev.TrainingRecovered, recovery=BARE),
        "\u2713 *recovered*: resumed at step 60, 0 steps repeated, 9s and $0.00 lost",
    ),
    (
        event(ev.AttemptStarted, **dict(next_assignment(RUN_ID, FIRST, number=2)), after=FAILED),
        f"\u21bb attempt 2 begins after {FAILED}",
    ),
    (
        event(ev.AttemptStarted, **dict(FIRST), after="w", price_per_hour_usd=1.5),
        "\u2194\ufe0f its job starts on 2 nodes, $1.50 an hour",
    ),
    (phase(RunPhase.RECOVERING, "a change to w"), "\u2194\ufe0f its job ends for a change to w"),
    (
        event(ev.TrainingRecovered, recovery=BARE.model_copy(update={"nodes": 3})),
        "\u2713 *continues on 3 nodes*: resumed at step 60, 0 steps repeated, 9s and $0.00 lost",
    ),
    (
        event(ev.TrainingFinished, step=9, samples=[{"prompt": "`if", "text": "<x>\nreturn"}]),
        "\U0001f3c1 last step 9 taken\n> `'if` &lt;x&gt; return",
    ),
    *(
        (event(ev.DataStaged, work=work, was_there=was_there, **STAGED), said)
        for work, was_there, said in (
            ("restoring", False, "\u2713 brought back in 12s: 3 files, 1.5 GB"),
            ("restoring", True, "\u2713 brought back before: 3 files"),
            ("copying", False, "\u2713 data copied in 12s: 3 files, 1.5 GB"),
            ("copying", True, "\u2713 data was there already: 3 files"),
            ("preparing", False, "\u2713 data prepared in 12s: 3 files"),
            ("looking", False, "\u2713 data is there, looked at in 12s: 3 files, 1.5 GB"),
            ("converting", False, "\u2713 weights converted in 12s: 3 files, 1.5 GB"),
        )
    ),
    (
        event(ev.ResultsSaved, **SIZE),
        f"\U0001f4be results saved and verified: 7 files, 1.00 KiB in `{URI}`",
    ),
    (
        event(ev.ResultsUnsaved, reason=DENIED),
        "\u26a0\ufe0f <@U0OPERATOR> *the results are not saved*, and stay at a price: "
        "S3 refuses &lt;the saver&gt;: AccessDenied",
    ),
    (event(ev.SavingRequested, user_id="U0X"), "\u25b8 saving the results again, as asked"),
    (event(ev.SavingRequested), "\u25b8 saving the results again"),
    (
        event(ev.ResultsGivenUp, user_id="U0X"),
        "\u2717 the results that are not saved were given up",
    ),
    (
        event(ev.BackupSaved, number=1, step=4200, num_bytes=2**30, uri=URI, manifest_sha256="0"),
        f"\U0001f4be backup of step 4,200 saved and verified: 1.00 GiB in `{URI}`",
    ),
    (
        event(ev.BackupFailed, number=1, reason=DENIED),
        "\u26a0\ufe0f *a backup failed:* S3 refuses &lt;the saver&gt;: AccessDenied; it is "
        "tried again",
    ),
    (
        event(ev.ExportEnded, reason=""),
        "\u25b8 a model that transformers loads was made of the newest checkpoint",
    ),
    (
        event(ev.ExportEnded, reason="<gated>"),
        "\u26a0\ufe0f *no model was made of the newest checkpoint*, which is saved all the "
        "same: &lt;gated&gt;",
    ),
    (
        event(ev.ResultsPushed, repository="lab/tiny", revision="0123456789abcdef"),
        "\U0001f917 model pushed to `lab/tiny`, revision `0123456789ab`, and verified there",
    ),
    (
        event(ev.ResultsNotPushed, repository="lab/tiny", reason="a < b"),
        "\u26a0\ufe0f *the model was not pushed* to `lab/tiny`: a &lt; b",
    ),
    (
        event(ev.PreflightWarned, findings=("images: could not be asked: AccessDenied",)),
        "\u26a0\ufe0f before the start: images: could not be asked: AccessDenied",
    ),
    (
        event(cl.ClusterPreflightWarned, findings=("AWS has no <2>", "b")),
        "\u26a0\ufe0f AWS has no &lt;2&gt;\n\u26a0\ufe0f b",
    ),
    (
        event(
            cl.JobKindChosen, kind="PyTorchJob", queue=dict.fromkeys(cl.TeamQueue.model_fields, "a")
        ),
        "\u25b8 the job will be a PyTorchJob, in namespace a: the cluster has its operator",
    ),
]


@pytest.mark.parametrize(("told", "line"), SAID)
def test_thread_says_this_of_an_event(told, line):
    assert thread_message([told], running()).text == line


@pytest.mark.parametrize(("events", "view", "lines"), TOLD)
def test_thread_has_these_lines_for_events(events, view, lines):
    assert thread_message(events, view).text.splitlines() == lines


@pytest.mark.parametrize(
    "events",
    [
        [progress(1), progress(2)],
        [event(ev.BackupFailed, number=1, reason=DENIED, again=True)],
        [event(ev.BackupStarted, number=1, step=1), event(ev.BackupLookedAt, number=1)],
    ],
)
def test_thread_is_silent_about_what_the_card_shows(events):
    assert thread_message(events, running()) is None


def test_thread_says_a_setback_once_in_a_message():
    other = process(1, pod="w-2", line="RuntimeError: x")
    restarting = event(ev.WorkersRestarting, pod="w-1", reason=PROCESS)
    recovering = phase(RunPhase.RECOVERING, FAILED)
    resumed = event(ev.TrainingResumed, step=1000)

    def lines(*events):
        return thread_message(events, running()).text.splitlines()

    assert len(lines(process(), recovering, restarting, other, resumed)) == 3
    assert len(lines(process(), restarting, resumed)) == 3


CLUSTER = {"kind": ResourceKind.CLUSTER, "name": f"stationmaster-{RUN_ID}"}
DELETED = event(cl.ResourceDeleted, 0, **CLUSTER)


def after_its_cluster() -> RunView:
    """A run whose cluster is gone."""
    gone = Resource(**CLUSTER, status=ResourceStatus.DELETED, requested_at=START)
    view = in_phase(RunPhase.FAILED)
    resources = {"resources": {f"cluster/{gone.name}": gone}}
    return replace(view, cluster=view.cluster.model_copy(update=resources))


@pytest.mark.parametrize(
    "late",
    [
        pod(1, phase="Deleted"),
        event(ev.NodeLost, 1, node="n", reason="the node was deleted"),
        event(ev.JobConditionChanged, 1, condition="Failed", reason="r", message="m"),
        event(ev.ClusterWarning, 1, object_name=RUN_ID, reason="r", message="m"),
        event(ev.TrainingFinished, 1, step=9),
        DELETED.model_copy(update={"never_was": True}),
    ],
)
def test_thread_after_the_cluster_is_deleted_has_no_late_line_of_its_relay(late):
    assert thread_message([DELETED, late], after_its_cluster()) is None
    assert thread_message([late], after_its_cluster()) is None


def test_thread_of_one_batch_keeps_what_the_relay_said_before_the_cluster_went():
    group = event(cl.ResourceDeleted, 2, kind=ResourceKind.NODE_GROUP, name="training")

    last = event(ev.TrainingFinished, 1, step=9)
    message = thread_message([last, DELETED, group], after_its_cluster())

    assert message.text == "\U0001f3c1 last step 9 taken"


def test_equal_lines_of_a_message_are_one_with_a_count():
    started = [event(ev.JobSubmitted, number, job="j") for number in range(3)]

    message = thread_message([*started, event(ev.TrainingStarted, total_steps=9)], running())

    lines = message.text.splitlines()
    assert lines[0] == "\U0001f4e6 job `j` submitted (3 times)"
    assert len(lines) == 2


SAVED_FAILURE = in_phase(RunPhase.RUNNING, RunPhase.SAVING, RunPhase.FAILED, reason="r")
WISH = Wish(command="c", nodes=1, instance_type="t", gpus=0, keep_s=0, usd_per_hour=1, usd=1)
ASKED = Approval(reasons=("r",), wish=WISH, approvers=("U0LEAD",), needed=1, asked_at=START)


@pytest.mark.parametrize(
    ("told", "view", "pinged"),
    [
        (phase(RunPhase.SUCCEEDED), in_phase(RunPhase.SUCCEEDED), True),
        (phase(RunPhase.FAILED, "r"), in_phase(RunPhase.FAILED, reason="r"), True),
        (phase(RunPhase.SAVING, "r"), SAVED_FAILURE, True),
        (phase(RunPhase.FAILED, "r"), SAVED_FAILURE, False),  # it was when its saving began
        (phase(RunPhase.STOPPED), in_phase(RunPhase.STOPPED, stop_requested_by="U0X"), False),
        (phase(RunPhase.STOPPED), in_phase(RunPhase.STOPPED, approval=ASKED), True),
        (event(ev.ApprovalDecided, decision="given", user_id="U0LEAD"), running(), True),
        (event(ev.ApprovalDecided, decision="given"), running(approval=ASKED), False),
        (event(ev.ApprovalDecided, decision="refused", user_id="U0LEAD"), running(), True),
        (event(ev.ApprovalDecided, decision="refused"), running(), True),
        (event(ev.ResultsUnsaved, reason="r"), running(), True),
        (event(RoomLow, free_gib=1, size_gib=1200), running(), True),
        (event(ev.StopRequested, user_id="U0X"), running(), False),
        (event(ev.SavingRequested, user_id="U0X"), running(), False),
        (event(ev.ResultsGivenUp, user_id="U0X"), running(), False),
    ],
)
def test_thread_mentions_the_requester_at_what_matters_and_nobody_else(told, view, pinged):
    text = thread_message([told], view).text

    assert re.findall("<@(.*?)>", text) == ["U0OPERATOR"] * pinged


LOST = {"object_name": POD, "message": "Node is not ready"}


@pytest.mark.parametrize(
    ("ended", "kind", "values", "seconds_after_the_end", "posted"),
    [
        (None, ev.JobDisappeared, {"job": RUN_ID}, 0, True),
        (RunPhase.STOPPED, ev.JobDisappeared, {"job": RUN_ID}, 0, False),
        (RunPhase.SUCCEEDED, ev.PodChanged, {"exit_code": 143}, 2, False),
        (RunPhase.STOPPED, ev.PodChanged, {"exit_code": 137}, 2, False),
        (RunPhase.SUCCEEDED, ev.PodChanged, {"exit_code": 143}, -0.5, False),
        (RunPhase.SUCCEEDED, ev.PodChanged, {"exit_code": 1}, 2, True),
        (RunPhase.FAILED, ev.PodChanged, {"exit_code": 137}, -60, True),
        (None, ev.PodChanged, {"exit_code": 143}, 0, True),
        (None, ev.PodChanged, {"phase": "Deleted"}, 0, True),
        (RunPhase.SUCCEEDED, ev.PodChanged, {"phase": "Deleted"}, 0, False),
        (RunPhase.SUCCEEDED, ev.ClusterWarning, LOST | {"reason": "NodeNotReady"}, 2, False),
        (RunPhase.SUCCEEDED, ev.ClusterWarning, LOST | {"reason": "NodeNotReady"}, -60, True),
        (RunPhase.SUCCEEDED, ev.ClusterWarning, LOST | {"reason": "FailedMount"}, 2, True),
        (None, ev.ClusterWarning, LOST | {"reason": "NodeNotReady"}, 2, True),
    ],
)
def test_thread_tells_what_ends_unless_the_teardown_ended_it(
    ended, kind, values, seconds_after_the_end, posted
):
    view = running() if ended is None else in_phase(ended, ended_at=NOW)
    values = ({"pod": POD, "phase": "Failed"} if kind is ev.PodChanged else {}) | values

    told = event(kind, at=NOW + timedelta(seconds=seconds_after_the_end), **values)

    assert (thread_message([told], view) is not None) == posted


ZONE = {
    "zone": "us-east-1a",
    "left_subnet_id": "subnet-1",
    "next_zone": "us-east-1b",
    "subnet_id": "subnet-2",
    "instance_type": "p5.48xlarge",
    "nodes": 2,
}
NODE = {"node": "node-a", "instance_id": "i-1"}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            event(cl.ZoneGivenUp, **ZONE),
            "no 2 x p5.48xlarge free in us-east-1a, trying us-east-1b",
        ),
        (
            event(cl.ZoneGivenUp, **ZONE, lacking=ResourceKind.FILE_SYSTEM),
            "no room for a file system in us-east-1a, trying us-east-1b",
        ),
        (event(cl.CheckFinished, check="gpus", passed=False, detail=WHY), f"check *gpus*: {WHY}"),
        (
            event(cl.CheckFinished, check="nccl", passed=False, detail="77", table=("GB/s", "1 `")),
            r"check *nccl*: 77\n```\nGB/s\n1 `\n```",
        ),
        (
            event(cl.NodeReplacementBegan, check="gpu-health", reason="lost", number=1, **NODE),
            "node `node-a` failed check *gpu-health* and is replaced (1 of at most 2): lost",
        ),
        (
            event(cl.NodeReplaced, **NODE),
            "another node came for `node-a`; every check begins anew",
        ),
    ],
)
def test_threads_of_a_run_and_of_its_cluster_say_the_same_of_its_nodes(told, said):
    assert said in seen(thread_message([told], running()))
    assert said in seen(cluster_message([told], make_cluster()))


def test_pods_that_have_not_joined_are_said_on_card_and_thread_with_what_to_do():
    request = make_request(recipe="llama2-7b", nodes=2, program=("python", "a.py"))
    pods = (f"{RUN_ID}-worker-0", f"{RUN_ID}-worker-1")
    told = event(ev.PodsApart, job=RUN_ID, pods=pods)
    view = running(request=request)
    view = replace(view, run=changes.apply(view.run, told))

    for text in (thread_message([told], view).text, seen(run_card(view, now=NOW))):
        assert "worker-0 and worker-1 both print what one rank of a run prints" in text
        assert "torchrun SCRIPT ..." in text
    assert card_milestone(view) != card_milestone(running(request=request))


def test_wait_for_another_node_is_said_on_card_and_thread_with_its_end_and_its_price():
    lost = event(ev.NodeLost, node="n-1", reason="it is gone")
    view = running(price_per_hour_usd=1.5)
    run = changes.apply(view.run, event(ev.PodChanged, pod="w-1", phase="Running", node="n-1"))
    run = changes.apply(changes.apply(run, lost), phase(RunPhase.RECOVERING, "r"))
    view = replace(view, run=run)

    said = f"{md.when(NOW + POLICY.restart_limit)}, at up to $1.50 an hour"
    for text in (thread_message([lost], view).text, seen(run_card(view, now=NOW))):
        assert f"It waits for another node until {said}, or else ends" in text


def test_network_that_is_not_used_is_said_on_card_and_thread_with_what_to_do():
    request = make_request(recipe="llama2-7b", instance_type="p4d.24xlarge")
    told = event(ev.NetworkObserved, job=RUN_ID, pod=f"{RUN_ID}-worker-1", uses_sockets=True)
    view = running(request=request)
    view = replace(view, run=changes.apply(view.run, told))

    for text in (thread_message([told], view).text, seen(run_card(view, now=NOW))):
        assert "NCCL used sockets instead of EFA on worker-1" in text
        assert "To do: put aws-ofi-nccl into the image" in text
    assert card_milestone(view) != card_milestone(running(request=request))
    assert "instead of EFA" not in seen(run_card(running(request=request), now=NOW))


def test_ends_of_a_job_that_another_size_replaces_are_left_out_also_at_the_end_of_the_run():
    began = event(ev.RescaleBegan, nodes=1, job_uid="u", why="w")
    ends = [process(1), process(2), event(ev.JobDisappeared, job=RUN_ID)]
    later = {"after": "w", "at": NOW + timedelta(minutes=1)}
    made = event(ev.AttemptStarted, **dict(FIRST), **later)

    assert thread_message(ends, running(rescale=began)) is None
    ended = phase(RunPhase.SUCCEEDED, index=3)
    said = seen(thread_message([ended], running(), past=[began, *ends, made]))
    assert "times in all" not in said
