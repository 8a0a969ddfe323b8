"""What the channel sees of a kept cluster and of the runs on it, from the table's real stream."""

from __future__ import annotations

from datetime import timedelta

from bot_world import CHANNEL

from bot.stream import read_batch
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.nodes import NodesSeen, SeenNode
from stationmaster.domain.resources import ResourceKind

FIRST, SECOND, THIRD = (f"tiny-llama-{letter * 8}" for letter in "abc")


def card_of(slack, title: str):
    """The card with that in its header, as the channel sees it now."""
    posted = next(card for card in slack.cards if title in card.seen)
    edits = [call for call in slack.of("chat.update") if call.arguments["ts"] == posted.ts]
    return (edits or [posted])[-1]


def thread_of(slack, title: str) -> str:
    posted = next(card for card in slack.cards if title in card.seen)
    return "\n".join(call.seen for call in slack.thread if call.arguments["thread_ts"] == posted.ts)


def end(cluster) -> None:
    cluster.phases(ClusterPhase.DRAINING)
    cluster.happen(cl.TeardownStarted)
    cluster.happen(cl.ResourceDeleted, kind=ResourceKind.CLUSTER, name="control plane")
    state = cluster.services.cluster_states.load(cluster.cluster_id)
    cluster.happen(cl.TeardownCompleted, cost_usd=state.cost_usd(cluster.clock.now()))


def test_kept_cluster_has_one_card_that_follows_it(tells, cluster, slack, clock):
    cluster.begin()
    tells()
    clock.advance(10)
    cluster.become_ready()
    tells()
    clock.advance(10)
    cluster.use(FIRST, nodes=3)
    tells()

    card = card_of(slack, "Cluster team-a")
    assert len([each for each in slack.cards if "Cluster team-a" in each.seen]) == 1
    assert "ready, 3 of 4 nodes in use" in card.seen
    assert FIRST in card.seen
    assert "$36.00 an hour" in card.seen
    assert "<!date^" in card.seen
    assert card.arguments["channel"] == CHANNEL


def test_cluster_that_nobody_keeps_has_no_card(tells, notifier, story, slack):
    story.reach_running()
    tells()
    notifier.refresh()

    assert len(slack.cards) == 1
    assert "Cluster" not in slack.cards[0].seen


def test_thread_of_a_cluster_names_leases_and_changes_once(
    tells, notifier, stream, cluster, slack, clock
):
    cluster.become_ready()
    cluster.use(FIRST, nodes=3)
    cluster.use(SECOND, nodes=2)
    cluster.happen(cl.KeepExtended, keep_until=clock.now() + timedelta(hours=9), user_id="U0OTHER")
    batch = read_batch(stream.next_batch())
    notifier.notify(batch)
    notifier.notify(batch)
    cluster.train(FIRST)
    cluster.leave(FIRST)
    clock.advance(60)
    tells()
    clock.advance(10)
    notifier.refresh()  # ends and receipts were posted first

    thread = thread_of(slack, "Cluster team-a")
    assert thread.count("the cluster is ready") == 1
    assert thread.count(f"run `{FIRST}` has 3 nodes") == 1
    assert f"run `{FIRST}` waits" not in thread
    assert thread.count(f"run `{SECOND}` waits for 2 nodes") == 1
    assert thread.count("it was extended and stays until") == 1
    assert thread.count(f"run `{FIRST}` has left") == 1
    assert thread.count(f"run `{SECOND}` has 2 nodes") == 1


def test_nodes_are_a_table_in_the_clusters_thread_at_once(tells, cluster, slack):
    cluster.become_ready()
    cluster.use(FIRST)
    tells()
    health = "cordoned: a GPU is gone"
    where = {"instance_type": "p5.48xlarge", "zone": "us-west-2b"}
    cordoned = SeenNode(name="ip-1", is_ready=False, gpus=(7, 8), trouble=health, **where)
    cluster.happen(NodesSeen, nodes=(cordoned,), num_nodes=2, num_ready=1)
    cluster.happen(NodesSeen, reason="it does not answer")
    tells()

    thread = thread_of(slack, "Cluster team-a")
    assert "1 of 2 nodes ready, as Kubernetes says, 1 listed" in thread
    assert "its nodes are not known: it does not answer" in thread
    (posted,) = [call for call in slack.thread if "ip-1" in call.seen]
    rows = [[cell["text"] for cell in row] for row in posted.blocks[-1]["rows"]]
    assert rows[1] == [
        "ip-1",
        *where.values(),
        "not ready",
        "7 of 8 GPUs",
        "0 of 0 EFA",
        health,
        "no pods",
    ]
    assert "ip-1" not in thread_of(slack, FIRST)

    slack.lacks = {"table"}
    cluster.happen(NodesSeen, nodes=(cordoned,), num_nodes=2, num_ready=1)
    tells()
    line = f"us-west-2b \u00b7 not ready \u00b7 7 of 8 GPUs \u00b7 0 of 0 EFA \u00b7 {health}"
    assert line in thread_of(slack, "Cluster team-a")


def test_run_on_a_ready_cluster_says_nothing_of_its_provisioning(tells, cluster, slack, clock):
    cluster.become_ready()
    tells()
    clock.advance(60)
    cluster.use(FIRST)
    cluster.train(FIRST)
    tells()

    card, thread = card_of(slack, FIRST), thread_of(slack, FIRST)
    assert "Provision" not in card.seen
    assert "Validate" not in card.seen
    assert "on cluster `team-a`" in card.seen
    assert "control plane" not in thread
    assert "training" in thread


def test_run_that_trains_says_nothing_of_what_is_made_for_others(tells, cluster, slack, clock):
    cluster.become_ready()
    cluster.use(FIRST)
    clock.advance(10)
    cluster.train(FIRST)
    clock.advance(10)
    cluster.happen(cl.PassBegan, nodes=6, user_id="U0OTHER")
    cluster.happen(cl.ResourceCreated, kind=ResourceKind.NODE_GROUP, name="training")
    cluster.use(SECOND)
    tells()

    assert "`training` ready" not in thread_of(slack, FIRST)


def test_run_that_waits_for_a_new_cluster_sees_how_it_is_made(tells, cluster, slack, clock):
    cluster.begin()
    cluster.use(FIRST)
    clock.advance(10)
    cluster.become_ready()
    tells()

    assert "`control plane` ready" in thread_of(slack, FIRST)


def test_queued_run_names_its_place_and_moves_up(tells, cluster, slack, clock):
    cluster.become_ready()
    cluster.use(FIRST, nodes=3)
    cluster.use(SECOND, nodes=2)
    cluster.use(THIRD, nodes=4)
    tells()

    assert "place 1 of 2: 1 of 4 nodes free, 2 wanted" in card_of(slack, SECOND).seen
    assert "place 2 of 2: 1 of 4 nodes free, 4 wanted" in card_of(slack, THIRD).seen

    clock.advance(30)
    cluster.train(FIRST)
    cluster.leave(FIRST)
    tells()

    assert "place 1 of 1: 2 of 4 nodes free, 4 wanted" in card_of(slack, THIRD).seen


def test_run_leaves_a_receipt_with_its_share_and_the_cluster_stays(tells, cluster, slack, clock):
    cluster.become_ready()
    cluster.use(FIRST, nodes=2)
    cluster.train(FIRST)
    tells()
    clock.advance(3600)
    cluster.leave(FIRST)
    tells()
    tells()

    thread = thread_of(slack, FIRST)
    assert thread.count("Its share of the cost") == 1
    assert "$18.00" in thread  # 2 of 4 nodes of 36 USD for an hour
    assert "stays until <!date^" in thread
    assert "costs $36.00 an hour" in thread
    assert "/train tiny-llama on=team-a" in thread
    assert "/train cluster delete team-a" in thread
    assert "Its share" in card_of(slack, FIRST).seen


def test_end_of_the_keep_is_warned_of_in_the_channel_once(
    tells, notifier, stream, cluster, slack, clock
):
    made = cluster.begin(keep_for=timedelta(minutes=40))
    cluster.become_ready()
    tells()
    cluster.happen(cl.KeepEnding, keep_until=made.keep_until)
    batch = read_batch(stream.next_batch())
    notifier.notify(batch)
    notifier.notify(batch)

    (warning,) = [call for call in slack.thread if "unless you type" in call.seen]
    assert warning.arguments["reply_broadcast"]
    assert "/train cluster extend team-a 2h" in warning.seen
    assert "unless it is extended" in card_of(slack, "Cluster team-a").seen


def test_receipt_of_a_cluster_splits_its_bill(tells, cluster, slack, clock):
    cluster.become_ready()
    cluster.use(FIRST, nodes=2)
    cluster.train(FIRST)
    clock.advance(3600)
    cluster.leave(FIRST)
    clock.advance(3600)
    end(cluster)
    tells()

    (receipt,) = [call for call in slack.thread if "Who caused the cost" in call.seen]
    assert receipt.arguments["reply_broadcast"]
    assert "Nothing billable is left" in receipt.seen
    assert f"`{FIRST}`  $18.00" in receipt.seen
    assert "for nodes that were free  $54.00" in receipt.seen
    assert "together  $72.00" in receipt.seen
    assert "Cluster team-a: gone" in card_of(slack, "Cluster team-a").seen


def test_run_and_its_kept_cluster_of_the_same_id_have_each_a_card(
    tells, services, clock, slack, cluster
):
    cluster.cluster_id, cluster.name = FIRST, ""
    cluster.begin()
    cluster.use(FIRST, nodes=4)
    tells()

    assert len(slack.cards) == 2
    assert f"Cluster {FIRST}" in slack.cards[1].seen


def test_cluster_whose_channel_is_lost_is_followed_in_the_requesters_conversation(
    tells, cluster, slack, clock, person
):
    cluster.begin()
    tells()
    slack.lost[CHANNEL] = "is_archived"
    clock.advance(10)
    cluster.become_ready()
    tells()

    moved = slack.cards[-1]
    assert moved.arguments["channel"] == "D0OPERATOR"
    assert "takes no posts of this app any more" in moved.seen
    answer = person.type("cluster extend team-a", channel_id="D0OPERATOR")
    assert "stays: it goes" in answer["body"]


def test_cluster_that_is_over_is_left_alone(tells, notifier, cluster, slack, clock):
    cluster.become_ready()
    end(cluster)
    tells()
    notifier.refresh()
    calls = len(slack.calls)
    clock.advance(60)

    notifier.refresh()

    assert len(slack.calls) == calls
