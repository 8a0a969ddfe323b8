"""The training check: what its job runs, and its verdicts on what that has printed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from stationmaster.checks import training
from stationmaster.domain.cluster.spec import ClusterSpec, spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import Verdict
from stationmaster.rendering.check_job import SMOKE_STEPS as STEPS
from tests.support.check_world import NODES, WholeJobWorld
from tests.support.rendered import check_job

CPUS = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="m5.2xlarge")
GPUS = spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge")
LOSSES = [7.6, 7.5, 7.4, 7.3, 7.2, 7.1]


def rank(number: int, **fields: object) -> str:
    about = {
        "stationmaster": 1,
        "kind": "smoke",
        "rank": number,
        "world_size": 2,
        "node": NODES[number % 2],
        "device": "cpu",
        "losses_nats": LOSSES,
        "resumed_from_step": 3,
        "checkpoint_bytes": 3 << 20,
    }
    return json.dumps(about | fields)


def step(number: int) -> str:
    about = {"step": number, "total_steps": STEPS, "loss_nats": LOSSES[number - 1]}
    return json.dumps({"stationmaster": 1, "kind": "progress", **about})


def logs(*, first: str = "", second: str = "", steps: int = STEPS) -> list[list[str]]:
    """Of the pods of two nodes, with other last lines where some are given."""
    reported = [step(number) for number in range(1, steps + 1)]
    return [[*reported, first or rank(0)], ["starting", second or rank(1)]]


@dataclass
class World(WholeJobWorld):
    """The pods of the check with their logs."""

    check, letters, is_full = "training", "tr", True
    printed: list[list[str]] = field(default_factory=logs)
    spec: ClusterSpec = CPUS
    request: SimpleNamespace | None = None

    @property
    def runs(self):
        return self

    def load_each(self, run_ids):
        return [SimpleNamespace(request=self.request) for _ in run_ids], []

    def log(self, pod):
        return "\n".join(self.printed[int(pod[-1])])

    def failure_line(self, pod):
        return (self.printed[int(pod[-1])] or [""])[-1]

    def look(self):
        return training.look(self.live())


def test_ranks_with_the_same_finite_losses_pass_with_their_figures():
    finding = World().look()

    assert finding.verdict is Verdict.GOOD
    assert finding.sentence == (
        "6 steps on 2 ranks of 2 nodes, loss 7.600 to 7.100, the same on every rank; a checkpoint "
        "of 3.00 MiB was written and read back"
    )
    assert finding.figures == {
        "steps": 6,
        "ranks": 2,
        "nodes": 2,
        "first_loss_nats": 7.6,
        "last_loss_nats": 7.1,
        "checkpoint_bytes": 3 << 20,
    }


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (logs(second="nothing"), "rank 1 of 2 printed no losses"),
        (logs(second=rank(0)), "rank 1 of 2 printed no losses"),
        (logs(second=rank(1, world_size=1)), "1 ranks trained together, 2 expected"),
        (logs(first=rank(0, device="cuda")), "rank 0 on node n-1 trained on cuda, not on cpu"),
        (
            logs(second=rank(1, losses_nats=[7.6, float("nan"), *LOSSES[2:]])),
            "the loss of rank 1 on node n-2 is nan in step 2",
        ),
        (
            logs(second=rank(1, losses_nats=[*LOSSES[:5], 7.100001])),
            "the loss of step 6 is 7.100001 for rank 1 on node n-2 and 7.1 for rank 0 on node n-1",
        ),
        (logs(first=rank(0, losses_nats=LOSSES[:2])), "rank 0 on node n-1 took 2 steps"),
        (logs(steps=4), "the log has no loss line of steps 5, 6"),
        (logs(second=rank(1, resumed_from_step=None)), "rank 1 of 2 printed no losses"),
    ],
)
def test_training_that_is_not_proven_to_be_right_fails(printed, said):
    finding = World(printed).look()

    assert finding.verdict is Verdict.BAD
    assert finding.sentence.startswith(said)


def test_ranks_of_gpus_must_all_be_there_and_on_gpus():
    ranks = [rank(number, world_size=16, device="cuda") for number in range(16)]
    steps = [step(number) for number in range(1, STEPS + 1)]

    good = World([[*steps, *ranks[:8]], ranks[8:]], spec=GPUS).look()
    few = World([[*steps, *ranks[:8]], ranks[9:]], spec=GPUS).look()

    assert good.sentence.startswith("6 steps on 16 ranks of 2 nodes")
    assert few.sentence == "rank 8 of 16 printed no losses"


@pytest.mark.parametrize(
    ("world", "verdict", "said"),
    [
        (World(is_started=False), Verdict.MISSING, ["the training check was just started"]),
        (World(phases=("Succeeded", "Running")), Verdict.WAITING, ["its pods are starting"]),
        (World(training_on=NODES), Verdict.GOOD, ["runs train on all nodes"]),
        (
            # What followed from it on the other node is not what is said.
            World(
                [
                    ["RuntimeError: Connection closed by peer"],
                    ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
                ],
                phases=("Failed", "Running"),
                ends=(("Error", 75), ("", 0)),
            ),
            Verdict.BAD,
            ["node n-2: ", "(torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"],
        ),
        (
            World([[], []], phases=("Failed", "Running"), ends=(("OOMKilled", 137), ("", 0))),
            Verdict.BAD,
            ["node n-1: ", "(OOMKilled exit code 137)"],
        ),
        (
            World(
                [["failed (exitcode: -9) local_rank: 0 (pid: 9) of binary: python"], []],
                phases=("Failed", "Running"),
                ends=(("Error", 1), ("", 0)),
            ),
            Verdict.BAD,
            ["node n-1: a process was killed (SIGKILL); most often for memory"],
        ),
        (
            World([["ValueError: a new cause"], []], phases=("Failed",), ends=(("Error", 1),)),
            Verdict.BAD,
            ["on node n-1 pod c-1-tr-", "-worker-0 exited with 1: ValueError: a new cause"],
        ),
        (
            World([[], []], phases=("Failed", "Running"), ends=(("", 3), ("", 0))),
            Verdict.BAD,
            ["on node n-1 pod c-1-tr-", "exited with 3: it printed nothing"],
        ),
    ],
)
def test_job_that_did_not_end_well_proves_nothing_and_its_cause_is_explained(world, verdict, said):
    finding = world.look()

    assert finding.verdict is verdict
    for each in said:
        assert each in finding.sentence
    assert "RUN" not in finding.sentence, "there is no run yet"


def test_node_whose_hardware_failed_is_named_as_bad():
    xid = "NVRM: Xid (PCI:0000:10:1c): 79, pid=1, GPU has fallen off the bus."
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

    def bad_nodes(line):
        ends = (("", 0), ("Error", 1))
        return World([[], [line]], phases=("Running", "Failed"), ends=ends).look().bad_nodes

    assert [*bad_nodes(xid)] == ["n-2"]
    assert "fell off the bus" in bad_nodes(xid)["n-2"]
    assert bad_nodes(oom) == {}


def test_failure_is_explained_by_the_ends_of_logs():
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    lines = [oom, *["starting"] * 1999]
    ends = (("Error", 1), ("", 0))

    def said(log):
        return World([log, []], phases=("Failed", "Running"), ends=ends).look().sentence

    assert "CUDA out of memory" in said(lines)
    assert "CUDA out of memory" not in said([*lines, "starting"])


@pytest.mark.parametrize(
    ("request_of_run", "recipe"),
    [
        ({"recipe": "mixtral-8x7b", "image": "", "program": ()}, "mixtral-8x7b"),
        ({"recipe": "resnet50", "image": "", "program": ()}, "resnet50"),
        ({"recipe": "hf:org/model", "image": "", "program": ()}, "tiny-llama"),
        ({"recipe": "mixtral-8x7b", "image": "own:1", "program": ("a",)}, "tiny-llama"),
    ],
)
def test_recipe_of_the_run_is_tried_where_it_has_a_small_preset(request_of_run, recipe):
    world = World(request=SimpleNamespace(**request_of_run))

    assert training.recipe_name(world.live(run_id="r-1")) == recipe
    assert training.recipe_name(world.live()) == "tiny-llama"


def test_job_trains_as_runs_do_in_a_directory_of_its_own():
    [job] = check_job("c-1", GPUS, "training", name="c-1-tr")

    [worker] = job["spec"]["pytorchReplicaSpecs"].values()
    [container] = worker["template"]["spec"]["containers"]
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert len(values) == len(container["env"])
    assert values["STATIONMASTER_CACHE_DIR"] == "/scratch/cache"
    assert values["NCCL_DEBUG_SUBSYS"] == "NET", "as long as in runs"
    assert container["command"][:5] == [
        "torchrun",
        "-m",
        "training.smoke",
        "llama2-7b",
        "preset=smoke",
    ]
    assert "global_batch_size=32" in container["command"]
    assert container["command"][-2:] == ["--output-dir", "/fsx/runs/.training-check/c-1-tr"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert {"name": "shared", "mountPath": "/fsx"} in container["volumeMounts"]
    assert worker["restartPolicy"] == "Never"
    assert job["metadata"]["labels"]["stationmaster/check"] == "training"
