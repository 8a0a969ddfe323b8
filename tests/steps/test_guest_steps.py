"""Steps that may meet a guest ask for the control plane that it is in, not for one of its own."""

from __future__ import annotations

from pathlib import Path

STEPS = Path(__file__).resolve().parents[2] / "stationmaster" / "steps"
# They make and delete the product's own EKS clusters, and turn to others' before they look.
OF_OWN_CLUSTERS = {"ensure_cluster", "ensure_node_group", "release_cluster"}


def test_only_steps_that_make_or_delete_an_eks_cluster_look_for_one_of_the_products_own() -> None:
    looking = {
        path.stem
        for path in STEPS.glob("*.py")
        if "clusters.describe(" in path.read_text(encoding="utf-8")
    }

    assert looking == OF_OWN_CLUSTERS
    for name in OF_OWN_CLUSTERS:
        text = (STEPS / f"{name}.py").read_text(encoding="utf-8")
        assert text.index("spec.eks_name") < text.index("clusters.describe("), name
