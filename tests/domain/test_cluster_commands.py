"""What a person types of clusters: durations, `on=` and `keep=`, and the words of `cluster`."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_clusters import finding, kept

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster import aggregate
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.leases import Waiting
from stationmaster.domain.cluster.spec import Reservation, Window, spec_for, spec_for_any
from stationmaster.domain.commands.capacity import FoundReservation
from stationmaster.domain.commands.durations import (
    LONGEST_S,
    read_duration,
    respelled,
    typed_duration,
)
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.meanings import group_row_meant
from stationmaster.domain.commands.requests import (
    CreateCluster,
    DeleteCluster,
    ExtendCluster,
    ListClusters,
    ResizeCluster,
    ShowCluster,
    ShowPlan,
    ValidateCluster,
)
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.table import SUBCOMMANDS
from stationmaster.domain.errors import (
    BadCommand,
    BadParameter,
    NotPossibleNow,
    UserError,
)
from stationmaster.domain.planning.plan import make_plan
from stationmaster.domain.planning.recipe_lookup import get_recipe
from tests.support.factories import START as AT
from tests.support.factories import make_cluster, make_cluster_event

HOUR = 3_600


def parse(text, cluster=None):
    return parse_command(text, find_cluster=finding(cluster or kept()))


def refused(text, cluster=None):
    with pytest.raises(UserError) as caught:
        parse(text, cluster)
    return caught.value


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("2h", 2 * HOUR),
        ("1d", 24 * HOUR),
        ("7d", LONGEST_S),
        ("1s", 1),
        ("0s", None),
        ("8d", None),
        ("604801s", None),
        ("2", None),
        ("2H", None),
        ("-2h", None),
        ("1.5h", None),
        ("2h30m", None),
        ("", None),
        ("\u0662h", None),
        ("9" * 40 + "s", None),
    ],
)
def test_duration_is_a_whole_number_and_one_unit(text, seconds):
    assert read_duration(text) == seconds


@given(st.integers(1, LONGEST_S))
def test_duration_that_was_read_is_typed_the_same(seconds):
    assert read_duration(typed_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "spelled"),
    [("2H", "2h"), ("2 hours", "2h"), ("10min", "10m"), ("30sec", "30s"), ("1 Day", "1d")],
)
def test_duration_in_other_letters_is_respelled(text, spelled):
    assert respelled(text) == spelled
    assert respelled("soon") is None
    assert respelled("9d") is None


def test_start_takes_a_cluster_and_a_keep_together():
    start = parse("tiny-llama on=team-a keep=2h nodes=2 steps=5")

    assert isinstance(start, StartRun)
    assert (start.on, start.keep_s, start.cluster_id) == ("team-a", 2 * HOUR, "team-a-0a1b2c3d")
    assert start.overrides == {"steps": "5"}
    assert start.words == "tiny-llama nodes=2 on=team-a keep=2h steps=5"


def test_start_and_new_cluster_take_the_level_of_their_checks():
    full = parse("tiny-llama validate=full steps=5")

    assert full.is_full
    assert full.words == "tiny-llama validate=full steps=5"
    assert "every check runs before it trains" in full.plan.warnings[0]
    assert not parse("tiny-llama validate=quick").is_full
    assert parse("cluster create a validate=full").is_full
    assert not parse("cluster create a").is_full


@pytest.mark.parametrize(
    ("text", "words", "suggestion"),
    [
        ("tiny-llama validate=ful", "expected quick for", "/train tiny-llama validate=full"),
        ("tiny-llama validate=2", "expected quick for", "/train plan tiny-llama"),
        (
            "tiny-llama on=team-a validate=full",
            "type /train validate team-a before the run",
            "/train plan tiny-llama on=team-a",
        ),
        (
            "cluster create a validate=FULL",
            "validate=FULL is not accepted",
            "/train cluster create a validate=full",
        ),
    ],
)
def test_level_that_is_not_accepted_is_refused(text, words, suggestion):
    error = refused(text)

    assert words in str(error)
    assert error.suggestion == suggestion


def test_start_without_them_is_planned_as_before():
    start = parse_command("tiny-llama")

    assert (start.on, start.keep_s, start.cluster_id) == (None, 0, None)
    assert start.plan == make_plan("tiny-llama")


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

    plan = parse("llama2-7b on=team-a", gpus).plan

    assert (plan.instance_type, plan.nodes) == ("p5.48xlarge", 1)


def test_plan_writes_checkpoints_to_the_file_system_of_the_cluster():
    def written_s(gib):
        spec = spec_for_any(get_instance("p4d.24xlarge"), nodes=2, file_system_gib=gib)
        return parse("llama2-7b on=team-a", kept(spec)).plan.checkpoint_write_s

    assert written_s(2400) == pytest.approx(2 * written_s(4800), rel=0.01)


def test_keep_is_priced_in_the_plan():
    plan = parse_command("plan tiny-llama keep=2h").request.plan

    note = plan.warnings[0]
    assert note.startswith("keep=2h: the cluster stays for 2h after the run")
    assert f"up to ${2 * plan.price_per_hour_usd:,.2f} more" in note


def test_plan_says_in_which_place_the_run_would_wait():
    held = make_cluster_event(cl.LeaseGranted, cluster_id="team-a-0a1b2c3d", run_id="r", nodes=3)
    busy = aggregate.apply(kept(), held)

    plan = parse("plan tiny-llama on=team-a nodes=2", busy).request.plan

    assert "has 1 of 4 nodes free" in plan.warnings[0]
    assert "place 1" in plan.warnings[0]


def test_run_for_which_the_queue_has_no_place_is_refused_when_typed():
    waiting = [Waiting(run_id=f"r-{number}", nodes=1, since=AT) for number in range(100)]
    full = kept().model_copy(update={"queue": waiting})

    with pytest.raises(NotPossibleNow, match="100 runs wait for nodes of cluster team-a"):
        parse("tiny-llama on=team-a", full)


@pytest.mark.parametrize(
    ("text", "words", "suggestion"),
    [
        ("tiny-llama keep=2", "keep=2 is not accepted", "/train plan tiny-llama keep=2h"),
        ("tiny-llama keep=2H", "from 1s to 7d", "/train tiny-llama keep=2h"),
        ("tiny-llama keep=90min", "keep=90min", "/train tiny-llama keep=90m"),
        ("tiny-llama keep=30d", "keep=30d", "/train plan tiny-llama keep=7d"),
        ("tiny-llama keep=0s", "keep=0s", "/train plan tiny-llama keep=2h"),
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
        ("tiny-llama stpes=5 on=team-a", "steps", "/train tiny-llama steps=5 on=team-a"),
        ("llama2-7b on=team-a", "m5.2xlarge has no GPU", "/train plan llama2-7b"),
        ("tiny-llama on=", "on= has no value", "/train plan tiny-llama"),
    ],
)
def test_start_that_its_cluster_cannot_run_is_answered_with_a_command(text, words, suggestion):
    error = refused(text)

    assert words in str(error)
    assert error.suggestion == suggestion
    if suggestion.startswith("/train plan"):
        assert isinstance(parse(suggestion.removeprefix("/train ")), ShowPlan)


def test_model_that_does_not_fit_its_cluster_is_offered_no_other_machines():
    small = kept(spec_for_any(get_instance("g5.xlarge"), nodes=2, file_system_gib=2400))

    start = parse("llama2-7b on=team-a", small)

    assert not start.plan.fits
    assert "instance=" not in (start.fitting_words or "")
    assert "leave on= out" in start.plan.misfits[0] or start.fitting_words


def test_cluster_that_does_not_offer_its_gpus_refuses_a_recipe_that_needs_them():
    spec = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="p4d.24xlarge")

    error = refused("llama2-7b on=team-a", kept(spec))

    assert "does not offer its GPUs" in str(error)


def test_cluster_is_looked_up_in_a_channel_only():
    with pytest.raises(NotPossibleNow, match="type the command in the channel"):
        parse_command("tiny-llama on=team-a")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("cluster list", ListClusters()),
        ("Cluster LIST", ListClusters()),
        ("cluster show team-a", ShowCluster("team-a")),
        ("cluster extend team-a", ExtendCluster("team-a", 2 * HOUR)),
        ("cluster extend team-a 30m", ExtendCluster("team-a", 1800)),
        ("cluster resize team-a nodes=4", ResizeCluster("team-a", 4)),
        ("cluster delete team-a", DeleteCluster("team-a")),
        ("validate team-a", ValidateCluster("team-a")),
    ],
)
def test_words_of_a_cluster_are_read(text, command):
    assert parse_command(text) == command


def test_new_cluster_has_defaults_for_all_but_its_name():
    made = parse_command("cluster create team-a")

    assert isinstance(made, CreateCluster)
    assert (made.name, made.ttl_s) == ("team-a", 8 * HOUR)
    assert (made.spec.instance_type, made.spec.nodes) == ("m5.2xlarge", 2)
    assert made.spec.file_system.storage_gib == 1200


def test_new_cluster_of_gpu_machines_offers_their_devices():
    made = parse_command(
        "cluster create big nodes=4 instance=p5.48xlarge ttl=1d file_system_gib=4800"
    )

    assert (made.spec.num_gpus, made.spec.num_efa) == (8, get_instance("p5.48xlarge").num_efa)
    assert (made.spec.nodes, made.ttl_s) == (4, 24 * HOUR)
    assert made.spec.file_system.storage_gib == 4800
    assert parse_command("cluster create old instance=g4dn.8xlarge").spec.num_efa == 0


RESERVED = FoundReservation(
    reservation=Reservation(reservation_id="cr-0123456789abcdef0", zone="us-west-2b"),
    instance_type="p5.48xlarge",
    available=4,
    total=8,
)


def created(words, found=RESERVED):
    return parse_command(f"cluster create big {words}", find_reservation=lambda _id: found)


def test_new_cluster_takes_its_nodes_of_a_reservation():
    made = created("nodes=4 capacity=odcr:cr-0123456789abcdef0")

    assert made.spec.reservation == RESERVED.reservation
    assert (made.spec.instance_type, made.spec.num_gpus) == ("p5.48xlarge", 8)
    assert created("capacity=on-demand") == created("")


def test_new_cluster_takes_spot_nodes_and_none_that_have_to_go_back():
    assert created("nodes=4 capacity=spot").spec.is_spot
    assert not created("nodes=4").spec.is_spot
    ends = datetime(2026, 12, 3, 11, 30, tzinfo=UTC)
    window = Window(starts_at=ends - timedelta(days=2), ends_at=ends)
    block = replace(
        RESERVED, reservation=RESERVED.reservation.model_copy(update={"window": window})
    )

    with pytest.raises(BadCommand, match="cannot be used with cluster create: AWS takes the nodes"):
        created("capacity=block:cr-0123456789abcdef0", block)


@pytest.mark.parametrize(
    ("words", "said", "suggestion"),
    [
        ("nodes=5 capacity=odcr:cr-0123456789abcdef0", "has 4 of 8 p5.48xlarge free", None),
        (
            "nodes=2 capacity=cr-0123456789abcdef0",
            "expected on-demand",
            "/train cluster create big nodes=2 capacity=odcr:cr-0123456789abcdef0",
        ),
        (
            "instance=m5.2xlarge capacity=odcr:cr-0123456789abcdef0",
            "instance=m5.2xlarge asks for others",
            None,
        ),
    ],
)
def test_new_cluster_refuses_a_reservation_that_does_not_fit(words, said, suggestion):
    with pytest.raises(UserError, match=said) as caught:
        created(words)

    assert caught.value.suggestion == suggestion


@pytest.mark.parametrize(
    ("text", "words", "suggestion"),
    [
        ("cluster", "needs one more word: create, list", "/train cluster list"),
        ("cluster foo", 'has no "foo"', "/train cluster list"),
        ("cluster shwo team-a", "did you mean /train cluster show", "/train cluster show team-a"),
        ("cluster rm team-a", "did you mean /train cluster delete", "/train cluster delete team-a"),
        ("cluster list all", "takes nothing more", "/train cluster list"),
        ("cluster show", "needs the name of a cluster", "/train cluster list"),
        ("cluster show a b", "takes one cluster", "/train cluster show a"),
        ("cluster delete a b", "takes one cluster", "/train cluster show a"),
        ("cluster extend a 2hours", "from 1s to 7d", "/train cluster extend a 2h"),
        ("cluster extend a 9d", "from 1s to 7d", "/train cluster extend a 7d"),
        ("cluster extend a soon", "from 1s to 7d", "/train cluster show a"),
        ("cluster extend a 1h 2h", "takes one duration", "/train cluster show a"),
        ("cluster resize a", "takes nodes=N", "/train cluster show a"),
        ("cluster resize a nodes=0", "from 1 to 64", "/train cluster show a"),
        ("cluster resize a ttl=2h", "takes nodes=N", "/train cluster show a"),
        ("cluster resize a 4", "expected key=value", "/train cluster show a"),
        ("cluster scale a nodes=4", "/train cluster resize", "/train cluster resize a nodes=4"),
        ("validate", "needs the name of a cluster", "/train cluster list"),
        ("cluster create", "needs a name first", "/train cluster list"),
        ("cluster create nodes=2", "needs a name first", None),
        ("cluster create Team_A nodes=4", "lower-case", "/train cluster create team-a nodes=4"),
        ("cluster create 9lives", "a letter first", None),
        ("cluster create last", "means the newest one", None),
        ("cluster create " + "a" * 25, "1 to 24", None),
        ("cluster create a nodes=0", "from 1 to 64", None),
        ("cluster create a nodes=99", "from 1 to 64", "/train cluster create a nodes=64"),
        ("cluster create a ttl=30d", "from 1s to 7d", "/train cluster create a ttl=7d"),
        ("cluster create a ttl=4hours", "ttl=4hours", "/train cluster create a ttl=4h"),
        ("cluster create a tll=4h", "did you mean ttl", "/train cluster create a ttl=4h"),
        ("cluster create a keep=4h", "did you mean ttl", "/train cluster create a ttl=4h"),
        ("cluster create a budget=5", 'no key "budget"', None),
        ("cluster create a ttl=4h ttl=5h", "given twice", None),
        (
            "cluster create a file_system_gib=3000",
            "multiple of 2400",
            "/train cluster create a file_system_gib=2400",
        ),
        ("cluster create a file_system_gib=1000", "multiple of 2400", None),
        ("cluster create a instance=q9.large", "q9.large", None),
        ("cluster create a instance=trn1.32xlarge", "Trainium", None),
        ("clusters", '"clusters" is not a command', "/train cluster list"),
    ],
)
def test_words_of_a_cluster_with_a_mistake_are_corrected_and_never_to_more(text, words, suggestion):
    error = refused(text)

    assert words in str(error)
    assert error.suggestion == suggestion
    if suggestion is not None:
        parse(suggestion.removeprefix("/train "))


def test_each_synonym_in_a_group_stands_for_its_own_word():
    group = SUBCOMMANDS["cluster"].takes

    for row in group.rows.values():
        assert [group_row_meant(word, group) for word in row.meanings] == [row] * len(row.meanings)


@given(
    st.lists(
        st.from_regex(r"\A[a-z_]{1,12}=[ -~]{0,10}\Z")
        | st.sampled_from(["nodes=2", "nodes=99", "ttl=4hours", "ttl=30d", "instance=M5.2XLARGE"])
        | st.sampled_from(["file_system_gib=99999", "file_system_gib=2400", "x y"]),
        max_size=4,
    ),
    st.from_regex(r"\A[A-Za-z0-9 _-]{0,30}\Z"),
)
def test_corrected_creation_is_accepted_and_never_more_than_typed(words, name):
    text = " ".join(["cluster create", f"'{name}'" if name else "", *(f"'{w}'" for w in words)])
    try:
        parse_command(text.replace("'x y'", "x"))
    except UserError as error:
        if error.suggestion is None:
            return
        made = parse_command(error.suggestion.removeprefix("/train "))
        if isinstance(made, CreateCluster):
            typed = dict(word.partition("=")[::2] for word in words if "=" in word)
            assert made.spec.nodes <= int(typed.get("nodes", 2))
            assert made.ttl_s <= max(8 * HOUR, LONGEST_S if "ttl" in typed else 0)


@pytest.mark.parametrize(
    ("error", "text"),
    [(BadCommand, "tiny-llama keep=x"), (BadParameter, "cluster create a foo=1")],
)
def test_refusals_are_errors_that_a_person_can_correct(error, text):
    assert type(refused(text)) is error


def test_request_on_a_cluster_that_is_made_fitting_keeps_its_place():
    start = parse("tiny-llama on=team-a keep=2h")
    plan = start.plan.model_copy(update={"suggestion": "micro_batch_size=1"})

    fitting = replace(start, plan=plan).fitting_words

    assert fitting == "tiny-llama on=team-a keep=2h micro_batch_size=1"


def test_own_cluster_of_a_run_is_not_kept():
    assert not make_cluster().is_kept
