"""What a container sees: environment, arguments, directory, translated from pod to this machine.

A pod specification is written for a cluster with DNS and mounted file systems; processes on one
machine have neither, so addresses of a job's replicas become 127.0.0.1 with a port of the job's
own, and mount paths become local directories. The stored pod is never changed.
"""

from __future__ import annotations

import base64
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.selectors import value_at
from stationmaster.local.cluster.node.container import Command

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
_ADDRESS_NAMES = {"MASTER_ADDR", "PET_MASTER_ADDR"}
_PORT_NAMES = {"MASTER_PORT", "PET_MASTER_PORT"}
_MASTER_ADDR_FLAG = re.compile(r"(--master[-_]addr[= ])([\w.\-]+)")
_FIELDS = {
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
}
# All addresses of a pod are one here: a program must not listen to the network around the machine.
_OWN_ADDRESS = re.compile(r"(?<![\d.])(?:0\.0\.0\.0|127\.0\.0\.1):(\d+)(?!\d)")
_EVERY_ADDRESS = re.compile(r"(?<![\d.])0\.0\.0\.0(?![\d.])")
# An etcd lets in pages of any origin, and under any name that they make resolve to this machine.
# Some origin must be let in, so it is one that no page has: browsers do not open port 1.
# Source: etcd's "Configuration options": --cors, --host-whitelist.
_CLOSED_ETCD = {
    "ETCD_CORS": "http://127.0.0.1:1",
    "ETCD_HOST_WHITELIST": "127.0.0.1,localhost",
    "ETCD_ENABLE_GRPC_GATEWAY": "false",
}
LOCAL_ADDRESS = "127.0.0.1"  # of every pod and its host: all processes share the loopback
_ADDRESS_FIELDS = {"status.podIP", "status.hostIP"}


class ConfigError(Exception):
    """The container's configuration cannot be resolved; the message says which part."""


class Ports:
    """A free local port for each (job, port): one for all pods of a job, never for two jobs."""

    # Below the ephemeral ranges of Linux (32768) and macOS (49152): no client socket takes it.
    FIRST, LAST = 20_000, 32_000

    def __init__(self) -> None:
        # The pods of a job ask at the same moment, each from its own thread.
        self._lock = threading.Lock()
        self._chosen: dict[tuple[str, int], int] = {}

    def of(self, owner: str, port: int) -> int:
        key = (owner, port)
        with self._lock:
            if key not in self._chosen:
                self._chosen[key] = self._free_port()
            return self._chosen[key]

    def _free_port(self) -> int:
        taken = set(self._chosen.values())
        for _ in range(1000):
            port = self.FIRST + secrets.randbelow(self.LAST - self.FIRST)
            if port not in taken and _can_bind(port):
                return port
        raise ConfigError(f"no free port between {self.FIRST} and {self.LAST}")


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def expand(text: str, values: Mapping[str, str]) -> str:
    """Expand `$(NAME)`; `$$` is the text `$`, and an unknown name stays as written.

    Source: k8s.io/kubernetes/third_party/forked/golang/expansion, expand.go.
    """

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[1] else values.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


class Translation:
    """Replaces mount paths, and addresses of the pod's job ("" for `port`) and of Services."""

    def __init__(
        self,
        mounts: Mapping[str, Path],
        replicas: Iterable[str],
        port: Callable[[str, int], int],
        *,
        services: Iterable[str] = (),
        served: str = "",
    ) -> None:
        self._mounts = {path.rstrip("/"): str(local) for path, local in mounts.items()}
        self._mount_pattern = _alternatives(
            self._mounts, before=r"(?<![\w./\-])", after=r"(?=/|$|[^\w.\-])"
        )
        self._replicas = set(replicas)
        self._services = set(services)
        self._served = served
        self._port = port
        suffix = r"(?:\.[\w\-]+(?:\.svc(?:\.cluster\.local)?)?)?"
        self._address_pattern = _alternatives(
            self._replicas | self._services, before=r"(?<![\w.\-])", after=suffix + r":(\d+)(?!\d)"
        )

    def text(self, text: str) -> str:
        if self._mount_pattern is not None:
            text = self._mount_pattern.sub(lambda match: self._mounts[match[1]], text)
        if self._address_pattern is not None:
            text = self._address_pattern.sub(lambda match: self._address(match[1], match[2]), text)
        return text

    def _address(self, host: str, port: str) -> str:
        service = host if host in self._services else ""
        return f"{LOCAL_ADDRESS}:{self._port(service, int(port))}"

    def argument(self, text: str) -> str:
        if self._served:
            text = _OWN_ADDRESS.sub(lambda match: self._address(self._served, match[1]), text)
        text = _EVERY_ADDRESS.sub(LOCAL_ADDRESS, text)
        return _MASTER_ADDR_FLAG.sub(lambda match: match[1] + self._host(match[2]), self.text(text))

    def variable(self, name: str, value: str) -> str:
        if name in _ADDRESS_NAMES:
            return self._host(value)
        if name in _PORT_NAMES and self._replicas and value.isdigit():
            return str(self._port("", int(value)))
        return self.text(value)

    def _host(self, host: str) -> str:
        return LOCAL_ADDRESS if host.partition(".")[0] in self._replicas else host


def _alternatives(words: Iterable[str], *, before: str, after: str) -> re.Pattern[str] | None:
    # Longest first, so that /fsx/data wins over /fsx.
    ordered = sorted(words, key=len, reverse=True)
    if not ordered:
        return None
    return re.compile(f"{before}({'|'.join(map(re.escape, ordered))}){after}")


def container_command(
    objects: Objects,
    pod: Object,
    container: Mapping[str, Any],
    *,
    base: Mapping[str, str],
    translation: Translation,
    directory: Path,
) -> Command:
    """Return the process that runs as a container.

    `base` is what the node injects.

    Raises:
        ConfigError: a referenced Secret, ConfigMap or field does not exist.
    """
    declared = _declared(objects, pod, container)
    env = {**base, **_CLOSED_ETCD, "HOSTNAME": _host_name(pod)}
    env.update({name: translation.variable(name, value) for name, value in declared.items()})
    written = [*(container["command"]), *(container.get("args") or [])]
    # Expansion sees what the specification says, translation what comes out of it.
    argv = [translation.argument(expand(word, declared)) for word in written]
    for name in _PORT_NAMES & declared.keys():
        argv = [_with_port(word, declared[name], env[name]) for word in argv]
    written_dir = container.get("workingDir") or ""
    working = Path(translation.text(written_dir))
    # A directory of an image is not here, unless this machine has one of that name.
    is_here = str(working) != written_dir or working.is_dir()
    return Command(argv, env, working if written_dir and is_here else directory)


def _host_name(pod: Object) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def _with_port(word: str, declared: str, local: str) -> str:
    return re.sub(rf"(--master[-_]port[= ]){re.escape(declared)}\b", rf"\g<1>{local}", word)


def _declared(objects: Objects, pod: Object, container: Mapping[str, Any]) -> dict[str, str]:
    values: dict[str, str] = {}
    for variable in container.get("env") or []:
        if variable.get("valueFrom"):
            resolved = _value_from(objects, pod, variable["valueFrom"])
            if resolved is not None:
                values[variable["name"]] = resolved
        else:
            values[variable["name"]] = expand(str(variable.get("value") or ""), values)
    return values


def _value_from(objects: Objects, pod: Object, source: Mapping[str, Any]) -> str | None:
    """Return a field's or a Secret's value; None of a Secret that is optional and absent."""
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    reference = source.get("secretKeyRef")
    if not reference:
        raise ConfigError(f"valueFrom {', '.join(source)} is not offered by the local cluster")
    namespace, name = pod["metadata"]["namespace"], reference["name"]
    found = objects.find(resources.SECRETS, namespace, name)
    data = (found or {}).get("data") or {}
    if reference["key"] in data:
        return base64.b64decode(data[reference["key"]]).decode()
    if reference.get("optional"):
        return None
    if found is None:
        raise ConfigError(f'secret "{name}" not found')
    raise ConfigError(f"couldn't find key {reference['key']} in Secret {namespace}/{name}")


def _field(pod: Object, path: str) -> str:
    labelled = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if labelled:
        return str((pod["metadata"].get(labelled[1]) or {}).get(labelled[2], ""))
    if path in _ADDRESS_FIELDS:
        # Known before the first status is written, as a container may start before that.
        return LOCAL_ADDRESS
    if path not in _FIELDS:
        offered = ", ".join(sorted(_FIELDS | _ADDRESS_FIELDS))
        raise ConfigError(f"fieldRef {path} is not offered; use one of {offered}")
    return str(value_at(pod, path) or "")
