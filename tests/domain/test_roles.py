"""Who may do what: the roles of a channel, and the chain of its audit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from stationmaster.domain.approvals import Decided, Limits, Wish, approval_for
from stationmaster.domain.audit import FIRST, Entry, broken_at
from stationmaster.domain.identities import identity_of
from stationmaster.domain.rules import DELETE_CLUSTER, LOOK, START, STOP, ChannelRules, Role, Rules

GROUPS = {"S0ML": frozenset({"U0INGROUP"}), "S0LEADS": frozenset({"U0LEAD"})}
TRAIN = ChannelRules(
    viewers=("*",), operators=("U0OPERATOR", "S0ML"), approvers=("S0LEADS",), admins=("U0ADMIN",)
)


@pytest.mark.parametrize(
    ("user", "role"),
    [
        ("U0ANYBODY", Role.VIEWER),
        ("U0OPERATOR", Role.OPERATOR),
        ("U0INGROUP", Role.OPERATOR),
        ("U0LEAD", Role.APPROVER),
        ("U0ADMIN", Role.ADMIN),
    ],
)
def test_a_role_includes_those_below_it_and_no_other(user: str, role: Role) -> None:
    has = [each for each in Role if TRAIN.has_role(user, each, members=GROUPS.__getitem__)]

    assert max(has) is role
    assert has == [each for each in Role if each <= role]


def test_slack_is_not_asked_where_a_list_names_the_person() -> None:
    def ask(group: str) -> frozenset[str]:
        raise AssertionError(group)

    assert TRAIN.has_role("U0OPERATOR", Role.OPERATOR, members=ask)
    assert TRAIN.has_role("U0ANYBODY", Role.VIEWER, members=ask)


def test_what_others_have_started_takes_a_higher_role() -> None:
    assert STOP.role_for("U0A", "U0A") is Role.OPERATOR
    assert STOP.role_for("U0A", "U0B") is Role.APPROVER
    assert DELETE_CLUSTER.role_for("U0A", "") is Role.OPERATOR
    assert START.role_for("U0A", "U0B") is Role.OPERATOR
    assert [LOOK.is_change, START.is_change] == [False, True]


def test_a_channel_without_rules_of_its_own_has_those_of_all_or_none() -> None:
    general = ChannelRules(operators=())

    assert Rules().of("C0ANY") is None
    assert Rules(channels={"C0TRAIN": TRAIN, "*": general}).of("C0TRAIN") == TRAIN
    assert Rules(channels={"C0TRAIN": TRAIN, "*": general}).of("C0ANY") == general


ROLE = "arn:aws:iam::123456789012:role/ci"
SESSION = "arn:aws:sts::123456789012:assumed-role/ci/job-7"
USER = "arn:aws-cn:iam::123456789012:user/people/eva"


@pytest.mark.parametrize(
    ("arn", "identity", "session"),
    [(ROLE, ROLE, ""), (USER, USER, ""), (SESSION, ROLE, "job-7")],
)
def test_every_session_of_a_role_is_that_role(arn: str, identity: str, session: str) -> None:
    assert identity_of(arn) == (identity, session)
    assert ChannelRules(operators=(identity,)).listed(Role.OPERATOR) == [identity]


def test_slack_is_not_asked_whether_a_role_is_in_a_group() -> None:
    assert not ChannelRules(operators=("S0UNKNOWN",)).has_role(
        ROLE, Role.OPERATOR, members={}.__getitem__
    )


@pytest.mark.parametrize(
    "who",
    [
        *("maria", "@maria", "B0BOT", "u0lower", "", "arn:aws:iam::12:role/ci", f"{ROLE}*"),
        *("arn:aws:iam::123456789012:role/path/ci", SESSION),
    ],
)
def test_a_list_has_ids_only(who: str) -> None:
    with pytest.raises(ValidationError):
        ChannelRules(operators=(who,))


def _chain(count: int) -> list[Entry]:
    entries: list[Entry] = []
    for seq in range(1, count + 1):
        before = entries[-1].hash if entries else FIRST
        at = datetime(2026, 1, seq, tzinfo=UTC)
        made = Entry(
            seq=seq, at=at, channel_id="C", user_id=f"U{seq}", via="x", act="y", before=before
        )
        entries.append(made)
    return entries


def test_a_changed_or_missing_entry_breaks_the_chain_and_an_expired_one_does_not() -> None:
    entries = _chain(4)

    assert broken_at(entries) is None
    assert broken_at(entries[2:]) is None
    assert broken_at([*entries[:2], entries[3]]) == 4
    changed = entries[1].model_copy(update={"user_id": "U9"})
    assert broken_at([entries[0], changed, *entries[2:]]) == 3


def test_one_approver_counts_once_and_a_fingerprint_sees_what_is_bought() -> None:
    wish = Wish(
        command="tiny-llama",
        nodes=2,
        instance_type="p5.48xlarge",
        gpus=16,
        keep_s=0,
        usd_per_hour=110.0,
        usd=220.0,
    )
    asked = approval_for(
        Limits(usd=200, approvals=2),
        wish,
        approvers=["S0LEADS"],
        now=datetime(2026, 1, 1, tzinfo=UTC),
    )

    assert asked is not None
    stamp: Any = {"event_id": "e", "at": asked.asked_at, "decision": "given"}
    first, other = (
        Decided(**stamp, user_id=user, fingerprint=wish.fingerprint) for user in ("U0LEAD", "U0X")
    )
    twice = asked.after(first).after(first)
    assert [twice.is_given, twice.after(other).is_given] == [False, True]
    assert twice.after(other.model_copy(update={"fingerprint": "of another plan"})) == twice
    others = {"nodes": 3, "usd": 221.0, "usd_per_hour": 111.0, "command": "x", "keep_s": 9}
    wishes = [wish, *(wish.model_copy(update={name: value}) for name, value in others.items())]
    assert len({each.fingerprint for each in wishes}) == 6
    assert wish.model_copy(update={"usd": 220.001}).fingerprint == wish.fingerprint
