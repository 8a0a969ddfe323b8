"""Every way through both workflows, as runs that are played side by side in one local mode.

The fixture `played` of conftest plays them all once; the tests look at what came of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from workflow_runtime import ApiFault, Fault
from workflow_world import Outcome, World

from stationmaster.services import Services

BROKEN = "broken by the test"
# Two cores play this many runs at once without one run's waits becoming another one's timeouts.
AT_ONCE = 20

# State of the train machine: its function and what tells its call from others of that function.
TRAIN_TASKS: dict[str, Fault] = {
    "PrepareRun": Fault("prepare-run"),
    "EnsureCluster": Fault("ensure-cluster"),
    "EnsureSystemNodes": Fault("ensure-node-group", only={"node_group": "system"}),
    "EnsureTrainingNodes": Fault("ensure-node-group", only={"node_group": "training"}),
    "EnsureFileSystem": Fault("ensure-file-system"),
    "InstallPlugin": Fault("install-plugin", only={"plugin": "fsx-csi-driver"}),
    "RunCheck": Fault("run-check", only={"check": "storage"}),
    "SubmitJob": Fault("submit-job"),
    "EnsureJobStarted": Fault("ensure-job-started"),
    "AwaitJob": Fault("await-job"),
}
ENDING_TASKS: dict[str, Fault] = {
    "ConcludeRun": Fault("conclude-run", without="error"),
    "ReleaseRun": Fault("release-run"),
}
TEARDOWN_TASKS: dict[str, Fault] = {
    "BeginTeardown": Fault("begin-teardown"),
    "ReleaseJob": Fault("release-job"),
    "ReleaseFileSystem": Fault("release-file-system"),
    "ReleaseSystemNodes": Fault("release-node-group", only={"node_group": "system"}),
    "ReleaseTrainingNodes": Fault("release-node-group", only={"node_group": "training"}),
    "ReleaseCluster": Fault("release-cluster"),
    "ReleaseNetwork": Fault("release-network"),
    "VerifyReleased": Fault("verify-released"),
    "ConcludeTeardown": Fault("conclude-teardown", without="error"),
}
# Every error name that the machines retry but the one that only time can bring about.
PASSING_ERRORS = (
    "TransientError",
    "WriteConflict",
    "Lambda.ServiceException",
    "Lambda.AWSLambdaException",
    "Lambda.SdkClientException",
    "Lambda.ClientExecutionTimeoutException",
    "Lambda.TooManyRequestsException",
    "Lambda.Unknown",
    "Sandbox.Timedout",
)
STOPPED_AT = (
    "prepare-run",
    "ensure-cluster",
    "ensure-file-system",
    "install-plugin",
    "run-check",
    "submit-job",
    "ensure-job-started",
)


@dataclass(frozen=True)
class Scenario:
    """A run to play: how it begins, what happens meanwhile, and what the reaper may finish."""

    name: str
    play: Callable[[World, str], str]


@dataclass
class Played:
    """What came of every scenario, before and after the reaper looked at it."""

    before_reaper: dict[str, Outcome] = field(default_factory=dict)
    after_reaper: dict[str, Outcome] = field(default_factory=dict)
    failures: dict[str, BaseException] = field(default_factory=dict)
    reaped: list[str] = field(default_factory=list)
    api_calls: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    channel: list[str] = field(default_factory=list)

    def of(self, name: str) -> Outcome:
        """How a scenario ended by itself.

        Raises:
            AssertionError: it did not come to rest.
        """
        if name in self.failures:
            raise AssertionError(f"scenario {name} did not play") from self.failures[name]
        return self.before_reaper[name]

    def finally_of(self, name: str) -> Outcome:
        """How a scenario ended after the reaper's visit."""
        self.of(name)
        return self.after_reaper[name]


def play(world: World, scenarios: list[Scenario]) -> Played:
    """Play everything; then mend all runs, let the reaper look, and wait for what it started."""
    played = Played()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {one.name: pool.submit(one.play, world, one.name) for one in scenarios}
        ids: dict[str, str] = {}
        for name, future in futures.items():
            error = future.exception()
            if error is not None:
                played.failures[name] = error
                continue
            ids[name] = future.result()
        played.before_reaper = dict(zip(ids, pool.map(world.outcome, ids.values()), strict=True))
        for run_id in ids.values():
            world.runtime.mend_run(run_id)
        played.reaped = world.reap()
        for name, run_id in ids.items():
            try:
                world.until_rested(run_id, torn_down=True)
            except TimeoutError as exc:
                played.failures[name] = exc
        played.after_reaper = dict(zip(ids, pool.map(world.outcome, ids.values()), strict=True))
    played.api_calls = {name: world.runtime.api_calls[run_id] for name, run_id in ids.items()}
    world.aws.settle(timeout_s=20)
    return played


def state_scenarios() -> list[Scenario]:
    """Every scenario of the state machines, the longest first."""
    return [
        # Everything that costs is there when a plugin fails, and the relay need not start.
        *(
            simple(f"teardown: {state} fails", Fault("install-plugin"), fault)
            for state, fault in TEARDOWN_TASKS.items()
        ),
        simple("every call fails once", *_each_fails_once()),
        simple("every answer is lost once", *_each_fails_once(lost=True)),
        Scenario("every call is doubled", _doubled),
        simple("plain"),
        simple("training fails", plan="fails"),
        Scenario("heartbeat stops", _heartbeat),
        Scenario("job starts late", _late_start),
        Scenario("stopped while awaiting", _stopped_while_awaiting),
        Scenario("killed while awaiting", _killed_while_awaiting),
        Scenario("killed while provisioning", _killed_while_provisioning),
        *(Scenario(f"stopped at {name}", _stopped_at(name)) for name in STOPPED_AT),
        *(simple(f"train: {state} fails", fault) for state, fault in TRAIN_TASKS.items()),
        simple("train: ConcludeRun fails", ENDING_TASKS["ConcludeRun"]),
        # Once only: the release after the failure is the same call and must work.
        simple("train: ReleaseRun fails", Fault("release-run", times=1)),
        simple(
            "last resorts fail at first",
            Fault("prepare-run"),
            *(Fault(name, error="Unexpected", times=2) for name in ("conclude-run", "release-run")),
            Fault("begin-teardown", times=1),
            Fault("conclude-teardown", error="Unexpected", times=2),
        ),
        simple("run cannot be concluded", Fault("prepare-run"), Fault("conclude-run")),
        simple("run cannot be released", Fault("prepare-run"), Fault("release-run")),
        simple(
            "teardown cannot be concluded",
            Fault("prepare-run"),
            Fault("begin-teardown"),
            Fault("conclude-teardown"),
        ),
        Scenario("teardown is started twice", _torn_down_twice),
    ]


def simple(name: str, *faults: Fault | ApiFault, plan: str = "") -> Scenario:
    """A run that is only requested and waited for."""

    def play(world: World, scenario: str) -> str:
        copies = [type(fault)(**vars(fault)) for fault in faults]
        run_id = world.request(scenario, *copies, plan=plan)
        world.until_rested(run_id)
        return run_id

    return Scenario(name, play)


def _each_fails_once(*, lost: bool = False) -> list[Fault]:
    """Each Task state's first call ends in one of the errors that pass; in turn, all of them."""
    errors = cycle(PASSING_ERRORS)
    tasks = {**TRAIN_TASKS, **ENDING_TASKS, **TEARDOWN_TASKS}
    return [
        Fault(
            fault.function,
            error=next(errors),
            times=1,
            only=fault.only,
            without=fault.without,
            lost=lost,
        )
        for fault in tasks.values()
    ]


def _doubled(world: World, name: str) -> str:
    run_id = world.request(name, doubled=True)
    world.until_rested(run_id)
    return run_id


def _torn_down_twice(world: World, name: str) -> str:
    """The event that starts the teardown comes again, while it runs and after it is over."""
    held: list[Any] = []
    run_id = world.request(
        name,
        Fault("prepare-run"),
        before=lambda run_id: held.append(world.runtime.hold(run_id, "release-network")),
    )
    world.until(held[0].reached.is_set, "the teardown is under way")
    again = json.dumps({"detail": {"run_id": run_id}}).encode()
    world.invoke("start-teardown", again)
    held[0].released.set()
    world.until_rested(run_id)
    world.invoke("start-teardown", again)
    world.until_rested(run_id)
    return run_id


def _stopped_at(function: str) -> Callable[[World, str], str]:
    def play(world: World, name: str) -> str:
        held: list[Any] = []
        run_id = world.request(
            name, before=lambda run_id: held.append(world.runtime.hold(run_id, function))
        )
        world.until(held[0].reached.is_set, f"{function} is called")
        world.stop(run_id)
        held[0].released.set()
        world.until_rested(run_id)
        return run_id

    return play


def _stopped_while_awaiting(world: World, name: str) -> str:
    run_id = world.request(name, plan="waits")
    world.until_awaiting(run_id)
    world.stop(run_id)
    world.until_rested(run_id)
    return run_id


def _killed_while_awaiting(world: World, name: str) -> str:
    run_id = world.request(name, plan="waits")
    world.until_awaiting(run_id)
    world.kill(run_id)
    world.until_rested(run_id)
    return run_id


def _killed_while_provisioning(world: World, name: str) -> str:
    held: list[Any] = []
    run_id = world.request(
        name, before=lambda run_id: held.append(world.runtime.hold(run_id, "ensure-file-system"))
    )
    world.until(held[0].reached.is_set, "the file system is asked for")
    world.kill(run_id)
    held[0].released.set()
    world.until_rested(run_id)
    return run_id


def _late_start(world: World, name: str) -> str:
    """The job's pod finds no node at the first look, and one before the second."""
    held: list[Any] = []

    def hold(run_id: str) -> None:
        for function in ("submit-job", "ensure-job-started", "ensure-job-started"):
            held.append(world.runtime.hold(run_id, function))

    run_id = world.request(name, before=hold)
    submit, first_look, second_look = held
    world.until(submit.reached.is_set, "the job is about to be submitted")
    world.cordon(run_id, unschedulable=True)
    submit.released.set()
    first_look.released.set()
    world.until(second_look.reached.is_set, "the job is looked at again")
    world.cordon(run_id, unschedulable=False)
    second_look.released.set()
    world.until_rested(run_id)
    return run_id


def _heartbeat(world: World, name: str) -> str:
    """The committed machine with the seconds of silence that a test can wait for."""
    settings = world.mode.settings
    assert settings is not None
    definition = json.loads(world.definition("train"))
    definition["States"]["AwaitJob"]["HeartbeatSeconds"] = 3
    world.aws.client("stepfunctions").create_state_machine(
        name="short-heartbeat",
        definition=json.dumps(definition),
        roleArn=settings.cluster_role_arn,
    )
    services = Services.create(
        settings.model_copy(
            update={"train_state_machine_arn": world.aws.state_machine_arn("short-heartbeat")}
        )
    )
    run_id = world.request(name, plan="waits", services=services)
    world.until_rested(run_id)
    return run_id
