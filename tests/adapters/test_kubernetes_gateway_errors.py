"""What the gateway makes of a server's answers, of silence, and how it signs in to EKS.

The server is a real one on this machine that gives the answer that the test sets.
"""

import base64
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from botocore.session import Session

from stationmaster.aws.access_entries import admin_policy_arn
from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.kubernetes.connect import connect
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.token import EksToken
from stationmaster.relay.cluster import ClusterApi
from tests.support.answering_server import AnsweringServer, settings, status

WEBHOOK = (
    'admission webhook "validator.pytorchjob.training-operator.kubeflow.org" denied the request: '
    "spec.pytorchReplicaSpecs: Forbidden"
)
UNDECLARED = ".spec.finalisers: field not declared in schema"
RBAC = 'nodes is forbidden: User "u" cannot list resource "nodes" in API group ""'


@pytest.mark.parametrize(
    "answer",
    [
        status(429, "too many requests"),
        status(500, 'failed calling webhook "v": connection refused'),
        status(503, "the server is currently unable to handle the request"),
        (502, "<html>bad gateway</html>"),
        status(409, "the object has been modified"),
        status(401, "Unauthorized"),
        status(403, RBAC),
        status(403, 'unable to create: namespace "n" because it is being terminated'),
    ],
)
def test_answer_that_may_heal_is_transient(
    server: AnsweringServer, gateway: KubernetesGateway, answer: tuple[int, Any]
):
    server.say(answer)

    with pytest.raises(TransientError, match=f"listing Nodes: the cluster answers {answer[0]}"):
        gateway.nodes()


@pytest.mark.parametrize(
    "answer",
    [
        status(403, WEBHOOK),
        status(422, "spec: Required value"),
        # Server-side apply answers these with 500; another try meets the same schema.
        status(500, f"failed to create typed patch object (/n; /v1, Kind=Namespace): {UNDECLARED}"),
        status(500, f"failed to create manager for existing fields: {UNDECLARED}"),
        status(
            500, 'failed to create typed patch object (/n): .env: duplicate entries for key "A"'
        ),
    ],
)
def test_refusal_is_permanent_with_the_servers_sentence(
    server: AnsweringServer, gateway: KubernetesGateway, answer: tuple[int, Any]
):
    server.say(answer)
    item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}

    with pytest.raises(PermanentError) as refused:
        gateway.apply([item])

    assert str(refused.value) == (
        f"applying Namespace n: the cluster answers {answer[0]}: {answer[1]['message']}"
    )


@pytest.mark.parametrize(
    ("available", "at_least", "is_ready"),
    [(2, None, True), (1, None, False), (1, 1, True), (0, 1, False)],
)
def test_deployment_is_ready_with_all_its_replicas_or_with_those_that_are_needed(
    server: AnsweringServer,
    gateway: KubernetesGateway,
    available: int,
    at_least: int | None,
    is_ready: bool,
):
    counts = {"updatedReplicas": 2, "availableReplicas": available, "observedGeneration": 1}
    spec = {"replicas": 2}
    server.say((200, {"metadata": {"generation": 1}, "spec": spec, "status": counts}))

    assert gateway.deployment_ready("relay", at_least=at_least) is is_ready


def test_list_whose_next_page_expired_is_read_again_from_its_beginning(
    server: AnsweringServer, gateway: KubernetesGateway
):
    def page(name: str, following: str) -> tuple[int, Any]:
        return 200, {"metadata": {"continue": following}, "items": [{"metadata": {"name": name}}]}

    expired = status(410, "The provided continue parameter is too old to display a consistent list")
    server.say(page("a", "next"), expired, page("a", "later"), page("b", ""))

    names = [node.name for node in gateway.nodes()]

    assert names == ["a", "b"]
    asked = [parse_qs(urlparse(path).query).get("continue") for _, path, _ in server.requests]
    assert asked == [None, ["next"], None, ["later"]]


def test_list_whose_pages_always_expire_is_transient(
    server: AnsweringServer, gateway: KubernetesGateway
):
    page = 200, {"metadata": {"continue": "next"}, "items": []}
    expired = status(410, "too old")
    server.say(*[page, expired] * 10)

    with pytest.raises(TransientError, match="listing Nodes: the cluster answers 410: too old"):
        gateway.nodes()

    assert len(server.requests) == 6


def test_list_of_the_relay_is_begun_again_as_well(server: AnsweringServer, kubeconfig: Path):
    page = 200, {"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "a"}}]}
    last = 200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}
    server.say(page, status(410, "too old"), page, last)

    items, version = ClusterApi.connect(str(kubeconfig)).list("/api/v1/pods", {})

    assert ([item["metadata"]["name"] for item in items], version) == (["a", "b"], "7")


@pytest.mark.parametrize(
    "answer",
    [
        status(500, 'Get "https://10.0.1.2:10250/containerLogs/n/p/c": dial tcp: i/o timeout'),
        (502, "<html>bad gateway</html>"),
        status(404, "the server could not find the requested resource ( pods/log p)"),
        status(400, 'container "c" in pod "p" is waiting to start: ContainerCreating'),
    ],
)
def test_log_that_the_kubelet_does_not_give_is_empty(
    server: AnsweringServer, gateway: KubernetesGateway, answer: tuple[int, Any]
):
    server.say(answer)

    assert gateway.last_log_line("p") == ""


def test_line_that_decides_is_asked_for_again_while_the_kubelet_is_silent(
    server: AnsweringServer, gateway: KubernetesGateway
):
    said = 'Get "https://10.0.1.9:10250/containerLogs/d/p/c": dial tcp: i/o timeout'
    server.say(status(500, said), (200, "one\nlast\n"), status(404, "pods p not found"))

    with pytest.raises(TransientError, match=r"500: Get .*10250"):
        gateway.end_line("p")

    assert (gateway.end_line("p"), gateway.end_line("p")) == ("last", "")


@pytest.mark.parametrize("answer", [status(401, "Unauthorized"), status(429, "slow down")])
def test_log_that_may_be_asked_for_again_is_transient(
    server: AnsweringServer, gateway: KubernetesGateway, answer: tuple[int, Any]
):
    server.say(answer)

    with pytest.raises(TransientError, match=f"reading the log of pod p: .* {answer[0]}"):
        gateway.last_log_line("p")


NCCL_WARNING = "w-0:7:7 [0] NCCL WARN Bootstrap : no socket interface found"


@pytest.mark.parametrize(
    ("before", "error", "line"),
    [
        (NCCL_WARNING, "DistBackendError: NCCL error", NCCL_WARNING),  # it explains the library's
        ("", "KeyError: 'model'\nbye", "KeyError: 'model'"),
    ],
)
def test_failure_line_of_a_log_explains_the_failure(
    server: AnsweringServer, gateway: KubernetesGateway, before: str, error: str, line: str
):
    server.say((200, f"{before}\nTraceback (most recent call last):\n  File x\n{error}\n"))

    assert gateway.failure_line("p") == line


def test_apply_takes_over_fields_under_our_name_and_signs_in(
    server: AnsweringServer, gateway: KubernetesGateway
):
    server.say((200, {}))

    gateway.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}])

    method, path, headers = server.requests[0]
    assert method == "PATCH"
    assert parse_qs(urlparse(path).query) == {
        "fieldManager": ["stationmaster"],
        "force": ["true"],
        "fieldValidation": ["Strict"],
    }
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert headers["authorization"] == "Bearer secret-token"


def test_kubeconfig_that_is_missing_is_refused_with_the_variable(tmp_path: Path):
    path = tmp_path / "none"

    with pytest.raises(PermanentError, match=f"STATIONMASTER_KUBECONFIG={path} cannot be used"):
        connect(settings(str(path)), cluster=None)


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def session() -> Session:
    session = Session()
    session.set_credentials("AKIDEXAMPLE", "secret")
    return session


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("eu-west-1", "sts.eu-west-1.amazonaws.com"),
        ("us-gov-west-1", "sts.us-gov-west-1.amazonaws.com"),
        ("cn-northwest-1", "sts.cn-northwest-1.amazonaws.com.cn"),
    ],
)
def test_eks_token_is_a_presigned_call_bound_to_the_cluster(
    session: Session, region: str, host: str
):
    token = EksToken("my-cluster", region=region, clock=Clock(), session=session).value()

    assert token.startswith("k8s-aws-v1.")
    encoded = token.removeprefix("k8s-aws-v1.")
    assert "=" not in encoded
    url = urlparse(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
    query = parse_qs(url.query)
    assert url.netloc == host
    assert query["Action"] == ["GetCallerIdentity"]
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]
    assert query["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")


def test_eks_token_of_a_region_without_a_known_partition_is_refused(session: Session):
    token = EksToken("my-cluster", region="xx-new-9", clock=Clock(), session=session)

    with pytest.raises(PermanentError, match='no STS endpoint of region "xx-new-9" is known'):
        token.value()


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov"])
def test_admin_policy_is_of_the_partition_of_the_role_that_gets_it(partition: str):
    arn = admin_policy_arn(f"arn:{partition}:iam::123456789012:role/steps")

    assert arn == f"arn:{partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"


def test_eks_token_is_kept_while_young_and_signed_again_when_old(session: Session):
    clock = Clock()
    token = EksToken("my-cluster", region="eu-west-1", clock=clock, session=session)
    first = token.value()
    session.set_credentials("AKIDNEWER", "secret")

    clock.now_s += 500
    young = token.value()
    clock.now_s += 500
    old = token.value()

    assert young == first
    assert old != first
