"""The one access key of a running endpoint, and the check that a request is signed with it.

The endpoint makes a new key at each start and gives it to whoever may use the account, through
`LocalAws.environment`. The front asks `AccessKey.denial_of` before anything else reads a request.
The signature is computed anew with botocore's own signer; its age is not checked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(\w+)/\d{8}/([^/,\s]+)/([^/,\s]+)/aws4_request,\s*"
    r"SignedHeaders=([\w;.-]+),\s*Signature=([0-9a-f]{64})",
    re.ASCII,
)
_CONTENT_HASH = "x-amz-content-sha256"


class Denial(StrEnum):
    """Why a request is not served."""

    UNSIGNED = "unsigned"
    UNKNOWN_KEY = "unknown key"
    WRONG_SIGNATURE = "wrong signature"


# Error codes by protocol; "" is for every protocol that is not listed.
# Source: "Common Errors" of the service's API reference, for EC2 "Error codes for the Amazon EC2
# API", for S3 "Error responses".
_CODES = {
    Denial.UNSIGNED: {
        "": "MissingAuthenticationTokenException",
        "query": "MissingAuthenticationToken",
    },
    Denial.UNKNOWN_KEY: {
        "": "UnrecognizedClientException",
        "query": "InvalidClientTokenId",
        "ec2": "AuthFailure",
        "rest-xml": "InvalidAccessKeyId",
    },
    Denial.WRONG_SIGNATURE: {
        "": "InvalidSignatureException",
        "query": "SignatureDoesNotMatch",
        "ec2": "SignatureDoesNotMatch",
        "rest-xml": "SignatureDoesNotMatch",
    },
}
_MESSAGES = {
    Denial.UNSIGNED: "Missing Authentication Token",
    Denial.UNKNOWN_KEY: "The security token included in the request is invalid.",
    Denial.WRONG_SIGNATURE: (
        "The request signature we calculated does not match the signature you provided."
    ),
}


def error_of(denial: Denial, *, protocol: str) -> tuple[str, str]:
    """Return AWS's code and message for a denial, as services of this protocol word it."""
    codes = _CODES[denial]
    return codes.get(protocol, codes[""]), _MESSAGES[denial]


@dataclass(frozen=True)
class AccessKey:
    """A key id and its secret."""

    key_id: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> AccessKey:
        """Return a key that nobody can guess."""
        return cls(f"LOCAL{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30))

    def denial_of(
        self, *, method: str, uri: str, headers: Mapping[str, str], body: bytes
    ) -> Denial | None:
        """Return why a request is denied, None when it is signed with this key.

        `headers` has lower-case names. Presigned addresses count as unsigned: nothing in local
        mode makes them.
        """
        stated = headers.get("authorization", "")
        if not stated:
            return Denial.UNSIGNED
        match = _AUTHORIZATION.fullmatch(stated)
        if match is None or not hmac.compare_digest(match[1], self.key_id):
            return Denial.UNKNOWN_KEY
        _, region, service, signed, signature = match.groups()
        names = signed.split(";")
        timestamp = headers.get("x-amz-date", "")
        if not timestamp or not headers.keys() >= set(names) or not _hash_fits(headers, body):
            return Denial.WRONG_SIGNATURE
        request = AWSRequest(
            method=method,
            url=f"http://{headers['host']}{uri}" if uri.startswith("/") else uri,
            headers={name: headers[name] for name in names},
            data=body,
        )
        request.context["timestamp"] = timestamp
        # Typed as Any: botocore's stubs leave out the steps of signing.
        kind: Any = S3SigV4Auth if service == "s3" else SigV4Auth
        signer = kind(Credentials(self.key_id, self.secret), service, region)
        text = signer.string_to_sign(request, signer.canonical_request(request))
        if hmac.compare_digest(signer.signature(text, request), signature):
            return None
        return Denial.WRONG_SIGNATURE


def _hash_fits(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether the body is the one whose hash the headers state, if they state one."""
    stated = headers.get(_CONTENT_HASH, "")
    if not re.fullmatch("[0-9a-f]{64}", stated):
        return True  # UNSIGNED-PAYLOAD, or chunks with signatures of their own: S3 only
    return hmac.compare_digest(hashlib.sha256(body).hexdigest(), stated)
