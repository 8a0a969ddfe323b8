"""Anything that runs and clusters may say, and what Slack takes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime
from run_blocks import RUN_ID, START

from stationmaster.domain.cluster.aggregate import Check
from stationmaster.domain.cluster.nodes import SeenNode
from stationmaster.domain.cluster.resources import Resource, ResourceStatus
from stationmaster.domain.progress_lines import Sample
from stationmaster.domain.resources import ResourceKind
from stationmaster.local.slack.blocks import check_blocks, total_text
from tests.support.slack_models import refused_by_models

# Everything that a reader or Slack would follow: directions, no width, NUL, mentions, formats.
HOSTILE = (
    "\u202eevil\u2066 \u200b\ufeff\x00<!channel> <@U0EVIL> <http://evil|x> *evil* _evil_ ~evil"
)
FOLLOWED = re.compile(
    "[\x00-\x09\x0b-\x1f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]|<!ch|<@U0EV|<http|([*_~])evil\\1"
)
CODE = re.compile("```.*?```|`[^`\n]*`", re.DOTALL)
# Hard to show: hostile, back quotes, very long, no spaces.
HARD = [HOSTILE, f"`{HOSTILE}`", "`" * 30, "&" * 900, "a" * 100_000, "", " \n\t ", "x\n" * 400]
TEXT = st.text(max_size=40) | st.integers(0, len(HARD) - 1).map(lambda number: HARD[number])
AMOUNT = st.floats(min_value=0, max_value=1e12, allow_nan=False)
MOMENT = st.integers(0, 10**7).map(lambda seconds: START + timedelta(seconds=seconds))
RESOURCES = st.lists(
    st.builds(
        Resource,
        kind=st.sampled_from(list(ResourceKind)),
        name=TEXT,
        status=st.sampled_from(list(ResourceStatus)),
        price_per_hour_usd=AMOUNT,
        requested_at=MOMENT,
        active_at=st.none() | MOMENT,
        deleted_at=st.none() | MOMENT,
    ),
    max_size=40,
).map(lambda made: {f"{index}": resource for index, resource in enumerate(made)})
CHECKS = st.lists(st.builds(Check, name=TEXT, passed=st.booleans(), detail=TEXT), max_size=40)
SLOW = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


VALUES: dict[Any, st.SearchStrategy] = {
    str: TEXT,
    bool: st.booleans(),
    int: st.integers(1, 2**53 - 1),
    float: AMOUNT,
    datetime: MOMENT,
    AwareDatetime: MOMENT,
    type(None): st.none(),
    Sample: st.builds(Sample, prompt=TEXT, text=TEXT),
}


def any_event(events: Any) -> st.SearchStrategy:
    """Any event of a union, but for the kinds that carry a whole request."""
    kinds = get_args(get_args(events)[0])
    fields = {kind: {n: _values(n, f) for n, f in kind.model_fields.items()} for kind in kinds}
    return st.one_of(
        st.builds(kind, **{name: values for name, values in known.items() if values is not None})
        for kind, known in fields.items()
        if not any(known[n] is None for n, f in kind.model_fields.items() if f.is_required())
    )


def _values(name: str, field: Any) -> st.SearchStrategy | None:
    if name in ("run_id", "cluster_id"):
        return st.just(RUN_ID)
    if name == "event_id":
        return st.text(max_size=8)
    return _of(field.annotation)


def _of(hint: Any) -> st.SearchStrategy | None:
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        return _of(arguments[0])
    if get_origin(hint) is Literal or (isinstance(hint, type) and issubclass(hint, Enum)):
        return st.sampled_from(arguments or [*hint])
    if get_origin(hint) is tuple and Ellipsis not in arguments:
        return st.tuples(*map(_of, arguments))
    if get_origin(hint) is tuple:
        return st.lists(_of(arguments[0]), max_size=9).map(tuple)
    if get_origin(hint) is UnionType:
        inner = [_of(each) for each in arguments]
        return None if None in inner else st.one_of(inner)
    if isinstance(hint, type) and issubclass(hint, SeenNode):
        return st.builds(hint, **{name: _of(f.annotation) for name, f in hint.model_fields.items()})
    return VALUES.get(getattr(hint, "__supertype__", hint))


def shown(value: Any) -> Iterator[str]:
    """Each text of blocks that somebody reads; in mrkdwn, no address becomes a link."""
    if isinstance(value, dict):
        assert value.get("type") != "mrkdwn" or value["verbatim"]
        is_plain = value.get("type") in (
            "plain_text",
            "raw_text",
            "text",
        )  # of which Slack makes nothing
        texts = (value[key] for key in ("text", "alt_text", "title") if key in value)
        yield from (re.sub("[<*_~]", "", t) if is_plain else t for t in texts if isinstance(t, str))
        value = value.values()
    for inner in value:
        if isinstance(inner, dict | list):
            yield from shown(inner)


def assert_slack_takes(content: Any) -> None:
    for blocks in (content.blocks, content.in_text().blocks):
        assert check_blocks(blocks) == []
        assert refused_by_models(blocks) == []
        assert total_text(blocks) <= 13_200
    assert 0 < len(content.text) <= 3_000
    for text in (content.text, *shown(content.blocks), *shown(content.in_text().blocks)):
        assert not FOLLOWED.search(CODE.sub("", text)), text
        assert not FOLLOWED.search(text.replace("evil", "")), text
