"""What a person types after /train: right words give commands, wrong ones give one sentence."""

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.commands.grammar import MAX_COMMAND_CHARACTERS, parse_command
from stationmaster.domain.commands.meanings import subcommand_meant
from stationmaster.domain.commands.requests import (
    ListRuns,
    ShowHelp,
    ShowLogs,
    ShowPlan,
    ShowRecipes,
    ShowStatus,
    StopRun,
)
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.table import (
    START,
    SUBCOMMANDS,
    TYPED_SUBCOMMANDS,
    Takes,
)
from stationmaster.domain.errors import (
    BadCommand,
    BadParameter,
    NotPossibleNow,
    UnknownInstance,
    UnknownRecipe,
    UserError,
)
from stationmaster.domain.keys.names import (
    CLUSTER_KEYS,
    KEY_MEANINGS,
    key_names,
    keys_of,
)
from stationmaster.domain.keys.registry import Options
from stationmaster.domain.planning.recipe_lookup import get_recipe
from tests.support.plans import make_plan
from tests.support.typed import finding, kept


def start(recipe, *, overrides=None, **options):
    """A start as it was typed, planned."""
    overrides = overrides or {}
    resolved = get_recipe(recipe).with_overrides(overrides)
    plan = make_plan(recipe, overrides=overrides, **options)
    return StartRun(recipe, Options(**options), overrides, resolved=resolved, plan=plan)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("", ShowHelp()),
        ("help", ShowHelp()),
        ("recipes", ShowRecipes()),
        ("list", ListRuns()),
        ("status", ShowStatus(None)),
        ("status tiny-llama-0a1b2c3d", ShowStatus("tiny-llama-0a1b2c3d")),
        ("logs", ShowLogs(None)),
        ("logs r worker-0 grep='out of'", ShowLogs("r", "worker-0", "out of")),
        ("logs worker-1", ShowLogs(None, "worker-1")),
        ("logs grep=a=b", ShowLogs(None, "", "a=b")),
        ("logs r since=10m", ShowLogs("r", since_s=600)),
        ("kill all", StopRun()),
        ("stop now", StopRun(is_now=True)),
        ("stop tiny-llama-0a1b2c3d NOW", StopRun("tiny-llama-0a1b2c3d", is_now=True)),
        ("stop tiny-llama-0a1b2c3d", StopRun("tiny-llama-0a1b2c3d")),
        ("tiny-llama", start("tiny-llama")),
        ("tiny-llama nodes=2 steps=60", start("tiny-llama", nodes=2, overrides={"steps": "60"})),
        (
            "llama2-7b instance=p5.48xlarge nodes=2",
            start("llama2-7b", nodes=2, instance_type="p5.48xlarge"),
        ),
        ("llama2-7b nodes=2:8", start("llama2-7b", nodes=8, min_nodes=2)),
        ("plan tiny-llama nodes=1:2", ShowPlan(start("tiny-llama", nodes=2, min_nodes=1))),
        ("tiny-llama nodes=2:2", start("tiny-llama", nodes=2)),
        ("tiny-llama --steps=7", start("tiny-llama", overrides={"steps": "7"})),
    ],
)
def test_parse_command_reads_what_was_typed(text, command):
    assert parse_command(text) == command


@pytest.mark.parametrize(
    "text",
    [
        "tiny-llama \u201cnodes=2\u201d",
        "tiny-llama\u00a0nodes=2",
        "tiny\u2212llama nodes=2",
        "tiny-llama \u2014nodes=2",
        "tiny-llama\u200b nodes=2",
        "\ufefftiny-llama nodes=2",
    ],
)
def test_parse_command_with_typographic_characters_undoes_them(text):
    assert parse_command(text) == start("tiny-llama", nodes=2)


def refused(text):
    """The error that a text is answered with."""
    with pytest.raises(UserError) as caught:
        parse_command(text)
    return caught.value


MISTAKES = {
    UnknownRecipe: [
        ("tinyllama nodes=2", "did you mean tiny-llama", "/train tiny-llama nodes=2"),
        ("\U0001f680", "\U0001f680", "/train recipes"),
    ],
    UnknownInstance: [
        ("tiny-llama instance=q9.large", "q9.large", None),
        (
            "llama2-7b instance=p5.48xlrge",
            "did you mean p5.48xlarge",
            "/train plan llama2-7b instance=p5.48xlarge",
        ),
    ],
    NotPossibleNow: [("hf:org/model", "cannot be looked up on the Hugging Face hub", None)],
    BadCommand: [
        ("tiny-llama nodes=0", "nodes=0", "/train plan tiny-llama nodes=2"),
        ("llama2-7b nodes=2-8", "range MIN:MAX", "/train llama2-7b nodes=2:8"),
        ("llama2-7b nodes=2\u20268", "nodes=2", "/train llama2-7b nodes=2:8"),
        ("llama2-7b nodes=8:2", "smaller first", "/train llama2-7b nodes=2:8"),
        ("llama2-7b nodes=:4", "nodes=:4", "/train llama2-7b nodes=1:4"),
        ("llama2-7b nodes=2:99", "from 1 to 64", "/train plan llama2-7b nodes=2"),
        ("llama2-7b nodes=1:2:4", "1:2:4", "/train plan llama2-7b nodes=2"),
        ("tiny-llama steps", "expected key=value", "/train plan tiny-llama steps=60"),
        ("tiny-llama steps=", "steps= has no value", "/train plan tiny-llama steps=60"),
        ("tiny-llama steps=1 steps=2", "given twice", "/train plan tiny-llama steps=1"),
        ("nodes=2", "the recipe comes first", "/train recipes"),
        (
            "nodes=2 tiny-llama steps=9",
            "the recipe comes first",
            "/train tiny-llama nodes=2 steps=9",
        ),
        (
            "llama2-7b preset=smoke nodes=16",
            "from 1 to 8",
            "/train plan llama2-7b preset=smoke nodes=2",
        ),
        (
            "llama2-7b --nodes 4 x=1",
            'write nodes=4 for "--nodes 4"',
            "/train plan llama2-7b nodes=4",
        ),
        ("llama2-7b --nodes 4", 'write nodes=4 for "--nodes 4"', "/train llama2-7b nodes=4"),
        ("llama2-7b -n 4 steps=9", 'for "-n 4"', "/train llama2-7b nodes=4 steps=9"),
        ("llama2-7b nodes = 4", 'for "nodes = 4"', "/train llama2-7b nodes=4"),
        ("llama2-7b spot=true", "write capacity=spot", "/train llama2-7b capacity=spot"),
        ("llama2-7b --spot", "write capacity=spot", "/train llama2-7b capacity=spot"),
        (
            "llama2-7b H100:16 --steps 10k",
            "there is p5.4xlarge (1 GPU), p5.48xlarge (8 GPUs)",
            "/train plan llama2-7b nodes=2 instance=p5.48xlarge steps=10000",
        ),
        ("llama2-7b gpus=8", "gpus=8", "/train plan llama2-7b nodes=1 instance=p4d.24xlarge"),
        ("resnet50 gpus=8", "gpus=8", "/train plan resnet50 nodes=2 instance=g5.12xlarge"),
        (
            "llama2-7b instance=p5.4xlarge gpus=8",
            "write nodes=8",
            "/train plan llama2-7b instance=p5.4xlarge nodes=8",
        ),
        ("llama2-7b --nodes=2 gpus=16", "write instance=p4d.24xlarge for", None),
        ("llama2-7b machine=p5", "p5.4xlarge", "/train plan llama2-7b instance=p5.4xlarge"),
        ("llama2-7b gpus=12", "no machines for", "/train plan llama2-7b"),
        ("llama2-7b gpus=8 nodes=4", "no machines for", "/train plan llama2-7b nodes=4"),
        ("llama2-7b instance=p6-b300", "p6-b300.48xlarge (8 GPUs)", None),
        ("llama2-7b instance=p5", "p5.4xlarge", "/train plan llama2-7b instance=p5.4xlarge"),
        ("cluster create a --nodes 4", "key=value", "/train cluster create a nodes=4"),
        ("logs r p q", "one of its pods, grep=TEXT and since=10m, got", "/train logs"),
        ("logs r grep=", "one of its pods, grep=TEXT and since=10m, got", "/train logs"),
        ("logs since=1m since=2m", "grep=TEXT and since=10m, got", "/train logs"),
        ("logs since=yesterday", "since=yesterday is not accepted: expected a duration", None),
        ("logs -f", 'no options, got "-f"', "/train logs"),
        ("tail -n 50 run-1", "did you mean /train logs", "/train logs run-1"),
        ("sbatch job.sh", "your own script is its command=", "/train recipes"),
        ("ssh run-1", "nobody logs in", "/train logs run-1"),
        ("list all", "takes nothing more", "/train list"),
        ("status a b", "takes one run id", "/train status a"),
        ("status 'a b' c", "takes one run id", "/train status 'a b'"),
        ("plan", "needs a recipe", "/train plan tiny-llama nodes=2"),
        ('tiny-llama "nodes=2', "a quote is opened and not closed", None),
        ("tiny-llama nodes=2\\", "a quote is opened and not closed", None),
        ("x" * 10_000, "the command has 10,000 characters; at most 2,000 are read", None),
    ],
    BadParameter: [
        ("llama2-7b nnodes=2:8", "mean nodes", "/train llama2-7b nodes=2:8"),
        ("tiny-llama stpes=9", "did you mean steps", "/train tiny-llama steps=9"),
        ("tiny-llama steps=10k", "whole number", "/train tiny-llama steps=10000"),
        ("tiny-llama steps=1.5M", "whole number", "/train tiny-llama steps=1500000"),
        ("tiny-llama steps=1.0005k", "whole number", "/train plan tiny-llama steps=60"),
        ("tiny-llama sequence_length=1k", "whole number", "/train tiny-llama sequence_length=1024"),
        ("tiny-llama batch=8", "are micro_batch_size, global_batch_size and beta1", None),
        ("tiny-llama steps=0", "expected 1 or more", "/train plan tiny-llama steps=60"),
        ("tiny-llama nodes=3", "does not divide over 3", "/train plan tiny-llama nodes=2"),
        ("tiny-llama learning_rate=nan", "expected a number", None),
        ("tiny-llama PRECISION=BF16", "BF16", "/train tiny-llama precision=bf16"),
        ("llama2-7b instance=m5.2xlarge", "has no GPU", None),
        ("llama2-7b instance=trn1.32xlarge", "Trainium", None),
        (
            "llama2-7b nodes=2 preset=smok",
            "expected smoke",
            "/train llama2-7b preset=smoke nodes=2",
        ),
        (
            "llama2-7b instance=g4dn.8xlarge",
            "lack bfloat16; add precision=fp32",
            "/train plan llama2-7b instance=p4d.24xlarge",
        ),
    ],
}


@pytest.mark.parametrize(
    ("error", "text", "words", "suggestion"),
    [(error, *row) for error, rows in MISTAKES.items() for row in rows],
)
def test_mistake_is_named_in_a_sentence_with_a_command_that_works(error, text, words, suggestion):
    caught = refused(text)

    assert type(caught) is error
    assert words in str(caught)
    assert len(str(caught)) < 400
    if suggestion is not None:
        assert caught.suggestion == suggestion


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("stats", "/train status"),
        ("st", "/train status"),
        ("ls", "/train list"),
        ("ps -a", "/train list"),
        ("--help", "/train help"),
        ("?", "/train help"),
        ("cancel run-1", "/train stop run-1"),
        ("paln llama2-7b nodes=2", "/train plan llama2-7b nodes=2"),
        ("paln lama2-7b nodes=0", "/train plan llama2-7b nodes=2"),
        ("stats tiny-llama nodes=2", "/train status tiny-llama"),
        ("run", "/train recipes"),
        ("run tiny-llama nodes=0", "/train plan tiny-llama nodes=2"),
        ("run stats", "/train recipes"),
        ("/train status", "/train status"),
    ],
)
def test_word_like_a_subcommand_suggests_one_of_the_same_meaning(text, suggestion):
    error = refused(text)

    assert type(error) is BadCommand
    assert f'"{text.split()[0]}" is not a command' in str(error)
    assert error.suggestion == suggestion


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("llama2-7B nodes=2", "/train llama2-7b nodes=2"),
        ("llama27b", "/train llama2-7b"),
        ("resnet-50 steps=5", "/train resnet50 steps=5"),
        # One digit, or one word more, is another model at another price.
        ("llama2-8b nodes=2", "/train plan llama2-7b nodes=2"),
        ("resnet", "/train plan resnet50"),
        ("llama2", "/train recipes"),
        ("foo tiny-llama", "/train recipes"),
    ],
)
def test_name_like_a_recipe_suggests_a_start_only_beyond_doubt(text, suggestion):
    error = refused(text)

    assert type(error) is UnknownRecipe
    assert error.suggestion == suggestion


def test_suggestion_that_leaves_words_out_is_a_plan():
    training = CATALOGUE["tiny-llama"].training.model_dump()
    words = " ".join(f"{key}={value}" for key, value in [*training.items()][:21])

    suggestion = refused(f"tiny-lama {words}").suggestion

    assert suggestion.startswith("/train plan tiny-llama steps=60 ")
    assert suggestion.count("=") == 20


def test_start_words_without_end_are_refused():
    assert refused("run " * 400).suggestion == "/train recipes"


@pytest.mark.parametrize("row", [START, *TYPED_SUBCOMMANDS], ids=lambda row: row.name)
def test_example_of_each_subcommand_is_read_as_that_subcommand(row):
    asked = []

    def find_saved(label):
        asked.append(label)
        raise NotPossibleNow("nothing is saved")

    if row.takes in (Takes.RESUMPTION, Takes.REPETITION):  # other tests have what follows
        with pytest.raises(NotPossibleNow, match="nothing is saved"):
            parse_command(row.example, find_saved=find_saved, find_asked=find_saved)
        assert asked == ["last"]
        return
    read = parse_command(row.example, find_cluster=finding(kept()))

    assert type(read) is (StartRun if row is START else row.make)


@pytest.mark.parametrize("row", [START, *SUBCOMMANDS.values()], ids=lambda r: r.name)
def test_each_synonym_stands_for_its_own_subcommand(row):
    assert [subcommand_meant(word) for word in row.meanings] == [row] * len(row.meanings)


def test_keys_are_named_and_explained_once():
    for recipe in CATALOGUE.values():
        keys = keys_of(recipe)
        assert [key.name for key in keys if not key.help] == []
        assert len({key.name for key in keys}) == len(keys)
    known = {name for recipe in CATALOGUE.values() for name in key_names(recipe)}
    known |= set(CLUSTER_KEYS)
    assert set(KEY_MEANINGS) <= known


def test_offered_values_of_a_training_key_are_accepted():
    for recipe in CATALOGUE.values():
        fields = type(recipe.training).model_fields
        offered = {key.name: key.choices for key in keys_of(recipe) if key.name in fields}
        for name, values in offered.items():
            for value in values:
                recipe.training.model_validate(recipe.training.model_dump() | {name: value})
        assert offered["steps"] == ()
        if recipe.uses_own_trainer:
            assert offered["optimizer"] == ("adamw", "sgd")
            assert offered["compile"] == ("true", "false")


@pytest.mark.parametrize("word", ["img=x", "batch_size=3"])
def test_key_of_another_meaning_is_never_suggested(word):
    error = refused(f"tiny-llama {word}")

    assert "did you mean" not in str(error)
    assert error.suggestion == "/train plan tiny-llama"


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("lr=0.001", "learning_rate"),
        ("num_nodes=2", "nodes"),
        ("instance_type=m5.2xlarge", "instance"),
        ("warmup=5", "warmup_steps"),
        ("ttl=2h", "keep"),
        ("max-cost=5", "budget"),
    ],
)
def test_key_of_the_same_meaning_is_suggested_with_the_typed_value(word, key):
    error = refused(f"tiny-llama {word}")

    assert f"did you mean {key}" in str(error)
    assert error.suggestion == f"/train tiny-llama {key}={word.partition('=')[2]}"


EDITABLE = sorted(SUBCOMMANDS)


@given(st.sampled_from(EDITABLE), st.data())
def test_mistyped_subcommand_never_suggests_a_start(word, data):
    place = data.draw(st.integers(0, len(word)))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz-1") | st.just(""))
    mistyped = word[:place] + letter + word[place + data.draw(st.integers(0, 1)) :]
    try:
        answer = parse_command(mistyped)
    except UserError as error:
        if error.suggestion is None:
            return
        answer = parse_command(error.suggestion.removeprefix("/train "))
    assert not isinstance(answer, StartRun)


@given(st.text(max_size=MAX_COMMAND_CHARACTERS + 50))
def test_parse_command_with_any_text_answers_or_raises_one_short_sentence(text):
    answer = None
    try:
        parse_command(text)
    except UserError as error:
        answer = str(error)
    assert answer is None or 0 < len(answer) < 400


@given(
    st.sampled_from(["tiny-llama", "tinyllama", "llama2-7b", "lama27b", "zzz", "run", "plan", "ps"])
    | st.text(max_size=12),
    st.lists(
        st.from_regex(r"\A[a-z_]{1,20}=[ -~]{0,12}\Z")
        | st.sampled_from(["steps=5", "nodes=1", "step=7", "budget=5", "nodes=0", "preset=smok"])
        | st.sampled_from(["instance=P5.48xlarge", "lr=1e-3", "tiny-llama", "a b"]),
        max_size=5,
    ),
)
def test_suggestion_when_pasted_is_accepted_and_starts_only_what_was_typed(first, rest):
    words = [first, *rest]
    try:
        parse_command(shlex.join(words))
    except UserError as error:
        if error.suggestion is None:
            return
        pasted = parse_command(error.suggestion.removeprefix("/train "))
        if isinstance(pasted, StartRun):
            respelled = [word.replace("=smok", "=smoke") for word in words]
            typed = [word.partition("=")[2].lower() for word in respelled if "=" in word]
            values = [
                *pasted.overrides.values(),
                pasted.options.instance_type,
                pasted.options.nodes,
            ]
            started = [str(value).lower() for value in values if value is not None]
            assert sorted(typed) == sorted(started)


def test_request_made_fitting_keeps_the_rest():
    request = start("llama2-70b", nodes=2, overrides={"steps": "10", "cpu_offload": "false"})
    suggestion = "nodes=4 instance=p4de.24xlarge cpu_offload=true"
    plan = request.plan.model_copy(update={"suggestion": suggestion})

    fitting = replace(request, plan=plan).fitting_words

    assert fitting == "llama2-70b nodes=4 instance=p4de.24xlarge steps=10 cpu_offload=true"
