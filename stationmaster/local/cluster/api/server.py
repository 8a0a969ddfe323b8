"""The HTTP server of the local Kubernetes API, in a thread of its own, on a free loopback port.

Started and stopped by `LocalCluster`. Knows uvicorn and the kubeconfig file, nothing of the API.
TLS is needed because kubectl sends no bearer token over plain HTTP; the certificate is its own
authority, and its key lives in the state directory, for its owner only, new at each start.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import uvicorn
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stationmaster.local.cluster.api.rest import Api
from stationmaster.local.private import write_private

_START_TIMEOUT_S = 600.0
_STREAMS_END_S = 0.1


class ApiServer:
    """Serves one `Api` from construction of its socket until `stop`."""

    def __init__(self, api: Api, state_dir: Path) -> None:
        self._api = api
        self.certificate = issue_certificate(state_dir)
        # The protocol is named, or asyncio does not switch off the delay of small packets: 40 ms
        # a request.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            api.app(),
            log_config=None,
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            ssl_certfile=self.certificate.certificate,
            ssl_keyfile=self.certificate.key,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
        )
        self._server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster-api", daemon=True)

    def start(self) -> None:
        self.certificate.write()
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT_S):
            raise RuntimeError(
                f"the local Kubernetes API at {self.url} did not start in {_START_TIMEOUT_S:.0f} s"
            )

    def stop(self) -> None:
        """End the open watches and log streams, then the server."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._api.closing.set)
            self._thread.join(timeout=10)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Connections queue in the listening socket from here on, so clients may start at once.
        self._socket.listen(128)
        self._started.set()
        ending = asyncio.create_task(self._end_when_closing())
        await self._server.serve(sockets=[self._socket])
        ending.cancel()

    async def _end_when_closing(self) -> None:
        await self._api.closing.wait()
        # Streams see `closing` too and end by themselves. Idle connections are cut: a polite TLS
        # goodbye would wait up to 30 s for clients that only keep a connection in their pool.
        await asyncio.sleep(_STREAMS_END_S)
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        self._server.should_exit = True


def write_kubeconfig(
    path: Path, *, url: str, token: str, authority: bytes, namespace: str = "default"
) -> None:
    """Write a kubeconfig for whoever has the token, readable by its owner only."""
    trusted = base64.b64encode(authority).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "local", "cluster": {"server": url, "certificate-authority-data": trusted}}
        ],
        "users": [{"name": "local", "user": {"token": token}}],
        "contexts": [
            {
                "name": "local",
                "context": {"cluster": "local", "user": "local", "namespace": namespace},
            }
        ],
        "current-context": "local",
    }
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode())


_VALID_FOR = timedelta(days=365)
_NO_USAGE = dict.fromkeys(
    (
        "crl_sign",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    ),
    False,
)


@dataclass(frozen=True)
class Certificate:
    """Files for the server and their content; clients trust the certificate (PEM) itself."""

    certificate: Path
    key: Path
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    def write(self) -> None:
        """Leave the server's files; before this nothing is written."""
        self.certificate.write_bytes(self.certificate_pem)
        write_private(self.key, self.key_pem)


def issue_certificate(directory: Path) -> Certificate:
    """Make a certificate for 127.0.0.1 and localhost, to write to `directory`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stationmaster-local")])
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, **_NO_USAGE)
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    names = (directory / "server.crt", directory / "server.key")
    return Certificate(*names, certificate.public_bytes(encoding), private)
