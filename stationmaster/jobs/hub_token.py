"""The Hugging Face token as pods of a cluster get it; the steps that apply such pods call it."""

from __future__ import annotations

from stationmaster.domain.ids import ClusterId
from stationmaster.rendering.environment import render_hugging_face_secret
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.services import Services


def render_token(services: Services, cluster_id: ClusterId) -> list[KubernetesObject]:
    """Make the Secret with the deployment's token; nothing without one, or where it may not be.

    Whoever administers an existing EKS cluster reads every Secret in it.
    """
    cluster = services.cluster_states.load(cluster_id)
    if cluster.spec.eks_name and not services.settings.hugging_face_token_in_eks_clusters:
        return []
    token = services.secrets.hugging_face_token()
    return [render_hugging_face_secret(token)] if token else []
