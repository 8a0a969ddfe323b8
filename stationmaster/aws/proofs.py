"""Who asks the bot function: a signed request GetCallerIdentity, which only AWS can check.

Whoever asks signs the request and hands over the signature; the bot sends the request to STS, and
STS says whose signature it is. The bot makes up the request itself: its own region's STS, this one
action, the deployment's own name, and the hash of what was asked. A signature that was made for
anything else fits none of it. Source: how Vault and aws-iam-authenticator do it.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any, Final

import boto3
from botocore import UNSIGNED
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config

from stationmaster.aws.calls import aws_call, make_client
from stationmaster.domain.errors import NotPermitted, PermanentError
from stationmaster.domain.remote import Proof

# STS itself takes signatures of the last 15 minutes; clocks of CI differ by seconds.
MAX_AGE_S: Final = 300
_BODY: Final = "Action=GetCallerIdentity&Version=2011-06-15"
_TYPE: Final = "application/x-www-form-urlencoded; charset=utf-8"
_ASKING: Final = "asking AWS who this is"
# The bot has ten seconds for all.
_CONFIG: Final = Config(
    signature_version=UNSIGNED, connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 1}
)


def sign(ask: str, *, deployment: str) -> Proof:
    """Sign, with the credentials of this process, that they ask this of that deployment.

    Raises:
        PermanentError: there are none.
    """
    with aws_call(_ASKING):
        sts = make_client("sts", region=None)
        found = boto3.Session().get_credentials()
        if found is None:
            raise PermanentError(f"{_ASKING}: no AWS credentials were found")
        credentials = found.get_frozen_credentials()
    url = f"{sts.meta.endpoint_url.rstrip('/')}/"
    headers = {"Content-Type": _TYPE, **_own_headers(ask, deployment=deployment)}
    request = AWSRequest(method="POST", url=url, data=_BODY, headers=headers)
    SigV4Auth(credentials, "sts", sts.meta.region_name).add_auth(request)
    return Proof(
        authorization=request.headers["Authorization"],
        date=request.headers["X-Amz-Date"],
        security_token=credentials.token or "",
    )


def caller_of(proof: Proof, ask: str, *, deployment: str, region: str, now: datetime) -> str:
    """Return the ARN of who has signed that this is asked of this deployment.

    Raises:
        NotPermitted: AWS does not know the signature, or it is of another time.
        TransientError: AWS does not answer now.
    """
    try:
        signed_at = datetime.strptime(proof.date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError as exc:
        raise NotPermitted(f"the signature is of no time: {proof.date}") from exc
    age_s = (now - signed_at).total_seconds()
    if abs(age_s) > MAX_AGE_S:
        raise NotPermitted(
            f"the signature was made at {signed_at:%H:%M:%S} UTC, and here it is {now:%H:%M:%S}; "
            f"they may differ by {MAX_AGE_S // 60} minutes: set this machine's clock"
        )
    headers = {
        "Content-Type": _TYPE,
        "X-Amz-Date": proof.date,
        **({"X-Amz-Security-Token": proof.security_token} if proof.security_token else {}),
        **_own_headers(ask, deployment=deployment),
        "Authorization": proof.authorization,
    }

    def replace(params: dict[str, Any], **_: Any) -> None:
        params["headers"].update(headers)
        params["body"] = _BODY

    # A client of its own: others must not send these headers.
    sts = make_client("sts", region=region, config=_CONFIG)
    sts.meta.events.register("before-call.sts.GetCallerIdentity", replace)
    try:
        with aws_call(_ASKING):
            return str(sts.get_caller_identity()["Arn"])
    except PermanentError as exc:
        raise NotPermitted(
            f"who asks is not known: {exc}; ask deployment {deployment} in {region} with "
            "credentials that are valid"
        ) from exc


def _own_headers(ask: str, *, deployment: str) -> dict[str, str]:
    return {
        "X-Stationmaster-Deployment": deployment,
        "X-Stationmaster-Ask": hashlib.sha256(ask.encode()).hexdigest(),
    }
