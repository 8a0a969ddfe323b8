"""What is wrong with a run that trains, by what it has reported lately. Pure.

Each detection looks at the state of the run only. The first time that it holds in an attempt it is
an event of its own; while it holds, the card shows it. docs/training.md has the table. A start
begins without figures, so what compiles, fills caches or resumes is never judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from stationmaster.domain.detected import MAX_SAID, Action, Detection, Kind
from stationmaster.domain.outside import clipped
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import (
    CheckpointSaved,
    ProgressReported,
    RunEvent,
    RunPhase,
    TroubleDetected,
    run_event_id,
)
from stationmaster.domain.run.recoveries import robust_spread, robust_z
from stationmaster.domain.run.speeds import (
    KEPT_CHECKPOINTS,
    KEPT_LINES,
    KEPT_LOSSES,
    slowdown,
    usual,
)

# Loss scaling of mixed precision skips single steps that are not finite.
NOT_FINITE_LINES: Final = 3
# Source: OLMo 2 ("2 OLMo 2 Furious"), spike score: values at least seven standard deviations away
# from the mean of those before.
SPIKE_Z: Final = 7.0
SPIKE_AFTER: Final = 20
DIVERGENCE_Z: Final = 4.0
# Below this rise of the loss, neither matters, however little it varied before.
RISE: Final = 0.1
# A rank that is slower by less is within what ranks of a healthy run differ by.
STRAGGLER: Final = 1.5
STRAGGLER_LINES: Final = 8
# Below this part of the time with a kernel, a GPU waits for its own process. A training GPU is
# at 0.7 to 0.95; one that waits for other ranks is in NCCL's kernel and looks busy.
UNUSED: Final = 0.5
# Source: MLPerf Storage asks that accelerators are in use for 0.9 (most models) or 0.7 of the time.
WAITS_FOR_DATA: Final = 0.2
# A slowdown that is over sooner is no news: another job started on the node, a cache was filled.
LASTS_S: Final = 30.0
CHECKPOINT_SHARE: Final = 0.1
CHECKPOINT_S: Final = 1.0
ROOM: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Something that holds now; see `Detection`."""

    evidence: str
    remedy: str
    node: str = ""
    rank: int | None = None


def found(run: Run) -> Mapping[Kind, Found]:
    """Return all that holds of a run that trains."""
    if run.phase is not RunPhase.RUNNING or run.is_ending:
        return {}
    every = {kind: find(run) for kind, find in _FINDERS.items()}
    return {kind: each for kind, each in every.items() if each is not None}


def detected(run: Run, event: RunEvent, *, may_restart: bool) -> list[TroubleDetected]:
    """Return the events of what has begun to hold with `event`.

    `may_restart` is whether another attempt may follow; where none may, it is only told.
    """
    if not isinstance(event, ProgressReported | CheckpointSaved):
        return []
    known = {each.kind for each in run.detections if each.attempt == run.attempt_number}
    return [
        TroubleDetected(
            event_id=run_event_id(run.run_id, "trouble", run.attempt_number, kind),
            run_id=run.run_id,
            at=event.at,
            detection=Detection(
                kind=kind,
                attempt=run.attempt_number,
                at=event.at,
                step=event.step,
                evidence=clipped(each.evidence, MAX_SAID),
                remedy=clipped(each.remedy, MAX_SAID),
                node=each.node,
                rank=each.rank,
                action=_action(run, kind, may_restart=may_restart),
            ),
        )
        for kind, each in found(run).items()
        if kind not in known
    ]


def pending(run: Run) -> Detection | None:
    """Return what the newest attempt is to be stopped or made anew for; None for nothing."""
    newest = [each for each in run.detections if each.attempt == run.attempt_number]
    return next((each for each in newest if each.action is not Action.TELL), None)


def pending_restart(run: Run) -> Detection | None:
    """Return that for which the next attempt begins although the job has not failed."""
    wanted = pending(run)
    return None if wanted is None or wanted.action is Action.STOP else wanted


def _action(run: Run, kind: Kind, *, may_restart: bool) -> Action:
    wanted = run.request.detections.get(kind, Action.TELL)
    is_possible = wanted in (Action.TELL, Action.STOP) or may_restart
    return wanted if is_possible else Action.TELL


def _not_finite(run: Run) -> Found | None:
    number = run.speeds.num_not_finite
    if number < NOT_FINITE_LINES:
        return None
    return Found(
        evidence=f"the loss is not finite in {number} reports in a row",
        remedy=_begin_again(run, "clipped gradients or a lower learning rate"),
    )


def _spike(run: Run) -> Found | None:
    losses = run.speeds.losses
    before, newest = losses[:-1], losses[-1:]
    z = robust_z(newest, before) if len(before) >= SPIKE_AFTER else None
    if z is None or z < SPIKE_Z or not _rises(newest[0], median(before)):
        return None
    return Found(
        evidence=f"the loss jumped to {newest[0]:.4g} from {median(before):.4g}, the median of the "
        f"{len(before)} reports before (robust z {z:+.1f})",
        remedy="see whether it comes back by itself; where jumps repeat, look at the data of these "
        "steps, or lower the learning rate",
    )


def _divergence(run: Run) -> Found | None:
    losses, lowest = run.speeds.losses, run.speeds.lowest_loss
    if lowest is None or len(losses) < KEPT_LOSSES:
        return None
    now = median(losses[-KEPT_LINES:])
    spread = robust_spread(losses)
    if now - lowest < DIVERGENCE_Z * spread or spread == 0 or not _rises(now, lowest):
        return None
    return Found(
        evidence=f"the loss went up and stays there: {now:.4g} over the last {KEPT_LINES} reports, "
        f"and it was at {lowest:.4g}",
        remedy=_begin_again(run, "a lower learning rate or more warm-up"),
    )


def _rises(loss: float, before: float) -> bool:
    return loss - before >= RISE * abs(before)


def _straggler(run: Run) -> Found | None:
    lines = run.speeds.slowest
    if len(lines) < KEPT_LINES or not _lasts(run):
        return None
    ((node, rank), number), *_ = Counter((node, rank) for node, rank, _ in lines).most_common(1)
    factor = median(times for *who, times in lines if who == [node, rank])
    if number < STRAGGLER_LINES or factor < STRAGGLER:
        return None
    on = f" on node {node}" if node else ""
    return Found(
        evidence=f"rank {rank}{on} takes {factor:.1f} times as long to compute as the others, "
        "which wait for it",
        remedy="stop and resume it: a cluster of its own then has other machines; those of a kept "
        "one are measured by `/train validate`",
        node=node,
        rank=rank,
    )


def _gpu_idle(run: Run) -> Found | None:
    use = usual(run.speeds.gpu_uses)
    if use is None or use >= UNUSED or _data_bound(run) is not None:
        return None
    return Found(
        evidence=f"a GPU is idle {1 - use:.0%} of the time: it waits for its own process, most "
        "often for data, and the others wait for it",
        remedy="start it again with more data_workers, with prepared data (dataset=packed:...) or "
        "without cpu_offload",
    )


def _data_bound(run: Run) -> Found | None:
    waits = usual(run.speeds.data_waits)
    if waits is None or waits < WAITS_FOR_DATA or not _lasts(run):
        return None
    return Found(
        evidence=f"training waits for data {waits:.0%} of the time",
        remedy="start it again with prepared data (dataset=packed:...), of images with more "
        "data_workers, or on a faster file system (file_system_type=)",
    )


def _slower(run: Run) -> Found | None:
    slow = slowdown(run.speeds)
    if slow is None or not _lasts(run) or _straggler(run) or _data_bound(run):
        return None
    now, usually = slow
    return Found(
        evidence=f"steps have become slow: {now:.3g} s, and {usually:.3g} s was usual before",
        remedy=f"`/train logs {run.run_id}` has its pods' warnings; stopped and resumed, a run on "
        "a cluster of its own gets other machines",
    )


def _lasts(run: Run) -> bool:
    """Say whether the newest lines are of more than a moment."""
    times = run.speeds.lines_at
    return bool(times) and (times[-1] - times[0]).total_seconds() >= LASTS_S


def _checkpoint_slow(run: Run) -> Found | None:
    stalls = run.speeds.checkpoint_stalls
    if len(stalls) < KEPT_CHECKPOINTS:
        return None
    if any(s < max(CHECKPOINT_S, CHECKPOINT_SHARE * between_s) for s, between_s in stalls):
        return None
    share = sum(s for s, _ in stalls) / max(1.0, sum(between_s for _, between_s in stalls))
    return Found(
        evidence=f"training stands still for checkpoints {share:.0%} of the time",
        remedy="start it again with a larger checkpoint_every, or on a faster file system "
        "(file_system_type=)",
    )


def _disk_fills(run: Run) -> Found | None:
    size, free = run.speeds.checkpoint_bytes, run.speeds.free_bytes
    if size is None or free is None or free >= ROOM * size:
        return None
    return Found(
        evidence=f"the file system has {free / 2**30:.3g} GiB left, and a checkpoint takes "
        f"{size / 2**30:.3g} GiB",
        remedy="delete what is not needed there; or stop it, which saves what it has, and resume "
        "it with a larger file_system=GIB",
    )


def _begin_again(run: Run, how: str) -> str:
    keys = " (learning_rate=, warmup_steps=)" if run.request.uses_own_trainer else ""
    return f"stop it, then `/train rerun {run.run_id}` with {how}{keys}"


_FINDERS: Final[Mapping[Kind, Callable[[Run], Found | None]]] = {
    Kind.NOT_FINITE: _not_finite,
    Kind.SPIKE: _spike,
    Kind.DIVERGENCE: _divergence,
    Kind.STRAGGLER: _straggler,
    Kind.GPU_IDLE: _gpu_idle,
    Kind.DATA_BOUND: _data_bound,
    Kind.SLOWER: _slower,
    Kind.CHECKPOINT_SLOW: _checkpoint_slow,
    Kind.DISK_FILLS: _disk_fills,
}
