"""The check of NCCL by its own tests, as MPIJobs, for who types validate=nccl.

The first job measures all-reduce, broadcast and alltoall with all EFA interfaces, and is judged as
`nccl-report` does it. Those after it measure the all-reduce with 1, 2 and 4 interfaces, as far as
the instance type has more: of these the speed is shown, and not judged. One job runs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.checks.network import as_asked_for
from stationmaster.checks.whole_job import job_name
from stationmaster.diagnosis.nccl.log import read_log
from stationmaster.diagnosis.nccl.report import NcclReport, TestReport
from stationmaster.diagnosis.nccl.report import Verdict as NcclVerdict
from stationmaster.diagnosis.nccl.verdict import judge
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.names import LABEL_CLUSTER_ID
from stationmaster.domain.sizes import counted, size_text
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.kinds import MPI_JOB
from stationmaster.kubernetes.views import BatchJobView, PodView
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import LABEL_CHECK, namespace
from stationmaster.rendering.nccl_tests import OPERATIONS, render_nccl_tests

NAME: Final = "nccl"
_LETTERS: Final = "mp"
_FEWER: Final = (1, 2, 4)
# Below it a table says nothing of bandwidth.
_SMALLEST_SHOWN: Final = 1 << 20


def applies(spec: ClusterSpec, *, is_full: bool) -> bool:
    """Say no: only who types validate=nccl gets it."""
    return False


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make the jobs that were made before, and the next one."""
    known = _jobs(cluster)
    names = _names(cluster)
    made = [name for name in names if name in known]
    instance = as_asked_for(cluster.spec)
    return [
        namespace(),
        *(
            render_nccl_tests(
                cluster.cluster_id,
                instance=instance.model_copy(update={"num_efa": names[name]}),
                num_nodes=len(cluster.idle_nodes),
                name=name,
                operations=_operations(cluster, names[name]),
            )
            for name in [*names][: len(made) + 1]
        ),
    ]


def look(cluster: LiveCluster) -> Finding:
    """Judge the jobs of the present nodes, once the last has ended."""
    num_nodes = len(cluster.idle_nodes)
    if num_nodes * cluster.spec.num_gpus < 2:
        busy = f"runs use the GPUs of all but {counted(num_nodes, 'node')}: NCCL was not measured"
        return Finding(Verdict.GOOD, busy, {"nodes": num_nodes})
    jobs, names = _jobs(cluster), _names(cluster)
    labels = {LABEL_CLUSTER_ID: cluster.cluster_id, LABEL_CHECK: NAME}
    pods = cluster.kubernetes.pods(labels=labels)
    for name in names:
        job = jobs.get(name)
        if job is None:
            return Finding(Verdict.MISSING, f"{name} was just started")
        if not job.succeeded and not job.failed:
            return _unfinished(cluster, [pod for pod in pods if pod.name.startswith(f"{name}-")])
    reports = {}
    for name, num_efa in names.items():
        launcher = _launcher(name, pods)
        if launcher is None:
            why = jobs[name].message or "its launcher's pod is gone"
            return Finding(Verdict.BAD, f"NCCL was not measured: {name}: {why}")
        # One log at a time: several do not fit into the memory of a function together.
        log = read_log(cluster.kubernetes.log(launcher.name).splitlines())
        instance = as_asked_for(cluster.spec).model_copy(update={"num_efa": num_efa})
        reports[num_efa] = judge(log, instance, num_nodes=num_nodes)
        missing = set(_operations(cluster, num_efa)) - {
            str(test.operation) for test in reports[num_efa].tests if test.rows
        }
        if missing:
            said = cluster.kubernetes.failure_line(launcher.name) or "it printed no table"
            what = ", ".join(sorted(missing))
            return Finding(Verdict.BAD, f"{what} was not measured: {launcher.name}: {said}")
    return _judged(cluster, reports)


def _names(cluster: LiveCluster) -> dict[str, int]:
    """Return how many interfaces each job's workers get, by its name, in their order."""
    base, num_efa = job_name(cluster, _LETTERS), cluster.spec.num_efa
    # Within one node nothing is sent over them.
    fewer = [each for each in _FEWER if each < num_efa and len(cluster.idle_nodes) > 1]
    return {f"{base}-{each}": each for each in [num_efa, *fewer]}


def _operations(cluster: LiveCluster, num_efa: int) -> Sequence[str]:
    return OPERATIONS if num_efa == cluster.spec.num_efa else OPERATIONS[:1]


def _jobs(cluster: LiveCluster) -> dict[str, BatchJobView]:
    labels = {LABEL_CLUSTER_ID: cluster.cluster_id, LABEL_CHECK: NAME}
    jobs = cluster.kubernetes.batch_jobs(labels=labels, of=MPI_JOB)
    return {job.name: job for job in jobs}


def _launcher(name: str, pods: Sequence[PodView]) -> PodView | None:
    """Return the job's launcher: the one that ended well, or the last that did not."""
    mine = [pod for pod in pods if pod.name.startswith(f"{name}-launcher-")]
    return max(mine, key=lambda pod: pod.phase == "Succeeded", default=None)


def _unfinished(cluster: LiveCluster, pods: Sequence[PodView]) -> Finding:
    stuck = next((pod for pod in pods if pod.cannot_start), None)
    if stuck is not None:
        return Finding(Verdict.BAD, f"{stuck.waits_for}; NCCL was not measured")
    return Finding(Verdict.WAITING, cluster.kubernetes.explain(pods))


def _judged(cluster: LiveCluster, reports: dict[int, NcclReport]) -> Finding:
    main, *fewer = reports.values()
    columns = [test for test in main.tests if test.rows]
    figures = {f"{test.operation}_busbw_gbps": _largest(test) for test in columns}
    if main.num_ranks is not None:
        figures["ranks"] = main.num_ranks
    for report in fewer:
        columns += report.tests[:1]
        name = f"all_reduce_{report.num_nics_expected}_efa_busbw_gbps"
        figures[name] = _largest(report.tests[0])
    interfaces = [cluster.spec.num_efa] * (len(columns) - len(fewer))
    interfaces += [report.num_nics_expected for report in fewer]
    table = _table(columns, interfaces)
    wrong = sum(report.wrong_values for report in reports.values())
    if wrong and not main.wrong_values:
        return Finding(Verdict.BAD, f"{wrong} values are wrong", figures, table=table)
    said = [each for each in main.findings if each.verdict is main.verdict]
    text = "; ".join([*(each.text for each in said[:2]), *main.next_steps[:1]])
    if main.verdict is NcclVerdict.FAIL:
        return Finding(Verdict.BAD, text, figures, table=table)
    nodes = counted(main.nodes, "node")
    sentence = f"nccl-tests on {nodes}: {main.verdict.value}; {text}"
    return Finding(Verdict.GOOD, sentence, figures, table=table)


def _largest(test: TestReport) -> float:
    return max(test.rows, key=lambda row: row.size_bytes).busbw_gbps


def _table(tests: Sequence[TestReport], interfaces: Sequence[int]) -> tuple[str, ...]:
    """Write the bus bandwidths by size and operation; EFA is how many interfaces each node used."""
    by_size = [{row.size_bytes: row.busbw_gbps for row in test.rows} for test in tests]
    sizes = sorted({size for column in by_size for size in column if size >= _SMALLEST_SHOWN})
    rows = [
        ["GB/s", *(str(test.operation) for test in tests)],
        ["EFA", *map(str, interfaces)],
        *(
            [size_text(size), *(f"{each[size]:.2f}" if size in each else "-" for each in by_size)]
            for size in sizes
        ),
    ]
    return tuple(
        f"{row[0]:<8}" + "".join(f"{cell:>11}" for cell in row[1:]).rstrip() for row in rows
    )
