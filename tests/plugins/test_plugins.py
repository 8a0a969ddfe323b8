"""When a plugin works, when it is waited for, when it never will, and which a cluster needs."""

from dataclasses import dataclass, field

import pytest

from stationmaster.aws.addons import Addon
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import LiveCluster, Verdict
from stationmaster.plugins import PLUGINS, get_plugin, names_for
from stationmaster.rendering import pytorch_job

SPEC = spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge")


@dataclass
class Answers:
    """Services and gateway in one: what a cluster answers that has some things and lacks others."""

    addon: str | None = "ACTIVE"
    addon_failure: str = ""
    drivers: tuple[str, ...] = ("fsx.csi.aws.com",)
    types: tuple[str, ...] = ("pytorchjobs.kubeflow.org", "mpijobs.kubeflow.org")
    deployments: tuple[str, ...] = ("kubeflow/training-operator", "mpi-operator/mpi-operator")
    missing: str = ""
    kubectl_role_arns: tuple[str, ...] = ()
    ready_on: dict[str, int] = field(
        default_factory=lambda: {
            "kube-system/nvidia-device-plugin": 2,
            "kube-system/aws-efa-k8s-device-plugin": 2,
        }
    )

    @property
    def addons(self):
        return self

    @property
    def settings(self):
        return self

    backend = pytorch_job

    def kubernetes(self, cluster_id):
        return self

    def describe(self, cluster_id, name):
        if (cluster_id, name) != ("c-1", "aws-fsx-csi-driver"):
            return Addon(status="ACTIVE")
        return self.addon and Addon(status=self.addon, failure=self.addon_failure)

    def exists(self, api_version, kind, *, name):
        return (api_version, kind) == ("storage.k8s.io/v1", "CSIDriver") and name in self.drivers

    def crd_established(self, name):
        return name in self.types

    def has(self, item):
        return item["kind"] != self.missing and item["metadata"]["name"] == "stationmaster-relay"

    def deployment_ready(self, name, *, namespace):
        return f"{namespace}/{name}" in self.deployments

    def daemon_set_ready(self, name, *, nodes, namespace):
        return self.ready_on.get(f"{namespace}/{name}", 0) >= nodes

    def pods_of(self, kind, name, *, namespace):
        return [f"pods of {kind} {namespace}/{name}"]

    def explain(self, pods, *, namespace):
        return f"no {pods[0]}"


def look(plugin, **answers):
    return get_plugin(plugin).look(LiveCluster(Answers(**answers), "c-1", SPEC))


def test_rights_of_people_are_given_where_the_deployment_names_any_and_the_cluster_is_its_own():
    role = "arn:aws:iam::123456789012:role/researchers"
    guest = SPEC.model_copy(update={"eks_name": "theirs"})

    def names(spec, roles):
        cluster = LiveCluster(Answers(kubectl_role_arns=roles), "c-1", spec)
        return {item["metadata"]["name"] for item in get_plugin("relay").render(cluster)}

    assert "stationmaster-people" in names(SPEC, (role,))
    assert "stationmaster-people" not in names(SPEC, ()) | names(guest, (role,))
    assert look("relay", kubectl_role_arns=(role,)).sentence.startswith("Role stationmaster-people")


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.NAME)
def test_plugin_works_in_a_cluster_that_has_everything(plugin):
    assert look(plugin.NAME).verdict is Verdict.GOOD


@pytest.mark.parametrize(
    ("plugin", "answers", "verdict", "sentence"),
    [
        ("fsx-csi-driver", {"addon": None}, "waiting", "add-on aws-fsx-csi-driver is missing"),
        ("fsx-csi-driver", {"addon": "CREATING"}, "waiting", "add-on aws-fsx-csi-driver is CREAT"),
        ("fsx-csi-driver", {"addon": "DEGRADED"}, "waiting", "add-on aws-fsx-csi-driver is DEGRAD"),
        (
            "fsx-csi-driver",
            {"addon": "CREATE_FAILED"},
            "bad",
            "EKS could not install add-on aws-fsx-csi-driver: it is CREATE_FAILED; try again later",
        ),
        (
            "fsx-csi-driver",
            {"addon": "CREATE_FAILED", "addon_failure": "TooFew: too few replicas."},
            "bad",
            "EKS could not install add-on aws-fsx-csi-driver: TooFew: too few replicas; try again",
        ),
        (
            "fsx-csi-driver",
            {"addon": "DEGRADED", "addon_failure": "TooFew: too few replicas."},
            "waiting",
            "add-on aws-fsx-csi-driver is DEGRADED: TooFew: too few replicas.",
        ),
        ("fsx-csi-driver", {"drivers": ()}, "waiting", "CSI driver fsx.csi.aws.com is not regist"),
        ("training-operator", {"types": ()}, "waiting", "type pytorchjobs.kubeflow.org is not ser"),
        (
            "training-operator",
            {"deployments": ()},
            "waiting",
            "no pods of Deployment kubeflow/training-operator",
        ),
        *(
            ("relay", {"missing": kind}, "waiting", f"{kind} stationmaster-relay is not there")
            for kind in ("ServiceAccount", "RoleBinding", "ClusterRoleBinding")
        ),
        (
            "nvidia-device-plugin",
            {"ready_on": {"kube-system/nvidia-device-plugin": 1}},
            "waiting",
            "no pods of DaemonSet kube-system/nvidia-device-plugin",
        ),
        (
            "efa-device-plugin",
            {"ready_on": {"kube-system/aws-efa-k8s-device-plugin": 1}},
            "waiting",
            "no pods of DaemonSet kube-system/aws-efa-k8s-device-plugin",
        ),
    ],
)
def test_plugin_says_what_it_lacks(plugin, answers, verdict, sentence):
    finding = look(plugin, **answers)

    assert finding.verdict == verdict
    assert finding.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("recipe", "instance", "devices"),
    [
        ("tiny-llama", "p4d.24xlarge", []),
        ("llama2-7b", "p4d.24xlarge", ["nvidia-device-plugin", "efa-device-plugin"]),
        ("llama2-7b", "p3dn.24xlarge", ["nvidia-device-plugin"]),
    ],
)
def test_cluster_gets_the_plugins_that_apply_to_it(recipe, instance, devices):
    spec = spec_for(get_recipe(recipe), nodes=2, instance_type=instance)

    assert names_for(spec) == ["training-operator", "fsx-csi-driver", *devices, "relay"]
    assert names_for(spec, measures_nccl=True) == [*names_for(spec), "mpi-operator"]


def test_unknown_plugin_is_refused_with_the_known_ones():
    known = "training-operator, fsx-csi-driver, nvidia-device-plugin, efa-device-plugin, relay"

    with pytest.raises(PermanentError, match=f'plugin "nope" is not known; known: {known}'):
        get_plugin("nope")
