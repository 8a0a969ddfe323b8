"""`validate=`: which checks a new cluster has to pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stationmaster.domain.errors import BadCommand
from stationmaster.domain.keys import eks_cluster, kept_cluster
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.spelling import nearest

_QUICK: Final = "quick"
_FULL: Final = "full"
NCCL: Final = "nccl"
_LEVELS: Final = (_QUICK, _FULL, NCCL)


class Option(Part):
    """Which checks run."""

    is_full: bool = False
    """Whether every check of its own cluster runs before it trains."""
    measures_nccl: bool = False
    """Whether nccl-tests run in its own cluster before it trains."""


def _level(option: Option) -> str:
    return _FULL if option.is_full else NCCL if option.measures_nccl else ""


VALIDATE: Final = Key(
    name="validate",
    help="which checks a new cluster has to pass: quick for the usual ones, full for every check, "
    "which takes minutes longer, nccl for the usual ones and nccl-tests",
    meanings=("validation", "checks"),
    choices=_LEVELS,
    meant=lambda value: nearest(value.lower(), _LEVELS),
    typed=_level,
)


def read(typed: Typed) -> Option:
    """Read the level."""
    value = typed.get(VALIDATE)
    if value not in (None, *_LEVELS):
        raise BadCommand(
            f"validate={str(value)[:80]} is not accepted: expected {_QUICK} for the usual "
            f"checks, {_FULL} for every check or {NCCL} for the usual ones and nccl-tests"
        )
    return Option(is_full=value == _FULL, measures_nccl=value == NCCL)


def refuse(start: Start) -> None:
    """Refuse to check a cluster in full for one run of several that may use it."""
    on, option = start.part(kept_cluster.Option).on, start.part(Option)
    if on is not None and _level(option):
        word = f" {NCCL}" if option.measures_nccl else ""
        raise BadCommand(
            f"validate={_level(option)} is for a run's own cluster, and on={on} names one that is "
            f"there; leave validate= out and type /train validate {on}{word} before the run"
        )


def refuse_unmeasurable(num_gpus: int, *, is_guest: bool) -> None:
    """Refuse nccl-tests where jobs have so many GPUs on all nodes, and in existing clusters.

    Raises:
        BadCommand: as said.
    """
    if is_guest:
        raise BadCommand(
            f"validate={NCCL} installs the MPI operator, and in an EKS cluster of others nothing "
            "is installed; leave it out, or type validate=full, which measures the network too"
        )
    if num_gpus < 2:
        raise BadCommand(
            f"validate={NCCL} measures what NVIDIA GPUs send to each other, and jobs there use "
            f"{num_gpus}; expected 2 or more, e.g. of "
            "instance=p4d.24xlarge, or validate=full, which measures any network"
        )


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say what a full validation adds."""
    if start.part(Option).measures_nccl:
        eks_name = start.part(eks_cluster.Option).eks_name
        refuse_unmeasurable(plan.num_gpus, is_guest=bool(eks_name))
        yield (
            f"validate={NCCL}: before it trains, the MPI operator is installed and nccl-tests "
            "measure all-reduce, broadcast and alltoall, which takes up to half an hour"
        )
    if start.part(Option).is_full:
        yield (
            f"validate={_FULL}: every check runs before it trains, which takes minutes longer than "
            "the usual ones"
        )


FAMILY: Final = Family(keys=(VALIDATE,), read=read, refuse=refuse, note=note)
