"""`queue=`, `priority_class=`, `host_network=`, `nccl_debug=`, `efa=`, `cpus=`: a run's job.

Whether a cluster has the queue and the priority class is looked at by the first step that works
there (`stationmaster/steps/parts/admission.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, get_args

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.errors import BadCommand, BadParameter
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.keys import eks_cluster, kept_cluster, own_code
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.planning.requirements import num_useful_efa, spare_cpus

NcclLevel = Literal["WARN", "INFO"]
NCCL_LEVELS: Final[tuple[NcclLevel, ...]] = get_args(NcclLevel)

QUEUE: Final = Key(
    name="queue",
    help="a queue of Kueue in the cluster of on= or cluster=: the job waits there, suspended, "
    "until Kueue admits it; one that takes a team's namespace only has the run there",
    meanings=("queue_name", "local_queue", "kueue"),
    is_resumed=True,
    typed=lambda options: options.job_options.queue,
)
PRIORITY_CLASS: Final = Key(
    name="priority_class",
    help="a PriorityClass of that cluster, for the training pods; with queue= also a "
    "WorkloadPriorityClass of Kueue, for the queue",
    meanings=("priorityclass", "priorityclassname", "priority_class_name", "priority"),
    is_resumed=True,
    typed=lambda options: options.job_options.priority_class,
)
_HOST_NETWORK: Final = Key(
    name="host_network",
    help="whether the training pods use the network of their nodes, which EFA does not need",
    meanings=("hostnetwork",),
    choices=("true", "false"),
    is_resumed=True,
    typed=lambda options: "true" if options.job_options.host_network else "",
)
_NCCL_DEBUG: Final = Key(
    name="nccl_debug",
    help="how much NCCL writes into the logs",
    choices=NCCL_LEVELS,
    is_resumed=True,
    typed=lambda options: options.job_options.nccl_debug,
)
_EFA: Final = Key(
    name="efa",
    help="how many EFA interfaces each training pod asks for, to measure what they bring: off for "
    "none (NCCL talks over TCP), or a number; on, all of them, if not given",
    meanings=("num_efa", "efa_interfaces", "fabric"),
    choices=("on", "off"),
    is_resumed=True,
    typed=lambda options: _efa_typed(options.job_options),
)
_CPUS: Final = Key(
    name="cpus",
    help="how many CPUs each training pod gets, on machines without GPUs; if not given, all that "
    "the node can spare",
    meanings=("num_cpus", "cpu", "cores"),
    is_resumed=True,
    typed=lambda options: str(options.job_options.cpus or ""),
)

# A label's value and the name of an object at once. Source: Kubernetes, "Object Names and IDs".
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


class JobOptions(Frozen):
    """How Kubernetes is to run the job, where that was typed."""

    queue: str = ""
    """The queue of Kueue that admits the job; "" for none."""
    priority_class: str = ""
    """The PriorityClass of its pods; "" for none."""
    host_network: bool = False
    """Whether its pods use the network of their nodes."""
    nccl_debug: NcclLevel | None = None
    """How much NCCL writes; None for what suits the machine."""
    efa: int | None = None
    """The EFA interfaces that each pod asks for, 0 to use sockets; None for all that there are."""
    cpus: int | None = None
    """The CPUs that each pod gets; None for all that its node can spare."""


class Option(Part):
    """How the job is run."""

    job_options: JobOptions = JobOptions()
    """How Kubernetes is to run its job."""


def read(typed: Typed) -> Option:
    """Read the six keys."""
    options = {
        "queue": _name(QUEUE, typed, "a queue of Kueue"),
        "priority_class": _name(PRIORITY_CLASS, typed, "a PriorityClass"),
        "host_network": _choice(_HOST_NETWORK, typed) == "true",
        "nccl_debug": _choice(_NCCL_DEBUG, typed) or None,
        "efa": _efa(typed),
        "cpus": typed.whole(_CPUS, 1, 192),
    }
    return Option(job_options=JobOptions.model_validate(options))


def _name(key: Key, typed: Typed, what: str) -> str:
    value = typed.get(key)
    if value is None:
        return ""
    if not _NAME.fullmatch(value):
        raise BadCommand(
            f"{key.name}={value[:80]} is not accepted: expected the name of {what}, at most 63 "
            "lower case letters, digits, dots and hyphens, a letter or digit first and last"
        )
    return value


def _efa(typed: Typed) -> int | None:
    value = (typed.get(_EFA) or "on").lower()
    if value in _EFA.choices:
        return 0 if value == "off" else None
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value[:9]) <= 64:
        raise BadCommand(
            f"efa={value[:80]} is not accepted: expected on, off, or a whole number from 1 to 64"
        )
    return int(value)


def _efa_typed(options: JobOptions) -> str:
    return {None: "", 0: "off"}.get(options.efa, str(options.efa))


def _of_machine(start: Start, plan: Plan) -> Iterable[str]:
    """Refuse interfaces and CPUs that the machines have not got, and say what fewer mean."""
    options, instance = start.part(Option).job_options, get_instance(plan.instance_type)
    on_gpus, efa, cpus = start.resolved.needs_gpu, options.efa, options.cpus
    if efa is not None:
        has, typed = num_useful_efa(instance) if on_gpus else 0, f"efa={_efa_typed(options)}"
        if not has or efa > has:
            remedy = f"use 1 to {has}, or off" if has else "leave it out"
            raise BadParameter(
                f"{typed}: training on {instance.name} uses {has or 'no'} EFA interfaces; {remedy}"
            )
        what = f"of {has} interfaces" if efa else "NCCL talks over TCP between nodes"
        yield f"{typed}: {what}, to measure; the plan's figures are of all {has} EFA interfaces"
    if cpus is not None:
        most = 0 if on_gpus else spare_cpus(instance.vcpus)
        if cpus > most:
            remedy = f"use 1 to {most}" if most else "leave it out, because it trains on GPUs"
            raise BadParameter(
                f"cpus={cpus}: of the {instance.vcpus} CPUs of a {instance.name} {most} can be "
                f"typed; {remedy}"
            )
        yield f"cpus={cpus}: each pod gets {cpus} of {instance.vcpus} CPUs; all are paid for"


def _choice(key: Key, typed: Typed) -> str:
    """Read one of the key's choices, whatever its case; "" where nothing was typed."""
    value = typed.get(key) or ""
    found = next((each for each in key.choices if each.lower() == value.lower()), "")
    if value and not found:
        raise BadCommand(
            f"{key.name}={value[:80]} is not accepted: expected {' or '.join(key.choices)}"
        )
    return found


def refuse(start: Start) -> None:
    """Refuse what a new cluster cannot have, and a custom command on the network of the nodes."""
    options, code = start.part(Option).job_options, start.part(own_code.Option)
    if options.host_network and (code.image or code.program):
        key = "image" if code.image else "command"
        raise BadCommand(
            f"host_network=true and {key}= do not go together: on the node's network the code of "
            "others could fetch the node's AWS credentials; leave host_network= out, which EFA "
            "does not need"
        )
    has_cluster = start.part(kept_cluster.Option).on or start.part(eks_cluster.Option).eks_name
    if has_cluster or not start.ask.names_clusters:
        return
    lacking = (
        (QUEUE, options.queue, "Kueue"),
        (PRIORITY_CLASS, options.priority_class, "such class"),
    )
    for key_of_cluster, value, missing in lacking:
        if value:
            raise BadCommand(
                f"{key_of_cluster.name}={value} needs on=CLUSTER or cluster=eks:NAME, a cluster "
                f"that has it: one that is made for the run has no {missing}"
            )


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say what the keys change, and what they cost."""
    options = start.part(Option).job_options
    yield from _of_machine(start, plan)
    if options.queue:
        yield (
            f"queue={options.queue}: the job waits, suspended, until Kueue admits it; nobody "
            "knows for how long, its nodes stay leased, and no limit of time of the run ends that"
        )
    if options.priority_class:
        lower = f"priority_class={options.priority_class}: its pods may evict pods of a lower class"
        yield lower + ("; one of Kueue orders the queue instead" if options.queue else "")
    if options.host_network:
        yield (
            "host_network=true: its pods use the ports and addresses of their nodes, and reach "
            "the nodes' AWS credentials; EFA does not need it"
        )
    if options.nccl_debug == "INFO":
        yield "nccl_debug=INFO: NCCL writes all that it does, much in a long run"
    if options.nccl_debug == "WARN":
        yield "nccl_debug=WARN: the log does not say whether NCCL uses EFA"


FAMILY: Final = Family(
    keys=(QUEUE, PRIORITY_CLASS, _HOST_NETWORK, _NCCL_DEBUG, _EFA, _CPUS),
    read=read,
    refuse=refuse,
    note=note,
)
