"""Every way through the three workflows, as runs that are played in a local mode.

A test names its scenario with `plays` and gets what came of it as `outcome`; workflow_routes says
which states a scenario is there for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import pytest

from stationmaster.checks import names_for
from stationmaster.domain.cluster.events import (
    ClusterPhase,
    NodeReplacementBegan,
    cluster_event_id,
)
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import live_cluster
from stationmaster.steps.parts.records import enter_cluster_phase
from tests.chaos.outcomes import Outcome
from tests.chaos.rules import ApiFault, Fault
from tests.chaos.states import (
    CLUSTER_TASKS,
    ENDING_TASKS,
    LATE_PUSH_TASKS,
    LATE_SAVING_TASKS,
    PUSH_TASKS,
    SAVING_TASKS,
    TEARDOWN_TASKS,
    TRAIN_TASKS,
)
from tests.chaos.world import World, run_id_of

NODE_TYPE = "m5.2xlarge"
BROKEN = "broken by the test"
DATA_BUCKET = "research-data"

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
WHILE_AWAITING: dict[str, Callable[[World, str], None]] = {
    "stopped while awaiting": World.stop,
    "job is deleted": World.delete_job,
    "training nodes are deleted": World.delete_training_nodes,
}


@dataclass(frozen=True)
class Scenario:
    """A run to play: how it begins and what happens until it has come to rest by itself."""

    name: str
    play: Callable[[World, str], str]


def plays(
    *names: str, **more: Sequence[object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test is run once for each scenario, and gets how it ended by itself as `outcome`.

    `more` are further arguments, one value for each scenario.
    """
    values = list(zip(names, *more.values(), strict=True))
    ids = [re.sub(r"[^\w: -]", "", name) for name in names]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        test.scenarios = names
        mark = pytest.mark.parametrize(("outcome", *more), values, indirect=["outcome"], ids=ids)
        return mark(test)

    return decorate


def finish(world: World, outcome: Outcome) -> tuple[list[str], Outcome]:
    """Mend the run and let the reaper look: the ids that it helped, and how the run ended then."""
    run_id = outcome.run.run_id
    world.runtime.mend_run(run_id)
    reaped = world.reap()
    world.until_rested(run_id, torn_down=True)
    return reaped, world.outcome(run_id)


def state_scenarios() -> list[Scenario]:
    """Every scenario of the state machines."""
    return [
        # Everything that costs is there when a plugin fails, and the relay need not start.
        *(
            simple(f"teardown: {state} fails", Fault("install-plugin"), fault)
            for state, fault in TEARDOWN_TASKS.items()
        ),
        simple("every call fails once", *_each_fails_once()),
        Scenario("every call is doubled", _doubled),
        simple("plain"),
        simple("training fails", plan="fails"),
        *(
            Scenario(f"train: {state} fails", _unsaved(fault))
            for state, fault in SAVING_TASKS.items()
        ),
        *(
            Scenario(f"train: {state} fails", _unsaved(fault, plan="fails"))
            for state, fault in LATE_SAVING_TASKS.items()
        ),
        Scenario("results are given up", _unsaved(SAVING_TASKS["SaveResults"])),
        simple("late saving fails at first", *_late_saving_fails_at_first(), plan="fails"),
        Scenario("unsaved is recorded late", _unsaved(*_recorded_late())),
        simple("train: PushResults fails", *PUSH_TASKS.values()),
        simple("train: PushAfterFailure fails", *LATE_PUSH_TASKS.values(), plan="fails"),
        Scenario("pushes its model", _pushes_its_model),
        Scenario("pushes late", _killed_while_saving),
        simple("container exits", plan="exits"),
        Scenario("heartbeat stops", _heartbeat),
        *(Scenario(name, _meanwhile(act)) for name, act in WHILE_AWAITING.items()),
        Scenario("brings data", _brings_data),
        Scenario("job starts late", _late_start),
        Scenario("trains late", _trains_late),
        Scenario("two nodes are bad", _bad_nodes),
        Scenario("killed while provisioning", _killed_while_provisioning),
        Scenario("stopped at ensure-cluster", _stopped_at_ensure_cluster),
        *(simple(f"train: {state} fails", fault) for state, fault in TRAIN_TASKS.items()),
        *(simple(f"cluster: {state} fails", fault) for state, fault in CLUSTER_TASKS.items()),
        simple("train: ConcludeRun fails", ENDING_TASKS["ConcludeRun"]),
        Scenario("kept: succeeds", _kept()),
        Scenario("kept: fails", _kept(plan="fails")),
        simple("train: ReleaseRun fails", Fault("release-run")),
        # Once only: the release after the failure is the same call and must work.
        simple("train: ReleaseLease fails", Fault("release-lease", times=1)),
        simple(
            "last resorts fail at first",
            Fault("ensure-file-system", error="ZoneChanged", times=1),
            Fault("install-plugin"),
            *(
                Fault(name, error="Unexpected", times=2)
                for name in ("conclude-cluster", "conclude-run", "release-lease")
            ),
            Fault("release-run", error="TransientError", times=1),
            Fault("begin-teardown", times=1),
            Fault("conclude-teardown", error="Unexpected", times=2),
        ),
        simple("run cannot be concluded", Fault("prepare-run"), Fault("conclude-run")),
        simple("run cannot be released", Fault("install-plugin"), Fault("release-lease")),
        simple("cluster cannot be concluded", Fault("ensure-cluster"), Fault("conclude-cluster")),
        simple(
            "teardown cannot be concluded",
            Fault("install-plugin"),
            Fault("begin-teardown"),
            Fault("conclude-teardown"),
        ),
    ]


def simple(name: str, *faults: Fault | ApiFault, plan: str = "") -> Scenario:
    """A run that is only requested and waited for."""

    def play(world: World, scenario: str) -> str:
        copies = [type(fault)(**vars(fault)) for fault in faults]
        run_id = world.request(scenario, *copies, plan=plan)
        world.until_rested(run_id)
        return run_id

    return Scenario(name, play)


def _unsaved(*faults: Fault, plan: str = "") -> Callable[[World, str], str]:
    """A run whose results cannot be saved: it comes to rest without an end."""

    def play(world: World, name: str) -> str:
        copies = [Fault(**vars(fault)) for fault in faults]
        run_id = world.request(name, *copies, plan=plan)
        world.until_unsaved(run_id)
        return run_id

    return play


def _recorded_late() -> list[Fault]:
    return [
        SAVING_TASKS["SaveResults"],
        Fault("leave-unsaved", error="Unexpected", times=2),
    ]


def _late_saving_fails_at_first() -> list[Fault]:
    return [
        Fault(fault.function, error="TransientError", times=1)
        for fault in (LATE_SAVING_TASKS | LATE_PUSH_TASKS).values()
    ]


def _killed_while_saving(world: World, name: str) -> str:
    """The execution dies while results are verified; another one continues, and pushes."""
    held = world.runtime.hold(run_id_of(name), "verify-results")
    run_id = world.request(name, words=_asking_for_a_push(world))
    world.until(held.reached.is_set, "the results are verified")
    world.kill(run_id)
    held.released.set()
    world.until_rested(run_id)
    return run_id


def _pushes_its_model(world: World, name: str) -> str:
    run_id = world.request(name, words=_asking_for_a_push(world))
    world.until_rested(run_id)
    return run_id


def _asking_for_a_push(world: World) -> str:
    """The account has a token; the test's trainer leaves no model, so the push itself fails."""
    secret = json.dumps({"token": "hf_of_the_tests"})
    world.aws.client("secretsmanager").put_secret_value(SecretId="huggingface", SecretString=secret)
    return "push_to=lab/tiny"


def _each_fails_once() -> list[Fault]:
    """Each Task state's first call ends in one of the errors that pass; in turn, all of them."""
    errors = cycle(PASSING_ERRORS)
    tasks = {
        **TRAIN_TASKS,
        **SAVING_TASKS,
        **PUSH_TASKS,
        **ENDING_TASKS,
        **CLUSTER_TASKS,
        **TEARDOWN_TASKS,
    }
    return [
        Fault(
            fault.function,
            error=next(errors),
            times=1,
            only=fault.only,
            without=fault.without,
        )
        for fault in tasks.values()
    ]


def _doubled(world: World, name: str) -> str:
    run_id = world.request(name, doubled=True)
    world.until_rested(run_id)
    return run_id


def _kept(*, plan: str = "") -> Callable[[World, str], str]:
    """A run on a cluster that stays; a person deletes the cluster afterwards.

    Its relay cannot be deleted at once, so its release waits, however soon its pods are gone.
    """

    def play(world: World, name: str) -> str:
        refused = ApiFault("kubernetes", "DELETE deployments", code="503", times=1)
        run_id = world.request(name, refused, plan=plan, keep_s=3600)
        world.until_left(run_id)
        assert not world.services.cluster_states.load(run_id).is_going_away
        world.delete_cluster(run_id)
        world.until_rested(run_id)
        return run_id

    return play


def _stopped_at_ensure_cluster(world: World, name: str) -> str:
    """The stop reaches the cluster's workflow when the run has released its lease."""
    held = world.runtime.hold(run_id_of(name), "ensure-cluster")
    run_id = world.request(name)
    world.until(held.reached.is_set, "the control plane is asked for")
    world.stop(run_id)
    clusters = world.services.cluster_states
    world.until(lambda: clusters.load(run_id).is_going_away, "the cluster drains")
    held.released.set()
    world.until_rested(run_id)
    return run_id


def _meanwhile(act: Callable[[World, str], None]) -> Callable[[World, str], str]:
    """A run to which something happens while its workflow waits for the job."""

    def play(world: World, name: str) -> str:
        run_id = world.request(name, plan="waits")
        world.until_awaiting(run_id)
        act(world, run_id)
        world.until_rested(run_id)
        return run_id

    return play


def _killed_while_provisioning(world: World, name: str) -> str:
    """The train execution dies while a step of the cluster's is under way: both are waited for."""
    control_plane, first_look, second_look = (
        world.runtime.hold(run_id_of(name), function)
        for function in ("ensure-cluster", "begin-teardown", "begin-teardown")
    )
    run_id = world.request(name)
    world.until(control_plane.reached.is_set, "the control plane is asked for")
    world.kill(run_id)
    first_look.released.set()
    world.until(second_look.reached.is_set, "the teardown waits for the cluster's workflow")
    control_plane.released.set()
    second_look.released.set()
    world.until_rested(run_id)
    return run_id


def _brings_data(world: World, name: str) -> str:
    """A data set that somebody has packed: copied, and nothing has to be made of it."""
    s3 = world.aws.client("s3")
    where = {"LocationConstraint": world.aws.region}
    s3.create_bucket(Bucket=DATA_BUCKET, CreateBucketConfiguration=where)
    for key in ("manifest.json", "tokenizer.json", "tokens-00000.bin"):
        s3.put_object(Bucket=DATA_BUCKET, Key=f"packed/{key}", Body=key.encode())
    run_id = world.request(name, words=f"dataset=s3://{DATA_BUCKET}/packed")
    world.until_rested(run_id)
    return run_id


def _bad_nodes(world: World, name: str) -> str:
    """A node is replaced; of the next bad one AWS cannot bring another."""
    checks = names_for(spec_for(get_recipe("tiny-llama"), nodes=1, instance_type=NODE_TYPE))
    held = [world.runtime.hold(run_id_of(name), "run-check") for _ in checks]
    run_id = world.request(name)
    world.until(lambda: all(each.reached.is_set() for each in held), "all checks look")
    of_training = {"only": {"node_group": "training"}}
    world.runtime.break_run(
        run_id, Fault("ensure-node-group", error="TransientError", times=1, **of_training)
    )
    replacing = world.runtime.hold(run_id, "ensure-node-group")
    _name_bad(world, run_id, number=1)
    for each in held:
        each.released.set()
    world.until(replacing.reached.is_set, "the node is about to be replaced")
    check = world.runtime.hold(run_id, "run-check")
    replacing.released.set()
    world.until(check.reached.is_set, "the checks begin anew")
    world.runtime.break_run(run_id, Fault("ensure-node-group", **of_training))
    _name_bad(world, run_id, number=2)
    check.released.set()
    world.until_rested(run_id)
    return run_id


def _name_bad(world: World, run_id: str, *, number: int) -> None:
    """Record what a check does that finds a bad node among several; here it is the only one."""
    services = world.services
    cluster = services.cluster_states.load(run_id)
    cluster = enter_cluster_phase(services, cluster, ClusterPhase.VALIDATING)
    (bad,) = live_cluster(services, cluster).training_nodes
    event = NodeReplacementBegan(
        event_id=cluster_event_id(run_id, "node.replacement_began", bad.instance_id),
        cluster_id=run_id,
        at=services.now(),
        node=bad.name,
        instance_id=bad.instance_id,
        check="network",
        reason="it is slow",
        number=number,
    )
    services.cluster_states.record(run_id, [event])


def _late_start(world: World, name: str) -> str:
    """The job's pod finds no node at the first look, and one before the second."""
    submit, first_look, second_look = (
        world.runtime.hold(run_id_of(name), function)
        for function in ("submit-job", "ensure-job-started", "ensure-job-started")
    )
    run_id = world.request(name)
    world.until(submit.reached.is_set, "the job is about to be submitted")
    world.cordon(run_id, unschedulable=True)
    submit.released.set()
    first_look.released.set()
    world.until(second_look.reached.is_set, "the job is looked at again")
    world.cordon(run_id, unschedulable=False)
    second_look.released.set()
    world.until_rested(run_id)
    return run_id


def _trains_late(world: World, name: str) -> str:
    """Its workflow fails while its pod finds no node, and it trains when nothing is to be saved."""
    submit, verify = (
        world.runtime.hold(run_id_of(name), function)
        for function in ("submit-job", "verify-results")
    )
    run_id = world.request(name, Fault("ensure-job-started"))
    world.until(submit.reached.is_set, "the job is about to be submitted")
    world.cordon(run_id, unschedulable=True)
    submit.released.set()
    world.until(verify.reached.is_set, "there is nothing to save")
    world.cordon(run_id, unschedulable=False)
    world.until(lambda: world.services.runs.load(run_id).has_trained, "it trains")
    verify.released.set()
    world.until_rested(run_id)
    return run_id


def _heartbeat(world: World, name: str) -> str:
    """The committed machine with the seconds of silence that a test can wait for."""
    committed = world.definition("train")
    definition = json.loads(committed)
    definition["States"]["AwaitJob"]["HeartbeatSeconds"] = 1
    sfn, arn = world.aws.client("stepfunctions"), world.aws.state_machine_arn("train")
    sfn.update_state_machine(stateMachineArn=arn, definition=json.dumps(definition))
    try:
        run_id = world.request(name, plan="waits")  # its execution has this definition for good
    finally:
        sfn.update_state_machine(stateMachineArn=arn, definition=committed)
    world.until_rested(run_id)
    return run_id
