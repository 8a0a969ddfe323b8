"""Amazon EKS: what belongs to one cluster - add-ons, access entries, pod identity, tags.

The second half of `EksService`. It must not know the lifecycles of clusters and node groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from moto.core.resource_tagging import TaggedResource

from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.services import eks_shapes as shapes
from stationmaster.local.aws.services.eks_records import Cluster
from stationmaster.local.aws.wire import ApiError, NativeService, paged

# Emulated seconds until an add-on is ACTIVE, or gone.
ADDON_S = 60.0
_ARNS = ("arn", "nodegroupArn", "addonArn", "accessEntryArn", "associationArn")


class InsideCluster(NativeService):
    """Operations on what a cluster holds."""

    emulation: Emulation
    clusters: dict[str, Cluster]

    def cluster(self, name: str) -> Cluster:
        """Return a cluster, or raise the service's error."""
        found = self.clusters.get(name)
        if found is None:
            raise ApiError("ResourceNotFoundException", f"No cluster found for name: {name}.")
        return found

    # -- add-ons ----------------------------------------------------------------------------------

    def create_addon(self, params: dict[str, Any]) -> dict[str, Any]:
        cluster = self._ready(params["clusterName"])
        name = params["addonName"]
        if name not in shapes.ADDON_VERSIONS:
            raise ApiError("InvalidParameterException", f"Addon {name} specified is not supported")
        if name in cluster.addons:
            raise ApiError("ResourceInUseException", "Addon already exists.")
        addon = cluster.addons[name] = shapes.new_addon(params, emulation=self.emulation)
        self.emulation.clock.after(
            ADDON_S, lambda: self._addon_installed(params["clusterName"], name, addon)
        )
        return {"addon": addon}

    def describe_addon(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"addon": self._addon(params)}

    def list_addons(self, params: dict[str, Any]) -> dict[str, Any]:
        names = sorted(self.cluster(params["clusterName"]).addons)
        return paged("addons", names, params)

    def _addon_installed(self, cluster: str, name: str, addon: dict[str, Any]) -> None:
        if addon["status"] != "CREATING":
            return
        if "addon-fails" in self.emulation.faults:
            why = "The add-on is unhealthy because it doesn't have the desired number of replicas."
            issue = shapes.issue("InsufficientNumberOfReplicas", why, name)
            shapes.fail(addon, "CREATE_FAILED", issue)
            return
        addon["status"] = "ACTIVE"
        self.emulation.observer.addon_active(cluster=cluster, name=name)

    def _addon(self, params: dict[str, Any]) -> dict[str, Any]:
        addon = self.cluster(params["clusterName"]).addons.get(params["addonName"])
        if addon is None:
            raise ApiError(
                "ResourceNotFoundException",
                f"No addon: {params['addonName']} found in cluster: {params['clusterName']}",
            )
        return addon

    # -- access entries ---------------------------------------------------------------------------

    def create_access_entry(self, params: dict[str, Any]) -> dict[str, Any]:
        cluster = self._ready(params["clusterName"])
        if params["principalArn"] in cluster.access_entries:
            raise ApiError(
                "ResourceInUseException",
                "The specified access entry resource is already in use on this cluster.",
            )
        entry = shapes.new_access_entry(params, emulation=self.emulation)
        cluster.access_entries[params["principalArn"]] = {"entry": entry, "policies": {}}
        return {"accessEntry": entry}

    def describe_access_entry(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"accessEntry": self._entry(params)["entry"]}

    def list_access_entries(self, params: dict[str, Any]) -> dict[str, Any]:
        arns = list(self.cluster(params["clusterName"]).access_entries)
        return paged("accessEntries", arns, params)

    def associate_access_policy(self, params: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC)
        policy = {
            "policyArn": params["policyArn"],
            "accessScope": params["accessScope"],
            "associatedAt": now,
            "modifiedAt": now,
        }
        self._entry(params)["policies"][params["policyArn"]] = policy
        return {
            "clusterName": params["clusterName"],
            "principalArn": params["principalArn"],
            "associatedAccessPolicy": policy,
        }

    def list_associated_access_policies(self, params: dict[str, Any]) -> dict[str, Any]:
        return {
            "clusterName": params["clusterName"],
            "principalArn": params["principalArn"],
            "associatedAccessPolicies": list(self._entry(params)["policies"].values()),
        }

    def _entry(self, params: dict[str, Any]) -> dict[str, Any]:
        found = self.cluster(params["clusterName"]).access_entries.get(params["principalArn"])
        if found is None:
            raise ApiError(
                "ResourceNotFoundException",
                "The specified principalArn could not be found. You can view your available access "
                "entries with 'ListAccessEntries'.",
            )
        entry: dict[str, Any] = found
        return entry

    # -- pod identity -----------------------------------------------------------------------------

    def create_pod_identity_association(self, params: dict[str, Any]) -> dict[str, Any]:
        held = self._ready(params["clusterName"]).pod_identities
        key = (params["namespace"], params["serviceAccount"])
        if any((a["namespace"], a["serviceAccount"]) == key for a in held.values()):
            raise ApiError(
                "ResourceInUseException", f"Association already exists: {key[0]}/{key[1]}"
            )
        association = shapes.new_pod_identity(params, emulation=self.emulation)
        held[association["associationId"]] = association
        return {"association": association}

    def session_of(self, namespace: str, service_account: str) -> tuple[str, dict[str, str]]:
        """Return the ARN of the role of a service account's pods, "" for none, and its tags.

        The tags of the one pod, its name and uid, are not among them.
        Source: EKS user guide, "Grant Pods access to AWS resources based on tags".
        """
        with self.emulation.locks["eks"]:
            for cluster in self.clusters.values():
                for held in cluster.pod_identities.values():
                    if (held["namespace"], held["serviceAccount"]) == (namespace, service_account):
                        return held["roleArn"], {
                            "eks-cluster-arn": cluster.described["arn"],
                            "eks-cluster-name": held["clusterName"],
                            "kubernetes-namespace": namespace,
                            "kubernetes-service-account": service_account,
                        }
        return "", {}

    def list_pod_identity_associations(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a cluster's associations, without their roles as the API does."""
        keys = ("clusterName", "namespace", "serviceAccount", "associationArn", "associationId")
        found = [
            {key: association[key] for key in keys}
            for association in self.cluster(params["clusterName"]).pod_identities.values()
            if params.get("namespace") in (None, association["namespace"])
            if params.get("serviceAccount") in (None, association["serviceAccount"])
        ]
        return paged("associations", found, params)

    def describe_pod_identity_association(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"association": self._association(params)}

    def delete_pod_identity_association(self, params: dict[str, Any]) -> dict[str, Any]:
        association = self._association(params)
        del self.cluster(params["clusterName"]).pod_identities[params["associationId"]]
        return {"association": association}

    def _association(self, params: dict[str, Any]) -> dict[str, Any]:
        held = self.cluster(params["clusterName"]).pod_identities
        association = held.get(params["associationId"])
        if association is None:
            raise ApiError(
                "ResourceNotFoundException",
                f"Association with ID {params['associationId']} not found.",
            )
        return association

    # -- tags -------------------------------------------------------------------------------------

    def iter_tagged_resources(self) -> Iterator[TaggedResource]:
        """Yield what the tagging API may show; an ARN names its kind."""
        for cluster in list(self.clusters.values()):
            for part in (
                cluster.described,
                *(group.described for group in list(cluster.node_groups.values())),
                *list(cluster.addons.values()),
                *(held["entry"] for held in list(cluster.access_entries.values())),
                *list(cluster.pod_identities.values()),
            ):
                arn = next(part[name] for name in _ARNS if name in part)
                kind = arn.split(":")[5].partition("/")[0]
                yield TaggedResource(arn, dict(part["tags"]), f"eks:{kind}")

    def _ready(self, name: str) -> Cluster:
        """Return a cluster that accepts changes."""
        cluster = self.cluster(name)
        if cluster.described["status"] != "ACTIVE":
            raise ApiError("InvalidRequestException", f"Cluster '{name}' is not in ACTIVE status")
        return cluster
