"""Everything that decides how one run's job looks, resolved from the request and an attempt.

Made by `job_spec` in steps and in the command line; read by every renderer. It holds no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stationmaster.domain.catalogue.instances import InstanceType, get_instance
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import (
    MADE_ON_THE_SPOT,
    LanguageTraining,
    Rendezvous,
)
from stationmaster.domain.datasets import FOR_MEGATRON, RUNS
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.indexed import DATA_NAME, TOKENIZER_NAME
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.keys.own_code import IN_OUTPUT
from stationmaster.domain.names import SHARED_MOUNT
from stationmaster.domain.planning.cost import stop_deadline_s
from stationmaster.domain.planning.layout import Layout, processes_per_node
from stationmaster.domain.planning.requirements import uses_efa
from stationmaster.domain.restoring import ResumePoint, model_directory
from stationmaster.domain.results import OUTPUT
from stationmaster.domain.run.attempts import Assignment
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.rendering.frameworks import framework_program

RUNS_DIRECTORY: Final = f"{SHARED_MOUNT}/{RUNS}"
DATA_DIRECTORY: Final = f"{SHARED_MOUNT}/data"

KubernetesObject = dict[str, Any]
"""One Kubernetes object as JSON; its shape is the API's business."""


@dataclass(frozen=True)
class CheckJob:
    """What a job of a check has that training has not. It is never started again."""

    labels: Mapping[str, str]
    """Of the job and its pods, in place of a run's."""
    deadline_s: int
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that differ from those of training, or are added."""
    without: tuple[str, ...] = ()
    """Variables of training that are left out."""


@dataclass(frozen=True)
class JobSpec:
    """The job of one attempt at a run: the recipe, where it runs and in which image."""

    run_id: RunId
    cluster_id: ClusterId
    job: str
    rendezvous_id: str
    recipe: Recipe
    overrides: Mapping[str, str]
    instance: InstanceType
    nodes: int
    image: str
    attempt: int = 1
    min_nodes: int | None = None
    """The least number of nodes with which it continues; None for a fixed number."""
    resume_from: ResumePoint | None = None
    has_own_image: bool = False
    """The image is not the deployment's: nobody knows its user and its programs."""
    program: tuple[str, ...] = ()
    """What the pods run in place of the product's own trainer: what was typed, or a framework."""
    processes: int = 0
    """What a custom command starts on each node, where that was typed; 0 for one for each GPU."""
    directory: str = ""
    """Where a custom command starts; "" where the image says that."""
    venv: str = ""
    """The virtual environment, of local mode's machine, that it runs in; "" for none."""
    is_resumed: bool = False
    """Whether a custom command finds in its output directory what an earlier run has written."""
    dataset: str = ""
    """What such a program is told of its data: its place, or what was typed."""
    track: str = ""
    """Where the product's own trainer reports its figures as well, as it was typed."""
    options: JobOptions = field(default_factory=JobOptions)
    """How Kubernetes is to run it."""
    workload_class: str = ""
    """The WorkloadPriorityClass by which Kueue queues it; "" for none."""
    check: CheckJob | None = None
    """Where it is the job of a check: what is different."""

    @property
    def least_nodes(self) -> int:
        """The number of nodes below which the job does not train."""
        return self.nodes if self.min_nodes is None else min(self.min_nodes, self.nodes)

    @property
    def num_gpus(self) -> int:
        """GPUs that each pod asks for; none for a CPU recipe, whatever the instance has."""
        return self.instance.num_gpus if self.recipe.needs_gpu else 0

    @property
    def num_efa(self) -> int:
        """EFA interfaces that each pod asks for: all of the instance, none, or as many as typed."""
        has = self.instance.num_efa if uses_efa(self.recipe, self.instance) else 0
        return has if self.options.efa is None else min(self.options.efa, has)

    @property
    def processes_per_node(self) -> int:
        """Training processes in each pod."""
        return self.processes or processes_per_node(self.recipe, self.instance)

    @property
    def rendezvous(self) -> Rendezvous:
        """Where agents meet: on the first worker, on an etcd that outlives any, or on a master."""
        return self.recipe.training.rendezvous

    @property
    def recovers_inside(self) -> bool:
        """Whether its pods and processes are started again inside the job.

        Only the product's own trainer says why it ends; of everything else the job is made anew
        where the cause passes (`domain/reactions/restarts.py`).
        """
        return self.check is None and not self.program

    @property
    def stop_deadline_s(self) -> int:
        """The time that the trainer has to save after SIGTERM; torchrun and kubelet wait longer."""
        # On fewer nodes a step takes longer.
        layout = Layout(recipe=self.recipe, instance=self.instance, nodes=self.least_nodes)
        return stop_deadline_s(layout)

    @property
    def shutdown_timeout_s(self) -> int:
        """The time after which torchrun kills its workers."""
        return self.stop_deadline_s + 10

    @property
    def termination_grace_s(self) -> int:
        """The time after which the kubelet kills the pod."""
        return self.shutdown_timeout_s + 10

    @property
    def output_dir(self) -> str:
        """Where the trainer writes checkpoints, on the shared file system."""
        return run_directory(self.run_id)

    @property
    def is_command(self) -> bool:
        """Whether the pods run what was typed, and neither our trainer nor a framework's."""
        return self.program != framework_program(self.recipe, self.output_dir)

    @property
    def program_output_dir(self) -> str:
        """Where a custom command writes what is to be saved."""
        return f"{self.output_dir}/{OUTPUT}"


def job_spec(
    request: TrainingRequest,
    assignment: Assignment,
    *,
    run_id: RunId,
    image: str,
    data_root: str = "",
    weights_root: str = "",
    hyperpod_vcpus: int | None = None,
    queue: str = "",
) -> JobSpec:
    """Resolve a request, placed as the assignment says, against the catalogues.

    `image` is the deployment's; one that the request names comes before it. `data_root` is where
    its data was brought, below the directory of all data; "" where the pods read it from elsewhere.
    `weights_root` is where its first weights are, once they were converted. `hyperpod_vcpus` are
    the CPUs of nodes that are HyperPod's. `queue` is the LocalQueue that the request's one means.

    Raises:
        UserError: the recipe, the instance type or an override is not (or no longer) known.
    """
    brought = _brought(request, data_root) if data_root else {}
    if weights_root:
        brought["weights"] = f"{DATA_DIRECTORY}/{weights_root}"
    brought |= _first_weights(request, run_id)
    overrides = request.overrides | brought
    recipe = request.model_copy(update={"overrides": overrides}).resolved
    instance = get_instance(assignment.placement.instance_type)
    return JobSpec(
        run_id=run_id,
        cluster_id=assignment.cluster_id,
        job=assignment.job,
        rendezvous_id=assignment.rendezvous_id,
        attempt=assignment.number,
        recipe=recipe,
        overrides=dict(sorted(overrides.items())),
        instance=instance if hyperpod_vcpus is None else instance.on_hyperpod(hyperpod_vcpus),
        nodes=assignment.placement.nodes,
        image=request.image or image,
        min_nodes=request.min_nodes,
        resume_from=request.resume_from,
        has_own_image=bool(request.image),
        program=request.program or framework_program(recipe, run_directory(run_id)),
        processes=request.processes_per_node,
        directory=request.working_directory.replace(IN_OUTPUT, f"{run_directory(run_id)}/{OUTPUT}"),
        venv=request.venv,
        is_resumed=request.output_from is not None,
        dataset=overrides.get("dataset", ""),
        track=request.track,
        options=request.job_options.model_copy(update={"queue": queue} if queue else {}),
    )


def _brought(request: TrainingRequest, data_root: str) -> dict[str, str]:
    """Return the data's place; Megatron's has a prefix, and the tokenizer it was made with."""
    root = f"{DATA_DIRECTORY}/{data_root}"
    if request.data_task == FOR_MEGATRON:
        return {"dataset": f"{root}/{DATA_NAME}", "tokenizer": f"{root}/{TOKENIZER_NAME}"}
    return {"dataset": root}


def run_directory(run_id: RunId) -> str:
    """Return where a run writes, on the shared file system."""
    return f"{RUNS_DIRECTORY}/{run_id}"


def _first_weights(request: TrainingRequest, run_id: RunId) -> dict[str, str]:
    """Return where another run's model was brought, with the tokenizer of its training."""
    if request.weights_from is None:
        return {}
    directory = f"{run_directory(run_id)}/{model_directory()}"
    training = request.resolved.training
    is_made = isinstance(training, LanguageTraining) and training.tokenizer in MADE_ON_THE_SPOT
    return {"weights": directory, **({"tokenizer": directory} if is_made else {})}
