"""What `queue=`, `priority_class=`, `host_network=` and `nccl_debug=` mean: how a run's job is run.

`parameters` calls it while it reads a start. Pure: whether a cluster has the queue and the priority
class is looked at by the first step that works there (`stationmaster/steps/parts/admission.py`).
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Final

from stationmaster.domain.errors import BadCommand
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.run.request import NCCL_LEVELS, JobOptions, NcclLevel

QUEUE: Final = "queue"
PRIORITY_CLASS: Final = "priority_class"
HOST_NETWORK: Final = "host_network"
NCCL_DEBUG: Final = "nccl_debug"
JOB_KEYS: Final = (QUEUE, PRIORITY_CLASS, HOST_NETWORK, NCCL_DEBUG)

# A label's value and the name of an object at once. Source: Kubernetes, "Object Names and IDs".
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def read_job_options(values: MutableMapping[str, str]) -> JobOptions:
    """Take the four keys out of the values.

    Raises:
        BadCommand: one of them has a value that is not accepted.
    """
    return JobOptions(
        queue=_name(QUEUE, values.pop(QUEUE, None), "a queue of Kueue"),
        priority_class=_name(PRIORITY_CLASS, values.pop(PRIORITY_CLASS, None), "a PriorityClass"),
        host_network=_is_true(HOST_NETWORK, values.pop(HOST_NETWORK, None)),
        nccl_debug=_level(values.pop(NCCL_DEBUG, None)),
    )


def _name(key: str, value: str | None, what: str) -> str:
    if value is None:
        return ""
    if not _NAME.fullmatch(value):
        raise BadCommand(
            f"{key}={value[:80]} is not accepted: expected the name of {what}, at most 63 lower "
            "case letters, digits, dots and hyphens, a letter or digit first and last"
        )
    return value


def _is_true(key: str, value: str | None) -> bool:
    if value is None:
        return False
    if value.lower() not in ("true", "false"):
        raise BadCommand(f"{key}={value[:80]} is not accepted: expected true or false")
    return value.lower() == "true"


def _level(value: str | None) -> NcclLevel | None:
    if value is None:
        return None
    found = next((level for level in NCCL_LEVELS if level == value.upper()), None)
    if found is None:
        raise BadCommand(
            f"{NCCL_DEBUG}={value[:80]} is not accepted: expected {' or '.join(NCCL_LEVELS)}"
        )
    return found


def refuse_without_cluster(options: JobOptions, *, on: str | None, eks_name: str) -> None:
    """Refuse what a cluster that is made for the run cannot have.

    Raises:
        BadCommand: naming the key, and what has to be typed with it.
    """
    if on is not None or eks_name:
        return
    lacking = (
        (QUEUE, options.queue, "Kueue"),
        (PRIORITY_CLASS, options.priority_class, "such class"),
    )
    for key, value, missing in lacking:
        if value:
            raise BadCommand(
                f"{key}={value} needs on=CLUSTER or cluster=eks:NAME, a cluster that has it: one "
                f"that is made for the run has no {missing}"
            )


def refuse_with_own_code(options: JobOptions, *, image: str, program: tuple[str, ...]) -> None:
    """Refuse code of people's own on the network of the nodes.

    Raises:
        BadCommand: with the reason.
    """
    if options.host_network and (image or program):
        key = "image" if image else "command"
        raise BadCommand(
            f"{HOST_NETWORK}=true and {key}= do not go together: on the node's network the code of "
            f"others could fetch the node's AWS credentials; leave {HOST_NETWORK}= out, which EFA "
            "does not need"
        )


def typed_job_options(options: JobOptions) -> dict[str, str]:
    """The keys as they are typed again, those that were not typed left out."""
    typed = {
        QUEUE: options.queue,
        PRIORITY_CLASS: options.priority_class,
        HOST_NETWORK: "true" if options.host_network else "",
        NCCL_DEBUG: options.nccl_debug or "",
    }
    return {key: value for key, value in typed.items() if value}


def plan_with_job_options(plan: Plan, options: JobOptions) -> Plan:
    """The plan with what the keys change, and what they cost."""
    notes = []
    if options.queue:
        notes.append(
            f"{QUEUE}={options.queue}: the job waits, suspended, until Kueue admits it; nobody "
            "knows for how long, its nodes stay leased, and no limit of time of the run ends that"
        )
    if options.priority_class:
        notes.append(
            f"{PRIORITY_CLASS}={options.priority_class}: its pods may evict pods of a lower class"
        )
    if options.host_network:
        notes.append(
            f"{HOST_NETWORK}=true: its pods use the ports and addresses of their nodes, and reach "
            "the nodes' AWS credentials; EFA does not need it"
        )
    if options.nccl_debug == "INFO":
        notes.append(f"{NCCL_DEBUG}=INFO: NCCL writes all that it does, much in a long run")
    if options.nccl_debug == "WARN":
        notes.append(f"{NCCL_DEBUG}=WARN: the log does not say whether NCCL uses EFA")
    return plan.model_copy(update={"warnings": [*notes, *plan.warnings]}) if notes else plan
