"""The network check: what its job runs as, and its verdicts on what that has printed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from stationmaster.checks import network
from stationmaster.checks.whole_job import job_name
from stationmaster.domain.cluster.spec import ClusterSpec, FileSystemSpec, spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import Verdict
from stationmaster.kubernetes.views import PodView
from tests.support.check_world import NODES, WholeJobWorld
from tests.support.nccl_logs import Figures, efa, ramp, sockets, whole
from tests.support.rendered import check_job

SPEC = spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge")
CPUS = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="m5.2xlarge")


@dataclass
class World(WholeJobWorld):
    """The pods of the check with their logs."""

    check, letters = "network", "nw"
    spec: ClusterSpec = SPEC
    lines: list[str] = field(default_factory=list)
    ends: tuple[tuple[str, int], ...] = (("", 1),) * 4

    def checking(self):
        before = PodView(name="c-1-nw-before-worker-0", phase="Failed", node="n-1")
        return [*super().checking(), before]

    def log(self, pod):
        return "\n".join(self.lines) if pod.endswith("-0") else "NCCL version 2.27.7+cuda12.9"

    def failure_line(self, pod):
        return "RuntimeError: no route to host"

    def look(self, *, is_full=False):
        return network.look(self.live(is_full=is_full))


def log(*, allreduce=77.0, transport=None, hosts=NODES, broadcast=60.0, ranks=16, wrong="0"):
    """Of a measurement on p4d; without a broadcast where that is None."""
    rows = ramp(allreduce, ranks=ranks)
    rows[-1] = Figures(rows[-1].size, rows[-1].time, rows[-1].busbw, wrong)
    seen = efa(hosts=hosts) if transport is None else transport
    lines = whole(rows, seen, hosts=hosts, ranks=ranks)
    if broadcast is not None:
        sent = ramp(broadcast, operation="broadcast", ranks=ranks)
        lines += whole(sent, [], operation="broadcast", hosts=hosts, ranks=ranks)
    return lines


def pair(one, other, busbw):
    rows = ramp(busbw)[-1:]
    return whole(rows, [], hosts=(one, other))


def cpu_log(*, wrong="0"):
    rows = [Figures(size, size / 500, 0.5, wrong) for size in (1 << 10, 1 << 25)]
    more = {"hosts": NODES, "ranks": 2, "gpu": "CPU"}
    lines = [line.replace("NVIDIA CPU", "CPU") for line in whole(rows, [], **more)]
    return lines + whole(rows, [], operation="broadcast", **more)


def test_good_network_passes_with_its_figures_and_its_transport():
    finding = World(lines=log()).look()

    assert finding.verdict is Verdict.GOOD
    assert finding.sentence == (
        "all-reduce 77.0 GB/s at 1024 MiB and broadcast 60.0 GB/s at 1024 MiB among 16 ranks on "
        "2 nodes, all values right, over EFA with 4 interfaces a node"
    )
    assert finding.figures == {
        "all_reduce_busbw_gbps": 77.0,
        "all_reduce_mib": 1024,
        "broadcast_busbw_gbps": 60.0,
        "broadcast_mib": 1024,
        "nics": 4,
        "ranks": 16,
    }


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (log(transport=sockets(hosts=NODES)), "NCCL used sockets instead of EFA on n-1, n-2"),
        (log(transport=[]), "no line of NCCL proves that EFA was used between the nodes; put aws-"),
        (log(transport=efa(1, hosts=NODES)), "1 of 4 EFA interfaces were found"),
        (
            log(allreduce=50.0, transport=efa(None, devices=1, hosts=NODES)),
            "no line of NCCL says how many of the 4 EFA interfaces were found",
        ),
        (log(allreduce=500.0, wrong="3"), "3 values are wrong in all_reduce"),
        (log(allreduce=5.9), "all_reduce: 5.9 GB/s at 1.00 GiB, below the limit of 35"),
        (log(allreduce=5.9), "in pairs to find a slow one, which validate=full does ("),
        (log(broadcast=None), "broadcast among all nodes was not measured to its end; start it"),
        (log()[:-3], "broadcast among all nodes was not measured to its end; start it"),
        (log(hosts=("n-1", "n-1")), "all_reduce and broadcast among all nodes was not measured"),
        ([], "all_reduce and broadcast among all nodes was not measured to its end"),
    ],
)
def test_network_that_is_not_proven_to_be_good_fails(lines, said):
    finding = World(lines=lines).look()

    assert finding.verdict is Verdict.BAD
    assert said in finding.sentence
    assert ("all values right" in finding.sentence) is (
        "values are wrong" not in said and bool(finding.figures)
    )


def test_slower_than_usual_passes_and_says_so():
    finding = World(lines=log(allreduce=50.0)).look()

    assert finding.verdict is Verdict.GOOD
    assert "all_reduce: 50 GB/s at 1.00 GiB, below the limit of 65" in finding.sentence


@pytest.mark.parametrize(
    ("busbw", "said", "bad"),
    [
        ((77, 12, 12), "node n-3 is bad with both of its partners: all_reduce: 12 GB/s", ["n-3"]),
        ((12, 77, 77), "nodes n-1 and n-2: all_reduce: 12 GB/s", []),
    ],
)
def test_slow_node_or_pair_is_named_where_pairs_were_measured(busbw, said, bad):
    three = ("n-1", "n-2", "n-3")
    pairs = [("n-1", "n-2"), ("n-2", "n-3"), ("n-3", "n-1")]
    slow = [line for nodes, speed in zip(pairs, busbw, strict=True) for line in pair(*nodes, speed)]
    lines = slow + log(allreduce=12.0, hosts=three, ranks=24)
    world = World(lines=lines, names=three, phases=("Succeeded",) * 3)

    finding = world.look(is_full=True)

    assert finding.verdict is Verdict.BAD
    assert finding.sentence.startswith(said)
    assert [*finding.bad_nodes] == bad
    assert finding.figures["slowest_pair_busbw_gbps"] == 12.0
    quick = World(
        lines=log(allreduce=38.0, hosts=three, ranks=24), names=three, phases=("Succeeded",) * 3
    )
    assert quick.look().verdict is Verdict.GOOD
    assert quick.look(is_full=True).sentence.startswith("0 of 3 pairs of nodes were measured")


def test_cpus_pass_with_their_figures_if_all_values_are_right():
    good = World(spec=CPUS, lines=cpu_log()).look(is_full=True)

    assert good.verdict is Verdict.GOOD
    assert good.figures["all_reduce_busbw_gbps"] == 0.5
    assert "0.5 GB/s at 32 MiB among 2 ranks on 2 nodes, all values right" in good.sentence
    bad = World(spec=CPUS, lines=cpu_log(wrong="7")).look(is_full=True)
    assert bad.verdict is Verdict.BAD
    assert bad.sentence.startswith("14 values are wrong in all_reduce, first at 1.00 KiB")


@pytest.mark.parametrize(("busbw", "bad"), [((1, 0.15, 0.1), ["n-3"]), ((1, 0.3, 0.25), [])])
def test_node_far_slower_than_the_others_is_bad_without_any_floor(busbw, bad):
    three = ("n-1", "n-2", "n-3")
    more = {"ranks": 2, "gpu": "CPU"}
    lines = []
    for hosts, speed in zip((three[:2], three[1:], three[::2]), busbw, strict=True):
        rows = [Figures(1 << 25, (1 << 25) / speed / 1000, speed)]
        lines += whole(rows, [], hosts=hosts, **more)
    rows = [Figures(1 << 25, (1 << 25) / 100, 0.1)]
    for operation in ("all_reduce", "broadcast"):
        factor = 4 / 3 if operation == "all_reduce" else 1
        own = [Figures(1 << 25, rows[0].time * factor, 0.1)]
        lines += whole(own, [], operation=operation, hosts=three, ranks=3, gpu="CPU")
    lines = [line.replace("NVIDIA CPU", "CPU") for line in lines]
    spec = CPUS.model_copy(update={"nodes": 3})

    finding = World(spec=spec, lines=lines, names=three, phases=("Succeeded",) * 3).look(
        is_full=True
    )

    assert [*finding.bad_nodes] == bad
    assert finding.verdict is (Verdict.BAD if bad else Verdict.GOOD), finding.sentence
    assert ("node n-3 is slow with both of its partners: 0.15 GB/s" in finding.sentence) is bool(
        bad
    )


def test_devices_that_jobs_do_not_ask_for_are_not_missed():
    without_gpus = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="p4d.24xlarge")
    without_efa = SPEC.model_copy(
        update={"instance_type": "g4dn.8xlarge", "num_gpus": 1, "num_efa": 0}
    )
    rows, more = ramp(2.0, ranks=2), {"hosts": NODES, "ranks": 2, "gpu": "T4"}
    sent = ramp(2.0, ranks=2, operation="broadcast")
    lines = [
        *whole(rows, sockets(hosts=NODES), **more),
        *whole(sent, [], operation="broadcast", **more),
    ]

    on_cpus = World(spec=without_gpus, lines=cpu_log()).look(is_full=True)
    on_sockets = World(spec=without_efa, lines=lines).look()

    assert on_cpus.verdict is Verdict.GOOD
    assert on_sockets.verdict is Verdict.GOOD
    assert "over sockets; no floor is known for all_reduce on 2 x g4dn" in on_sockets.sentence


@pytest.mark.parametrize(
    ("world", "verdict", "said"),
    [
        (World(is_started=False), Verdict.MISSING, "the network check was just started"),
        (World(phases=("Succeeded", "Running")), Verdict.WAITING, "its pods are starting"),
        (World(phases=("Succeeded",)), Verdict.WAITING, "its pods are starting"),
        (
            World(phases=("Failed", "Running")),
            Verdict.BAD,
            "the network could not be measured: on node n-1 pod c-1-nw-",
        ),
        (World(phases=("Failed", "Running")), Verdict.BAD, "with 1: RuntimeError: no route"),
        (
            World(phases=("Pending",), waiting_reason="CreateContainerError"),
            Verdict.BAD,
            "waits with CreateContainerError; the network was not measured",
        ),
        (
            World(phases=("Running",), conditions=("Failed",)),
            Verdict.BAD,
            "the network was not measured: why",
        ),
        (
            World(training_on=("n-2",), spec=CPUS),
            Verdict.GOOD,
            "runs use the network of all but 1 node;",
        ),
    ],
)
def test_job_that_has_not_measured_proves_nothing(world, verdict, said):
    finding = world.look()

    assert finding.verdict is verdict
    assert said in finding.sentence


def test_job_of_an_earlier_pass_or_of_other_nodes_is_another_one():
    live = World().live()

    names = {
        job_name(live, "nw"),
        job_name(live, "tr"),
        job_name(World().live(passes=2), "nw"),
        job_name(World(names=("n-1", "n-3")).live(), "nw"),
    }

    assert len(names) == 4


@pytest.mark.parametrize(
    ("instance", "nodes", "quick", "full"),
    [
        ("p4d.24xlarge", 2, True, True),
        ("p4d.24xlarge", 1, False, True),
        ("g5.xlarge", 1, False, False),
        ("g5.xlarge", 2, True, True),
        ("m5.2xlarge", 2, False, True),
        ("m5.2xlarge", 1, False, False),
    ],
)
def test_network_is_measured_where_messages_travel(instance, nodes, quick, full):
    gpus = {"p": 8, "g": 1, "m": 0}[instance[0]]
    file_system = FileSystemSpec(storage_gib=1200, mbps_per_tib=125)
    spec = ClusterSpec(
        instance_type=instance, nodes=nodes, file_system=file_system, num_gpus=gpus, num_efa=0
    )

    assert network.applies(spec, is_full=False) is quick
    assert network.applies(spec, is_full=True) is full


def test_job_runs_as_training_does_but_for_its_program_and_its_log():
    [job] = check_job("c-1", SPEC, "network", name="c-1-nw")

    spec = job["spec"]
    [worker] = spec["pytorchReplicaSpecs"].values()
    [container] = worker["template"]["spec"]["containers"]
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert len(values) == len(container["env"])
    assert (values["NCCL_DEBUG"], values["NCCL_NET"], values["FI_PROVIDER"]) == (
        "INFO",
        "AWS Libfabric",
        "efa",
    )
    assert "NCCL_DEBUG_SUBSYS" not in values
    assert container["command"] == [
        *("torchrun", "-m", "training.collectives", "--alone", "--pairs")
    ]
    assert container["resources"]["limits"]["vpc.amazonaws.com/efa"] == "4"
    assert (spec["nprocPerNode"], worker["replicas"], container["image"]) == ("8", 2, "t:1")
    assert (worker["restartPolicy"], spec["elasticPolicy"]["maxRestarts"]) == ("Never", 0)
    for labels in (job["metadata"]["labels"], worker["template"]["metadata"]["labels"]):
        assert labels["stationmaster/role"] == "check"
        assert labels["stationmaster/cluster-id"] == "c-1"
