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
SIGNATURE: Final = "X-Amz-Signature"
"""The part of a presigned address that has its signature."""
_SCOPE = re.compile(r"\d{8}/([^/,\s]+)/s3/aws4_request", re.ASCII)
_TIMESTAMP = re.compile(r"\d{8}T\d{6}Z", re.ASCII)


@dataclass(frozen=True)
class Denial:
    """Why a request is not served: what AWS says, and its code by protocol.

    The code under "" is of every protocol that is not listed. Source: "Common Errors" of the
    service's API reference, for EC2 "Error codes for the Amazon EC2 API", for S3 "Error responses".
    """

    message: str
    codes: Mapping[str, str]


_UNSIGNED: Final = Denial(
    "Missing Authentication Token",
    {"": "MissingAuthenticationTokenException", "query": "MissingAuthenticationToken"},
)
_UNKNOWN_KEY: Final = Denial(
    "The security token included in the request is invalid.",
    {
        "": "UnrecognizedClientException",
        "query": "InvalidClientTokenId",
        "ec2": "AuthFailure",
        "rest-xml": "InvalidAccessKeyId",
    },
)
_WRONG_SIGNATURE: Final = Denial(
    "The request signature we calculated does not match the signature you provided.",
    {
        "": "InvalidSignatureException",
        **dict.fromkeys(("query", "ec2", "rest-xml"), "SignatureDoesNotMatch"),
    },
)
_EXPIRED: Final = Denial("Request has expired", {"": "AccessDenied"})


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
            raise ApiError(denial.codes.get(protocol, denial.codes[""]), denial.message)

    def _denial(
        self, method: str, uri: str, headers: Mapping[str, str], body: bytes
    ) -> Denial | None:
        stated = headers.get("authorization", "")
        if not stated:
            return self._denial_of_link(method, uri, headers)
        match = _AUTHORIZATION.fullmatch(stated)
        if match is None or not hmac.compare_digest(match[1], self.key_id):
            return _UNKNOWN_KEY
        _, region, service, signed, signature = match.groups()
        names = signed.split(";")
        timestamp = headers.get("x-amz-date", "")
        if not timestamp or not headers.keys() >= set(names) or not _hash_fits(headers, body):
            return _WRONG_SIGNATURE
        request = AWSRequest(
            method=method,
            url=f"http://{headers['host']}{uri}" if uri.startswith("/") else uri,
            headers={name: headers[name] for name in names},
            data=body,
        )
        kind = S3SigV4Auth if service == "s3" else SigV4Auth
        is_right = self._has_signed(request, timestamp, kind, service, region, signature)
        return None if is_right else _WRONG_SIGNATURE

    def _has_signed(
        self, request: AWSRequest, timestamp: str, kind: Any, service: str, region: str, stated: str
    ) -> bool:
        """Say whether a signature is the one that botocore's signer of this kind makes."""
        request.context["timestamp"] = timestamp
        signer = kind(Credentials(self.key_id, self.secret), service, region)
        text = signer.string_to_sign(request, signer.canonical_request(request))
        return hmac.compare_digest(signer.signature(text, request).encode(), stated.encode())

    def _denial_of_link(self, method: str, uri: str, headers: Mapping[str, str]) -> Denial | None:
        """Return why a presigned address of S3 is denied; a request without any is unsigned.

        Source: Amazon S3 API reference, "Authenticating Requests: Using Query Parameters".
        """
        path, _, query = uri.partition("?")
        pairs = [pair for pair in query.split("&") if pair]
        stated = {name: unquote(value) for name, _, value in (p.partition("=") for p in pairs)}
        if SIGNATURE not in stated:
            return _UNSIGNED
        key_id, _, scope = stated.get("X-Amz-Credential", "").partition("/")
        if not hmac.compare_digest(key_id.encode(), self.key_id.encode()):
            return _UNKNOWN_KEY
        names = stated.get("X-Amz-SignedHeaders", "").split(";")
        timestamp, seconds = stated.get("X-Amz-Date", ""), stated.get("X-Amz-Expires", "")
        match = _SCOPE.fullmatch(scope)
        is_whole = _TIMESTAMP.fullmatch(timestamp) and seconds.isascii() and seconds.isdigit()
        if match is None or not is_whole or not headers.keys() >= set(names):
            return _WRONG_SIGNATURE
        signed = "&".join(pair for pair in pairs if not pair.startswith(f"{SIGNATURE}="))
        request = AWSRequest(
            method=method,
            url=f"http://{headers['host']}{path}?{signed}",
            headers={name: headers[name] for name in names},
        )
        signature = stated[SIGNATURE]
        if not self._has_signed(request, timestamp, S3SigV4QueryAuth, "s3", match[1], signature):
            return _WRONG_SIGNATURE
        begun = datetime.strptime(timestamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        is_over = datetime.now(UTC) > begun + timedelta(seconds=int(seconds))
        return _EXPIRED if is_over else None


def _hash_fits(headers: Mapping[str, str], body: bytes) -> bool:
    """Say whether the body is the one whose hash the headers state, if they state one."""
    stated = headers.get("x-amz-content-sha256", "")
    if not re.fullmatch("[0-9a-f]{64}", stated):
        return True  # UNSIGNED-PAYLOAD, or chunks with signatures of their own: S3 only
    return hmac.compare_digest(hashlib.sha256(body).hexdigest(), stated)
