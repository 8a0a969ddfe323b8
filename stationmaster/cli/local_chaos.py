"""`stationmaster local chaos`: injects a seed's faults into a local mode, and says what broke."""

from __future__ import annotations

import argparse
import sys

from stationmaster.cli.local_mode import NO, OK, log_to_file, refused
from stationmaster.cli.local_watch import Record, Watch
from stationmaster.local.chaos.drawing import draw
from stationmaster.local.chaos.playing import Play
from stationmaster.local.stop_signals import StopSignals


def chaos(arguments: argparse.Namespace) -> int:
    """Play the seed; 1 where an invariant was broken, or somebody ended it."""
    state_dir = arguments.state_dir.absolute()
    incidents = draw(arguments.seed, minutes=arguments.minutes)
    try:
        with StopSignals() as signals:
            play = Play(
                state_dir,
                say=Watch(Record(None)).print_line,
                asked_to_stop=signals.asked,
                on_claimed=lambda: log_to_file(state_dir / "local.log"),
            )
            play.play(incidents)
    except (OSError, ValueError) as exc:
        return refused(exc, arguments.state_dir)
    if signals.asked():
        print("stationmaster: interrupted; every pod was ended", file=sys.stderr)
        return NO
    ends = ", ".join(f"{count} {phase}" for phase, count in sorted(play.ends.items()))
    verdict = f"{len(play.findings)} broken" if play.findings else "every invariant holds"
    faults = len(incidents) - sum(each.kind == "start" for each in incidents)
    print(f"seed {arguments.seed}: {faults} faults, runs: {ends}; {verdict}")
    for finding in play.findings:
        print(f"  {finding}; the logs are in {arguments.state_dir}")
    return NO if play.findings else OK
