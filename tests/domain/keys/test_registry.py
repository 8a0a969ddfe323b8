"""All keys together: each is written as it was typed, and stored requests keep what they were."""

from __future__ import annotations

import shlex

import pytest

from stationmaster.domain.cluster.spec import Reservation
from stationmaster.domain.keys.names import START_KEYS, key_names
from stationmaster.domain.keys.questions import FoundReservation
from stationmaster.domain.keys.registry import Options
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run.request import TrainingRequest
from tests.support.factories import make_request
from tests.support.typed import FILE_SYSTEM, REGISTRY, RUN, start_of

RESERVATION = "cr-0123456789abcdef0"
FOUND = FoundReservation(
    reservation=Reservation(reservation_id=RESERVATION, zone="us-west-2b"),
    instance_type="m5.2xlarge",
    available=4,
    total=8,
)
WORDS = (
    "nodes=1 instance=m5.2xlarge",
    "nodes=1:2 preset=smoke",
    f"instance=m5.2xlarge capacity=odcr:{RESERVATION}",
    "capacity=spot keep=2h validate=full",
    "on=team-a queue=night priority_class=high host_network=true nccl_debug=INFO",
    f"cluster=eks:theirs file_system={FILE_SYSTEM}",
    "file_system=4800 file_system_type=scratch-200",
    f"resume_from={RUN}@60 backup_every=45m schedule=constant steps=80",
    "backup_every=never push_to=lab-a/tiny.Llama_1 restarts=0",
    f"image={REGISTRY}/trainer:1.0 command=\"torchrun 'a b' '$(X)'\" dataset='two words'",
)


@pytest.mark.parametrize("words", WORDS)
def test_every_key_is_written_as_it_was_typed(words: str) -> None:
    recipe = "llama2-7b" if "preset" in words else "tiny-llama"

    start = start_of(f"{recipe} {words}", find_reservation=lambda _id: FOUND)

    assert sorted(shlex.split(start.words)) == sorted(shlex.split(f"{recipe} {words}"))
    assert start_of(start.words, find_reservation=lambda _id: FOUND) == start


def test_no_key_is_left_out_above() -> None:
    assert all(f"{key}=" in " ".join(WORDS) for key in START_KEYS)
    assert set(START_KEYS) <= set(key_names(get_recipe("tiny-llama")))


def test_stored_request_has_all_options_flat_and_is_read_without_any() -> None:
    stored = make_request().model_dump(mode="json")
    required = {"recipe", "nodes", "instance_type", "command", "team_id", "channel_id", "user_id"}
    before = {key: stored[key] for key in required}

    assert set(Options.model_fields) - set(stored) == {"on"}
    assert dict(Options.model_validate(before)) == dict(Options()) | {
        key: before[key] for key in ("nodes", "instance_type")
    }
    assert TrainingRequest.model_validate(before).resolved == get_recipe(before["recipe"])
