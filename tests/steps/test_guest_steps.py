"""Steps that may meet a guest ask for the control plane that it is in, not for one of its own.

Queues of Kueue that take the namespace of a team only are found, refused, and kept to.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.replacements import Replacement
from stationmaster.domain.cluster.spec import TeamQueue
from stationmaster.domain.errors import JobNotStarted, PermanentError, StepTimedOut
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.jobs.run_jobs import render_token
from stationmaster.kubernetes.queues import selects
from stationmaster.kubernetes.rights import EVERYTHING, GRANT, Right, priority_rights, queue_rights
from stationmaster.rendering import pytorch_job
from stationmaster.rendering.metadata import LABEL_MANAGED_BY
from stationmaster.rendering.placing import placed
from stationmaster.steps.parts import next_attempt, node_replacements
from stationmaster.steps.parts.admission import refuse_missing, with_team_queue
from stationmaster.steps.parts.exit_from_existing import taken_out_when_late
from tests.support.factories import START, make_cluster

STEPS = Path(__file__).resolve().parents[2] / "stationmaster" / "steps"
# They make and delete the product's own EKS clusters, and turn to others' before they look.
OF_OWN_CLUSTERS = {"ensure_cluster", "ensure_node_group", "release_cluster"}
SPACE = "stationmaster-demo-1a2b3c4d"


def test_only_steps_that_make_or_delete_an_eks_cluster_look_for_one_of_the_products_own() -> None:
    looking = {
        path.stem
        for path in STEPS.glob("*.py")
        if "clusters.describe(" in path.read_text(encoding="utf-8")
    }

    assert looking == OF_OWN_CLUSTERS
    for name in OF_OWN_CLUSTERS:
        text = (STEPS / f"{name}.py").read_text(encoding="utf-8")
        assert text.index("spec.eks_name") < text.index("clusters.describe("), name


class Inside:
    """The Kubernetes side of an existing EKS cluster: what is there by kind."""

    def __init__(self) -> None:
        self.there: set[str] = set()

    def exists(self, _api_version: str, kind: str, *, name: str) -> bool:
        assert "demo" in name
        return kind in self.there

    def delete(self, _api_version: str, kind: str, *, name: str) -> None:
        self.there.discard(kind)


def services_of(inside: Inside, *, eks_name: str, teardown: TeardownStatus) -> Any:
    cluster = SimpleNamespace(
        cluster_id="demo-1a2b3c4d",
        spec=SimpleNamespace(eks_name=eks_name, queue=None),
        teardown=teardown,
    )
    return SimpleNamespace(
        cluster_states=SimpleNamespace(load=lambda _: cluster),
        kubernetes=lambda _: inside,
    )


@pytest.mark.parametrize(
    ("options", "typed", "right"),
    [
        *((JobOptions(queue="night"), "queue=night", right) for right in queue_rights(SPACE)),
        (JobOptions(priority_class="high"), "priority_class=high", *priority_rights()),
        (
            JobOptions(queue="night", priority_class="high"),
            "priority_class=high",
            priority_rights(queued=True)[-1],
        ),
    ],
)
def test_right_that_an_option_takes_and_the_product_lacks_is_named_before_the_job_is_made(
    options: JobOptions, typed: str, right: Right
) -> None:
    about = {"namespace": SPACE, "queue": None, "backend": pytorch_job}
    gateway: Any = SimpleNamespace(may=lambda asked: asked not in (right, EVERYTHING), **about)
    request = SimpleNamespace(job_options=options)
    run: Any = SimpleNamespace(placement=SimpleNamespace(nodes=2), least_nodes=2, request=request)

    with pytest.raises(JobNotStarted) as refused:
        refuse_missing(gateway, run)

    assert str(refused.value) == f"{typed}: the product's role may not {right}; {GRANT}"


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize(
    ("eks_name", "teardown", "stays"),
    [
        ("shared", TeardownStatus.COMPLETED, False),
        ("shared", TeardownStatus.RUNNING, True),
        ("", TeardownStatus.COMPLETED, True),
    ],
)
def test_what_a_run_applies_in_a_cluster_of_others_after_the_teardown_is_taken_out_again(
    eks_name: str, teardown: TeardownStatus, stays: bool, breaks: bool
) -> None:
    inside = Inside()
    services = services_of(inside, eks_name=eks_name, teardown=teardown)

    with (
        suppress(PermanentError),
        taken_out_when_late(services, ClusterId("demo-1a2b3c4d")),
    ):
        inside.there |= {"PersistentVolume", "Namespace"}
        if breaks:
            raise PermanentError("its namespace is gone")

    assert inside.there == ({"PersistentVolume", "Namespace"} if stays else set())


@pytest.mark.parametrize(
    ("eks_name", "is_allowed", "gets_it"),
    [("", False, True), ("shared", False, False), ("shared", True, True)],
)
def test_token_of_the_hub_goes_into_clusters_of_others_where_the_deployment_says_so(
    eks_name: str, is_allowed: bool, gets_it: bool
) -> None:
    services = services_of(Inside(), eks_name=eks_name, teardown=TeardownStatus.RUNNING)
    services.settings = SimpleNamespace(hugging_face_token_in_eks_clusters=is_allowed)
    services.secrets = SimpleNamespace(hugging_face_token=lambda: SecretStr("hf_1"), tracking=dict)

    rendered = render_token(services, ClusterId("demo-1a2b3c4d"))

    assert [each["kind"] for each in rendered] == (["Secret"] if gets_it else [])


def test_bad_node_of_hyperpod_is_reported_once_and_others_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = Replacement(
        node="n-1", instance_id="i-1", check="gpus", reason="7 GPUs", pass_number=1, began_at=START
    )
    fit, reported, recorded = ["n-1", "n-2"], [], []
    cluster: Any = SimpleNamespace(
        cluster_id="c-1",
        spec=SimpleNamespace(nodes=2),
        replacements=[bad],
        passes=1,
        refuse_going=lambda _: None,
    )
    services: Any = SimpleNamespace(
        now=lambda: START,
        cluster_states=SimpleNamespace(
            load=lambda _: cluster, record=lambda _, events: recorded.extend(events)
        ),
        cluster_stamp=lambda *_: {"event_id": "e", "cluster_id": "c-1", "at": START},
    )

    def report_node(name: str) -> None:  # its label takes it out of those that are fit
        reported.append(name)
        fit.remove(name)

    def live(*_: object) -> Any:
        nodes = [SimpleNamespace(name=name) for name in fit]
        gateway = SimpleNamespace(report_node=report_node)
        return SimpleNamespace(cluster_id="c-1", training_nodes=nodes, kubernetes=gateway)

    monkeypatch.setattr(node_replacements, "live_cluster", live)

    def look() -> bool:
        return node_replacements.await_hyperpod(services, cluster)

    assert [look(), look(), recorded] == [False, False, []]
    fit.append("n-3")
    assert look()
    assert (reported, [each.node for each in recorded]) == (["n-1"], ["n-1"])
    services.now = lambda: START + timedelta(seconds=node_replacements.HYPERPOD_WAIT_S + 1)
    fit.remove("n-3")
    with pytest.raises(StepTimedOut, match="was reported to HyperPod, and no other one has come"):
        look()


@pytest.mark.parametrize(
    ("eks_name", "vcpus", "reports"),
    [("its", 4, ["n-1"]), ("its", None, []), ("", None, ["n-1: r-1: GPU lost"])],
)
def test_next_attempt_reports_a_bad_node_of_hyperpod_and_leaves_those_of_others(
    monkeypatch: pytest.MonkeyPatch, eks_name: str, vcpus: int | None, reports: list[str]
) -> None:
    reported: list[str] = []
    spec = SimpleNamespace(eks_name=eks_name, hyperpod_vcpus=vcpus, reservation=None)
    cluster = SimpleNamespace(spec=spec, refuse_going=lambda _: None)
    nodes = [SimpleNamespace(name="n-1", instance_id="i-1")]
    say = lambda *told: reported.append(": ".join(told))  # noqa: E731
    gateway = SimpleNamespace(report_node=say, cordon=say)
    live = SimpleNamespace(training_nodes=nodes, idle_nodes=nodes, kubernetes=gateway)
    for name, answer in {
        "first_cause": SimpleNamespace(node="n-1", blames_machine=True, sentence="GPU lost"),
        "pending_restart": None,
        "cluster_of": "c-1",
        "live_cluster": live,
    }.items():
        monkeypatch.setattr(next_attempt, name, lambda *_, answer=answer: answer)
    services: Any = SimpleNamespace(
        cluster_states=SimpleNamespace(load=lambda _: cluster),
        scaling_groups=SimpleNamespace(replace=lambda _: None),
    )
    run: Any = SimpleNamespace(run_id="r-1", failures=[], attempts=[])

    taken_out = next_attempt._take_out_bad_node(services, run)

    assert (bool(taken_out), reported) == (bool(reports), reports)


def test_selector_of_a_queue_takes_namespaces_as_kubernetes_has_it() -> None:
    def takes(selector: dict[str, Any] | None) -> bool:
        return selects(selector, {"labels": {"team": "a"}})

    assert [takes(None), takes({})] == [False, True]
    assert [takes({"matchLabels": {"team": team}}) for team in "ab"] == [True, False]
    for operator, expected in {"In": True, "NotIn": False, "Exists": True, "": False}.items():
        for key, is_there in (("team", True), ("other", False)):
            wanted = {"key": key, "operator": operator or "DoesNotExist", "values": ["a"]}
            assert takes({"matchExpressions": [wanted]}) is (expected is is_there)


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
