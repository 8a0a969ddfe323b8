"""A real kube-apiserver with an etcd of its own and no controllers, on free loopback ports.

KUBE_APISERVER names the program, as envtest has it; `etcd` lies beside it or on PATH.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kubernetes import client
from urllib3.exceptions import HTTPError

from stationmaster.local.cluster.api.server import issue_certificate
from tests.support.cluster_fixtures import eventually

PROGRAM = os.environ.get("KUBE_APISERVER", "")


def _free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


@contextmanager
def kube_apiserver(directory: Path) -> Iterator[client.ApiClient]:
    """A client of its administrator."""
    store, address, own = _free_address(), _free_address(), issue_certificate(directory)
    own.write()
    (directory / "tokens").write_text("token,admin,admin,system:masters\n")
    etcd = [shutil.which("etcd", path=str(Path(PROGRAM).parent)) or "etcd"]
    etcd += [f"--data-dir={directory}/etcd", "--listen-peer-urls=http://127.0.0.1:0"]
    etcd += [f"--{flag}-client-urls=http://{store}" for flag in ("listen", "advertise")]
    flags = f"""--etcd-servers=http://{store} --bind-address=127.0.0.1
        --secure-port={address.partition(":")[2]} --tls-cert-file={own.certificate}
        --tls-private-key-file={own.key} --token-auth-file={directory}/tokens
        --authorization-mode=RBAC --service-account-issuer=https://localhost
        --service-account-key-file={own.certificate} --service-account-signing-key-file={own.key}
        --service-cluster-ip-range=10.0.0.0/24"""
    given = client.Configuration(f"https://{address}", {"authorization": "Bearer token"})
    given.ssl_ca_cert = str(own.certificate)
    api = client.ApiClient(given)

    def account() -> Any:
        assert started[1].poll() is None, (directory / "log").read_text()[-2000:]
        with suppress(client.ApiException, HTTPError):
            made = client.V1ServiceAccount(metadata={"name": "default"})
            return client.CoreV1Api(api).create_namespaced_service_account("default", made)

    with (directory / "log").open("wb") as log:
        programs = (etcd, [PROGRAM, *flags.split()])
        started = [subprocess.Popen(each, stdout=log, stderr=log) for each in programs]
        try:
            eventually(account, "a kube-apiserver that makes the default account")
            yield api
        finally:
            api.close()
            for process in reversed(started):
                process.terminate()
                process.wait()
