"""What is wrong with a run that trains: unused EFA, a speed far below the plan's. Pure.

The card asks when it is drawn, from what the run keeps. A run of which nothing is known has no
finding: without NCCL's lines, without enough progress lines, or where the plan has no figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.diagnosis.nccl.network import network_findings
from stationmaster.diagnosis.nccl.report import Verdict
from stationmaster.diagnosis.nccl.transport import Kind, Transport
from stationmaster.domain.catalogue.instances import CATALOGUE
from stationmaster.domain.errors import UserError
from stationmaster.domain.keys.own_code import is_joining
from stationmaster.domain.planning.cost import NodeSource
from stationmaster.domain.planning.plan import Plan, plan_recipe
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.detections import found as now_wrong
from stationmaster.domain.run.events import NetworkObserved, PodsApart, RunPhase
from stationmaster.domain.run.speeds import usual

# Below this part of what the plan expects, a run is slow. A plan is an estimate: a run may well be
# a third slower, and nothing is wrong.
SLOW: Final = 0.5


@dataclass(frozen=True)
class RunningFinding:
    """A sentence on what is wrong, and one on what to do; both without a full stop."""

    text: str
    remedy: str


def running_findings(run: Run) -> list[RunningFinding]:
    """List what is wrong with a run that trains; empty for a healthy one, or one that has ended."""
    if run.phase.is_terminal:
        return []
    found = []
    if run.network is not None and (network := network_finding(run.network, run)) is not None:
        found.append(network)
    if run.apart is not None:
        found.append(apart_finding(run.apart, run))
    holds = [RunningFinding(each.evidence, each.remedy) for each in now_wrong(run).values()]
    if not holds and run.phase is RunPhase.RUNNING and (slow := _slow(run)) is not None:
        found.append(slow)
    return found + holds


def network_finding(event: NetworkObserved, run: Run) -> RunningFinding | None:
    """Say what NCCL's lines mean on the run's instances; None where the run needs no network."""
    instance = CATALOGUE.get(run.placement.instance_type)
    if instance is None:
        return None
    if run.request.job_options.efa is not None:  # as many as were asked for
        instance = instance.model_copy(update={"num_efa": run.request.job_options.efa})
    pod = event.pod.removeprefix(f"{run.run_id}-")
    transport = Transport(
        kind=Kind.SOCKET if event.uses_sockets else Kind.EFA,
        provider=event.provider or None,
        num_nics=event.num_nics,
        fewest_nics_on=pod,
        socket_hosts=(pod,),
        plugin_version=event.plugin_version or None,
        plugin_not_found=event.plugin_not_found,
        no_provider=event.no_provider,
    )
    # Nothing was measured; this only says that GPUDirect, of which the event is silent, is no news.
    found = network_findings(transport, instance, num_nodes=run.placement.nodes, is_fast=True)
    bad = [each for each in found if each.verdict is Verdict.FAIL]
    return RunningFinding(bad[0].text, bad[0].remedy or "") if bad else None


def apart_finding(event: PodsApart, run: Run) -> RunningFinding:
    """Say that the nodes train each for itself, and what joins them."""
    names = " and ".join(pod.removeprefix(f"{event.job}-") for pod in event.pods)
    to_join = 'start it with command="torchrun SCRIPT ..."'
    if is_joining(run.request.program):
        to_join = (
            "start it without --standalone, --nnodes and --rdzv-* of torchrun, with a script that "
            "calls init_process_group()"
        )
    if run.request.min_nodes is not None:  # with a fixed number it gets that from its environment
        to_join += " (a Trainer of Lightning also needs num_nodes)"
    return RunningFinding(
        f"the nodes have not joined: {names} both print what one rank of a run prints, so each of "
        f"{run.placement.nodes} nodes trains a model of its own",
        f"`/train stop {run.run_id}`, and {to_join}",
    )


def _slow(run: Run) -> RunningFinding | None:
    speed = usual(run.speeds.samples_per_s)
    if speed is None:
        return None  # before the plan: the card asks at each of its updates
    plan = planned(run)
    if plan is None or speed >= SLOW * plan.samples_per_s:
        return None
    where = f"on {plan.nodes} x {plan.instance_type}"
    looks = f"`/train logs {run.run_id}` shows what its pods warn of"
    if plan.counts_images:
        looks += "; data_workers=N on the next run decodes more images at once"
    if plan.nodes > 1:
        looks += "; validate=full on the next run measures the network between nodes"
    return RunningFinding(
        f"training is slow: {speed:,.3g} samples a second, and the plan expects "
        f"{plan.samples_per_s:,.3g} {where}",
        looks,
    )


def planned(run: Run) -> Plan | None:
    """Plan the run where it trains; None where that says nothing of real GPUs' speed."""
    has_fewer_efa = run.request.job_options.efa is not None  # which plans do not estimate
    if run.emulated_speed is not None or run.request.program or has_fewer_efa:
        return None
    # Training goes on with fewer nodes after a loss; how many is not known, so the fewest count.
    nodes = run.least_nodes if run.left_nodes else run.placement.nodes
    try:
        recipe = run.request.resolved
        if not recipe.needs_gpu:
            return None
        return plan_recipe(
            recipe,
            nodes=nodes,
            instance_type=run.placement.instance_type,
            source=NodeSource(is_prepaid=True),  # a type without a price has a speed as well
        )
    except UserError:
        return None  # the recipe or the instance type is not known any more
