"""Whether a test ran on the machines that it is judged for: ranks, nodes and GPUs.

A test of one node is fast over NVLink and says nothing of the network, so it must not pass for two.
"""

from __future__ import annotations

from stationmaster.diagnosis.nccl.consistency import implied_ranks
from stationmaster.diagnosis.nccl.report import Finding, failure, warning
from stationmaster.diagnosis.nccl.tables import Table
from stationmaster.domain.catalogue.instances import InstanceType


def ranks_of(table: Table, instance: InstanceType, *, num_nodes: int) -> int | None:
    """Count the ranks: by the table's head, else by its bandwidths, else as expected."""
    if table.ran_alone:
        return 1
    if table.num_ranks and table.num_ranks > 1:
        return table.num_ranks
    expected = num_nodes * instance.num_gpus or None
    implied = implied_ranks(table.rows, table.operation or "")
    if expected and implied and _about(expected, implied):
        return expected
    return implied or expected or table.num_ranks


def machine_findings(table: Table, instance: InstanceType, *, num_nodes: int) -> list[Finding]:
    """Find where the log is of other machines than the ones that were named."""
    if table.ran_alone or _sends_nothing(table):
        return [
            failure(
                "each process tested itself alone: its bus bandwidth is 0",
                "build nccl-tests with MPI=1, and start it with mpirun",
            )
        ]
    return [*_nodes(table, instance, num_nodes=num_nodes), *_gpus(table, instance)]


def _nodes(table: Table, instance: InstanceType, *, num_nodes: int) -> list[Finding]:
    num_hosts = len(table.hosts)
    if num_hosts and num_hosts != num_nodes:
        return [_wrong_nodes(f"{num_hosts} node{'s' * (num_hosts != 1)}", num_nodes)]
    ranks = ranks_of(table, instance, num_nodes=num_nodes)
    expected = num_nodes * instance.num_gpus
    if ranks is None or expected in (0, ranks):
        return []
    if not num_hosts and ranks <= instance.num_gpus * (num_nodes - 1):
        return [_wrong_nodes(f"{ranks} ranks", num_nodes)]
    return [
        warning(
            f"{ranks} ranks were measured, {num_nodes} x {instance.name} have {expected} GPUs",
            f"run one rank on each GPU: mpirun -np {expected} -N {instance.num_gpus}",
        )
    ]


def _wrong_nodes(what: str, num_nodes: int) -> Finding:
    return failure(
        f"the test ran on {what}, not on {num_nodes} node{'s' * (num_nodes != 1)}",
        "run it on all of the nodes, or say with --nodes how many it ran on",
    )


def _gpus(table: Table, instance: InstanceType) -> list[Finding]:
    gpu = instance.gpu
    other = next((name for name in sorted(table.gpus) if gpu and gpu not in name), None)
    if other is None:
        return []
    return [
        failure(
            f"the test ran on GPUs of the type {other}, {instance.name} has {gpu}",
            "say with --instance where it ran",
        )
    ]


def _sends_nothing(table: Table) -> bool:
    largest = max(table.rows, key=lambda row: row.size_bytes).judged
    return largest.busbw_gbps == 0 and largest.algbw_gbps > 0


def _about(expected: int, implied: int) -> bool:
    """Say whether both are equal, within what two decimals of a bandwidth say of so many ranks."""
    return abs(expected - implied) <= max(0, expected * expected // 4000)
