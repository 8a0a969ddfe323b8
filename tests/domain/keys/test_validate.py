"""validate=: which checks a new cluster has to pass."""

from __future__ import annotations

import pytest

from tests.support.typed import parse, refused, start_of


def test_start_and_new_cluster_take_the_level_of_their_checks():
    full = start_of("tiny-llama validate=full steps=5")

    assert full.options.is_full
    assert full.words == "tiny-llama validate=full steps=5"
    assert "every check runs before it trains" in full.plan.warnings[0]
    assert not start_of("tiny-llama validate=quick").options.is_full
    assert parse("cluster create a validate=full").options.is_full
    assert not parse("cluster create a").options.is_full


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
