"""Keys of a start: read, explained in the plan, typed again, and refused with what works.

Keys with many rules of their own have a module of tests beside this one.
"""

from __future__ import annotations

import shlex

import pytest

from stationmaster.domain.cluster.spec import Reservation
from stationmaster.domain.commands.grammar import parse_request
from stationmaster.domain.errors import NotPossibleNow, UserError
from stationmaster.domain.keys.backup_every import USUAL_S
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.keys.names import START_KEYS, key_names
from stationmaster.domain.keys.push_to import refuse_push
from stationmaster.domain.keys.questions import FoundReservation
from stationmaster.domain.keys.registry import Options
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run.request import TrainingRequest
from tests.support.factories import make_request
from tests.support.typed import FILE_SYSTEM, REGISTRY, RUN, parse, refused, saved, start_of

RESERVATION = "cr-0123456789abcdef0"
FOUND = FoundReservation(
    reservation=Reservation(reservation_id=RESERVATION, zone="us-west-2b"),
    instance_type="m5.2xlarge",
    available=4,
    total=8,
)
GUEST = f"cluster=eks:theirs file_system={FILE_SYSTEM}"
WORDS = (
    "nodes=1 instance=m5.2xlarge",
    "nodes=1:2 preset=smoke",
    f"instance=m5.2xlarge capacity=odcr:{RESERVATION}",
    "capacity=spot keep=2h validate=full track=mlflow:https://h.io:5000/x",
    "on=team-a alone=true queue=night priority_class=high host_network=true nccl_debug=INFO",
    GUEST,
    "cluster=eks:theirs storage=pvc:ml/data",
    "file_system=4800 file_system_type=scratch-200",
    f"resume_from={RUN}@60 backup_every=45m schedule=constant steps=80",
    "backup_every=never push_to=lab-a/tiny.Llama_1 restarts=0 name=books-v3 track=wandb:lab/llama",
    f"image={REGISTRY}/trainer:1.0 command=\"torchrun 'a b' '$(X)'\" dataset='two words'",
    "command=true directory=/w attempts=7 budget=12.50 processes_per_node=1",
    "instance=p4d.24xlarge efa=off",
    "processes_per_node=2 cpus=4",
)


@pytest.mark.parametrize("words", WORDS)
def test_every_key_is_written_as_it_was_typed(words: str) -> None:
    recipe = "llama2-7b" if "preset" in words or "efa" in words else "tiny-llama"

    start = start_of(f"{recipe} {words}", find_reservation=lambda _id: FOUND)

    assert sorted(shlex.split(start.words)) == sorted(shlex.split(f"{recipe} {words}"))
    assert start_of(start.words, find_reservation=lambda _id: FOUND) == start


def test_no_key_is_left_out_above() -> None:
    # What only a machine of one's own has is in test_own_code.py.
    assert {key for key in START_KEYS if f"{key}=" not in " ".join(WORDS)} == {"venv"}
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


@pytest.mark.parametrize(
    ("words", "options", "notes"),
    [
        ("restarts=0", {"restarts": 0}, ["restarts=0: a job that has failed is not started again"]),
        (
            "budget=$0.01",
            {"budget_usd": 0.01},
            ["budget=$0.01: the run is stopped and saved once it has cost that, and about $0."],
        ),
        ("budget='1,200 USD'", {"budget_usd": 1200.0}, ["budget=$1,200.00: the run is stopped"]),
        ("attempts=5", {"attempts": 5}, ["attempts=5: tried 5 times at most"]),
        ("restarts=3", {"restarts": 3}, ["has failed is started again, 3 times at most, whatever"]),
        ("validate=full", {"is_full": True}, ["validate=full: every check runs before it trains"]),
        ("validate=quick", {"is_full": False}, []),
        ("push_to=lab-a/b", {"push_to": "lab-a/b"}, ["push_to=lab-a/b: after it succeeded, its"]),
        ("backup_every=10m", {"backup_every_s": 600}, ["backup_every=10m: while it trains"]),
        ("backup_every=6h", {"backup_every_s": USUAL_S}, []),
        ("backup_every=7d", {"backup_every_s": 7 * 86_400}, ["backup_every=7d: "]),
        ("backup_every=never", {"backup_every_s": None}, ["backup_every=never: nothing is saved"]),
        ("host_network=false", {"job_options": JobOptions()}, []),
        (
            "on=team-a queue=night priority_class=high host_network=TRUE NCCL_DEBUG=info",
            {
                "job_options": JobOptions(
                    queue="night", priority_class="high", host_network=True, nccl_debug="INFO"
                )
            },
            [
                "queue=night: the job waits, suspended",
                "priority_class=high: its pods may evict",
                "reach the nodes' AWS credentials",
                "nccl_debug=INFO: NCCL writes all",
            ],
        ),
    ],
)
def test_key_is_read_and_explained_unless_it_is_the_usual(words, options, notes) -> None:
    start = start_of(f"tiny-llama {words}")

    assert {name: getattr(start.options, name) for name in options} == options
    assert all(any(note in warning for warning in start.plan.warnings) for note in notes)
    if not notes:
        assert start == start_of("tiny-llama")
        assert start.words == "tiny-llama"
        assert start.plan.warnings == start_of("tiny-llama").plan.warnings


def test_key_without_its_cluster_is_planned_on_the_command_line_and_resumed() -> None:
    assert parse_request(["tiny-llama", "queue=night"]).options.job_options.queue == "night"
    assert saved(restarts=2).words["restarts"] == "2"
    assert parse("cluster create a validate=full").options.is_full
    assert not parse("cluster create a").options.is_full


def test_nccl_tests_are_for_gpus_in_clusters_that_are_made() -> None:
    on_gpus = parse("llama2-7b nodes=2 validate=nccl")
    assert (on_gpus.options.measures_nccl, on_gpus.options.is_full) == (True, False)
    assert any("the MPI operator is installed" in each for each in on_gpus.plan.warnings)
    assert parse("cluster create a instance=p5.48xlarge validate=nccl").options.measures_nccl
    for words, said in (
        ("tiny-llama validate=nccl", "jobs there use 0; expected 2 or more"),
        ("cluster create a validate=nccl", "jobs there use 0; expected 2 or more"),
        (f"llama2-7b {GUEST} validate=nccl", "in an EKS cluster of others nothing is"),
        ("llama2-7b on=team-a validate=nccl", "type /train validate team-a nccl before the run"),
    ):
        with pytest.raises(UserError, match=said):
            parse(words)


NUMBER = "expected a whole number from 0 to 20"
DURATION = "expected a duration from 10m to 7d"


@pytest.mark.parametrize(
    ("words", "said", "suggestion"),
    [
        *((f"restarts={value}", NUMBER, "plan ") for value in ("-1", "21", "x", "1.5", "\u0663")),
        *(
            (f"budget={usd}", "expected dollars from", "plan ")
            for usd in ("0", "-5", "x", "1e9", "1k")
        ),
        ("attempts=0", "expected a whole number from 1 to 20", "plan "),
        ("attempts=2 restarts=1", "are not accepted together", "plan attempts=2"),
        *(
            (f"push_to={name}", "expected ORG/NAME", "plan ")
            for name in ("tiny", "/tiny", "lab/", "lab/a/b", "lab/..", "-lab/a", "lab/a?b")
        ),
        *(
            (f"track={place}", "expected tensorboard, wandb:PROJECT or wandb:TEAM", "plan ")
            for place in ("wandb", "wandb:", "wandb:a/b/c", "mlflow:ftp://h", "trackio:lab", "x:y")
        ),
        ("command=true track=wandb:lab", "another program reports its own", "plan command=true"),
        *(
            (f"name={n}", "letters, digits, dots", "plan ")
            for n in ("-a", "'a b'", "x" * 41, "\u00e9")
        ),
        ("backup_every=5m", DURATION, "plan backup_every=10m"),
        ("backup_every=30d", DURATION, "plan backup_every=7d"),
        ("backup_every=off", DURATION, "plan backup_every=never"),
        ("backup_every=often", DURATION, "plan backup_every=6h"),
        ("backup_every=2Hours", DURATION, "backup_every=2h"),
        ("validate=ful", "expected quick for", "validate=full"),
        ("validate=2", "expected quick for", "plan "),
        ("on=team-a validate=full", "type /train validate team-a before the run", "plan on=team-a"),
        ("queue=night", "queue=night needs on=CLUSTER or cluster=eks:NAME", "plan "),
        ("priority_class=high", "for the run has no such class", "plan "),
        ("on=team-a queue=N_1", "expected the name of a queue of Kueue", "plan on=team-a"),
        ("on=team-a queue=-a", "a letter or digit first", "plan on=team-a"),
        ("host_network=yes", "expected true or false", "plan "),
        ("nccl_debug=trace", "expected WARN or INFO", "plan "),
        ("hostNetwork=true", "did you mean host_network", "host_network=true"),
        ("on=team-a queue_name=a", "did you mean queue", "on=team-a queue=a"),
        ("on=team-a priorityClass=x", "did you mean priority_class", "on=team-a priority_class=x"),
        (
            f"host_network=true image={REGISTRY}/x:1",
            "host_network=true and image= do not go together",
            "plan host_network=true",
        ),
        ("command=true host_network=true", "fetch the node's AWS credentials", "plan command=true"),
        ("keep=2", "keep=2 is not accepted", "plan keep=2h"),
        ("keep=2H", "from 1s to 7d", "keep=2h"),
        ("keep=90min", "keep=90min", "keep=90m"),
        ("keep=30d", "keep=30d", "plan keep=7d"),
    ],
)
def test_other_values_are_refused_with_a_command_that_works(words, said, suggestion) -> None:
    error = refused(f"tiny-llama {words}")

    verb = "plan " if suggestion.startswith("plan ") else ""
    assert said in str(error)
    kept = suggestion.removeprefix("plan ")
    assert error.suggestion == f"/train {verb}tiny-llama {kept}".rstrip()
    assert parse(error.suggestion.removeprefix("/train "))


@pytest.mark.parametrize(
    ("organisations", "words"),
    [
        ((), 'pushes no models to the Hugging Face hub yet; add "lab-a" to push_organisations'),
        (("lab", "team"), 'pushes models to lab, team only; add "lab-a" to push_organisations'),
    ],
)
def test_owner_that_is_not_allowed_is_refused_with_the_field_to_set(organisations, words) -> None:
    with pytest.raises(NotPossibleNow) as caught:
        refuse_push("lab-a/b", organisations=organisations, has_token=True)

    assert words in str(caught.value)


@pytest.mark.parametrize("organisations", [("lab-a",), ("*",)])
def test_owner_that_is_allowed_needs_a_token(organisations) -> None:
    assert refuse_push("lab-a/b", organisations=organisations, has_token=True) is None
    with pytest.raises(NotPossibleNow, match="has no token for the Hugging Face hub"):
        refuse_push("lab-a/b", organisations=organisations, has_token=False)
