"""What the cases of kill points do, and what they look at beside the table and the account.

Used by kill_givens, test_kill_points and by tests of single steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stationmaster import commands
from stationmaster.domain.bus import LogTail, RelayBatch
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.reactions.workflow import GRACE
from stationmaster.domain.run import events as ev
from stationmaster.steps.reap import reap
from stationmaster.steps.record_events import record_batch, record_dead_execution
from tests.support.aws_steps import Account
from tests.support.factories import START, make_event
from tests.support.kill_points import Call


def of_cluster(step: Call, **arguments: Any) -> Call:
    return lambda account: step(account.services, account.cluster_id, **arguments)


def of_run(step: Call, **arguments: Any) -> Call:
    return lambda account: step(account.services, account.run_id, **arguments)


def saves_again(account: Account) -> str:
    """A person asks for it, and again after a call that died; too late is answered."""
    run = account.run
    try:
        commands.save_again(
            account.services,
            run.run_id,
            who=commands.Actor(channel_id=run.request.channel_id, user_id="U2"),
        )
    except NotPossibleNow:
        reaps(account)  # it starts what was recorded and not started
    return "asked"


def later(account: Account) -> None:
    account.late += 2 * GRACE


def in_order(*acts: Call) -> Call:
    def act(account: Account) -> None:
        for each in acts:
            each(account)

    return act


def finish(account: Account, step: Call) -> None:
    while step(account) == {"ready": False}:
        account.aws.finish_lifecycles()


def reports(*kinds: tuple[type[ev.RunEvent], dict[str, Any]], pods: tuple[str, ...] = ()) -> Call:
    """The recorder takes in a batch of the relay."""

    def act(account: Account) -> None:
        events = [
            make_event(kind, event_id=kind.__name__, run_id=account.run_id, **values)
            for kind, values in kinds
        ]
        record_batch(
            account.services,
            RelayBatch(
                run_id=account.run_id,
                batch_id="b",
                at=START,
                events=events,
                log_tails=[LogTail(pod=pod, at=START, lines=["a line"]) for pod in pods],
                heartbeat=True,
            ),
        )

    return act


def dies(machine: str, name: Callable[[Account], str]) -> Call:
    """The recorder hears that an execution was stopped from outside."""

    def act(account: Account) -> None:
        record_dead_execution(
            account.services,
            state_machine_arn=getattr(account.settings, f"{machine}_state_machine_arn"),
            execution_name=name(account),
            status="ABORTED",
            cause="for the test",
        )

    return act


def killed(account: Account, machine: str, name: str) -> None:
    """Someone stops an execution; the recorder is not told."""
    arn = getattr(account.settings, f"{machine}_state_machine_arn")
    account.aws.client("stepfunctions").stop_execution(
        executionArn=f"{arn.replace(':stateMachine:', ':execution:')}:{name}"
    )


def reaps(account: Account) -> None:
    """The answer, which names whom this call helped, is only logged."""
    reap(account.services)


def reaps_later(account: Account) -> None:
    """As its schedule has it: when every grace is over."""
    later(account)
    reap(account.services)


def passes(account: Account) -> list[str | None]:
    """The passes over the cluster that run."""
    workflows, cluster_id = account.services.workflows, account.cluster_id
    return [workflows.cluster_status(cluster_id, pass_number=number) for number in (1, 2, 3)]


def sizes(account: Account) -> int | None:
    """How many nodes EKS is to run."""
    group = account.services.node_groups.describe(account.cluster_id, "training")
    return group.nodes if group is not None else None


def clock(account: Account) -> bool:
    return account.clock is not None
