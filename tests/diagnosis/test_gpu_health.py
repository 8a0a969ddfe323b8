"""What nvidia-smi and libfabric say of nodes, and what is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stationmaster.diagnosis.gpu_health import NodeFacts, judge, read_facts

FIELDS = (
    "index",
    "uuid",
    "driver_version",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "mig.mode.current",
    "pstate",
    "temperature.gpu",
    "clocks_event_reasons.active",
    "retired_pages.pending",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "gpu_recovery_action",
)
# Of a healthy GPU, after its index.
HEALTHY = (
    *("GPU-4f6c", "580.95.05", "Enabled", "0", "Disabled", "P0", "31", "0x0000000000000001"),
    *("[N/A]", "No", "0", "None"),
)


def table(count: int = 8, **of_gpu_3: str) -> str:
    """nvidia-smi's rows; `of_gpu_3` are other values of one GPU, with _ for a field's dots."""
    rows = []
    for index in range(count):
        row = dict(zip(FIELDS, [str(index), *HEALTHY], strict=True))
        row["uuid"] += str(index)
        if index == 3:
            row |= {name: of_gpu_3.get(name.replace(".", "_"), row[name]) for name in FIELDS}
        rows.append(", ".join(row.values()))
    return "\n".join(rows) + "\n"


def facts(
    output: str | None = None, *, exit_code: int | None = 0, num_efa: int = 4, **more: Any
) -> NodeFacts:
    output = table() if output is None else output
    devices = [f"rdmap{number}s0" for number in range(num_efa)]
    line = {
        "stationmaster": 1,
        "kind": "node_facts",
        "nvidia_smi": {"fields": FIELDS, "exit_code": exit_code, "output": output},
        "efa": {"devices": devices, "exit_code": 0, "output": "provider: efa"},
        "locked_memory_bytes": None,
        "modules": ["efa", "efa_nv_peermem", "gdrdrv", "nvidia"],
        "versions": {"nccl": "2.28.9", "ofi": "1.20.0"},
    }
    found = read_facts(json.dumps(line | more))
    assert found is not None
    return found


def faults(*nodes: NodeFacts | None, num_gpus: int = 8, num_efa: int = 4) -> list[tuple[str, str]]:
    listed = {f"n-{number}": node for number, node in enumerate(nodes, start=1)}
    health = judge(listed, num_gpus=num_gpus, num_efa=num_efa)
    return [(fault.node, fault.what) for fault in health.faults]


def test_healthy_nodes_have_no_fault_and_say_driver_and_temperature():
    health = judge(
        {"n-1": facts(), "n-2": facts(table(temperature_gpu="44"))}, num_gpus=8, num_efa=4
    )

    assert (health.faults, health.notes) == ((), ())
    assert (health.driver, health.hottest_celsius) == ("580.95.05", 44)


@pytest.mark.parametrize(
    "values",
    [
        dict.fromkeys(
            (
                "ecc_mode_current",
                "ecc_errors_uncorrected_volatile_total",
                "mig_mode_current",
                "temperature_gpu",
                "clocks_event_reasons_active",
                "remapped_rows_pending",
                "remapped_rows_failure",
                "gpu_recovery_action",
            ),
            "[N/A]",
        ),
        {"retired_pages_pending": "No", "remapped_rows_pending": "0"},
        {"clocks_event_reasons_active": "0x0000000000000004"},  # its power limit, under load
    ],
)
def test_values_that_a_driver_does_not_know_are_no_fault(values: dict[str, str]):
    assert faults(facts(table(**values))) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"ecc_errors_uncorrected_volatile_total": "2"},
            "has 2 uncorrected ECC errors, 0",
        ),
        ({"ecc_errors_uncorrected_volatile_total": "??"}, "has ?? uncorrected ECC errors"),
        ({"mig_mode_current": "Enabled"}, "has MIG Enabled, Disabled expected"),
        ({"retired_pages_pending": "Yes"}, "has a memory page that waits to be retired"),
        ({"remapped_rows_pending": "Yes"}, "has a memory row that waits to be remapped"),
        ({"remapped_rows_failure": "1"}, "has a memory row that could not be remapped"),
        ({"gpu_recovery_action": "Reset"}, 'needs "Reset", as its driver says'),
        ({"clocks_event_reasons_active": "0x0000000000000048"}, "(slowdown, thermal slowdown)"),
        ({"clocks_event_reasons_active": "0x80"}, "(power brake)"),
        ({"clocks_event_reasons_active": "warm"}, 'nvidia-smi says "warm"'),
        ({"pstate": "[GPU requires reset]"}, "does not work: nvidia-smi says [GPU requires reset]"),
        ({"uuid": "[N/A]"}, "has no UUID"),
    ],
)
def test_each_sign_of_a_broken_gpu_is_one_fault_that_names_node_and_gpu(values, said):
    ((node, what),) = faults(facts(), facts(table(**values)))

    assert node == "n-2"
    assert what.startswith("GPU 3 ")
    assert said in what


@pytest.mark.parametrize(
    ("output", "exit_code", "said"),
    [
        (table(7), 0, "nvidia-smi shows 7 GPUs, 8 expected"),
        (table(9), 0, "nvidia-smi shows 9 GPUs, 8 expected"),
        (
            table(7) + "Unable to determine the device handle for GPU 0000:C0:00.0: GPU is lost.",
            15,
            '7 GPUs, 8 expected; nvidia-smi exited with 15 and printed "Unable to determine',
        ),
        ("No devices were found", 6, "the NVIDIA driver finds no GPU: nvidia-smi exited with 6"),
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580",
            18,
            'of two versions: nvidia-smi exited with 18 and printed "Failed to initialize NVML: D',
        ),
        ("Failed to initialize NVML: Unknown Error", 255, "NVML does not start: "),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            9,
            "the NVIDIA driver is not loaded: ",
        ),
        ("Segmentation fault", 139, 'nvidia-smi exited with 139 and printed "Segmentation fault"'),
        ("", 0, 'nvidia-smi exited with 0 and printed "nothing"'),
        ("nvidia-smi did not end within 60 s", None, "nvidia-smi did not end within 60 s"),
        ("nvidia-smi is not in the container", None, "nvidia-smi is not in the container"),
        (table(), 14, "nvidia-smi exited with 14"),
    ],
)
def test_what_nvidia_smi_says_in_place_of_a_whole_table_is_one_fault(output, exit_code, said):
    ((node, what),) = faults(facts(output, exit_code=exit_code), facts())

    assert node == "n-1"
    assert said in what


def test_node_whose_pod_printed_nothing_that_can_be_read_is_a_fault():
    assert read_facts("Traceback (most recent call last)") is None
    assert read_facts('{"stationmaster": 2, "kind": "node_facts"}') is None
    assert faults(facts(), None) == [("n-2", "its pod printed no facts")]


def test_node_with_another_driver_than_most_is_named():
    other = facts(table().replace("580.95.05", "570.86.10"))

    ((node, what),) = faults(facts(), other, facts())

    assert (node, what) == ("n-2", "its NVIDIA driver is 570.86.10, that of other nodes 580.95.05")


def test_efa_devices_are_counted_where_jobs_ask_for_them():
    missing = {"devices": [], "exit_code": 61, "output": "fi_getinfo: -61 (No data available)"}

    assert faults(facts(num_efa=3)) == [("n-1", "fi_info shows 3 EFA devices, 4 expected")]
    assert faults(facts(num_efa=5)) == []
    ((_, what),) = faults(facts(efa=missing))
    assert what == (
        'fi_info shows 0 EFA devices, 4 expected; it printed "fi_getinfo: -61 (No data available)"'
    )
    assert faults(facts(num_efa=0), num_efa=0) == []


def test_bad_version_of_the_image_is_named_once_with_its_remedy():
    versions = {"nccl": "2.28.9", "ofi": "1.18.0"}
    nodes = {name: facts(versions=versions) for name in ("n-1", "n-2")}

    (fault,) = judge(nodes, num_gpus=8, num_efa=4).faults

    assert fault.what.startswith("aws-ofi-nccl 1.18.0 hangs in large broadcasts")
    assert "use aws-ofi-nccl 1.20.0" in fault.remedy


def test_what_a_measurement_proves_better_is_a_note_and_no_fault():
    node = facts(
        table(ecc_mode_current="Disabled"), locked_memory_bytes=8 << 20, modules=["efa", "nvidia"]
    )
    unseen = facts(modules=None, locked_memory_bytes=16 << 30)

    with_efa = judge({"n-1": node, "n-2": node}, num_gpus=8, num_efa=4)
    without = judge({"n-1": node}, num_gpus=8, num_efa=0)

    assert with_efa.faults == ()
    assert [note.partition(" ")[0] for note in with_efa.notes] == ["ECC", "containers", "neither"]
    assert "8192 KiB" in with_efa.notes[1]
    assert len(without.notes) == 1
    assert judge({"n-1": unseen}, num_gpus=8, num_efa=4).notes == ()
