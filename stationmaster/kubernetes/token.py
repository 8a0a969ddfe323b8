"""Bearer tokens for EKS: a presigned STS request that the cluster replays to learn who is calling.

A token is as good as the credentials that signed it, so it is kept in memory only and never logged.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

from botocore.model import ServiceId
from botocore.session import Session, get_session
from botocore.signers import RequestSigner

from stationmaster.domain.errors import PermanentError

# EKS accepts a token for 15 minutes from its signature.
# Source: aws-iam-authenticator, README, "API Authorization from Outside a Cluster".
# It is made anew well before that: a call may take seconds.
_REFRESH_AFTER_S: Final = 600
_PRESIGNED_FOR_S: Final = 60
_PREFIX: Final = "k8s-aws-v1."


class EksToken:
    """The current token of one cluster, signed again when it gets old."""

    def __init__(
        self,
        cluster: str,
        *,
        region: str,
        clock: Callable[[], float],
        session: Session | None = None,
    ) -> None:
        self._cluster = cluster
        self._region = region
        self._clock = clock
        self._session = session
        self._value = ""
        self._signed_at = 0.0

    def value(self) -> str:
        """Return a token with at least five minutes left."""
        if not self._value or self._clock() - self._signed_at > _REFRESH_AFTER_S:
            self._signed_at = self._clock()
            self._value = self._sign()
        return self._value

    def _sign(self) -> str:
        session = self._session or get_session()
        credentials = session.get_credentials()
        if credentials is None:
            raise PermanentError(
                f"no AWS credentials were found to sign in to cluster {self._cluster}"
            )
        signer = RequestSigner(
            ServiceId("STS"),
            self._region,
            "sts",
            "v4",
            credentials,
            session.get_component("event_emitter"),
        )
        url = signer.generate_presigned_url(
            {
                "method": "GET",
                "url": f"https://{self._sts_host(session)}/"
                "?Action=GetCallerIdentity&Version=2011-06-15",
                "body": {},
                # Binds the token to this cluster: another one refuses it.
                "headers": {"x-k8s-aws-id": self._cluster},
                "context": {},
            },
            region_name=self._region,
            expires_in=_PRESIGNED_FOR_S,
            operation_name="",
        )
        return _PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")

    def _sts_host(self, session: Session) -> str:
        """Name the region's own STS, which ends in .com.cn in China, and differently elsewhere."""
        resolver = session.get_component("endpoint_resolver")
        endpoint = resolver.construct_endpoint("sts", self._region)
        if endpoint is None:
            raise PermanentError(
                f'no STS endpoint of region "{self._region}" is known to botocore; '
                "check the name of the region, or update botocore"
            )
        return str(endpoint["hostname"])
