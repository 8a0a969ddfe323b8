"""What threads say about changes of a cluster's nodes."""

from __future__ import annotations

from typing import Final

from bot.blocks import mrkdwn as md
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.replacements import MAX_REPLACED
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.sizes import counted

# The longest reason that was seen, of nodes whose device plugin is missing, has 371 characters.
_WHY: Final = 900


def check_line(event: cl.CheckFinished) -> str:
    """Say what a check has found; in full where it failed: the sentence ends with what to do."""
    mark, limit = (md.DONE, 300) if event.passed else (md.FAILED, _WHY)
    return f"{mark} check *{md.escape(event.check, 80)}*: {md.escape(event.detail, limit)}"


def settled_line(event: cl.SizeSettled) -> str:
    """Say with how many nodes a cluster continues, because AWS has no more."""
    nodes = counted(event.nodes, "node")
    return f"{md.WARNING} it goes on with {nodes}: {md.escape(event.reason, 300)}"


def zone_line(event: cl.ZoneGivenUp) -> str:
    """Say where AWS has no instances or storage, and where they are requested next."""
    lacking = f"{event.nodes} x {md.escape(event.instance_type, 40)} free"
    if event.lacking is ResourceKind.FILE_SYSTEM:
        lacking = "room for a file system"
    here, there = md.escape(event.zone, 40), md.escape(event.next_zone, 40)
    return f"{md.WARNING} no {lacking} in {here}, trying {there}"


def replacement_line(event: cl.NodeReplacementBegan | cl.NodeReplaced) -> str:
    """Say that a node failed a check and another one comes in its place, or is there."""
    node = md.code(event.node, 80)
    if isinstance(event, cl.NodeReplaced):
        return f"{md.DONE} another node came for {node}; every check begins anew"
    return (
        f"{md.WARNING} node {node} failed check *{md.escape(event.check, 80)}* and is replaced "
        f"({event.number} of at most {MAX_REPLACED}): {md.escape(event.reason, _WHY)}"
    )
