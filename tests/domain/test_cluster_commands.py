"""What a person types of kept clusters: the words of `cluster`."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster.spec import Reservation, Window
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.meanings import group_row_meant
from stationmaster.domain.commands.requests import (
    CreateCluster,
    DeleteCluster,
    ExtendCluster,
    ListClusters,
    ResizeCluster,
    ShowCluster,
    ValidateCluster,
)
from stationmaster.domain.commands.table import SUBCOMMANDS
from stationmaster.domain.durations import LONGEST_S
from stationmaster.domain.errors import (
    BadCommand,
    UserError,
)
from stationmaster.domain.keys.questions import FoundReservation
from tests.support.typed import parse, refused

HOUR = 3_600


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("cluster list", ListClusters()),
        ("cluster show team-a", ShowCluster("team-a")),
        ("cluster show team-a nodes", ShowCluster("team-a", nodes=True)),
        ("cluster extend team-a", ExtendCluster("team-a", 2 * HOUR)),
        ("cluster extend team-a 30m", ExtendCluster("team-a", 1800)),
        ("cluster resize team-a nodes=4", ResizeCluster("team-a", 4)),
        ("cluster delete team-a", DeleteCluster("team-a")),
        ("cluster delete team-a now", DeleteCluster("team-a", is_now=True)),
        ("validate team-a", ValidateCluster("team-a")),
        ("validate team-a NCCL", ValidateCluster("team-a", measures_nccl=True)),
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
    with pytest.raises(BadCommand, match="is paid for whether its nodes run or not"):
        created("nodes=4 idle=1h capacity=odcr:cr-0123456789abcdef0")


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
        ("cluster rm team-a", "did you mean /train cluster delete", "/train cluster delete team-a"),
        ("cluster list all", "takes nothing more", "/train cluster list"),
        ("cluster show", "needs the name of a cluster", "/train cluster list"),
        ("cluster show a b", "takes one cluster", "/train cluster show a"),
        ("cluster extend a 2hours", "from 1s to 7d", "/train cluster extend a 2h"),
        ("cluster extend a soon", "from 1s to 7d", "/train cluster show a"),
        ("cluster extend a 1h 2h", "takes one duration", "/train cluster show a"),
        ("cluster resize a", "takes nodes=N", "/train cluster show a"),
        ("cluster resize a nodes=0", "from 1 to 64", "/train cluster show a"),
        ("cluster resize a 4", "expected key=value", "/train cluster show a"),
        ("cluster scale a nodes=4", "/train cluster resize", "/train cluster resize a nodes=4"),
        ("validate", "needs the name of a cluster", "/train cluster list"),
        ("cluster create", "needs a name first", "/train cluster list"),
        ("cluster create Team_A nodes=4", "lower-case", "/train cluster create team-a nodes=4"),
        ("cluster create last", "means the newest one", None),
        ("cluster create " + "a" * 25, "1 to 24", None),
        ("cluster create a nodes=99", "from 1 to 64", "/train cluster create a nodes=64"),
        ("cluster create a ttl=4hours", "ttl=4hours", "/train cluster create a ttl=4h"),
        ("cluster create a keep=4h", "did you mean ttl", "/train cluster create a ttl=4h"),
        ("cluster create a budget=5", 'no key "budget"', None),
        ("cluster create a ttl=4h ttl=5h", "given twice", None),
        (
            "cluster create a file_system_gib=3000",
            "multiple of 2400",
            "/train cluster create a file_system_gib=2400",
        ),
        ("cluster create a file_system_gib=1000", "multiple of 2400", None),
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
    group = SUBCOMMANDS["cluster"]

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
