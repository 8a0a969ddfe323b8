"""What setbacks have cost a run, and what proves that training went on rightly after them."""

from __future__ import annotations

from typing import Final

from bot.blocks import mrkdwn as md
from stationmaster.domain.results import Recovery
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.sizes import counted

MAX_Z: Final = 3.0
"""A loss this many robust standard deviations above those before is out of their band."""


def proof_line(recovery: Recovery, run: Run) -> str:
    """Say where training has resumed, what was done again and lost, and how its losses compare."""
    at = f"step {recovery.resumed_step:,}"
    if recovery.resumed_sample is not None:
        at += f" (sample {recovery.resumed_sample:,})"
    said = [f"resumed at {at}", f"{counted(recovery.repeated_steps, 'step')} repeated"]
    if recovery.repeated_tokens:
        said[-1] += f" ({md.count(recovery.repeated_tokens)} tokens)"
    said.append(f"{md.duration(recovery.lost_s)} and {md.money(recovery.lost_usd)} lost")
    sentences = [", ".join(said), *_losses(recovery)]
    number = f" by attempt {recovery.attempt} of {run.request.attempts}"
    whose = number if recovery.attempt > 1 and run.request.restarts is None else ""
    what = f"recovered*{whose}"
    if recovery.nodes is not None:
        what = f"continues on {counted(recovery.nodes, 'node')}*"
    is_in_band = recovery.loss_z is None or recovery.loss_z <= MAX_Z
    mark = md.DONE if is_in_band else md.WARNING
    return f"{mark} *{what}: {'; '.join(sentences)}"


def _losses(recovery: Recovery) -> list[str]:
    said = []
    if recovery.compared:
        steps = counted(recovery.compared, "repeated step")
        said.append(f"{recovery.equal} of {steps} with the same loss to the last bit")
    before, after, z = recovery.loss_before, recovery.loss_after, recovery.loss_z
    if before is not None and after is not None and z is not None:
        band = "within" if z <= MAX_Z else "*above*"
        said.append(f"loss {md.loss(after)} after {md.loss(before)}: {band} its band (z {z:+.1f})")
    return said


def lost_line(run: Run) -> str:
    """Add up what setbacks have cost; "" for a run without any."""
    all_of_them = run.setbacks
    if not all_of_them.number:
        return ""
    attempts = f", {counted(run.tries, 'attempt')}" if run.tries > 1 else ""
    return (
        f"{counted(all_of_them.number, 'setback')}{attempts}: "
        f"{counted(all_of_them.repeated_steps, 'step')} repeated, "
        f"{md.duration(all_of_them.lost_s)} and {md.money(all_of_them.lost_usd)} lost"
    )


def sizes_line(run: Run) -> str:
    """Say how many nodes it had after which steps, and what the changes cost; "" for none."""
    if not run.sizes:
        return ""
    first, *later = run.sizes
    said = [counted(first.nodes, "node"), *(f"{x.nodes} after step {x.step:,}" for x in later)]
    changes = [each for each in run.recoveries if each.nodes is not None]
    seconds, usd = sum(each.lost_s for each in changes), sum(each.lost_usd for each in changes)
    least = "at least " if len(changes) < run.rescales else ""
    return f"{', '.join(said)}; {least}{md.duration(seconds)} and {md.money(usd)} lost by it"
