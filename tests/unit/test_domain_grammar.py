"""What a person types after /train: right words give commands, wrong ones give one sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.errors import (
    BadCommand,
    BadParameter,
    NotAvailable,
    NotPossibleNow,
    UnknownInstance,
    UnknownRecipe,
    UserError,
)
from stationmaster.domain.grammar import (
    MAX_COMMAND_CHARACTERS,
    NOT_YET,
    ListRuns,
    ShowHelp,
    ShowLogs,
    ShowPlan,
    ShowRecipes,
    ShowStatus,
    StartRun,
    StopRun,
    parse_command,
)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("", ShowHelp()),
        ("help", ShowHelp()),
        ("HELP", ShowHelp()),
        ("recipes", ShowRecipes()),
        ("list", ListRuns()),
        ("status", ShowStatus(None)),
        ("status tiny-llama-0a1b2c3d", ShowStatus("tiny-llama-0a1b2c3d")),
        ("logs", ShowLogs(None)),
        ("stop tiny-llama-0a1b2c3d", StopRun("tiny-llama-0a1b2c3d")),
        ("tiny-llama", StartRun("tiny-llama")),
        (
            "tiny-llama nodes=2 steps=60",
            StartRun("tiny-llama", nodes=2, overrides={"steps": "60"}),
        ),
        (
            "llama2-7b instance=p5.48xlarge nodes=2",
            StartRun("llama2-7b", nodes=2, instance_type="p5.48xlarge"),
        ),
        ("plan llama2-7b nodes=4", ShowPlan(StartRun("llama2-7b", nodes=4))),
        ("tiny-llama --steps=7", StartRun("tiny-llama", overrides={"steps": "7"})),
    ],
)
def test_parse_command_reads_what_was_typed(text, command):
    assert parse_command(text) == command


@pytest.mark.parametrize(
    "text",
    [
        "tiny-llama \u201cnodes=2\u201d",
        "tiny-llama \u2018nodes=2\u2019",
        "tiny-llama nodes=2",
        "tiny\u2011llama nodes=2",
        "tiny\u2013llama nodes=2",
        "\ufefftiny-llama nodes=2",
    ],
)
def test_parse_command_with_typographic_characters_undoes_them(text):
    assert parse_command(text) == StartRun("tiny-llama", nodes=2)


@pytest.mark.parametrize(
    ("text", "error", "words", "suggestion"),
    [
        (
            "tinyllama nodes=2",
            UnknownRecipe,
            "did you mean tiny-llama",
            "/train tiny-llama nodes=2",
        ),
        ("tiny-llama nodes=0", BadCommand, "nodes=0", "/train tiny-llama nodes=2"),
        ("tiny-llama nodes=two", BadCommand, "nodes=two", "/train tiny-llama nodes=2"),
        ("tiny-llama nodes=-1", BadCommand, "nodes=-1", "/train tiny-llama nodes=2"),
        ("tiny-llama nodes=2.5", BadCommand, "nodes=2.5", "/train tiny-llama nodes=2"),
        ("tiny-llama stpes=9", BadParameter, "did you mean steps", "/train tiny-llama steps=9"),
        ("tiny-llama steps=0", BadParameter, "expected 1 or more", "/train tiny-llama steps=60"),
        ("tiny-llama steps", BadCommand, "expected key=value", "/train tiny-llama steps=60"),
        ("tiny-llama steps=", BadCommand, "steps= has no value", "/train tiny-llama steps=60"),
        ("tiny-llama steps=1 steps=2", BadCommand, "given twice", "/train tiny-llama steps=1"),
        ("tiny-llama nodes=3", BadParameter, "does not divide over 3", "/train tiny-llama nodes=2"),
        ("tiny-llama learning_rate=nan", BadParameter, "expected a number", None),
        ("tiny-llama instance=q9.large", UnknownInstance, "q9.large", None),
        ("llama2-7b instance=m5.2xlarge", BadParameter, "has no GPU", None),
        ("llama2-7b instance=trn1.32xlarge", BadParameter, "Trainium", None),
        ("nodes=2", BadCommand, "the recipe comes first", None),
        (
            "llama2-7b preset=smoke nodes=16",
            BadCommand,
            "from 1 to 8",
            "/train llama2-7b preset=smoke nodes=2",
        ),
        (
            "llama2-7b nodes=2 preset=smok",
            BadParameter,
            "expected smoke",
            "/train llama2-7b preset=smoke nodes=2",
        ),
        ("llama2-7b nodes=99", BadCommand, "from 1 to 64", "/train llama2-7b nodes=2"),
        (
            "llama2-7b instance=g4dn.8xlarge",
            BadParameter,
            "lack bfloat16; add precision=fp32",
            "/train llama2-7b instance=p4d.24xlarge",
        ),
        ("\U0001f680", UnknownRecipe, "\U0001f680", None),
        ("hf:org/model", NotPossibleNow, "cannot be looked up on the Hugging Face hub", None),
        ("list all", BadCommand, "takes nothing more", "/train list"),
        ("status a b", BadCommand, "takes one run id", "/train status a"),
        ("plan", BadCommand, "needs a recipe", "/train plan tiny-llama nodes=2"),
    ],
)
def test_parse_command_with_a_mistake_names_it_and_suggests_a_command(
    text, error, words, suggestion
):
    with pytest.raises(error) as caught:
        parse_command(text)

    assert words in str(caught.value)
    if suggestion is not None:
        assert caught.value.suggestion == suggestion


@pytest.mark.parametrize(
    "text", ['tiny-llama "nodes=2', "tiny-llama 'nodes=2", "tiny-llama nodes=2\\"]
)
def test_parse_command_with_an_open_quote_says_so(text):
    with pytest.raises(BadCommand, match="a quote is opened and not closed"):
        parse_command(text)


def test_parse_command_with_10000_characters_is_refused_without_repeating_them():
    with pytest.raises(BadCommand) as caught:
        parse_command("x" * 10_000)

    assert "10,000 characters" in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("word", NOT_YET)
def test_parse_command_with_a_later_subcommand_says_it_is_not_available(word):
    with pytest.raises(NotAvailable, match=f"/train {word} is not available"):
        parse_command(f"{word} something")


@given(st.text(max_size=MAX_COMMAND_CHARACTERS + 50))
def test_parse_command_with_any_text_answers_or_raises_one_short_sentence(text):
    answer = None
    try:
        parse_command(text)
    except UserError as error:
        answer = str(error)
    assert answer is None or 0 < len(answer) < 400


@given(
    st.sampled_from(["tiny-llama", "tinyllama", "llama2-7b", "lama27b", "zzz"]),
    st.lists(
        st.from_regex(r"\A[a-z_]{1,20}=[ -~]{0,12}\Z") | st.sampled_from(["steps=5", "nodes=1"]),
        max_size=5,
    ),
)
def test_suggestion_when_pasted_is_accepted(recipe, pairs):
    text = " ".join([recipe, *(pair.replace('"', "").replace("'", "") for pair in pairs)])
    try:
        parse_command(text)
    except UserError as error:
        if error.suggestion is not None:
            parse_command(error.suggestion.removeprefix("/train "))


def test_request_is_written_as_it_could_be_typed():
    text = "llama2-7b nodes=4 instance=p5.48xlarge steps=10 preset=smoke"
    start = StartRun(
        "llama2-7b",
        nodes=4,
        instance_type="p5.48xlarge",
        overrides={"steps": "10", "preset": "smoke"},
    )

    assert start.words == text
    assert StartRun("tiny-llama").words == "tiny-llama"


def test_request_changed_by_a_suggestion_keeps_the_rest():
    start = StartRun("llama2-70b", nodes=2, overrides={"steps": "10", "cpu_offload": "false"})

    changed = start.changed("nodes=4 instance=p4de.24xlarge cpu_offload=true")

    assert changed.words == "llama2-70b nodes=4 instance=p4de.24xlarge steps=10 cpu_offload=true"
    assert start.nodes == 2
