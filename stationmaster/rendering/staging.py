"""The Jobs of what a run needs before it trains: results of others, then data, copied and prepared.

Data that is on the file system already is only looked at, with `relay.look`.

The first runs `relay.restore`, the second `relay.stage`, in the relay's image, off the training
nodes. In AWS, through Pod Identity, the one may read the result that it brings, the other the
buckets that the deployment names. The third runs `python -m training.prepare` in the
training image, a pod on each of the run's nodes: they divide the work among themselves. It needs no
right in AWS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stationmaster.domain.catalogue.framework_training import MegatronTraining
from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.datasets import (
    NO_VALIDATION,
    LookingOrder,
    Preparation,
    StagingOrder,
    read_packed_source,
)
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import (
    SHARED_MOUNT,
    STAGER,
    converting_name,
    linking_name,
    looking_name,
    preparing_name,
    restoring_name,
    results_account,
    staging_name,
)
from stationmaster.domain.restoring import RestoringOrder
from stationmaster.rendering.environment import render_hugging_face_token
from stationmaster.rendering.job_spec import (
    DATA_DIRECTORY,
    RUNS_DIRECTORY,
    JobSpec,
    KubernetesObject,
)
from stationmaster.rendering.metadata import (
    LABEL_HOSTNAME,
    TRAINER_USER,
    TRAINING_TOLERATION,
    container_security,
    off_the_training_nodes,
    render_account,
    run_labels,
)
from stationmaster.rendering.retried_job import retried_job
from stationmaster.rendering.storage import shared_mount, shared_volume
from stationmaster.rendering.training_pod import pod_resources, training_node_selector

CONTAINER: Final = "stage"
# Where `container/nemo` has it.
CONVERTER: Final = "/usr/local/lib/stationmaster/convert_weights.py"
LABEL_STAGING: Final = "stationmaster/staging"
# 20 TB at the 300 MB/s of a system node: a program that hangs is ended.
DEADLINE_S: Final = 24 * 3600


def staging_settings(recipe: Recipe) -> dict[str, str | int]:
    """What else than the source decides how a recipe's data is prepared."""
    if isinstance(recipe.model, ImageModel):
        rest = {} if recipe.training.eval_every else {NO_VALIDATION: 1}
        return {"num_classes": recipe.model.num_classes, **rest}
    if recipe.task == "pretraining":
        assert isinstance(recipe.training, LanguageTraining | MegatronTraining)
        assert isinstance(recipe.model, LanguageModel)
        return {"tokenizer": recipe.training.tokenizer, "vocab_size": recipe.model.vocab_size}
    return {}


def render_copying(
    order: StagingOrder, *, cluster_id: ClusterId, image: str, region: str
) -> list[KubernetesObject]:
    """The account, and the Job that copies the data, or looks at what is linked of it.

    `image` is the relay's.
    """
    variables = {
        # A person's own text is in it: the kubelet must not expand $(VAR).
        "STATIONMASTER_STAGING_ORDER": order.model_dump_json().replace("$", "\\u0024"),
        "STATIONMASTER_DATA_DIRECTORY": DATA_DIRECTORY,
        "AWS_REGION": region,
    }
    pod = _copying_pod(
        "stationmaster.relay.stage", variables, cluster_id=cluster_id, image=image, user=65532
    )
    name, work = (linking_name, "linking") if order.linked else (staging_name, "copying")
    job = _job(order.run_id, name(order.run_id), work, pod, number=1)
    return [render_account(STAGER), job]


def render_looking(
    order: LookingOrder, *, cluster_id: ClusterId, image: str
) -> list[KubernetesObject]:
    """The Job that looks at data which is there; `image` is the relay's.

    It has no rights in AWS and the user of the training pods: what it cannot read they cannot.
    """
    variables = {
        "STATIONMASTER_LOOKING_ORDER": order.model_dump_json().replace("$", "\\u0024"),
        "STATIONMASTER_SHARED_DIRECTORY": SHARED_MOUNT,
    }
    pod = _copying_pod(
        "stationmaster.relay.look",
        variables,
        cluster_id=cluster_id,
        image=image,
        user=TRAINER_USER,
        account="",
    )
    pod["containers"][0]["volumeMounts"] = [{**shared_mount(), "readOnly": True}]
    return [_job(order.run_id, looking_name(order.run_id), "looking", pod, number=1)]


def render_restoring(
    order: RestoringOrder, *, cluster_id: ClusterId, image: str, region: str, bucket: str
) -> list[KubernetesObject]:
    """An account and a Job for each result that comes back from `bucket`; `image` is the relay's.

    The account reaches that one result.
    """
    run_id = order.run_id
    rendered: list[KubernetesObject] = []
    for number, (source, part) in enumerate(order.by_source().items()):
        variables = {
            "STATIONMASTER_RESTORING_ORDER": part.model_dump_json(),
            "STATIONMASTER_ARTIFACTS_BUCKET": bucket,
            "STATIONMASTER_RUN_DIRECTORY": f"{RUNS_DIRECTORY}/{run_id}",
            "AWS_REGION": region,
        }
        account = results_account(source)
        pod = _copying_pod(
            "stationmaster.relay.restore",
            variables,
            cluster_id=cluster_id,
            image=image,
            user=TRAINER_USER,
            account=account,
        )
        name = restoring_name(run_id) + ("-2" if number else "")
        rendered += [
            render_account(account),
            _job(run_id, name, "restoring", pod, number=1),
        ]
    return rendered


def _copying_pod(
    program: str,
    variables: Mapping[str, str],
    *,
    cluster_id: ClusterId,
    image: str,
    user: int,
    account: str = STAGER,
) -> KubernetesObject:
    container = {
        "name": CONTAINER,
        "image": image,
        "command": ["python", "-m", program],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        # A listing of a million objects takes 2 GiB, the parts under way half of one.
        "resources": {
            "requests": {"cpu": "1", "memory": "1Gi"},
            "limits": {"memory": "4Gi"},
        },
        "securityContext": {**container_security(), "runAsUser": user},
        "volumeMounts": [shared_mount()],
    }
    rights: KubernetesObject = {"serviceAccountName": account}
    if not account:
        rights = {"automountServiceAccountToken": False}
    return {
        **rights,
        "affinity": off_the_training_nodes(),
        "containers": [container],
        "volumes": [shared_volume(cluster_id)],
    }


def render_preparing(
    spec: JobSpec, *, data_id: str, preparation: Preparation
) -> list[KubernetesObject]:
    """The Job that prepares what was copied as `data_id`, with a pod on each of the run's nodes.

    Where nothing was copied, "", the recipe names a data set of the hub to pack.
    """
    name = preparing_name(spec.run_id)
    container = {
        "name": CONTAINER,
        "image": spec.image,
        "command": [
            "python",
            "-m",
            "training.prepare",
            *_words(preparation, spec.recipe, data_id),
            "--data-directory",
            DATA_DIRECTORY,
            "--run-id",
            spec.run_id,
        ],
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            render_hugging_face_token(),
        ],
        "resources": pod_resources(spec.instance, num_gpus=0, num_efa=0),
        "securityContext": container_security(),
        "volumeMounts": [shared_mount()],
    }
    pod = {
        "automountServiceAccountToken": False,
        "nodeSelector": training_node_selector(spec),
        "tolerations": [TRAINING_TOLERATION, {"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": LABEL_HOSTNAME,
                        "labelSelector": {"matchLabels": _labels(spec.run_id, "preparing")},
                    }
                ]
            }
        },
        "containers": [container],
        "volumes": [shared_volume(spec.cluster_id)],
    }
    return [_job(spec.run_id, name, "preparing", pod, number=spec.nodes)]


def render_converting(spec: JobSpec, *, repository: str, image: str) -> list[KubernetesObject]:
    """The Job that converts published weights for Megatron, in the image of Megatron-Bridge.

    One pod on one of the run's nodes: it needs a GPU, for NCCL's single rank, and memory for the
    weights twice. It needs no right in AWS.
    """
    container = {
        "name": CONTAINER,
        "image": image,
        "command": [
            *("python", CONVERTER, repository),
            *("--data-directory", DATA_DIRECTORY),
            *("--run-id", spec.run_id),
        ],
        "env": [
            {"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"},
            render_hugging_face_token(),
        ],
        "resources": pod_resources(
            spec.instance, num_gpus=min(1, spec.instance.num_gpus), num_efa=0
        ),
        "securityContext": container_security(),
        "volumeMounts": [shared_mount()],
    }
    pod = {
        "automountServiceAccountToken": False,
        "nodeSelector": training_node_selector(spec),
        "tolerations": [TRAINING_TOLERATION, {"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [container],
        "volumes": [shared_volume(spec.cluster_id)],
    }
    return [_job(spec.run_id, converting_name(spec.run_id), "converting", pod, number=1)]


def staging_labels(run_id: RunId, work: str) -> dict[str, str]:
    """By which the Job of one piece of work, and its pods, are found."""
    return _labels(run_id, work)


def _labels(run_id: RunId, work: str) -> dict[str, str]:
    return {**run_labels(run_id, "staging"), LABEL_STAGING: work}


def _words(preparation: Preparation, recipe: Recipe, data_id: str) -> Sequence[str]:
    settings = staging_settings(recipe)
    if preparation is Preparation.IMAGES:
        rest = ["--no-validation"] if NO_VALIDATION in settings else []
        return ["images", data_id, "--classes", str(settings["num_classes"]), *rest]
    # Text that a person typed: the kubelet must not expand $(VAR).
    tokenizer = str(settings["tokenizer"]).replace("$", "$$")
    what = [data_id] if data_id else ["--dataset", read_packed_source(recipe.training.dataset)]
    size = str(settings["vocab_size"])
    return [preparation.value, *what, "--tokenizer", tokenizer, "--vocab-size", size]


def _job(
    run_id: RunId, name: str, work: str, pod: Mapping[str, Any], *, number: int
) -> KubernetesObject:
    labels = _labels(run_id, work)
    return retried_job(name, labels, pod, container=CONTAINER, deadline_s=DEADLINE_S, number=number)
