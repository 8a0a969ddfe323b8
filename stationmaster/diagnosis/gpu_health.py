"""Whether GPUs are healthy, by what `training.node_facts` printed on each node. Pure.

Fail-closed: what is missing or cannot be read is a fault, except for a field that a driver does not
know ([N/A], or not in its list). What a measurement of the network proves better is only a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import ValidationError

from stationmaster.domain.catalogue.defects import defect_of
from stationmaster.domain.frozen import Frozen

_UNKNOWN: Final = ("[N/A]", "N/A", "[Not Supported]", "")
_BROKEN: Final = (
    "[GPU requires reset]",
    "[GPU is lost]",
    "[Unknown Error]",
    "[Insufficient Power]",
)
# Fields of a GPU with their good values, what others mean, and what to do; "" for another node.
_SIGNS: Final = (
    (
        "ecc.errors.uncorrected.volatile.total",
        ("0",),
        "has {} uncorrected ECC errors, 0 expected",
        "",
    ),
    (
        *("mig.mode.current", ("Disabled",), "has MIG {}, Disabled expected"),
        "turn it off on the node with nvidia-smi -mig 0",
    ),
    ("retired_pages.pending", ("No", "0"), "has a memory page that waits to be retired", ""),
    ("remapped_rows.pending", ("No", "0"), "has a memory row that waits to be remapped", ""),
    ("remapped_rows.failure", ("No", "0"), "has a memory row that could not be remapped", ""),
    ("gpu_recovery_action", ("None",), 'needs "{}", as its driver says', ""),
)
# Bits of the clocks' event reasons that an idle GPU never has. Source: NVML API reference,
# NvmlClocksEventReasons.
_SLOWDOWNS: Final = {0x08: "slowdown", 0x40: "thermal slowdown", 0x80: "power brake"}
# What nvidia-smi says instead of a table, and what it means. Source: NVIDIA's manual of nvidia-smi,
# "Return value", and what it prints with each.
_MESSAGES: Final = {
    "Driver/library version mismatch": "the driver's module and its library are of two versions",
    "couldn't communicate with the NVIDIA driver": "the NVIDIA driver is not loaded",
    "No devices were found": "the NVIDIA driver finds no GPU",
    "Failed to initialize NVML": "NVML does not start",
}
# EFA registers the memory that it sends from. Source: EC2 user guide, "Get started with EFA and
# NCCL", which sets the limit to unlimited. That 16 GiB are enough is an assumption.
_LEAST_LOCKED_BYTES: Final = 16 << 30
_PEER_MODULES: Final = ("efa_nv_peermem", "nvidia_peermem")


class Answer(Frozen):
    """What a command printed; `exit_code` is None where it is not installed or did not end."""

    exit_code: int | None
    output: str
    fields: tuple[str, ...] = ()
    """The columns of nvidia-smi."""
    devices: tuple[str, ...] = ()
    """The EFA devices that fi_info lists."""


class NodeFacts(Frozen):
    """The line that `training.node_facts` prints."""

    stationmaster: Literal[1]
    kind: Literal["node_facts"]
    nvidia_smi: Answer
    efa: Answer
    locked_memory_bytes: int | None
    """The limit of locked memory; None for unlimited."""
    modules: tuple[str, ...] | None
    """The loaded modules that matter; None where the container cannot see them."""
    versions: dict[str, str]
    """The versions by package, as `stationmaster.domain.catalogue.defects` calls them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, on which node; `remedy` is empty where the node has to be replaced."""

    node: str
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """All nodes; healthy without a fault. `hottest_celsius` is None where no GPU says."""

    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    driver: str
    hottest_celsius: int | None


def read_facts(line: str) -> NodeFacts | None:
    """Read the facts in a line; None where it is something else."""
    try:
        return NodeFacts.model_validate_json(line)
    except ValidationError:
        return None


def judge(nodes: Mapping[str, NodeFacts | None], *, num_gpus: int, num_efa: int) -> Health:
    """Judge all nodes of a cluster together.

    Args:
        nodes: the facts of each node by its name; None where its pod printed none.
        num_gpus: how many each node must have, at least 1.
        num_efa: how many EFA interfaces each pod must see; 0 where they are not used.
    """
    read = {node: facts for node, facts in nodes.items() if facts is not None}
    faults = [
        Fault(node, "its pod printed no facts", "see kubectl logs of the pod")
        for node, facts in nodes.items()
        if facts is None
    ]
    for node, facts in read.items():
        faults += _nvidia_faults(node, facts.nvidia_smi, num_gpus)
        if num_efa and len(facts.efa.devices) < num_efa:
            faults.append(Fault(node, _efa_fault(facts.efa, num_efa)))
    drivers = {node: driver for node, facts in read.items() if (driver := _driver(facts))}
    faults += _driver_faults(drivers)
    faults += _version_faults(read)
    degrees = [degree for facts in read.values() for degree in _degrees(facts.nvidia_smi)]
    return Health(
        faults=tuple(faults),
        notes=tuple(
            dict.fromkeys(note for facts in read.values() for note in _notes(facts, num_efa))
        ),
        driver=next(iter(drivers.values()), ""),
        hottest_celsius=max(degrees, default=None),
    )


def rows_of(answer: Answer) -> list[dict[str, str]]:
    """Read nvidia-smi's table of GPUs: values by field. Lines of another width are messages."""
    return [row for line in answer.output.splitlines() if (row := _row(line, answer.fields))]


def _row(line: str, fields: Sequence[str]) -> dict[str, str]:
    """Return the values by field, or nothing where the line is a message."""
    values = [value.strip() for value in line.split(",")]
    is_row = len(values) == len(fields) and values[0].isdecimal()
    return dict(zip(fields, values, strict=True)) if is_row else {}


def _nvidia_faults(node: str, answer: Answer, num_gpus: int) -> list[Fault]:
    rows = rows_of(answer)
    if answer.exit_code is None and not rows:
        remedy = "use an AMI with the NVIDIA driver and container toolkit"
        is_absent = answer.output.endswith("is not in the container")
        return [Fault(node, answer.output, remedy if is_absent else "")]
    if not rows:
        return [Fault(node, _message(answer))]
    faults = []
    seen = len({row.get("uuid", row["index"]) for row in rows})
    if seen != num_gpus:
        what = f"nvidia-smi shows {seen} GPUs, {num_gpus} expected"
        faults.append(Fault(node, what if answer.exit_code == 0 else f"{what}; {_message(answer)}"))
    elif answer.exit_code != 0:
        faults.append(Fault(node, _message(answer)))
    for row in rows:
        faults += [
            Fault(node, f"GPU {row['index']} {what}", remedy) for what, remedy in _gpu_faults(row)
        ]
    return faults


def _message(answer: Answer) -> str:
    known = next((said for text, said in _MESSAGES.items() if text in answer.output), "")
    quoted = f'nvidia-smi exited with {answer.exit_code} and printed "{_said(answer)}"'
    return f"{known}: {quoted}" if known else quoted


def _gpu_faults(row: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with one GPU and its remedy; "" where the node has to be replaced."""
    broken = next((value for value in row.values() if value in _BROKEN), None)
    if broken is not None:
        yield f"does not work: nvidia-smi says {broken}", ""
        return
    if not row["uuid"].startswith("GPU-"):
        yield f'has no UUID, nvidia-smi says "{row["uuid"]}"', ""
    for field, good, what, remedy in _SIGNS:
        value = row.get(field, "")
        if value not in (*_UNKNOWN, *good):
            yield what.format(value), remedy
    if slowdown := _slowdown(row):
        yield f"is slowed down by its hardware ({slowdown})", ""


def _slowdown(row: Mapping[str, str]) -> str:
    text = next((value for field, value in row.items() if field.startswith("clocks_")), "")
    if text in _UNKNOWN:
        return ""
    try:
        reasons = int(text, base=16)
    except ValueError:
        return f'nvidia-smi says "{text}"'
    return ", ".join(said for bit, said in _SLOWDOWNS.items() if reasons & bit)


def _efa_fault(answer: Answer, num_efa: int) -> str:
    shown = f"fi_info shows {len(answer.devices)} EFA devices, {num_efa} expected"
    if answer.exit_code == 0:
        return shown
    return f'{shown}; it printed "{_said(answer)}"'


def _said(answer: Answer) -> str:
    """Return the first line that is no row of the table."""
    lines = (line.strip() for line in answer.output.splitlines() if not _row(line, answer.fields))
    return next((line[:160] for line in lines if line), "nothing")


def _driver(facts: NodeFacts) -> str:
    return next((row.get("driver_version", "") for row in rows_of(facts.nvidia_smi)), "")


def _driver_faults(drivers: Mapping[str, str]) -> list[Fault]:
    """List the nodes whose driver is not the one that most have."""
    if len(set(drivers.values())) < 2:
        return []
    usual, _ = Counter(drivers.values()).most_common(1)[0]
    return [
        Fault(node, f"its NVIDIA driver is {driver}, that of other nodes {usual}")
        for node, driver in drivers.items()
        if driver != usual
    ]


def _version_faults(nodes: Mapping[str, NodeFacts]) -> Iterator[Fault]:
    """Yield versions that are known to be bad: all nodes run one image, so once each."""
    found = {
        (package, version): node
        for node, facts in nodes.items()
        for package, version in facts.versions.items()
    }
    for (package, version), node in found.items():
        defect = defect_of(package, version)
        if defect is not None:
            yield Fault(node, f"{defect.name} {version} {defect.what}", defect.remedy)


def _degrees(answer: Answer) -> list[int]:
    texts = (row.get("temperature.gpu", "") for row in rows_of(answer))
    return [int(text) for text in texts if text.isdecimal()]


def _notes(facts: NodeFacts, num_efa: int) -> Iterator[str]:
    if any(row.get("ecc.mode.current") == "Disabled" for row in rows_of(facts.nvidia_smi)):
        yield "ECC is off, so memory errors go unnoticed"
    if not num_efa:
        return
    locked = facts.locked_memory_bytes
    if locked is not None and locked < _LEAST_LOCKED_BYTES:
        yield f"containers may lock {locked >> 10} KiB only, which EFA needs more of"
    if facts.modules is not None and not set(_PEER_MODULES) & set(facts.modules):
        yield f"neither {' nor '.join(_PEER_MODULES)} is loaded: GPUDirect then needs dma-buf"
