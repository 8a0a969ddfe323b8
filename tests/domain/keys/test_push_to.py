"""push_to= as it is typed, read, allowed, typed again and planned."""

from __future__ import annotations

import pytest

from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.keys.push_to import refuse_push
from tests.support.typed import refused, start_of

NAME = "lab-a/tiny.Llama_1"


def test_repository_is_read_typed_again_and_planned():
    start = start_of(f"tiny-llama push_to={NAME}")

    assert start.options.push_to == NAME
    assert start.words == f"tiny-llama push_to={NAME}"
    assert start.plan.warnings[0].startswith(f"push_to={NAME}: after it succeeded")


@pytest.mark.parametrize(
    "name", ["tiny", "/tiny", "lab/", "lab/a/b", "lab/..", "-lab/a", "lab/a?b"]
)
def test_other_names_are_refused_and_left_out_of_the_suggestion(name):
    error = refused(f"tiny-llama push_to={name}")

    assert "expected ORG/NAME" in str(error)
    assert error.suggestion == "/train plan tiny-llama"


@pytest.mark.parametrize(
    ("organisations", "words"),
    [
        ((), 'pushes no models to the Hugging Face hub yet; add "lab-a" to push_organisations'),
        (("lab", "team"), 'pushes models to lab, team only; add "lab-a" to push_organisations'),
    ],
)
def test_owner_that_is_not_allowed_is_refused_with_the_field_to_set(organisations, words):
    with pytest.raises(NotPossibleNow) as caught:
        refuse_push(NAME, organisations=organisations, has_token=True)

    assert words in str(caught.value)


@pytest.mark.parametrize("organisations", [("lab-a",), ("*",)])
def test_owner_that_is_allowed_needs_a_token(organisations):
    assert refuse_push(NAME, organisations=organisations, has_token=True) is None
    with pytest.raises(NotPossibleNow, match="has no token for the Hugging Face hub"):
        refuse_push(NAME, organisations=organisations, has_token=False)
