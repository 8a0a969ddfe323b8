"""Pods as local processes: environment, volumes, logs, restarts, ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes.client.exceptions import ApiException

from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.node.environment import Ports, Translation, expand
from stationmaster.local.cluster.node.kubelet import Kubelet
from stationmaster.local.cluster.node.launch import own_variables
from tests.support.cluster_fixtures import (
    GPU,
    REPOSITORY,
    Cluster,
    alive,
    device_plugin,
    eventually,
    pytorchjob,
    start_cluster,
)


def process_id(cluster: Cluster, pod: str) -> int:
    status = cluster.pod(pod).status.container_statuses[0]
    return int(status.container_id.removeprefix("process://"))


def container_state(cluster: Cluster, pod: str) -> Any:
    statuses = cluster.pod(pod).status.container_statuses
    return statuses[0].state if statuses else None


def test_log_of_a_pod_unknown_to_the_kubelet_is_not_found(cluster: Cluster) -> None:
    cluster.run_pod("unbound", "exit 0", nodeSelector={"no": "such-node"})
    bound: Any = {"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": "n"}}
    bound["spec"]["containers"] = [{"name": "main"}]
    unsynced = Kubelet(None)  # type: ignore[arg-type]  # one that has started nothing needs none

    path = "/api/v1/namespaces/default/pods/unbound/log"
    request = cluster.api.param_serialize("GET", path, auth_settings=["BearerToken"])
    unbound = cluster.api.call_api(*request)
    said = unbound.read()
    with pytest.raises(ApiError, match=r"the requested resource \( pods/log p\)") as missing:
        unsynced.find_log(bound, "", previous=False)

    assert (unbound.status, said, missing.value.code) == (204, b"", 404)


def test_pod_environment_comes_from_every_source(cluster: Cluster) -> None:
    cluster.core.create_namespaced_secret(
        "default", {"metadata": {"name": "env-secret"}, "stringData": {"TOKEN": "t0p"}}
    )
    variables = [
        {"name": "FROM_NODE", "value": "no"},
        {"name": "COLOR", "value": "red"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "env-secret", "key": "TOKEN"}}},
        {
            "name": "ABSENT",
            "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": True}},
        },
        {"name": "BOTH", "value": "$(POD)/$(SECRET)/$$(POD)/$(UNKNOWN)"},
    ]
    script = 'echo "$1|$BOTH|$COLOR|$FROM_NODE|${ABSENT-unset}|$NODE|$HOSTNAME|$IP"'
    container = {
        "command": ["sh", "-c", script, "sh", "$(COLOR)-argument"],
        "env": variables,
    }

    cluster.run_pod("env", "", container=container)
    pod = cluster.pod_phase("env", "Succeeded")

    expected = ["red-argument", "env/t0p/$(POD)/$(UNKNOWN)", "red", "no", "unset"]
    assert cluster.log("env").strip().split("|") == [
        *expected,
        pod.spec.node_name,
        "env",
        "127.0.0.1",
    ]


def test_program_of_others_does_not_start_in_the_products_checkout(
    cluster: Cluster, tmp_path: Path
) -> None:
    shown = {"command": ["sh", "-c", "pwd"]}
    told = {"env": [{"name": "STATIONMASTER_OUTPUT_DIR", "value": "/fsx/x"}]}
    cluster.run_pod("product", "", container=shown)
    cluster.run_pod("theirs", "", container=shown | told)
    cluster.run_pod("placed", "", container=shown | told | {"workingDir": str(tmp_path)})
    for name in ("product", "theirs", "placed"):
        cluster.pod_phase(name, "Succeeded")

    assert cluster.log("product").strip() == str(REPOSITORY)
    assert f"/pods/{cluster.pod('theirs').metadata.uid}" in cluster.log("theirs")
    assert cluster.log("placed").strip() == str(tmp_path)


def test_conda_environment_that_is_active_is_honoured_but_not_its_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def path(name: str) -> str:
        monkeypatch.delenv("VIRTUAL_ENV", raising=False)
        monkeypatch.setenv("CONDA_PREFIX", f"/conda/{name}")
        monkeypatch.setenv("CONDA_DEFAULT_ENV", name)
        container = {"command": ["python"], "env": []}
        return own_variables({"PATH": "/bin"}, container, product=REPOSITORY)["PATH"]

    assert (path("mine"), path("base")) == ("/conda/mine/bin:/bin", "/bin")


@pytest.mark.parametrize(
    ("word", "typed", "programs"),
    [
        ("torchrun", None, "/active/bin:{own}:/bin"),
        ("/other/bin/torchrun", None, "{own}:/bin"),
        ("torchrun", "/typed", "/typed/bin:/bin"),
    ],
)
def test_program_of_others_finds_the_python_that_was_typed_or_is_active(
    monkeypatch: pytest.MonkeyPatch, word: str, typed: str | None, programs: str
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/active")
    own = Path(sys.executable).parent
    base = {"PATH": f"{own}:/bin", "PYTHONPATH": f"/stores:{REPOSITORY}"}
    variables = [{"name": "VIRTUAL_ENV", "value": typed}] if typed else []

    got = own_variables(base, {"command": [word], "env": variables}, product=REPOSITORY)

    assert (got["PATH"], got["PYTHONPATH"]) == (programs.format(own=own), "/stores")


@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd (apt-get install etcd-server)")
def test_etcd_in_a_pod_is_closed_to_web_pages(cluster: Cluster, tmp_path: Path) -> None:
    ports = Ports()
    url, peer = (f"http://127.0.0.1:{ports.of('etcd', number)}" for number in (1, 2))
    command = ["etcd", "--enable-v2=true", f"--data-dir={tmp_path}"]
    command += [f"--listen-client-urls={url}", f"--advertise-client-urls={url}"]
    command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
    command += [f"--initial-cluster=default={peer}"]
    cluster.run_pod("etcd", "", container={"command": command})

    def served() -> httpx.Response | None:
        try:
            answer = httpx.put(f"{url}/v2/keys/met", data={"value": "here"})
        except httpx.TransportError:
            return None
        return answer if answer.is_success else None

    written = eventually(served, "an etcd that answers")
    page = {"Origin": "https://evil.test"}
    preflight = httpx.options(
        f"{url}/v2/keys/met", headers={**page, "Access-Control-Request-Method": "PUT"}
    )
    read = httpx.get(f"{url}/v2/keys/met", headers=page)
    rebound = httpx.get(f"{url}/v2/keys/met", headers={"Host": f"evil.test:{url[-5:]}"})
    gateway = httpx.post(f"{url}/v3/kv/range", content='{"key": "AA=="}')
    cluster.core.delete_namespaced_pod("etcd", "default")

    permitted = [answer.headers.get("access-control-allow-origin") for answer in (preflight, read)]
    assert not {"*", page["Origin"]} & set(permitted)
    assert written.json()["node"]["value"] == "here"
    assert (rebound.status_code, gateway.status_code) == (421, 404)


def test_pod_with_missing_secret_waits_and_starts_when_it_comes(cluster: Cluster) -> None:
    env = [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}]
    cluster.run_pod("late-secret", "echo $K", container={"env": env})

    event = cluster.event("late-secret", "Failed")
    waiting = container_state(cluster, "late-secret").waiting
    cluster.core.create_namespaced_secret(
        "default", {"metadata": {"name": "late"}, "stringData": {"k": "came"}}
    )
    cluster.pod_phase("late-secret", "Succeeded")

    assert event.message == 'Error: secret "late" not found'
    assert waiting.reason == "CreateContainerConfigError"
    assert cluster.log("late-secret") == "came\n"


def test_pod_without_command_is_refused_with_the_reason(cluster: Cluster) -> None:
    cluster.run_pod("imageless", "", container={"command": None})

    event = cluster.event("imageless", "Failed")

    assert 'image "trial:1" has no command here' in event.message
    waiting = eventually(lambda: container_state(cluster, "imageless"), "a state").waiting
    assert waiting.reason == "CreateContainerError"
    with pytest.raises(ApiException, match="is waiting to start: CreateContainerError") as caught:
        cluster.log("imageless")
    assert caught.value.status == 400


def test_pod_whose_program_does_not_exist_ends_with_start_error(cluster: Cluster) -> None:
    cluster.run_pod("no-program", "", container={"command": ["no-such-program"]})

    ended = cluster.pod_phase("no-program", "Failed").status.container_statuses[0].state.terminated

    assert (ended.exit_code, ended.reason) == (128, "StartError")
    assert 'exec: "no-such-program": executable file not found in $PATH' in ended.message


def test_delete_sends_term_and_waits_for_the_end(cluster: Cluster) -> None:
    let_go = cluster.state_dir / "let-go"
    polite = f"trap 'echo asked' TERM; echo ready; until [ -e {let_go} ]; do sleep 0.05; done"
    cluster.run_pod("polite", polite, terminationGracePeriodSeconds=1800)
    cluster.pod_phase("polite", "Running")
    eventually(lambda: "ready" in cluster.log("polite"), "the trap")

    cluster.core.delete_namespaced_pod("polite", "default")

    assert cluster.pod("polite").metadata.deletion_timestamp is not None
    eventually(lambda: "asked" in cluster.log("polite"), "the TERM")
    assert cluster.pod("polite") is not None
    let_go.touch()
    eventually(lambda: cluster.pod("polite") is None, "the pod gone")
    assert cluster.event("polite", "Killing").message == "Stopping container main"


def test_delete_kills_after_the_grace(cluster: Cluster) -> None:
    stubborn = "trap '' TERM; echo ready; while true; do sleep 0.05; done"
    cluster.run_pod("stubborn", stubborn, terminationGracePeriodSeconds=1)
    cluster.pod_phase("stubborn", "Running")
    eventually(lambda: "ready" in cluster.log("stubborn"), "the trap")
    pid = process_id(cluster, "stubborn")

    cluster.core.delete_namespaced_pod("stubborn", "default")

    eventually(lambda: cluster.pod("stubborn") is None, "the pod gone")
    assert not alive(pid)


def test_log_options_choose_what_is_shown(cluster: Cluster) -> None:
    cluster.run_pod("lines", "for i in 1 2 3 4; do echo line-$i; done; printf '50\\r100\\nend'")
    cluster.pod_phase("lines", "Succeeded")

    assert cluster.log("lines", tail_lines=3) == "line-4\n50\r100\nend\n"
    assert cluster.log("lines", limit_bytes=6) == "line-1"
    assert cluster.log("lines", since_seconds=3600).startswith("line-1\n")
    stamped = cluster.log("lines", timestamps=True, tail_lines=1)
    stamp, _, text = stamped.partition(" ")
    assert text == "end\n"
    assert abs(time.time() - datetime.fromisoformat(stamp).timestamp()) < 60


def test_pod_that_fits_no_node_says_why(cluster: Cluster) -> None:
    requests = {"requests": {"cpu": "1000"}, "limits": {GPU: "4"}}
    cluster.run_pod("too-big", "true", container={"resources": requests})

    event = cluster.event("too-big", "FailedScheduling")

    assert event.message.startswith(
        f"0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient {GPU}."
    )
    condition = next(c for c in cluster.pod("too-big").status.conditions)
    assert (condition.type, condition.reason) == ("PodScheduled", "Unschedulable")


_HOST = """
import sys, time
from pathlib import Path
sys.path.insert(0, {repository!r})
from tests.support import cluster_fixtures as fixtures
cluster = fixtures.start_cluster(Path({state!r}))
cluster.add_nodes()
script = "import subprocess, os; p = subprocess.Popen(['sleep', '300'], start_new_session=True);" \\
    "print(os.getpid(), p.pid, flush=True); p.wait()"
cluster.run_pod("orphan", "", container={{"command": ["python", "-c", script]}})
cluster.pod_phase("orphan", "Running")
print(fixtures.eventually(lambda: cluster.log("orphan"), "a log"), flush=True)
time.sleep(300)
"""


def test_kill_9_of_the_hosting_process_ends_every_pod(tmp_path: Path) -> None:
    code = textwrap.dedent(_HOST).format(repository=str(REPOSITORY), state=str(tmp_path / "state"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        pids = [int(word) for word in host.stdout.readline().split()]
        assert all(alive(pid) for pid in pids)

        host.kill()

    assert len(pids) == 2
    eventually(lambda: not any(alive(pid) for pid in pids), "the pod's processes gone")


def test_pods_of_images_that_cannot_run_are_refused_with_their_owners(tmp_path: Path) -> None:
    own = start_cluster(tmp_path / "state", only_images=["ours:1"])
    own.add_nodes()

    own.run_pod("ours", "true", container={"image": "ours:1"})
    own.pod_phase("ours", "Succeeded")
    own.install_operator()
    job = pytorchjob("with-master")
    # A worker waits, with an image of others, and finds its master while that is ready.
    until_worked = f"until test -e {tmp_path}/worked; do sleep 0.05; done"
    for role, script in {"Master": until_worked, "Worker": "true"}.items():
        template = job["spec"]["pytorchReplicaSpecs"][role]["template"]
        main = {"image": "ours:1", "command": ["sh", "-c", script]}
        template["spec"]["containers"][0] |= main
    own.submit(job)
    own.pod_phase("with-master-worker-0", "Succeeded")
    (tmp_path / "worked").touch()
    own.apps.create_namespaced_daemon_set(
        "kube-system", device_plugin("nvidia", "nvcr.io/nvidia/k8s-device-plugin:v0.19.0")
    )
    with pytest.raises(ApiException, match="cannot run the image") as pod:
        own.run_pod("theirs", "true", container={"image": "theirs:1"})
    with pytest.raises(ApiException, match="cannot run the image") as owner:
        own.apps.create_namespaced_daemon_set("default", device_plugin("other", "theirs:2"))
    own.close()

    assert [pod.value.status, owner.value.status] == [403, 403]
    assert json.loads(pod.value.body)["message"].startswith(
        'pods "theirs" is forbidden: this cluster cannot run the image "theirs:1": its pods are'
    )
    assert 'daemonsets.apps "other"' in json.loads(owner.value.body)["message"]


def test_gpu_container_sees_the_gpus_allocated_to_it_or_is_refused(tmp_path: Path) -> None:
    """The node offers 8; of the machine's three one container gets two, the next is refused."""
    own = start_cluster(tmp_path / "state", list_gpus=lambda: [0, 1, 2])
    own.add_nodes()
    own.apps.create_namespaced_daemon_set(
        "kube-system", device_plugin("nvidia", "nvcr.io/nvidia/k8s-device-plugin:v0.19.0")
    )
    container = {"resources": {"limits": {GPU: "2"}}}
    own.run_pod("gpu", "echo $CUDA_VISIBLE_DEVICES; sleep 300", container=container)
    own.pod_phase("gpu", "Running")
    eventually(lambda: own.log("gpu") == "0,1\n", "the devices")

    own.run_pod("refused", "true", container=container)

    message = own.event("refused", "Failed").message
    state = eventually(lambda: container_state(own, "refused"), "a state")
    phase = own.pod("refused").status.phase
    own.close()
    assert message == (
        "Error: this machine has 3 NVIDIA GPUs and the container asks for 2; "
        "local mode cannot run it"
    )
    assert (state.waiting.reason, phase) == ("CreateContainerError", "Pending")


def test_ports_asked_for_at_once_are_the_same_for_one_job_and_differ_between_jobs() -> None:
    ports, together = Ports(), threading.Barrier(16)

    def ask(index: int) -> tuple[int, int]:
        together.wait()
        return index % 2, ports.of(f"job-{index % 2}", 23456)

    with ThreadPoolExecutor(16) as threads:
        found = set(threads.map(ask, range(16)))

    assert sorted(job for job, _ in found) == [0, 1]
    assert len({port for _, port in found}) == 2


def test_translation_replaces_whole_paths_and_addresses_only() -> None:
    mounts = {"/fsx": Path("/local/fs"), "/fsx/data": Path("/local/data")}
    translation = Translation(mounts, ["job-master-0"], lambda _, port: port + 1)

    assert translation.text("/fsx/a:/fsx/data/b") == "/local/fs/a:/local/data/b"
    assert translation.text("--dir=/fsx") == "--dir=/local/fs"
    assert translation.text("/fsx2 /opt/fsx x/fsx") == "/fsx2 /opt/fsx x/fsx"
    assert translation.text("job-master-0:1000") == "127.0.0.1:1001"
    assert translation.text("job-master-01:1000") == "job-master-01:1000"
    assert translation.text("job-master-0.default.svc:5") == "127.0.0.1:6"
    assert translation.text("job-master-0") == "job-master-0"
    assert translation.variable("MASTER_ADDR", "job-master-0") == "127.0.0.1"
    assert translation.variable("MASTER_PORT", "7") == "8"
    assert translation.argument("--master_addr=job-master-0") == "--master_addr=127.0.0.1"
    assert translation.argument("--listen=http://0.0.0.0:2379") == "--listen=http://127.0.0.1:2379"
    assert translation.argument("10.0.0.0.0") == "10.0.0.0.0"


def test_pod_of_a_service_listens_where_its_clients_look() -> None:
    ports = {("etcd", 2379): 20001, ("etcd", 2380): 20002, ("", 2379): 20003}

    def translation(served: str) -> Translation:
        return Translation({}, [], lambda *of: ports[of], services=["etcd"], served=served)

    assert translation("").argument("etcd:2379") == "127.0.0.1:20001"
    assert translation("").argument("--listen=http://0.0.0.0:9") == "--listen=http://127.0.0.1:9"
    assert translation("etcd").argument("http://0.0.0.0:2379") == "http://127.0.0.1:20001"
    assert translation("etcd").argument("http://127.0.0.1:2380") == "http://127.0.0.1:20002"


def test_expansion_leaves_unknown_and_escaped_names() -> None:
    assert expand("$(A)-$(B)-$$(A)", {"A": "1"}) == "1-$(B)-$(A)"
    # As the kubelet does: an escaped dollar is one, wherever it stands.
    assert expand("$$ $$$$ $HOME $${A} $$$(A) $(A", {"A": "1"}) == "$ $$ $HOME ${A} $1 $(A"


def test_pod_outlives_its_node_until_its_deletion_is_forced(empty_cluster: Cluster) -> None:
    own = empty_cluster
    own.add_nodes()
    own.run_pod("left", "exec sleep 3600")
    own.pod_phase("left", "Running")
    process = process_id(own, "left")
    own.local.faults.add("pods-outlive-nodes")

    own.local.remove_nodes(node_group="workers")
    eventually(lambda: not alive(process), "the machine's processes gone")
    own.core.delete_namespaced_pod("left", "default")

    (node,) = own.core.list_node().items
    ready = next(each for each in node.status.conditions if each.type == "Ready")
    left = own.pod("left")
    assert (ready.status, left.status.phase) == ("Unknown", "Running")
    assert left.metadata.deletion_timestamp is not None
    own.core.delete_namespaced_pod("left", "default", grace_period_seconds=0)
    assert own.pod("left") is None
