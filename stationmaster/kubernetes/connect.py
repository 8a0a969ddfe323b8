"""How to reach a run's Kubernetes API: a kubeconfig where one is set, else EKS.

Where a kubeconfig is set, EKS is not asked: any cluster can stand in for it.
"""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from stationmaster.aws.clusters import EksCluster


def connect(settings: Settings, *, cluster: EksCluster | None) -> ApiClient:
    """Make a client of the kubernetes package, signed in; nothing is sent yet.

    Raises:
        TransientError: the cluster has no endpoint yet.
        PermanentError: the kubeconfig cannot be used, or the API is closed to the functions.
    """
    if cluster is not None and cluster.is_closed and not settings.functions_security_group_id:
        raise PermanentError(
            f"the Kubernetes API of EKS cluster {cluster.name} is not reached from everywhere, and "
            "the functions of this deployment are outside of its network; until the cluster is "
            'gone, set "public_api": false or "api_cidrs": ["0.0.0.0/0"] in cdk.json and deploy'
        )
    if settings.kubeconfig:
        return _from_kubeconfig(settings.kubeconfig)
    if cluster is None or not cluster.endpoint:
        raise TransientError("the run's cluster has no Kubernetes endpoint yet")
    return _from_eks(cluster, region=settings.region)


def _from_kubeconfig(path: str) -> ApiClient:
    # Imported here: see the package's docstring.
    from kubernetes import config
    from kubernetes.config import ConfigException

    try:
        return config.new_client_from_config(config_file=path, persist_config=False)
    except (ConfigException, OSError) as exc:
        raise PermanentError(
            f"setting STATIONMASTER_KUBECONFIG={path} cannot be used: {exc}"
        ) from exc


def _from_eks(cluster: EksCluster, *, region: str) -> ApiClient:
    from kubernetes.client import ApiClient, Configuration

    from stationmaster.kubernetes.token import EksToken

    # Wall clock: a frozen Lambda environment may stop the monotonic one, tokens age all the same.
    token = EksToken(cluster.name, region=region, clock=time.time)

    def sign_in(configuration: Any) -> None:
        configuration.api_key["BearerToken"] = f"Bearer {token.value()}"

    configuration = Configuration(
        host=cluster.endpoint,
        ca_cert_data=base64.b64decode(cluster.certificate_authority).decode(),
    )
    configuration.refresh_api_key_hook = sign_in
    sign_in(configuration)
    return ApiClient(configuration)
