"""The job that measures NCCL: admitted, linted clean, and printing what the report reads."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from subprocess import run
from typing import Any

import pytest

from stationmaster.diagnosis.lint import lint
from stationmaster.diagnosis.nccl.log import TableReader
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import NAMESPACE
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.rendering.examples import to_yaml
from stationmaster.rendering.nccl_tests import OPERATIONS, render_nccl_tests, script
from tests.support.admitting import admit_pod, api_server, store

LONG = ClusterId("c" * 32)
PLACES = [
    ("p4d.24xlarge", 2),
    ("p5.48xlarge", 64),
    ("p6-b200.48xlarge", 2),
    ("g5.8xlarge", 2),
    ("g5.xlarge", 2),
    ("p4de.24xlarge", 1),
]


def rendered(instance: str, nodes: int) -> dict[str, Any]:
    return render_nccl_tests(LONG, instance=get_instance(instance), num_nodes=nodes)


@pytest.fixture(scope="module")
def objects() -> Objects:
    return api_server(load_manifests("mpi-operator"))


@pytest.mark.parametrize(("instance", "nodes"), PLACES)
def test_job_is_admitted_with_its_pods_and_linted_clean(objects, instance, nodes):
    job = rendered(instance, nodes)

    stored = store(objects, job, dry_run=True)

    assert stored["spec"]["mpiImplementation"] == "OpenMPI"
    for replica in stored["spec"]["mpiReplicaSpecs"].values():
        template = replica["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": "made", "namespace": NAMESPACE},
            # The operator gives it to the pods.
            "spec": {**template["spec"], "restartPolicy": replica["restartPolicy"]},
        }
        admit_pod(objects, pod, namespace=NAMESPACE)
    # That NCCL_DEBUG=INFO writes much is right, and wanted for minutes.
    found = lint([(instance, to_yaml([job]))]).findings
    assert [finding for finding in found if finding.severity != "info"] == []
    assert {finding.rule for finding in found} <= {"env-policy"}


@pytest.mark.parametrize(("instance", "nodes"), PLACES)
def test_devices_and_ranks_are_those_of_all_nodes(instance, nodes):
    job = rendered(instance, nodes)
    machine = get_instance(instance)

    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]
    requests = worker["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert worker["replicas"] == nodes
    assert requests["nvidia.com/gpu"] == str(machine.num_gpus)
    assert requests.get("vpc.amazonaws.com/efa", "0") == str(machine.num_efa)
    text = script(machine, OPERATIONS, nodes)
    assert text.count(f"-np {nodes * machine.num_gpus} -N {machine.num_gpus}") == 3


def test_script_measures_each_operation_up_to_the_judged_size_and_keeps_its_tables():
    text = script(get_instance("p6-b200.48xlarge"), OPERATIONS, 2)

    words = shlex.split(text.replace("\\\n", " "))
    tests = [word for word in words if word.endswith("_perf")]
    assert [test.rpartition("/")[2] for test in tests] == [f"{each}_perf" for each in OPERATIONS]
    assert re.findall(r"-b 8 -e (\d+)G -f 2 -g 1 -c 1", text) == ["8"] * 3
    # What NCCL says is cut, what the test says is not, and a test that fails fails the job.
    line = text.splitlines()[-2].strip().removeprefix("| ").removesuffix(" || status=1")
    printed = "x NCCL INFO a\n" * 15_001 + "8 2 float\n"
    kept = run(["bash", "-c", line], input=printed, capture_output=True, text=True, check=True)
    assert kept.stdout.splitlines() == printed.splitlines()[1:]
    assert text.startswith("set -o pipefail")
    assert text.count("timeout --kill-after=30 540") == 3
    exported = [name for flag, name in pairwise(words) if flag == "-x"]
    assert exported == exported[: len(exported) // 3] * 3
    for replica in rendered("p6-b200.48xlarge", 2)["spec"]["mpiReplicaSpecs"].values():
        container = replica["template"]["spec"]["containers"][0]
        values = {entry["name"]: entry["value"] for entry in container["env"]}
        assert values["NCCL_DEBUG"] == "INFO"
        assert "NCCL_DEBUG_SUBSYS" not in values
        assert set(exported) - set(values) == {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"}
        assert set(values) < set(exported)
    assert text.count("|| status=1") == 3
    # What bash echoes with set -x is where the report finds the names.
    reader = TableReader()
    for line in [
        tests[0],
        "8 2 float sum -1 1 1 1 0 1 1 1 0",
        tests[1],
        "8 2 float none 0 1 1 1 0",
    ]:
        reader.feed(line)
    assert [table.operation for table in reader.close()] == ["all_reduce", "broadcast"]


@pytest.mark.parametrize(
    ("instance", "nodes"), [("m5.2xlarge", 2), ("trn1.32xlarge", 2), ("p5.48xlarge", 0)]
)
def test_nodes_that_nccl_cannot_run_on_are_refused(instance, nodes):
    with pytest.raises(ValueError, match="NCCL needs nodes with NVIDIA GPUs"):
        rendered(instance, nodes)
