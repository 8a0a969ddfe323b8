"""Rules for the product's own sentences, which say what happened and seldom what to type next."""

from __future__ import annotations

from functools import partial
from typing import Final

from stationmaster.diagnosis.rules import LOG, TOOL, Rank, Rule

_SAID: Final = LOG | TOOL

_said = partial(Rule, where=_SAID, rank=Rank.STEP)

RULES: Final = (
    Rule(
        id="held-out-samples",
        where=_SAID,
        pattern=r"held out by eval_samples",
        diagnosis="the data set is too small for what eval_samples= holds out of it",
        remedy="start it again with a smaller eval_samples=, or with eval_samples=0",
        fix="eval_samples=0",
        source="training/data/packed.py, instructions.py",
    ),
    Rule(
        id="local-hardware",
        where=_SAID,
        pattern=r"local mode cannot run it",
        rank=Rank.PLACEMENT,
        diagnosis="this machine does not have the GPUs that the run asks for",
        remedy="`/train {recipe} preset=smoke` runs the same code small, on CPUs",
        source="local/cluster/node/launch.py",
    ),
    _said(
        id="workflow-stopped",
        pattern=r"the workflow was stopped from outside|the workflow ran out of time"
        r"|reached its time limit",
        diagnosis="the run's workflow in AWS Step Functions was stopped by somebody, or reached "
        "its time limit",
        remedy="`/train resume {run}` continues from what it has saved; without a checkpoint, type "
        "its command again",
        source="stationmaster/steps/record_events.py, domain/reactions/ending.py",
    ),
    _said(
        id="job-deleted",
        pattern=r"was deleted from the cluster before it had ended|was deleted during the run"
        r"|is (?:DELETING|DELETE_FAILED|FAILED) during the run",
        diagnosis="somebody deleted the job, its nodes or its cluster while it trained",
        remedy="`/train resume {run}` continues from what it has saved, on a cluster of its own",
        source="stationmaster/steps/parts/silence.py",
    ),
    _said(
        id="relay-silent",
        pattern=r"the relay in the cluster fell silent",
        diagnosis="nothing in the cluster reports on the job any more: its system node is gone, or "
        "the way from there to AWS",
        remedy="`/train resume {run}` continues from what it has saved; `/train preflight "
        "{recipe}` checks the network",
        source="stationmaster/steps/parts/silence.py",
    ),
    _said(
        id="check-failed",
        pattern=r"\bcheck (?P<check>[\w-]{1,40}) failed: (?P<why>.{1,200})",
        diagnosis="the check {check} refused the cluster: {why}",
        remedy="type its command again for a new cluster; of a kept cluster, repair it, then "
        "`/train validate {cluster}`",
        source="stationmaster/steps/run_check.py",
    ),
    _said(
        id="not-created",
        pattern=r"(?:EKS|FSx) could not (?:create|resize) "
        r"(?P<what>file system|cluster|node group|add-on)",
        diagnosis="AWS gave up on the {what}",
        remedy="`/train preflight {recipe}` checks quotas, rights and zones; then type its command "
        "again",
        source="stationmaster/steps/ensure_file_system.py, ensure_cluster.py",
    ),
    _said(
        id="not-ready",
        pattern=r"is not ready after \d+ s|did not start|is not scheduled",
        diagnosis="a part of the cluster, or a pod of the job, was not ready in its time",
        remedy="type its command again for a new cluster; of a kept cluster, "
        "`/train validate {cluster}` says what is missing",
        source="stationmaster/steps/ensure_job_started.py, parts/records.py",
    ),
)
