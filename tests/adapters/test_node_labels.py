"""Nodes of any maker are read by the labels that Kubernetes, EKS and Karpenter write."""

from __future__ import annotations

import pytest

from stationmaster.kubernetes.views import NodeView, parse_node

OF_KUBERNETES = {
    "node.kubernetes.io/instance-type": "p5.48xlarge",
    "topology.kubernetes.io/zone": "us-west-2b",
    "kubernetes.io/hostname": "ip-10-0-0-9.ec2.internal",
}


@pytest.mark.parametrize(
    ("labels", "fields"),
    [
        ({"eks.amazonaws.com/nodegroup": "gpu"}, {"eks_group": "gpu"}),
        ({"karpenter.sh/nodepool": "gpu"}, {"karpenter_pool": "gpu"}),
        ({}, {}),  # of an Auto Scaling group of somebody's own
    ],
)
def test_node_of_each_maker_is_read_without_a_label_of_the_products(
    labels: dict[str, str], fields: dict[str, str]
) -> None:
    made = parse_node({"metadata": {"name": "n", "labels": OF_KUBERNETES | labels}})

    assert made == NodeView(
        name="n",
        hostname="ip-10-0-0-9.ec2.internal",
        ready=False,
        instance_type="p5.48xlarge",
        zone="us-west-2b",
        **fields,
    )
