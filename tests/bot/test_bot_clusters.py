"""What people do with kept clusters: signed requests through the shipped handler."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from bot_world import CHANNEL, USER, ClusterStory, seen, started_clusters

from stationmaster.aws.delivery_store import of_cluster
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.reactions.cluster import decide
from stationmaster.domain.reactions.leasing import RunTrains

READY = [ClusterPhase.PROVISIONING, ClusterPhase.VALIDATING, ClusterPhase.READY]


def drained(monkeypatch) -> list[str]:
    """Details of what is put on the bus from now on."""
    from moto.events.models import EventsBackend

    heard: list[str] = []
    put = EventsBackend.put_events

    def listen(backend, events):
        heard.extend(event["Detail"] for event in events)
        return put(backend, events)

    monkeypatch.setattr(EventsBackend, "put_events", listen)
    return heard


def test_create_posts_a_card_writes_the_cluster_and_starts_its_workflow(
    person, services, settings, slack
):
    written_when_posted = []
    slack.when_posted = lambda _: written_when_posted.extend(services.cluster_states.list_open())

    answer = person.type("cluster create team-a nodes=4 ttl=2h")

    (made,) = services.cluster_states.list_open()
    assert written_when_posted == []
    assert "is on its way" in seen(answer)
    assert made.name == "team-a"
    assert made.cluster_id.startswith("team-a-")
    assert (made.spec.nodes, made.requester.channel_id) == (4, CHANNEL)
    assert made.keep_until - made.requested_at == timedelta(hours=2)
    assert started_clusters(settings) == [made.cluster_id]
    assert services.deliveries.load(of_cluster(made.cluster_id)).card_ts == slack.cards[0].ts
    assert "Cluster team-a: requested" in slack.cards[0].seen


def test_create_delivered_twice_makes_one_cluster_and_one_card(person, services, settings, slack):
    first = person.type("cluster create team-a", trigger_id="same")
    second = person.type("cluster create team-a", trigger_id="same")

    assert len(services.cluster_states.list_open()) == 1
    assert len(started_clusters(settings)) == 1
    assert len(slack.cards) == 1
    assert "is on its way" in seen(first)
    assert "nothing new was started" in seen(second)


def test_name_is_free_again_once_its_cluster_is_released(person, services, cluster):
    cluster.begin()
    cluster.phases(ClusterPhase.DRAINING)
    assert "is taken" in seen(person.type("cluster create team-a"))
    cluster.happen(cl.TeardownStarted)
    cluster.happen(cl.TeardownCompleted, cost_usd=1.0)

    answer = person.type("cluster create team-a nodes=1")

    assert "is on its way" in seen(answer)
    assert [each.spec.nodes for each in services.cluster_states.list_open()] == [1]


def test_two_creations_of_one_name_at_once_leave_one_cluster(person, services, slack, clock):
    """The other one is written between the card and the write of this one."""
    slack.when_posted = lambda _: ClusterStory(services, clock).begin()

    answer = person.type("cluster create team-a")

    assert "the name team-a is taken" in seen(answer)
    assert len(services.cluster_states.list_open()) == 1
    assert slack.cards == []


def test_channel_that_takes_no_card_makes_no_cluster(person, services, settings, slack):
    slack.lost[CHANNEL] = "not_in_channel"

    answer = person.type("cluster create team-a")

    assert "a cluster is followed in its channel" in seen(answer)
    assert "/invite @Stationmaster" in seen(answer)
    assert services.cluster_states.list_open() == []
    assert started_clusters(settings) == []


@pytest.mark.parametrize("label", ["team-a", "team-a-0123abcd", "team-a-01", "last"])
def test_cluster_is_found_by_name_id_beginning_and_as_the_newest(person, services, cluster, label):
    cluster.begin()

    assert "cluster `team-a`" in seen(person.type(f"tiny-llama on={label}"))
    assert [run.request.cluster_id for run in services.runs.list_recent()] == [cluster.cluster_id]


@pytest.mark.parametrize("text", ["tiny-llama on=team-a", "cluster show team-a", "cluster list"])
def test_cluster_of_another_channel_does_not_exist(person, services, cluster, text):
    cluster.begin()

    answer = person.type(text, channel_id="C0OTHER")

    assert cluster.cluster_id not in seen(answer)
    assert services.runs.list_recent() == []


def test_plan_on_a_cluster_says_that_nothing_is_created(person, cluster):
    cluster.become_ready()

    answer = person.type("plan tiny-llama on=team-a nodes=1")

    assert "It would create nothing" in seen(answer)
    assert "Its share of the price" in seen(answer)
    assert "```/train tiny-llama nodes=1 on=team-a```" in seen(answer)


def test_show_names_users_queue_cost_and_the_way_in(person, services, cluster):
    cluster.become_ready()
    cluster.use("tiny-llama-aaaaaaaa", nodes=3)
    cluster.use("tiny-llama-bbbbbbbb", nodes=2)

    shown = seen(person.type("cluster show team-a"))

    assert "tiny-llama-aaaaaaaa` by <@U0OPERATOR>  3 nodes" in shown
    assert "1. `tiny-llama-bbbbbbbb` by <@U0OPERATOR>  2 nodes" in shown
    assert "$36.00 an hour" in shown
    assert (
        "aws eks update-kubeconfig --name stationmaster-team-a-0123abcd --region us-east-1" in shown
    )
    assert '"actions"' not in shown


def test_nodes_are_asked_for_on_the_bus_once_for_each_request(person, cluster, monkeypatch):
    cluster.become_ready()
    heard = drained(monkeypatch)

    answer = seen(person.type("cluster show team-a nodes", trigger_id="one"))
    for trigger_id in ("one", "two"):
        person.type("cluster show team-a nodes", trigger_id=trigger_id)

    asked = [json.loads(detail) for detail in heard]
    assert "the nodes of `team-a`; they follow in its card's thread" in answer
    assert {each["cluster_id"] for each in asked} == {cluster.cluster_id}
    assert len({each["asked"] for each in asked}) == 2


def test_list_shows_the_clusters_that_exist(person, services, clock, cluster):
    assert "no kept cluster" in seen(person.type("cluster list"))
    cluster.begin()
    other = ClusterStory(services, clock, cluster_id="team-b-00000000", name="team-b")
    other.begin()
    other.phases(ClusterPhase.DRAINING)

    shown = seen(person.type("cluster list"))

    assert "`team-a`" in shown
    assert "`team-b`" in shown
    assert "going away" in shown


def test_extend_keeps_a_cluster_longer_and_says_until_when(person, services, cluster):
    cluster.begin()
    before = datetime.now(UTC)

    answer = person.type("cluster extend team-a 3h")

    extended = services.cluster_states.load(cluster.cluster_id)
    hours = (extended.keep_until - before).total_seconds() / 3600
    assert hours == pytest.approx(3, abs=0.1)  # from now on, as its time was over
    assert "stays: it goes <!date^" in seen(answer)
    events = services.cluster_states.events(cluster.cluster_id)
    assert [each.user_id for each in events if each.type == "cluster.keep_extended"] == [USER]


def test_nothing_is_kept_for_more_than_7_days(person, services):
    person.type("cluster create team-a ttl=5d")
    (made,) = services.cluster_states.list_open()

    answer = person.type("cluster extend team-a 3d")

    assert "more than 7d from now" in seen(answer)
    suggestion = seen(answer).split("```")[1]
    assert suggestion == "/train cluster extend team-a 48h"
    assert services.cluster_states.load(made.cluster_id).keep_until == made.keep_until
    assert "stays: it goes" in seen(person.type(suggestion.removeprefix("/train ")))
    extended = services.cluster_states.load(made.cluster_id)
    assert extended.keep_until - made.keep_until == timedelta(hours=48)


def test_delete_drains_the_cluster_and_names_the_runs_that_end(
    person, services, cluster, monkeypatch
):
    cluster.become_ready()
    cluster.use("tiny-llama-aaaaaaaa")
    heard = drained(monkeypatch)

    asked = seen(person.type("cluster delete team-a"))
    assert "*Delete this cluster?* team-a goes with its 4" in asked
    assert "This run ends: tiny-llama-aaaaaaaa" in asked
    assert services.cluster_states.load(cluster.cluster_id).deleted_by == ""
    answer = person.type("cluster delete team-a now")

    gone = services.cluster_states.load(cluster.cluster_id)
    assert (gone.phase, gone.deleted_by) == (ClusterPhase.DRAINING, USER)
    assert [json.loads(detail) for detail in heard] == [{"cluster_id": cluster.cluster_id}]
    assert "and with it `tiny-llama-aaaaaaaa`" in seen(answer)


def test_resize_goes_over_the_cluster_once_more(person, services, settings, cluster):
    cluster.become_ready()

    answer = person.type("cluster resize team-a nodes=6")

    resized = services.cluster_states.load(cluster.cluster_id)
    assert (resized.spec.nodes, resized.passes) == (6, 2)
    assert resized.phase is ClusterPhase.PROVISIONING
    assert started_clusters(settings) == [f"{cluster.cluster_id}-2"]
    assert "changes to 6 \u00d7 m5.2xlarge" in seen(answer)


def test_scale_limits_a_run_to_a_number_of_its_range(person, services, cluster):
    cluster.become_ready()
    run_id = cluster.use("tiny-llama-aaaaaaaa", nodes=6, min_nodes=1).run_id

    answer = seen(person.type(f"scale {run_id} nodes=2"))

    lease = services.cluster_states.load(cluster.cluster_id).leases[run_id]
    assert (lease.nodes, lease.most, lease.fewest) == (4, 2, 1)
    assert "is to have 2; it changes once it has saved a checkpoint" in answer
    assert "as soon as that is free" not in answer


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("scale last", "takes nodes=N and nothing else"),
        ("scale tiny-llama-aaaaaaaa nodes=two", "nodes=two is not accepted"),
        ("scale tiny-llama-aaaaaaaa nodes=7", "has the range nodes=1:6, which nodes=7 is not in"),
        ("scale tiny-llama-aaaaaaaa nodes=3", "trains on 3 nodes already"),
        ("scale tiny-llama-aaaaaaaa nodes=6", "/train cluster resize team-a nodes=6"),
        ("scale tiny-llama-bbbbbbbb nodes=2", "started with nodes=1, not with a range"),
        ("scale tiny-llama-cccccccc nodes=2", "has no nodes yet"),
    ],
)
def test_scale_that_is_not_possible_says_why(person, cluster, words, sentence):
    cluster.become_ready()
    cluster.use("tiny-llama-bbbbbbbb", nodes=1)
    cluster.use("tiny-llama-aaaaaaaa", nodes=6, min_nodes=1)
    cluster.use("tiny-llama-cccccccc", nodes=2, min_nodes=1)
    if "already" in sentence:
        limit = {"min_nodes": 1, "most_nodes": 3, "user_id": USER}
        cluster.happen(cl.LeaseLimited, run_id="tiny-llama-aaaaaaaa", **limit)

    assert sentence in seen(person.type(words))


def test_scale_enlarges_a_cluster_of_the_runs_own(person, story, services, settings):
    story.begin(nodes=4, min_nodes=1)
    for phase in READY:
        story.happen(cl.ClusterPhaseChanged, phase=phase)
    assert "alone on its cluster and keeps its 2" in seen(person.type("scale last nodes=1"))
    answer = seen(person.type("scale last nodes=4"))
    assert "0 more are free now" in answer
    assert started_clusters(settings) == [f"{story.run_id}-2"]
    grown = services.cluster_states.load(story.run_id)
    assert (grown.spec.nodes, decide(grown, RunTrains(story.run_id))) == (4, ())
    story.happen(cl.ClusterPhaseChanged, phase=ClusterPhase.READY)
    (share,) = decide(services.cluster_states.load(story.run_id), RunTrains(story.run_id))
    assert share.nodes == 4


def test_validate_keeps_the_size_and_runs_every_check(person, services, settings, cluster):
    cluster.become_ready()
    assert "jobs there use 0; expected 2 or more" in seen(person.type("validate team-a nccl"))

    answer = person.type("validate team-a")

    checked = services.cluster_states.load(cluster.cluster_id)
    assert (checked.spec.nodes, checked.passes, checked.is_full) == (4, 2, True)
    assert started_clusters(settings) == [f"{cluster.cluster_id}-2"]
    assert "runs every check" in seen(answer)


VALUES = {"run_id": "tiny-llama-0123abcd", "cluster_id": "team-a-0123abcd"}
ACTIONS = {"stop_run": "run_id", "extend_cluster": "cluster_id", "delete_cluster": "cluster_id"}


@pytest.mark.parametrize(("action", "key"), ACTIONS.items())
def test_button_from_another_channel_does_nothing(
    person, services, cluster, story, slack, action, key
):
    cluster.begin()
    story.begin()
    before = services.cluster_states.load(cluster.cluster_id)

    person.press(action, json.dumps({key: VALUES[key]}), channel="C0OTHER")

    assert services.cluster_states.load(cluster.cluster_id) == before
    assert services.runs.load(story.run_id).stop_requested_by is None
    assert " is called " in slack.responses[0].seen


@pytest.mark.parametrize("action", ["stop_run", "delete_cluster"])
@pytest.mark.parametrize(
    "value", ["", "team-a", '{"run": "x"}', '{"run_id": "", "cluster_id": ""}']
)
def test_button_with_a_foreign_value_is_explained(person, slack, settings, action, value):
    answer = person.press(action, value)

    assert answer["statusCode"] == 200
    assert "older version" in slack.responses[0].seen


@pytest.mark.parametrize(
    ("phases", "text", "words"),
    [
        ([], "cluster create team-a", "the name team-a is taken"),
        ([], "cluster resize team-a nodes=2", "type it again once it is ready"),
        ([], "validate team-a", "type it again once it is ready"),
        ([], "cluster show team-a nodes", "is requested: it has no nodes to show"),
        ([ClusterPhase.DRAINING], "tiny-llama on=team-a", "is draining and cannot be used any m"),
        ([], "tiny-llama on=tiny-llama-0123abcd", "goes with its run"),
        (READY, "cluster resize team-a nodes=4", "has 4 nodes already"),
        (READY, "cluster resize team-a nodes=2", "is in use and cannot get fewer nodes"),
    ],
)
def test_what_a_cluster_cannot_do_now_is_refused_and_changes_nothing(
    person, services, settings, slack, cluster, story, phases, text, words
):
    story.begin()
    cluster.begin()
    for phase in phases:
        cluster.phases(phase)
    if phases == READY:
        cluster.use("tiny-llama-aaaaaaaa")
    before = services.cluster_states.load(cluster.cluster_id), services.runs.list_recent()

    assert words in seen(person.type(text))
    after = services.cluster_states.load(cluster.cluster_id), services.runs.list_recent()
    assert after == before
    assert (started_clusters(settings), slack.cards) == ([], [])
