"""Services and gateway in one, as far as checks on Jobs ask: two nodes, and the pods of a check."""

from __future__ import annotations

from dataclasses import dataclass

from stationmaster.checks.whole_job import job_name
from stationmaster.domain.job_kinds import JobCondition, JobKind
from stationmaster.inspection import LiveCluster
from stationmaster.kubernetes.views import JobView, NodeView, PodView
from stationmaster.rendering import pytorch_job

NODES = ("n-1", "n-2")


@dataclass(kw_only=True)
class CheckWorld:
    """Idle nodes of the cluster c-1, but for those on which a run trains."""

    check = ""
    backend = pytorch_job
    names: tuple[str, ...] = NODES
    training_on: tuple[str, ...] = ()

    def kubernetes(self, cluster_id):
        return self

    def nodes(self, *, labels):
        return [
            NodeView(name=name, hostname=name, ready=True, instance_id=f"i-{name}")
            for name in self.names
        ]

    def pods(self, *, labels):
        if labels == {"stationmaster/role": "training"}:
            return [PodView(name="t", phase="Running", node=node) for node in self.training_on]
        assert labels == {"stationmaster/cluster-id": "c-1", "stationmaster/check": self.check}
        return self.checking()

    def checking(self) -> list[PodView]:
        """The pods of the check."""
        raise NotImplementedError

    def explain(self, pods):
        return "its pods are starting"


@dataclass(kw_only=True)
class WholeJobWorld(CheckWorld):
    """One job on all nodes, whose pods are in these phases."""

    letters = ""
    is_full = False
    phases: tuple[str, ...] = ("Succeeded", "Succeeded")
    ends: tuple[tuple[str, int], ...] = (("", 0), ("", 0))
    waiting_reason: str = ""
    conditions: tuple[str, ...] = ("Succeeded",)
    is_started: bool = True

    def checking(self):
        name = job_name(self.live(), self.letters)
        return [
            PodView(
                name=f"{name}-worker-{index}",
                phase=phase,
                node=node,
                terminated_reason=reason,
                exit_code=code,
                waiting_reason=self.waiting_reason,
            )
            for index, (phase, node, (reason, code)) in enumerate(
                zip(self.phases, self.names, self.ends, strict=False)
            )
        ]

    def job(self, name):
        conditions = [JobCondition(each, message="why") for each in self.conditions]
        made = JobView(kind=JobKind.PYTORCH_JOB, name=name, conditions=conditions)
        return made if self.is_started else None

    def live(self, *, is_full: bool | None = None, **about) -> LiveCluster:
        full = self.is_full if is_full is None else is_full
        return LiveCluster(self, "c-1", self.spec, is_full=full, **about)
