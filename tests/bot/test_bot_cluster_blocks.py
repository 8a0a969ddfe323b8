"""What the channel is shown of kept clusters: right, and within Slack's limits for any cluster."""

from __future__ import annotations

from datetime import timedelta

import pytest
from any_blocks import CHECKS, MOMENT, RESOURCES, SLOW, TEXT, any_event, assert_slack_takes
from cluster_blocks import START, make_cluster
from hypothesis import given
from hypothesis import strategies as st
from run_blocks import seen

from bot.blocks import cluster_answers as answers
from bot.blocks.cluster_card import cluster_card, cluster_milestone, goes
from bot.blocks.cluster_thread import cluster_message
from bot.blocks.receipt import cluster_receipt
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.events import ClusterPhase, RoomLow
from stationmaster.domain.cluster.leases import Lease, Waiting
from stationmaster.domain.cluster.nodes import NodesSeen, SeenNode
from stationmaster.domain.cluster.resources import Resource
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import ClusterView
from stationmaster.settings import Settings
from tests.support.factories import make_run

NOW = START + timedelta(hours=1)
RUN_ID = "tiny-llama-0123abcd"


def lease(run_id: str = RUN_ID, nodes: int = 2, **values: object) -> Lease:
    return Lease(run_id=run_id, nodes=nodes, granted_at=START, **values)


def delete_button(content) -> dict:
    elements = [each for block in content.blocks for each in block.get("elements", [])]
    return next(each for each in elements if each.get("action_id") == "delete_cluster")


def event(kind: type, /, **values: object):
    about = {"event_id": kind.__name__, "cluster_id": "team-a-0123abcd", "at": NOW}
    return kind(**(about | values))


SETTINGS = Settings(region="us-west-2", table_name="t", bus_name="b")
ROLE = "arn:aws:iam::123456789012:role/researchers"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            {},
            "--region us-west-2```\\nNo IAM role of people is let in: kubectl_role_arns in",
        ),
        (
            {"kubectl_role_arns": (ROLE,)},
            f"--region us-west-2 --role-arn {ROLE}```\\nThe role `{ROLE}` is let in: it may look",
        ),
        ({"kubectl_role_arns": (ROLE, f"{ROLE}-2")}, f"is let in, as are `{ROLE}-2`: it"),
        ({"kubeconfig": "/tmp/kc"}, "```kubectl --kubeconfig /tmp/kc get pods```"),
    ],
)
def test_cluster_says_with_which_role_kubectl_reaches_it(told, expected):
    settings = SETTINGS.model_copy(update=told)
    content = answers.cluster_shown(ClusterView(make_cluster()), settings=settings, now=NOW)

    assert_slack_takes(content)
    assert expected in seen(content)


def test_deletion_is_confirmed_with_what_goes():
    free, used = make_cluster(), make_cluster(leases={RUN_ID: lease()})

    asked = delete_button(cluster_card(ClusterView(free), now=NOW))["confirm"]["text"]["text"]
    named = delete_button(cluster_card(ClusterView(used), now=NOW))["confirm"]["text"]["text"]

    assert "4 \u00d7 m5.2xlarge" in asked
    assert "file system of 1,200 GiB with all that is on it. No run uses it." in asked
    assert f"This run ends: {RUN_ID}." in named


def test_deletion_with_unsaved_results_says_that_their_file_system_stays():
    used = make_cluster(leases={RUN_ID: lease(), "another": lease()})
    run = make_run(RunPhase.SAVING, training_started_at=START, unsaved_reason="denied")

    card = cluster_card(ClusterView(used, runs={RUN_ID: run}), now=NOW)

    text = delete_button(card)["confirm"]["text"]["text"]
    assert (
        f"stays until the results of {run.run_id} are saved or given up. Runs that end: 1." in text
    )
    assert "all that is on it" not in text


@pytest.mark.parametrize(
    ("phase", "shown"),
    [
        (ClusterPhase.READY, ["extend_cluster", "delete_cluster"]),
        (ClusterPhase.PROVISIONING, ["extend_cluster", "delete_cluster"]),
        (ClusterPhase.FAILED, ["delete_cluster"]),
        (ClusterPhase.DRAINING, []),
        (ClusterPhase.RELEASED, []),
    ],
)
def test_buttons_are_those_that_make_sense(phase, shown):
    card = cluster_card(ClusterView(make_cluster(phase, reason="no capacity")), now=NOW)

    assert "*It failed:* no capacity" in seen(card)
    rows = [block for block in card.blocks if block["type"] == "actions"]
    assert [each["action_id"] for row in rows for each in row["elements"]] == shown


def test_end_of_a_cluster_is_said_as_what_it_depends_on():
    until = START + timedelta(hours=8)
    day = f"<!date^{int(until.timestamp())}^"

    assert goes(make_cluster()).startswith(day)
    assert "not before its runs" in goes(make_cluster(leases={RUN_ID: lease()}))
    assert "not before 2h after its run" in goes(make_cluster(leases={RUN_ID: lease(keep_s=7200)}))
    kept_by_run = make_cluster(keep_until=None, leases={RUN_ID: lease(keep_s=7200)})
    assert goes(kept_by_run) == "2h after its run"
    assert goes(make_cluster(ClusterPhase.DRAINING)) == "now"


def test_milestone_changes_with_what_people_wait_for_and_not_with_cost():
    cluster = make_cluster()
    control_plane = Resource(
        kind=ResourceKind.CLUSTER, name="c", price_per_hour_usd=1.0, requested_at=START
    )

    def moved(**values: object) -> bool:
        changed = cluster.model_copy(update=values)
        return cluster_milestone(changed) != cluster_milestone(cluster)

    waiting = Waiting(run_id=RUN_ID, nodes=2, since=START)
    assert moved(leases={RUN_ID: lease()})
    assert moved(queue=[waiting])
    assert moved(keep_until=NOW)
    assert moved(deleted_by="U1")
    assert not moved(resources={"c": control_plane})


def test_list_and_card_mark_emulated_costs():
    view = ClusterView(make_cluster(), emulated_speed=720.0)

    assert "emulated" in seen(cluster_card(view, now=NOW))
    assert "emulated" in seen(answers.clusters_list([view], now=NOW))
    assert "nothing is billed" in seen(cluster_receipt(view, now=NOW))


RUN_IDS = st.text("abcdefgh-0123456789", min_size=1, max_size=45)


@st.composite
def any_cluster(draw) -> ClusterView:
    phase = draw(st.sampled_from(list(ClusterPhase)))
    leases = draw(
        st.lists(
            st.builds(
                Lease,
                run_id=RUN_IDS,
                nodes=st.integers(1, 64),
                keep_s=st.integers(0, 604_800),
                granted_at=MOMENT,
                released_at=st.none() | MOMENT,
            ),
            max_size=30,
        )
    )
    queue = draw(
        st.lists(
            st.builds(Waiting, run_id=RUN_IDS, nodes=st.integers(1, 64), since=MOMENT), max_size=30
        )
    )
    cluster = make_cluster(
        phase,
        reason=draw(TEXT),
        leases={each.run_id: each for each in leases},
        queue=queue,
        keep_until=draw(st.none() | MOMENT),
        deleted_by=draw(TEXT),
        resources=draw(RESOURCES),
        plugins=draw(st.lists(TEXT, max_size=20)),
        checks=draw(CHECKS),
        teardown_reason=draw(TEXT),
        left_behind=draw(st.lists(TEXT, max_size=60)),
    )
    runs = {run_id: make_run() for run_id in cluster.waiting_runs}
    return ClusterView(cluster, runs=runs, emulated_speed=draw(st.sampled_from([None, 720.0])))


@SLOW
@given(any_cluster(), TEXT, st.lists(any_event(cl.ClusterEvent), max_size=60))
def test_whatever_shows_any_cluster_is_within_slacks_limits(view, code, events):
    assert_slack_takes(cluster_card(view, now=NOW))
    assert_slack_takes(cluster_card(view, now=NOW, moved_from=(code, code)))
    assert_slack_takes(cluster_receipt(view, now=NOW))
    for roles in ((), (f"arn:aws:iam::123456789012:role/{'r' * 512}",) * 9):
        settings = SETTINGS.model_copy(update={"kubectl_role_arns": roles})
        assert_slack_takes(answers.cluster_shown(view, settings=settings, now=NOW))
    assert_slack_takes(answers.clusters_list([view] * 25, now=NOW))
    assert_slack_takes(answers.cluster_deleted(view))
    if (message := cluster_message(events, view.cluster)) is not None:
        assert_slack_takes(message)


KEEP = {"keep_until": START + timedelta(hours=8)}
IN_USE = make_cluster(leases={RUN_ID: lease()})
RESIZED = make_cluster(earlier_sizes=[(NOW, 4)])


@pytest.mark.parametrize(
    ("happened", "cluster", "said"),
    [
        (event(cl.ResourceCreated, kind=ResourceKind.CLUSTER, name="c"), make_cluster(), None),
        (event(cl.CheckFinished, check="n", passed=True, detail="fine"), make_cluster(), None),
        (
            event(cl.CheckFinished, check="n", passed=False, detail="one is missing"),
            make_cluster(),
            "\u2717 check *n*: one is missing",
        ),
        *(
            (
                event(cl.CheckFinished, check="n", passed=True, detail="it", figures={figure: 7.4}),
                make_cluster(),
                "\u2713 check *n*: it",
            )
            for figure in ("all_reduce_busbw_gbps", "last_loss_nats")
        ),
        (
            event(cl.LeaseRequested, run_id=RUN_ID, nodes=8, min_nodes=2),
            make_cluster(),
            f"run `{RUN_ID}` waits for 2 to 8 nodes",
        ),
        (event(cl.SizeSettled, nodes=6, reason="no capacity"), make_cluster(), "6 nodes: no capac"),
        (event(cl.SizeSettled, nodes=8), make_cluster(), None),
        (
            event(RoomLow, free_gib=90, size_gib=1200),
            make_cluster(),
            "almost full* <@U0OPERATOR>: 90 of 1,200 GiB are free",
        ),
        (
            event(NodesSeen, nodes=(SeenNode(name="n"),), num_nodes=1, num_ready=1),
            make_cluster(),
            "1 of 1 node ready, as Kubernetes says",
        ),
        (
            event(cl.PassBegan, nodes=6, user_id="U0OTHER"),
            RESIZED,
            "it changes to 6 nodes, as asked",
        ),
        (
            event(cl.PassBegan, nodes=6),
            make_cluster(),
            "its checks run again, because they are too old",
        ),
        (event(cl.KeepEnded, **KEEP), IN_USE, "it goes as soon as its runs have ended"),
        (
            event(cl.ClusterPhaseChanged, phase=ClusterPhase.FAILED, reason="no capacity"),
            make_cluster(),
            "the cluster failed* <@U0OPERATOR>: no capacity",
        ),
    ],
)
def test_thread_says_what_the_card_does_not(happened, cluster, said):
    message = cluster_message([happened], cluster)

    assert (message is None) if said is None else (said in seen(message))


def test_cluster_whose_nodes_went_says_since_when_and_what_that_saves():
    asleep = make_cluster(idle_s=1800, sleeps_since=NOW)
    waking = make_cluster(ClusterPhase.PROVISIONING, idle_s=1800, resizes_from=0)
    going, coming = (event(cl.PassBegan, nodes=nodes) for nodes in (0, 4))
    gone = event(cl.ClusterPhaseChanged, phase=ClusterPhase.READY)
    failed = event(cl.PassFailed, nodes=0, reason="no capacity")

    card = str(cluster_card(ClusterView(asleep, runs={}), now=NOW).blocks)

    assert "team-a: ready, without nodes" in card
    assert "$1.54 an hour saved; the next run brings 4 back" in card
    told = str([cluster_message([going, gone, failed], asleep), cluster_message([coming], waking)])
    for said in ("nobody has used", "nodes are gone", "did not come back", "4 nodes come back"):
        assert said in told
