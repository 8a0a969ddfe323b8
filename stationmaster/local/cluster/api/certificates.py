"""The certificate of one run of the local cluster, which is its own authority.

Used by `server.py`. TLS is needed because kubectl sends no bearer token over plain HTTP; the key
lives in the state directory, readable by its owner only, and is new at each start.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stationmaster.local.private import write_private

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


def issue(directory: Path) -> Certificate:
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
