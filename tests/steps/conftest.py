"""An account of its own in this process for each test file of steps, and deaths at its writes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import boto3
import pytest

from stationmaster.local.aws import (
    InProcessRuntime,
    LocalAws,
)
from stationmaster.settings import Settings
from tests.chaos.direct_calls import without_connection
from tests.support.aws_steps import QUICK, Account, deployed
from tests.support.kill_points import (
    Accounts,
    Case,
    Outcome,
    PlayEveryKill,
    Undisturbed,
    Writes,
    play,
    points,
    with_own_table,
)


@pytest.fixture(scope="module")
def endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalAws, Settings]]:
    """The account of a file, as fast as its SPEED says: emulated seconds in one real second."""
    with LocalAws(
        state_dir=tmp_path_factory.mktemp("aws"),
        invoker=InProcessRuntime(),
        handlers=[],
        speed=getattr(request.module, "SPEED", QUICK),
        kubernetes_endpoint="https://127.0.0.1:1",  # steps that connect have a kubeconfig
    ) as aws:
        assert boto3.DEFAULT_SESSION is not None, "the endpoint sets one up"
        boto3.DEFAULT_SESSION.events.register("before-send", without_connection(aws))
        yield aws, deployed(aws)


@pytest.fixture
def account(
    endpoint: tuple[LocalAws, Settings], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Account]:
    """A run's account, with nothing in it yet."""
    aws, settings = endpoint
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    yield Account(aws, settings)
    aws.clear_injected()
    aws.faults.clear()


@pytest.fixture(scope="module")
def writes(endpoint: tuple[LocalAws, Settings]) -> Iterator[Writes]:
    """What steps write, seen at the clients of the file's endpoint."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        watching = Writes()
        assert boto3.DEFAULT_SESSION is not None, "the endpoint sets one up"
        watching.attach(boto3.DEFAULT_SESSION, monkeypatch)
        yield watching


@pytest.fixture
def alone(account: Account) -> Iterator[Account]:
    """An account with a table of its own: the reaper looks at all that a table has."""
    with with_own_table(account):
        yield account


@pytest.fixture
def accounts(account: Account, endpoint: tuple[LocalAws, Settings]) -> Accounts:
    """As many accounts with a table of their own as a test asks for."""
    return lambda: with_own_table(Account(*endpoint))


@pytest.fixture(scope="module")
def undisturbed(endpoint: tuple[LocalAws, Settings], writes: Writes) -> Undisturbed:
    """What comes of a case when nobody is killed, and what it wrote; played once."""

    def played(case: Case) -> tuple[Outcome, tuple[str, ...]]:
        with with_own_table(Account(*endpoint)) as account:
            return play(account, case, writes), tuple(writes.made)

    return cache(played)


@pytest.fixture
def play_every_kill(
    accounts: Accounts, writes: Writes, undisturbed: Undisturbed, subtests: pytest.Subtests
) -> PlayEveryKill:
    """Plays a case with a death after each of its writes: the outcome is the undisturbed one."""

    def every_kill(case: Case) -> None:
        expected, made = undisturbed(case)
        for number, write in points(case, made):
            with subtests.test(f"{number} {write}"), accounts() as account:
                assert play(account, case, writes, number) == expected

    return every_kill
