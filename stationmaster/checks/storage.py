"""The storage check: a Job for each idle training node that writes and reads the file system.

Each pod writes a file of random bytes, syncs it, reads it back, and waits until it sees the files
of all other nodes with the right contents. So every node mounts one file system, and data travels
between them. Before it, a step as root opens the directories that training writes to. A full
validation also measures the speed (`storage_speed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.checks import storage_speed
from stationmaster.checks.node_jobs import digest, look_at_jobs, render_node_job
from stationmaster.cluster_file_system import shared_storage
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import SHARED_MOUNT
from stationmaster.domain.sizes import counted
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.rendering.job_spec import DATA_DIRECTORY, RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.metadata import (
    container_security,
    namespace,
)
from stationmaster.rendering.shared_volume import render_storage, shared_mount, shared_volume

NAME: Final = "storage"
FILE_BYTES: Final = 1 << 20
# How long one pod waits for the files of the others: they start when their node has pulled the
# image, which for 20 GB takes minutes and not the same on each.
WAIT_S: Final = 600

_WRITABLE: Final = "MUST_BE_WRITABLE"

# Arguments: directory, own node, seconds to wait, all nodes. The last line of its output is what a
# person reads; the exit code decides.
SCRIPT: Final = """\
import contextlib, hashlib, os, sys, time

directory, own, wait_s, *nodes = sys.argv[1:]

def fail(sentence):
    print("storage check failed on", own + ":", sentence, flush=True)
    sys.exit(1)

def intact(path):
    with open(path, "rb") as file:
        content = file.read()
    return hashlib.sha256(content[32:]).digest() == content[:32] and len(content) > 32

try:
    os.makedirs(directory, exist_ok=True)
    data = os.urandom(%(size)d)
    partial = os.path.join(directory, own + ".partial")
    with open(partial, "wb") as file:
        file.write(hashlib.sha256(data).digest() + data)
        file.flush()
        os.fsync(file.fileno())
    if not intact(partial):
        fail("what was read back differs from what was written")
    os.replace(partial, os.path.join(directory, own))
    deadline = time.monotonic() + float(wait_s)
    missing = set(nodes)
    while missing:
        missing = {node for node in missing if not os.path.exists(os.path.join(directory, node))}
        if missing and time.monotonic() > deadline:
            fail("no file of " + ", ".join(sorted(missing)) + " after " + wait_s + " s")
        if missing:
            time.sleep(0.2)
    torn = [node for node in nodes if not intact(os.path.join(directory, node))]
    if torn:
        fail("the file of " + ", ".join(torn) + " has other contents than were written")
    for path in os.environ.get("%(writable)s", "").split():
        if not os.access(path, os.W_OK | os.X_OK):
            fail(path + " cannot be written by user " + str(os.getuid()) + "; open it to everyone")
    open(os.path.join(directory, own + ".seen"), "w").close()
    if all(os.path.exists(os.path.join(directory, node + ".seen")) for node in nodes):
        # Everybody has read everything.
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):
                os.unlink(os.path.join(directory, name))
except OSError as error:
    fail(str(error))
print("storage check passed on", own + ": wrote, synced and read", len(data), "bytes, saw",
      len(nodes), "nodes", flush=True)
""" % {"size": FILE_BYTES, "writable": _WRITABLE}  # noqa: UP031  # the script itself uses braces


# A new Lustre file system belongs to root; training runs as an ordinary user. Arguments: the
# directories to make, open to everyone as /tmp is. One that is there stays as it is: it may be
# somebody's. What fails here, the check reports as it meets it.
_OPEN_SCRIPT: Final = """\
import os, sys, tempfile

for directory in sys.argv[1:]:
    try:
        parent = os.path.dirname(directory)
        os.makedirs(parent, exist_ok=True)
        if os.path.isdir(directory):
            continue
        opened = tempfile.mkdtemp(prefix=".new-", dir=parent)
        os.chmod(opened, 0o1777)
        try:
            os.rename(opened, directory)
        except OSError:  # another node was faster
            os.rmdir(opened)
    except OSError as error:
        print(error, flush=True)
"""

_CHECK_DIRECTORY: Final = f"{SHARED_MOUNT}/.stationmaster/storage-check"


def applies(spec: ClusterSpec, *, is_full: bool) -> bool:
    """Say yes: every cluster has a file system."""
    return True


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make the volume of the file system, and a Job for each node.

    Raises:
        TransientError: the file system is not there (any more).
    """
    cluster_id, services = cluster.cluster_id, cluster.services
    hostnames = [node.hostname for node in cluster.idle_nodes]
    storage = shared_storage(services, cluster_id)
    image = services.settings.trainer_image(on_gpus=cluster.spec.num_gpus > 0)
    return [
        namespace(),
        *render_storage(cluster_id, storage),
        *render_jobs(cluster_id, hostnames=hostnames, image=image, pass_number=cluster.passes),
        *(
            render_speed_jobs(
                cluster_id,
                hostnames=hostnames,
                image=image,
                storage_gib=storage.storage_gib,
                pass_number=cluster.passes,
            )
            if cluster.is_full
            else ()
        ),
    ]


def look(cluster: LiveCluster) -> Finding:
    """Judge the Jobs of the present nodes; one that failed is final."""
    cluster_id = cluster.cluster_id
    hostnames = [node.hostname for node in cluster.idle_nodes]
    if not hostnames:
        return Finding(Verdict.GOOD, "runs use the file system on all nodes", {"nodes": 0})
    names = [
        job_name(cluster_id, hostname, nodes=hostnames, pass_number=cluster.passes)
        for hostname in hostnames
    ]
    _, finding = look_at_jobs(cluster, check=NAME, names=names)
    if finding is not None:
        return finding
    others = "each other" if len(names) > 1 else "it"
    sentence = f"{counted(len(names), 'node')} wrote to the file system and read {others}"
    figures = {"nodes": len(names)}
    if not cluster.is_full:
        return Finding(Verdict.GOOD, sentence, figures)
    speed = storage_speed.look(cluster, check=NAME, hostnames=hostnames)
    if "write_mbps" not in speed.figures:
        return speed  # nothing is measured yet, or never will be
    return Finding(
        speed.verdict,
        f"{sentence}; {speed.sentence}",
        figures | dict(speed.figures),
        speed.bad_nodes,
    )


def job_name(
    cluster_id: ClusterId, node: str, *, nodes: Sequence[str], pass_number: int = 1
) -> str:
    """Name a node's Job: short and a DNS label, whatever the nodes are called.

    Other nodes make another name, because a Job's template, which lists them, cannot be changed. So
    does another execution, in which the Jobs of an earlier one prove nothing.
    """
    return f"{cluster_id}-st-{digest([node, *sorted(nodes)], pass_number)}"


def render_jobs(
    cluster_id: ClusterId, *, hostnames: Sequence[str], image: str, pass_number: int = 1
) -> list[KubernetesObject]:
    """Make a Job for each node; `hostnames` are the nodes' kubernetes.io/hostname labels."""
    nodes = sorted(hostnames)
    return [
        _render_job(cluster_id, hostname, nodes=nodes, image=image, pass_number=pass_number)
        for hostname in nodes
    ]


def _render_job(
    cluster_id: ClusterId, hostname: str, *, nodes: Sequence[str], image: str, pass_number: int
) -> KubernetesObject:
    name = job_name(cluster_id, hostname, nodes=nodes, pass_number=pass_number)
    # Pods that check another set of nodes may still be ending: they must not meet in a file. Files
    # of an earlier pass are no proof.
    # Nor are those of another cluster, which may check the same nodes and file system just now.
    directory = f"{_CHECK_DIRECTORY}/{cluster_id}-{digest(nodes, pass_number)}"
    arguments = [SCRIPT, directory, hostname, str(WAIT_S)]
    checking = _container("check", image, [*arguments, *nodes])
    checking["env"] = [{"name": _WRITABLE, "value": RUNS_DIRECTORY}]
    pod = {
        "initContainers": [_opening(image, directory)],
        "containers": [checking],
        "volumes": [shared_volume(cluster_id)],
    }
    return render_node_job(cluster_id, check=NAME, name=name, hostname=hostname, pod=pod)


def render_speed_jobs(
    cluster_id: ClusterId,
    *,
    hostnames: Sequence[str],
    image: str,
    storage_gib: int,
    pass_number: int = 1,
) -> list[KubernetesObject]:
    """Make a Job for each node that measures; `storage_gib` is the size of the file system."""
    directory = f"{_CHECK_DIRECTORY}/speed"
    return storage_speed.render_jobs(
        cluster_id,
        check=NAME,
        hostnames=hostnames,
        opening=_opening(image, directory),
        directory=directory,
        image=image,
        storage_gib=storage_gib,
        pass_number=pass_number,
    )


def _opening(image: str, directory: str) -> KubernetesObject:
    opening = _container("open", image, [_OPEN_SCRIPT, directory, RUNS_DIRECTORY, DATA_DIRECTORY])
    opening["securityContext"] |= {"runAsUser": 0, "runAsNonRoot": False}
    return opening


def _container(name: str, image: str, script_and_arguments: Sequence[str]) -> KubernetesObject:
    return {
        "name": name,
        "image": image,
        "command": ["python", "-c", *script_and_arguments],
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": container_security(),
        "volumeMounts": [shared_mount()],
    }
