"""The one access key of a running endpoint, and the check that a request is signed with it.

The endpoint makes a new key at each start and gives it to whoever may use the account, through
`LocalAws.environment`. The front asks `AccessKey.check` before anything else reads a request.
The signature is computed anew with botocore's own signer. The age of a request is not checked; that
of a presigned address is, by the clock of this machine.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from stationmaster.local.aws.wire import ApiError

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(\w+)/\d{8}/([^/,\s]+)/([^/,\s]+)/aws4_request,\s*"
    r"SignedHeaders=([\w;.-]+),\s*Signature=([0-9a-f]{64})",
    re.ASCII,
)
_CONTENT_HASH = "x-amz-content-sha256"
SIGNATURE: Final = "X-Amz-Signature"
"""The part of a presigned address that has its signature."""
_SCOPE = re.compile(r"\d{8}/([^/,\s]+)/s3/aws4_request", re.ASCII)
_TIMESTAMP = re.compile(r"\d{8}T\d{6}Z", re.ASCII)


class Denial(StrEnum):
    """Why a request is not served."""

    UNSIGNED = "unsigned"
    UNKNOWN_KEY = "unknown key"
    WRONG_SIGNATURE = "wrong signature"
    EXPIRED = "expired"


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
    Denial.EXPIRED: {"": "AccessDenied"},
}
_MESSAGES = {
    Denial.UNSIGNED: "Missing Authentication Token",
    Denial.UNKNOWN_KEY: "The security token included in the request is invalid.",
    Denial.WRONG_SIGNATURE: (
        "The request signature we calculated does not match the signature you provided."
    ),
    Denial.EXPIRED: "Request has expired",
}


@dataclass(frozen=True)
class AccessKey:
    """A key id and its secret."""

    key_id: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> AccessKey:
        """Return a key that nobody can guess."""
        return cls(f"LOCAL{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30))

    def check(
        self, *, method: str, uri: str, headers: Mapping[str, str], body: bytes, protocol: str
    ) -> None:
        """Refuse a request that is not signed with this key; `headers` has lower-case names.

        Raises:
            ApiError: as services of this protocol word it.
        """
        denial = self._denial(method, uri, headers, body)
        if denial is not None:
            codes = _CODES[denial]
            raise ApiError(codes.get(protocol, codes[""]), _MESSAGES[denial])

    def _denial(
        self, method: str, uri: str, headers: Mapping[str, str], body: bytes
    ) -> Denial | None:
        stated = headers.get("authorization", "")
        if not stated:
            return self._denial_of_link(method, uri, headers)
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

    def _denial_of_link(self, method: str, uri: str, headers: Mapping[str, str]) -> Denial | None:
        """Return why a presigned address of S3 is denied; a request without any is unsigned.

        Source: Amazon S3 API reference, "Authenticating Requests: Using Query Parameters".
        """
        path, _, query = uri.partition("?")
        pairs = [pair for pair in query.split("&") if pair]
        stated = {name: unquote(value) for name, _, value in (p.partition("=") for p in pairs)}
        if SIGNATURE not in stated:
            return Denial.UNSIGNED
        key_id, _, scope = stated.get("X-Amz-Credential", "").partition("/")
        if not hmac.compare_digest(key_id.encode(), self.key_id.encode()):
            return Denial.UNKNOWN_KEY
        names = stated.get("X-Amz-SignedHeaders", "").split(";")
        timestamp, seconds = stated.get("X-Amz-Date", ""), stated.get("X-Amz-Expires", "")
        match = _SCOPE.fullmatch(scope)
        is_whole = _TIMESTAMP.fullmatch(timestamp) and seconds.isascii() and seconds.isdigit()
        if match is None or not is_whole or not headers.keys() >= set(names):
            return Denial.WRONG_SIGNATURE
        signed = "&".join(pair for pair in pairs if not pair.startswith(f"{SIGNATURE}="))
        request = AWSRequest(
            method=method,
            url=f"http://{headers['host']}{path}?{signed}",
            headers={name: headers[name] for name in names},
        )
        request.context["timestamp"] = timestamp
        kind: Any = S3SigV4QueryAuth
        signer = kind(Credentials(self.key_id, self.secret), "s3", match[1])
        text = signer.string_to_sign(request, signer.canonical_request(request))
        signature = signer.signature(text, request).encode()
        if not hmac.compare_digest(signature, stated[SIGNATURE].encode()):
            return Denial.WRONG_SIGNATURE
        begun = datetime.strptime(timestamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        is_over = datetime.now(UTC) > begun + timedelta(seconds=int(seconds))
        return Denial.EXPIRED if is_over else None


def _hash_fits(headers: Mapping[str, str], body: bytes) -> bool:
    """Say whether the body is the one whose hash the headers state, if they state one."""
    stated = headers.get(_CONTENT_HASH, "")
    if not re.fullmatch("[0-9a-f]{64}", stated):
        return True  # UNSIGNED-PAYLOAD, or chunks with signatures of their own: S3 only
    return hmac.compare_digest(hashlib.sha256(body).hexdigest(), stated)
