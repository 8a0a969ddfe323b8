"""Thousands of generated command lines: wrong ones give one sentence, and never a request."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stationmaster.commands.permitting import wish_of
from stationmaster.domain.approvals import Limits, approval_for
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.parameters import key_typed, split_words
from stationmaster.domain.commands.requests import StopRun
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.table import TYPED_SUBCOMMANDS
from stationmaster.domain.errors import UserError
from stationmaster.domain.keys.names import KEY_MEANINGS, START_KEYS, key_names
from stationmaster.domain.run.aggregate import start_run
from stationmaster.domain.run.events import RunPhase
from tests.support.factories import START, make_requested

RECIPES = ["tiny-llama", "llama2-7b", "resnet50", "mixtral-8x7b", "tiny-lama", "Llama2-7B"]
RIGHT = [
    *("nodes=2", "nodes=1:2", "steps=60", "seed=7", "keep=2h", "name=books-v3", "preset=smoke"),
    *("capacity=spot", "instance=p5.48xlarge", "instance=m5.2xlarge", "learning_rate=3e-4"),
    *("restarts=2", "budget=5", "file_system=1200", "validate=full", "--nodes=4", "precision=fp32"),
]
# None of them is a word of this grammar, wherever it stands after a recipe.
WRONG = [
    *("--nodes 4", "-n 2", "nodes=0", "nodes=-1", "nodes=\u0664", "steps=10k", "steps=1e9999"),
    *("spot=true", "H100:8", "gpus=8", "gpus=H100:0", "instance=p5", "budget=0", "foo=1", "=", "'"),
    *(
        "steps=",
        "=5",
        "a b",
        "learning_rate=nan",
        "keep=99y",
        "on=team-a",
        "dataset=s3://no/",
        "-f",
    ),
    *("resume_from=run-1", "file_system=fs-1", "cluster=eks:x", "capacity=odcr:cr-1", "image=x"),
]
KEYS = sorted(
    {
        *START_KEYS,
        *KEY_MEANINGS,
        "gpus",
        *(word for words in KEY_MEANINGS.values() for word in words),
    }
)
ANY_WORD = (
    st.sampled_from([*RIGHT, *WRONG])
    | st.builds(
        "{}={}".format, st.sampled_from(KEYS), st.text("0123456789kM.:-+x\u202e ", max_size=6)
    )
    | st.text(max_size=8)
)
FIRST = [
    *(row.example for row in TYPED_SUBCOMMANDS),
    *(word for row in TYPED_SUBCOMMANDS for word in row.meanings),
    *("kill all", "sbatch job.sh", "ssh", "clone last", "logs -f", "run tiny-llama"),
]
LINES = st.builds(
    lambda first, rest: " ".join([first, *rest]),
    st.sampled_from([*RECIPES, *(f"plan {each}" for each in RECIPES), *FIRST])
    | st.text(max_size=9),
    st.lists(ANY_WORD, max_size=5),
)
MOST = 400
LIMITS = st.builds(
    Limits,
    usd=st.sampled_from([0, 0.01, 10, 500, 1e6]),
    usd_per_hour=st.sampled_from([0, 0.5, 43.92, 100, 1e4]),
    gpus=st.sampled_from([0, 1, 8, 16, 512]),
    keep_hours=st.sampled_from([0, 0.5, 12, 200]),
    instance_types=st.sampled_from([(), ("p4d.24xlarge", "m5.2xlarge")]),
    iam_above_usd=st.sampled_from([0, 100]),
)


def answered(line):
    """What a line is read as, or the sentence and the suggestion that refuse it."""
    try:
        return parse_command(line)
    except UserError as error:
        return str(error), error.suggestion


def assert_asks_above(limits, start):
    """A start above a limit, by its plan and the catalogue alone, begins after an approval only."""
    plan = start.plan
    pairs = (
        (limits.usd, plan.estimated_cost_usd),
        (limits.usd_per_hour, plan.price_per_hour_usd),
        (limits.gpus, plan.nodes * INSTANCES[plan.instance_type].num_gpus),
        (limits.keep_hours, start.options.keep_s / 3600),
    )
    is_listed = plan.instance_type in limits.instance_types
    is_above = is_listed or any(0 < most < asked for most, asked in pairs)
    approval = approval_for(limits, wish_of(start), approvers=["U0LEAD"], now=START)
    asked = start.requested(command=start.words, team_id="T1", channel_id="C1", user_id="U1")
    run = start_run(make_requested(request=asked, approval=approval))
    assert run.awaits_approval is is_above
    assert (run.phase is RunPhase.AWAITING_APPROVAL) is is_above
    assert approval is None or approval.by_iam is (0 < limits.iam_above_usd < approval.wish.usd)


@pytest.mark.parametrize("count", [1_000, 48_000])
def test_generated_line_is_read_as_typed_or_refused_in_one_sentence(count):
    @settings(max_examples=count)
    @given(LINES, LIMITS)
    def check(line, limits):
        answer = answered(line)
        if isinstance(answer, StartRun):
            assert_asks_above(limits, answer)
            _, *words = split_words(line)
            keys = [key_typed(word.partition("=")[0]) for word in words]
            assert len(set(keys)) == len(keys)
            assert set(keys) <= set(key_names(answer.resolved))
            assert parse_command(answer.words) == answer
        if isinstance(answer, tuple):
            sentence, suggestion = answer
            assert 0 < len(sentence) < MOST
            pasted = parse_command((suggestion or "").removeprefix("/train "))
            # Nobody is offered to stop another run than the one that was typed.
            assert not isinstance(pasted, StopRun) or pasted.run_id in (None, *split_words(line))

    check()


@settings(max_examples=150)
@given(
    st.sampled_from([*CATALOGUE, "cluster create team-a"]),
    st.lists(st.sampled_from(RIGHT), max_size=3, unique=True),
    st.sampled_from(WRONG),
    st.data(),
)
def test_line_with_one_wrong_word_is_no_request(first, right, wrong, data):
    place = data.draw(st.integers(0, len(right)))

    answer = answered(" ".join([first, *right[:place], wrong, *right[place:]]))

    assert isinstance(answer, tuple)
