"""The Jobs that look at GPUs, and what is said of the nodes that they ran on."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from stationmaster.checks import gpu_health
from stationmaster.diagnosis.lint import lint
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.errors import TransientError
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import LiveCluster, Verdict
from stationmaster.kubernetes.views import BatchJobView, PodView, parse_node
from stationmaster.rendering.examples import to_yaml
from tests.support.check_world import CheckWorld

SPEC = spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge")
THEIRS = SPEC.model_copy(update={"eks_name": "theirs"})
N1, N2 = (gpu_health.job_name("c-1", name) for name in ("n-1", "n-2"))


def printed(num_gpus: int = 8, *, driver: str = "580.95.05", plugin: str = "1.20.0") -> str:
    rows = [f"{index}, GPU-{index}, {driver}, 3{index}" for index in range(num_gpus)]
    return json.dumps(
        {
            "stationmaster": 1,
            "kind": "node_facts",
            "nvidia_smi": {
                "fields": ["index", "uuid", "driver_version", "temperature.gpu"],
                "exit_code": 0,
                "output": "\n".join(rows),
            },
            "efa": {"devices": ["a", "b", "c", "d"], "exit_code": 0, "output": ""},
            "locked_memory_bytes": None,
            "modules": ["nvidia_peermem"],
            "versions": {"ofi": plugin},
        }
    )


@dataclass
class Looking(CheckWorld):
    """The Jobs on two nodes, and what their pods printed."""

    check = "gpu-health"
    lines: dict[str, str]
    """By the name of the Job that has succeeded."""
    running: tuple[str, ...] = ()
    pods_run: bool = False
    """Whether those that have not ended have pods that run, and not none at all."""
    deaf: bool = False

    def checking(self):
        live = self.running if self.pods_run else ()
        return [
            *(PodView(name=f"{job}-x", phase="Succeeded") for job in self.lines),
            *(PodView(name=f"{job}-x", phase="Running", node="n-2", ready=True) for job in live),
        ]

    def batch_jobs(self, *, labels):
        done = [BatchJobView(name=job, succeeded=True) for job in self.lines]
        return [*done, *(BatchJobView(name=job) for job in self.running)]

    def end_line(self, pod):
        if self.deaf:
            raise TransientError("the kubelet does not answer")
        return self.lines[pod.removesuffix("-x")]


def look(looking: Looking, spec=SPEC, passes: int = 1):
    cluster = LiveCluster(looking, "c-1", spec, passes)
    if spec.eks_name:
        vars(cluster)["training_nodes"] = looking.nodes(labels={})
    return gpu_health.look(cluster)


def test_gpus_are_good_once_every_node_has_printed_that_they_are():
    finding = look(Looking({N1: printed(), N2: printed()}))

    assert finding.verdict is Verdict.GOOD
    assert finding.sentence == (
        "8 healthy GPUs on each of 2 nodes, driver 580.95.05, 4 EFA devices each, "
        "the hottest at 37 degrees Celsius"
    )
    assert finding.figures == {"gpus_seen": 8, "nodes": 2, "efa_seen": 4, "hottest_celsius": 37}


@pytest.mark.parametrize(
    ("looking", "passes", "verdict", "sentence"),
    [
        (Looking({}), 1, "missing", "the gpu-health check was just started"),
        (Looking({N1: printed()}), 1, "missing", "the gpu-health check was just started"),
        (Looking({N1: printed(), N2: printed()}), 2, "missing", "the gpu-health check was just"),
        (Looking({N1: printed()}, running=(N2,)), 1, "waiting", "its pods are starting"),
        (
            Looking({N1: printed()}, running=(N2,), pods_run=True),
            1,
            "waiting",
            "the gpu-health check still runs on n-2",
        ),
        (
            Looking({N1: printed(7)}, training_on=("n-1", "n-2")),
            1,
            "good",
            "runs use the GPUs of all",
        ),
        (
            Looking({N1: printed()}, training_on=("n-2",)),
            1,
            "good",
            "8 healthy GPUs on each of 1 node,",
        ),
        (Looking({N1: printed(), N2: ""}), 1, "bad", "node n-2: its pod printed no facts; see"),
    ],
)
def test_gpus_are_judged_on_idle_nodes_and_silence_is_no_pass(looking, passes, verdict, sentence):
    finding = look(looking, passes=passes)

    assert (finding.verdict, finding.sentence[: len(sentence)]) == (verdict, sentence)


def test_node_with_a_gpu_too_few_is_named_with_what_to_do():
    looking = Looking({N1: printed(), N2: printed(7)})

    ours, theirs = look(looking), look(looking, THEIRS)

    assert (ours.verdict, ours.figures) == (Verdict.BAD, {})
    assert ours.bad_nodes == {"n-2": "nvidia-smi shows 7 GPUs, 8 expected"}
    assert ours.sentence == (
        "node n-2: nvidia-smi shows 7 GPUs, 8 expected; instance i-n-2 goes with this cluster: "
        "type the `/train` command again for one with other machines"
    )
    assert theirs.sentence.endswith(
        "type kubectl cordon n-2, have instance i-n-2 replaced, and type the `/train` command again"
    )


def test_broken_node_is_said_before_what_all_nodes_have_in_common():
    looking = Looking({N1: printed(plugin="1.18.0"), N2: printed(7, plugin="1.18.0")})
    image = Looking({N1: printed(plugin="1.18.0"), N2: printed(plugin="1.18.0")})

    finding = look(looking)

    assert finding.sentence.startswith("node n-2: nvidia-smi shows 7 GPUs")
    assert finding.bad_nodes == {}  # another machine would have the same image
    assert look(image).sentence.endswith("(EFA installer 1.49.0) or newer in the image")


def test_log_that_cannot_be_read_now_is_read_again_later():
    with pytest.raises(TransientError, match="kubelet"):
        look(Looking({N1: printed(), N2: printed()}, deaf=True))


def test_pods_ask_for_all_devices_that_training_asks_for():
    plain = SPEC.model_copy(update={"num_efa": 0})

    (with_efa, _), (without,) = (
        gpu_health.render_jobs(LONG, hostnames=names, image="t:1", spec=spec)
        for names, spec in ((["b", "a"], SPEC), (["a"], plain))
    )
    pod = with_efa["spec"]["template"]["spec"]
    linted = lint([("gpu-health.yaml", to_yaml([with_efa]))], instance=SPEC.instance)
    limits = pod["containers"][0]["resources"]["limits"]

    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "a"}
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("8", "4")
    assert pod["containers"][0]["image"] == "t:1"
    assert len(with_efa["metadata"]["name"]) <= 63 - len("-abcde")
    assert "vpc.amazonaws.com/efa" not in str(without)
    # They do not train: what the linter says of NCCL's memory does not concern them.
    assert {each.rule for each in linted.findings} == {"shared-memory", "memory"}
    assert linted.num_objects == 1


LONG = "c" * 45


def test_node_says_which_instance_it_is():
    item = {"metadata": {"name": "n"}, "spec": {"providerID": "aws:///us-west-2a/i-0abc"}}

    assert parse_node(item).instance_id == "i-0abc"
    assert parse_node({"metadata": {"name": "n"}}).instance_id == ""
