"""Queues of Kueue that take the namespace of a team only: found, refused, and kept to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stationmaster.domain.cluster.spec import TeamQueue
from stationmaster.domain.errors import JobNotStarted
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.kubernetes.rights import EVERYTHING, GRANT
from stationmaster.rendering import pytorch_job
from stationmaster.rendering.metadata import LABEL_MANAGED_BY
from stationmaster.rendering.placing import placed
from stationmaster.steps.parts.admission import refuse_missing, with_team_queue
from tests.support.factories import make_cluster

SPACE, TEAM = "stationmaster-demo-1a2b3c4d", "hyperpod-ns-a"
THEIRS = {"matchLabels": {"kubernetes.io/metadata.name": TEAM}}
OPENS = f"its owner types kubectl label namespace {TEAM} stationmaster/guests=allowed"
FOUND = f"{TEAM}/local"


def kueue(
    takes: Any = THEIRS, label: str = "allowed", teams: tuple[str, ...] = (TEAM,), lacks: str = ""
) -> Any:
    """A gateway to a cluster with ClusterQueue `whole`, and LocalQueue `local` of each team."""
    labelled = {"metadata": {"labels": {"stationmaster/guests": label}}}
    there = {"whole": {"spec": {"namespaceSelector": takes}}, **dict.fromkeys(teams, labelled)}
    return SimpleNamespace(
        namespace=SPACE,
        queue=None,
        backend=pytorch_job,
        may=lambda right: right != EVERYTHING and right.resource != lacks,
        served_versions=lambda _: ["v1beta1"],
        exists=lambda *_, name: False,
        find=lambda *_, name: there.get(name),
        placed=lambda item: placed(item, SPACE),
        everywhere=lambda *_: [
            {"metadata": {"namespace": team, "name": "local"}, "spec": {"clusterQueue": "whole"}}
            for team in teams
        ],
    )


def found_by(gateway: Any, queue: str) -> str:
    """Where the cluster of a run with `queue=` is to be, or why nowhere."""
    run = SimpleNamespace(request=SimpleNamespace(job_options=JobOptions(queue=queue)))
    runs = SimpleNamespace(find=lambda _: run)
    services: Any = SimpleNamespace(runs=runs, kubernetes=lambda _: gateway)
    try:
        found = with_team_queue(services, make_cluster()).spec.queue
    except JobNotStarted as exc:
        return str(exc)
    return f"{found.namespace}/{found.name}" if found is not None else "its own"


@pytest.mark.parametrize(
    ("gateway", "queue", "said"),
    [
        (kueue(), "whole", FOUND),
        (kueue(), "local", FOUND),
        (kueue({"matchLabels": {LABEL_MANAGED_BY: "stationmaster"}}), "whole", "its own"),
        (kueue({}, lacks="localqueues"), "whole", "its own"),
        (kueue(label="no"), "local", f"{TEAM} only: not open to runs; {OPENS}"),
        (kueue(teams=(TEAM, "b")), "whole", f"{TEAM} and b only: 2 of these are open to runs"),
        (kueue(teams=()), "whole", "its namespaceSelector does not take"),
        (kueue(), "night", "the cluster no ClusterQueue of that name"),
        (kueue(lacks="localqueues"), "whole", "may not list localqueues.kueue.x-k8s.io in the w"),
        (kueue(lacks="clusterqueues"), "whole", f"in the whole cluster; {GRANT}"),
    ],
)
def test_queue_of_a_team_is_found_or_refused_with_what_to_do(
    gateway: Any, queue: str, said: str
) -> None:
    assert said in found_by(gateway, queue)


def test_run_in_the_namespace_of_a_team_goes_through_its_queue() -> None:
    gateway = kueue()
    gateway.queue = TeamQueue(namespace=TEAM, name="q", cluster_queue="c")
    request = SimpleNamespace(job_options=JobOptions(queue="c"))
    run: Any = SimpleNamespace(placement=SimpleNamespace(nodes=2), least_nodes=2, request=request)

    refuse_missing(gateway, run)
    request.job_options = JobOptions()
    with pytest.raises(JobNotStarted, match="go through the queue of a team; type queue=q"):
        refuse_missing(gateway, run)
