"""The check of NCCL by its own tests: which jobs run when, and its verdict on their logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from stationmaster.checks import before, names_for, nccl
from stationmaster.checks.whole_job import job_name
from stationmaster.domain.cluster.spec import ClusterSpec, spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import LiveCluster, Verdict
from stationmaster.kubernetes.kinds import MPI_JOB
from stationmaster.kubernetes.views import PodView, parse_batch_job
from stationmaster.rendering import pytorch_job
from tests.support.check_world import NODES, CheckWorld
from tests.support.nccl_logs import FACTORS, Figures, efa, ramp, sockets, whole

SPEC = spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge")
SPEEDS = {4: 77.0, 1: 21.0, 2: 44.0}
FACTORS["alltoall"] = FACTORS["all_gather"]


def log(busbw: float, *, num_efa=4, seen=None, others=True, wrong="0") -> str:
    rows = ramp(busbw)
    rows[-1] = Figures(rows[-1].size, rows[-1].time, rows[-1].busbw, wrong)
    lines = whole(rows, efa(num_efa, hosts=NODES) if seen is None else seen, hosts=NODES)
    for operation in ("broadcast", "alltoall") if others else ():
        lines += whole(ramp(30, operation=operation), [], operation=operation, hosts=NODES)
    return "\n".join(lines)


@dataclass
class World(CheckWorld):
    """MPIJobs by the number of interfaces of their workers, with their logs; "" while they run."""

    check = "nccl"
    logs: dict[int, str] = field(default_factory=dict)
    spec: ClusterSpec = SPEC
    backend = pytorch_job
    ended: str = "Succeeded"

    @property
    def live(self) -> LiveCluster:
        return LiveCluster(self, "c-1", self.spec)

    def name(self, num_efa: int) -> str:
        return f"{job_name(self.live, 'mp')}-{num_efa}"

    def batch_jobs(self, *, labels, of):
        assert (labels["stationmaster/check"], of) == ("nccl", MPI_JOB)
        return [
            parse_batch_job(
                {
                    "metadata": {"name": self.name(num_efa)},
                    "status": {
                        "conditions": [
                            {"type": "Running", "status": "False" if text else "True"},
                            *([{"type": self.ended, "status": "True"}] if text else []),
                        ]
                    },
                }
            )
            for num_efa, text in self.logs.items()
        ]

    def checking(self):
        return [
            PodView(name=f"{self.name(num_efa)}-launcher-{tail}", phase=phase)
            for num_efa in self.logs
            for tail, phase in (("a", "Failed"), ("b", self.ended), ("c", "Failed"))
        ]

    def log(self, pod):
        found = [text for each, text in self.logs.items() if pod.startswith(f"{self.name(each)}-")]
        return found[0] if pod.endswith("-b" if self.ended == "Succeeded" else "-a") else "no route"

    def failure_line(self, pod):
        return "ssh: connect to host: Connection refused"

    def next(self) -> tuple[Verdict, list[int]]:
        """What is said, and the interfaces of each job that would be applied."""
        jobs: list[Any] = [each for each in nccl.render(self.live) if each["kind"] == "MPIJob"]
        workers = [each["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"] for each in jobs]
        asked = [each["containers"][0]["resources"]["limits"] for each in workers]
        return nccl.look(self.live).verdict, [int(each["vpc.amazonaws.com/efa"]) for each in asked]


def done(**main) -> dict[int, str]:
    fewer = {each: log(SPEEDS[each], num_efa=each, others=False) for each in (1, 2)}
    return {4: log(**{"busbw": SPEEDS[4]} | main), **fewer}


def test_jobs_run_one_after_another_with_fewer_interfaces_each_time():
    whole_log = log(77)

    assert World().next() == (Verdict.MISSING, [4])
    assert World(logs={4: ""}).next()[0] is Verdict.WAITING
    assert World(logs={4: whole_log}).next() == (Verdict.MISSING, [4, 1])
    assert World(logs={4: whole_log, 1: whole_log}).next() == (Verdict.MISSING, [4, 1, 2])
    assert World(logs=done()).next()[0] is Verdict.GOOD


def test_good_fabric_passes_with_its_figures_and_a_table_of_sizes_and_operations():
    finding = nccl.look(World(logs=done()).live)

    assert finding.verdict is Verdict.GOOD
    assert finding.sentence.startswith("nccl-tests on 2 nodes: pass; ")
    assert "all_reduce: 77 GB/s at 1.00 GiB" in finding.sentence
    assert finding.figures == {
        "all_reduce_busbw_gbps": 77.0,
        "broadcast_busbw_gbps": 30.0,
        "alltoall_busbw_gbps": 30.0,
        "all_reduce_1_efa_busbw_gbps": 21.0,
        "all_reduce_2_efa_busbw_gbps": 44.0,
        "ranks": 16,
    }
    assert [line.split() for line in (*finding.table[:2], finding.table[-1])] == [
        ["GB/s", "all_reduce", "broadcast", "alltoall", "all_reduce", "all_reduce"],
        ["EFA", "4", "4", "4", "1", "2"],
        ["1.00", "GiB", "77.00", "30.00", "30.00", "21.00", "44.00"],
    ]
    assert len({len(line) for line in finding.table}) == 1
    assert len(finding.table) == 2 + 11


@pytest.mark.parametrize(
    ("logs", "said"),
    [
        (done(busbw=5.9), "all_reduce: 5.9 GB/s at 1.00 GiB, below the limit of 35"),
        (done(seen=sockets(hosts=NODES)), "NCCL used sockets instead of EFA"),
        (done(others=False), "alltoall, broadcast was not measured: "),
        (done() | {2: log(44, num_efa=2, wrong="3")}, "3 values are wrong"),
        (done() | {1: "mpirun was unable to reach n-2"}, "all_reduce was not measured: "),
    ],
)
def test_fabric_that_is_not_proven_to_be_good_fails(logs, said):
    finding = nccl.look(World(logs=logs).live)

    assert finding.verdict is Verdict.BAD
    assert said in finding.sentence


def test_job_that_failed_is_judged_by_what_it_printed():
    assert nccl.look(World(logs=done(), ended="Failed").live).verdict is Verdict.GOOD


def test_nodes_that_runs_use_are_not_measured_and_nobody_gets_it_unasked():
    busy = nccl.look(World(training_on=NODES).live)

    assert busy.verdict is Verdict.GOOD
    assert "NCCL was not measured" in busy.sentence
    assert "nccl" not in names_for(SPEC, is_full=True)
    assert names_for(SPEC, measures_nccl=True)[-1] == "nccl"
    assert before("nccl", SPEC, is_full=False) == ["gpu-health", "network", "storage"]
