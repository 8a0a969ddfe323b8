"""What the product does in a run's cluster: apply, look, read logs, delete.

Services keep one gateway for each cluster. Methods are single calls without waiting: the state
machines wait. Every view is typed; plain dicts come in from `rendering` and manifests only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from stationmaster.diagnosis.evidence import Evidence
from stationmaster.domain.cluster.spec import TeamQueue
from stationmaster.domain.errors import TransientError
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import NAMESPACE
from stationmaster.domain.run.failure_lines import FailureLines
from stationmaster.kubernetes.calls import Calls, NotFound, PageExpired
from stationmaster.kubernetes.kinds import (
    BATCH_JOB,
    PLACED,
    Kind,
    describe,
    path_of,
    path_of_object,
)
from stationmaster.kubernetes.rights import Account, Right
from stationmaster.kubernetes.room import PodLoad, parse_load
from stationmaster.kubernetes.views import (
    BatchJobView,
    ClaimView,
    DeploymentView,
    JobView,
    NodeView,
    PodView,
    WarningView,
    is_observed,
    is_rolled_out,
    last_line,
    last_seen,
    parse_batch_job,
    parse_claim,
    parse_deployment,
    parse_job,
    parse_node,
    parse_pod,
    parse_warning,
)
from stationmaster.rendering.job_backends import backend_of
from stationmaster.rendering.metadata import ANNOTATION_CORDONED, LABEL_HEALTH, TO_REPLACE
from stationmaster.rendering.placing import placed, placing_label

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

FIELD_MANAGER: Final = "stationmaster"
_PAGE: Final = "500"
# A list whose next page is refused (410, after five minutes or a compaction) is begun again.
_LIST_TRIES: Final = 3
# Namespaces and custom types first: what follows may live in the one and be of the other.
_FIRST: Final = {"Namespace": 0, "CustomResourceDefinition": 1}
# Of 8 ranks that write what NCCL does at the level INFO, a pod's log has about 1 MiB.
_MAX_LOG_BYTES: Final = 8 << 20


class KubernetesGateway:
    """A cluster: the namespace there, and the `kind` of jobs.

    With `queue` it is in that one's namespace, among objects of others.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str = NAMESPACE,
        queue: TeamQueue | None = None,
        kind: JobKind = JobKind.PYTORCH_JOB,
    ) -> None:
        self._calls = Calls(client)
        self.queue, self._own = queue, namespace
        self.namespace = queue.namespace if queue is not None else namespace
        self._mark = placing_label(namespace) if queue is not None else {}
        self.backend = backend_of(kind)

    def apply(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Create or update objects, repeatable at any time.

        Those that were rendered for the product's usual namespace go into the one of this gateway.

        Raises:
            TransientError: a type is not served yet, or an admission webhook does not answer yet.
            PermanentError: the cluster refuses an object; has its reason.
        """
        for each in sorted(objects, key=lambda item: _FIRST.get(item["kind"], 2)):
            if each["kind"] == "Namespace" and self.queue is not None:
                continue
            item = self.placed(each)
            try:
                self._calls.apply(
                    path_of_object(item),
                    item,
                    manager=FIELD_MANAGER,
                    what=f"applying {describe(item)}",
                )
            except NotFound as exc:
                # An apply creates what is missing, so it is the type or the namespace: both are
                # served moments after they are made.
                raise TransientError(str(exc)) from exc

    def placed(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a rendered object as it is applied here."""
        return placed(item, self.namespace, self._own)

    def close(self) -> None:
        """Close idle connections; the gateway can still be used."""
        self._calls.close()

    def is_answering(self) -> bool:
        """Say whether an API server answers at all; False once its cluster is gone."""
        return self._calls.is_answering()

    def nodes(self, *, labels: Mapping[str, str] | None = None) -> list[NodeView]:
        """List nodes that carry all the labels, by name."""
        items = self.listed("v1", "Node", labels=labels)
        return sorted((parse_node(item) for item in items), key=lambda node: node.name)

    def pods(self, *, labels: Mapping[str, str], namespace: str | None = None) -> list[PodView]:
        """List pods of a namespace that carry all the labels, by name."""
        labels = {**labels, **({} if namespace else self._mark)}
        items = self.listed("v1", "Pod", namespace=namespace, labels=labels)
        return sorted((parse_pod(item) for item in items), key=lambda pod: pod.name)

    def pods_of(self, kind: str, name: str, *, namespace: str | None = None) -> list[PodView]:
        """List pods that a Deployment or DaemonSet selects; none while it does not exist."""
        item = self.find("apps/v1", kind, namespace=namespace, name=name)
        if item is None:
            return []
        return self.pods(labels=item["spec"]["selector"]["matchLabels"], namespace=namespace)

    def deployment_ready(
        self, name: str, *, namespace: str | None = None, at_least: int | None = None
    ) -> bool:
        """Say whether replicas of the newest revision are available: all, or at least so many."""
        item = self.find("apps/v1", "Deployment", namespace=namespace, name=name)
        return item is not None and is_rolled_out(item, at_least)

    def daemon_set_ready(self, name: str, *, nodes: int, namespace: str | None = None) -> bool:
        """Say whether its pod is ready on `nodes` nodes or more, and wherever it is meant for."""
        item = self.find("apps/v1", "DaemonSet", namespace=namespace, name=name)
        if item is None or not is_observed(item):
            return False
        wanted = max(nodes, item["status"].get("desiredNumberScheduled", 0))
        return bool(item["status"].get("numberReady", 0) >= wanted)

    def crd_established(self, name: str) -> bool:
        """Say whether the API server serves a custom type."""
        item = self.find("apiextensions.k8s.io/v1", "CustomResourceDefinition", name=name)
        conditions = ((item or {}).get("status") or {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    def served_versions(self, name: str) -> list[str]:
        """List the served versions of a custom type; none where the API server does not know it."""
        item = self.find("apiextensions.k8s.io/v1", "CustomResourceDefinition", name=name)
        versions = ((item or {}).get("spec") or {}).get("versions") or []
        return [version["name"] for version in versions if version.get("served")]

    def claim(self, claim: str) -> ClaimView | None:
        """Read a claim, called NAMESPACE/NAME."""
        namespace, _, name = claim.partition("/")
        item = self.find("v1", "PersistentVolumeClaim", namespace=namespace, name=name)
        return None if item is None else parse_claim(item)

    def volume_spec(self, name: str) -> Mapping[str, Any]:
        """Return the spec of a PersistentVolume; empty where there is none."""
        return (self.find("v1", "PersistentVolume", name=name) or {}).get("spec") or {}

    def own_objects(self) -> list[tuple[str, str, str]]:
        """List apiVersion, kind and name of all of ours in a namespace of others."""
        if not self._mark:
            return []  # no label, which would mean all that there is
        kinds = [*PLACED, *(each[:2] for each in self.backend.parts(""))]
        return [
            (*kind, item["metadata"]["name"])
            for kind in kinds
            for item in self.listed(*kind, labels=self._mark)
        ]

    def job(self, name: str) -> JobView | None:
        item = self.find(self.backend.API_VERSION, self.backend.KIND, name=name)
        return None if item is None else parse_job(item, self.backend)

    def job_names(self, *, labels: Mapping[str, str]) -> list[str]:
        """Name the training jobs that carry all the labels, of which a part may be left."""
        kinds = [(api_version, kind) for api_version, kind, _ in self.backend.parts("")]
        items = [item for each in kinds for item in self.listed(*each, labels=labels)]
        return sorted({str(item["metadata"]["name"]) for item in items})

    def batch_jobs(self, *, labels: Mapping[str, str], of: Kind = BATCH_JOB) -> list[BatchJobView]:
        """List batch/v1 Jobs, or MPIJobs, that carry all the labels, by name."""
        jobs = map(parse_batch_job, self.listed(*of, labels=labels))
        return sorted(jobs, key=lambda job: job.name)

    def warnings(
        self, *, object_names: Sequence[str], namespace: str | None = None
    ) -> list[WarningView]:
        """List Warning events about the objects, oldest first."""
        items = self.listed("v1", "Event", namespace=namespace, fields={"type": "Warning"})
        ordered = sorted(items, key=last_seen)
        views = [parse_warning(item) for item in ordered]
        return [view for view in views if view.object_name in object_names]

    def loads(self) -> list[PodLoad]:
        """List what the pods of all namespaces hold of their nodes."""
        items = self.everywhere("v1", "Pod")
        return [load for item in items if (load := parse_load(item)) is not None]

    def deployments(self, *, of: str) -> list[DeploymentView]:
        """List the Deployments of all namespaces that run an image with `of` in its name.

        Each is seen through the list: reading it alone takes a right in its namespace.
        """
        items = self.everywhere("apps/v1", "Deployment")
        return [view for item in items for view in parse_deployment(item, of)]

    def may(self, right: Right, *, account: Account | None = None) -> bool:
        """Say whether who asks, or an account, has a right, by the cluster's own word.

        It asks with a SelfSubjectAccessReview, and for an account with a SubjectAccessReview.
        """
        kind = "SelfSubjectAccessReview"
        spec: dict[str, Any] = {"resourceAttributes": right.attributes}
        if account is not None:
            kind = "SubjectAccessReview"
            spec |= {"user": account.user, "groups": account.groups}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"
        answer = self._calls.create(path, review, what=f"asking for the right to {right}")
        return bool((answer.get("status") or {}).get("allowed", False))

    def explain(self, pods: Sequence[PodView], *, namespace: str | None = None) -> str:
        """Say why pods do not run, in the cluster's words: their state and their newest warning."""
        if not pods:
            return "no pods were created"
        stuck = [pod for pod in pods if not pod.ready and pod.phase != "Succeeded"]
        if not stuck:
            return f"{len(pods)} pods are ready"
        sentence = stuck[0].waits_for
        warnings = self.warnings(object_names=[stuck[0].name], namespace=namespace)
        if warnings and warnings[-1].message not in sentence:
            sentence += f" ({warnings[-1].reason}: {warnings[-1].message})"
        others = len(stuck) - 1
        return f"{sentence.rstrip('.')}; {others} more like it" if others else sentence

    def failure_line(self, pod: str) -> str:
        """Return the line of the pod's log that says best why it ended; "" when it has no log."""
        text = self._tail(pod, num_lines=500)
        lines, evidence = FailureLines(), Evidence()
        for line in text.splitlines():
            lines.take(line)
            evidence.take(line)
        said = lines.cause or lines.peer or lines.last
        return evidence.beside(said, is_named=bool(lines.cause)) or said

    def last_log_line(self, pod: str) -> str:
        """Return the last line that the pod's container printed; "" when there is none (yet)."""
        return last_line(self._tail(pod))

    def log(self, pod: str) -> str:
        """Read the log of the pod's container up to 8 MiB; empty when there is none.

        Raises:
            TransientError: the kubelet does not answer now; the log may still be there.
        """
        path = path_of("v1", "Pod", namespace=self.namespace, name=pod)
        what, query = f"reading the log of {pod}", {"limitBytes": str(_MAX_LOG_BYTES)}
        return self._calls.log(f"{path}/log", what=what, query=query, must_answer=True)

    def end_line(self, pod: str) -> str:
        """Read the last line of a container that ended well, which says what it did; "" for none.

        Raises:
            TransientError: the kubelet does not answer now; the line may still be there.
        """
        return last_line(self._tail(pod, must_answer=True))

    def _tail(self, pod: str, *, num_lines: int = 5, must_answer: bool = False) -> str:
        path = path_of("v1", "Pod", namespace=self.namespace, name=pod)
        what, query = f"reading the log of pod {pod}", {"tailLines": str(num_lines)}
        return self._calls.log(f"{path}/log", what=what, query=query, must_answer=must_answer)

    def delete(
        self, api_version: str, kind: str, *, name: str, namespace: str | None = None
    ) -> None:
        """Request the deletion of an object and its dependents, unless it is gone."""
        path = path_of(api_version, kind, namespace=namespace or self.namespace, name=name)
        try:
            self._calls.delete(path, what=f"deleting {kind} {name}")
        except NotFound:
            return

    def delete_job(self, name: str) -> None:
        """Request the deletion of a training job with all its parts, unless they are gone."""
        for api_version, kind, part in self.backend.parts(name):
            self.delete(api_version, kind, name=part)

    def cordon(self, node: str, why: str) -> None:
        """Keep further pods off a node and write on it why, unless it is gone."""
        said = {"annotations": {ANNOTATION_CORDONED: why}}
        body = {"metadata": said, "spec": {"unschedulable": True}}
        with suppress(NotFound):
            self._calls.merge(path_of("v1", "Node", name=node), body, what=f"cordoning {node}")

    def report_node(self, node: str) -> None:
        """Ask SageMaker HyperPod, by its label, for another node in place of one of its own."""
        path, label = path_of("v1", "Node", name=node), {LABEL_HEALTH: TO_REPLACE}
        with suppress(NotFound):
            self._calls.merge(path, {"metadata": {"labels": label}}, what=f"reporting {node}")

    def forget_pod(self, name: str) -> None:
        """Delete a pod without waiting for its node, which must be gone: nobody ends it there."""
        path = path_of("v1", "Pod", namespace=self.namespace, name=name)
        try:
            self._calls.delete(path, what=f"forcing the deletion of pod {name}", grace_s=0)
        except NotFound:
            return

    def exists(
        self, api_version: str, kind: str, *, name: str, namespace: str | None = None
    ) -> bool:
        """Say whether an object is still there."""
        return self.find(api_version, kind, namespace=namespace, name=name) is not None

    def has(self, item: Mapping[str, Any]) -> bool:
        """Say whether there is an object of that kind and name, where `apply` would put it."""
        item = self.placed(item)
        about = item["metadata"]
        where = about.get("namespace")
        return self.exists(item["apiVersion"], item["kind"], name=about["name"], namespace=where)

    def find(self, api_version: str, kind: str, *, name: str, namespace: str | None = None) -> Any:
        """Read an object as the API sends it; None where there is none."""
        path = path_of(api_version, kind, namespace=namespace or self.namespace, name=name)
        try:
            return self._calls.get(path, what=f"reading {kind} {name}")
        except NotFound:
            return None

    def listed(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """List objects as the API sends them: those that have all the labels and fields."""
        query = {}
        if labels:
            query["labelSelector"] = _selector(labels)
        if fields:
            query["fieldSelector"] = _selector(fields)
        path = path_of(api_version, kind, namespace=namespace or self.namespace)
        for _ in range(_LIST_TRIES - 1):
            try:
                return self._pages(path, query, what=f"listing {kind}s")
            except PageExpired:
                continue
        return self._pages(path, query, what=f"listing {kind}s")

    def everywhere(self, api_version: str, kind: str) -> list[Any]:
        """List the objects of a kind in all namespaces."""
        what = f"listing {kind}s of all namespaces"
        return self._pages(path_of(api_version, kind), {}, what=what)

    def _pages(self, path: str, query: Mapping[str, str], *, what: str) -> list[Any]:
        items: list[Any] = []
        page = {"limit": _PAGE}
        while True:
            try:
                answer = self._calls.get(path, what=what, query={**query, **page})
            except NotFound:
                return []  # the type is not served: there is none of it
            items += answer["items"]
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return items
            page["continue"] = token


def _selector(pairs: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in pairs.items())
