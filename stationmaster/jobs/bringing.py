"""What the Jobs share that bring what a run needs before it trains: other runs' results, then data.

Some run in the relay's image, off the training nodes; others on the run's own nodes. Each of their
pods prints how far it is, and in its last line what it has brought.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from stationmaster.cluster_file_system import shared_storage
from stationmaster.domain.catalogue.framework_training import MegatronTraining
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.datasets import NO_VALIDATION
from stationmaster.domain.errors import DataNotStaged
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import STAGER
from stationmaster.domain.planning.arrival import checkpoint_room_bytes
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.progress_lines import PrintedLine
from stationmaster.domain.run.events import DataReported, DataStaged, RunPhase, StagingWork
from stationmaster.domain.staged_data import StagedLine, StagingLine, read_staging_line
from stationmaster.inspection import Verdict
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.jobs.run_jobs import look_at_jobs, render_token
from stationmaster.kubernetes.views import PodView
from stationmaster.rendering.job_spec import JobSpec, KubernetesObject
from stationmaster.rendering.metadata import (
    RunRole,
    namespace,
    off_the_training_nodes,
    render_account,
    run_labels,
)
from stationmaster.rendering.run_job import ON_ANY_NODE, Program, one_cpu, run_job
from stationmaster.rendering.shared_volume import render_storage
from stationmaster.rendering.training_pod import pod_resources, training_node_selector

ROLE: Final[RunRole] = "staging"
LABEL_STAGING: Final = "stationmaster/staging"
CONTAINER: Final = "stage"
# 20 TB at the 300 MB/s of a system node.
DEADLINE_S: Final = 24 * 3600


def staging_labels(run_id: RunId, work: StagingWork) -> dict[str, str]:
    """Make the labels by which the Job of one piece of work, and its pods, are found."""
    return {**run_labels(run_id, ROLE), LABEL_STAGING: work}


def staging_settings(recipe: Recipe) -> dict[str, str | int]:
    """Return what else than the source decides how a recipe's data is prepared."""
    if isinstance(recipe.model, ImageModel):
        rest = {} if recipe.training.eval_every else {NO_VALIDATION: 1}
        return {"num_classes": recipe.model.num_classes, **rest}
    if recipe.task == "pretraining":
        assert isinstance(recipe.training, LanguageTraining | MegatronTraining)
        assert isinstance(recipe.model, LanguageModel)
        return {"tokenizer": recipe.training.tokenizer, "vocab_size": recipe.model.vocab_size}
    return {}


def keep_free_bytes(live: LiveRun) -> int:
    """Return the room that checkpoints need beside the data."""
    placement = live.attempt.placement
    instance = get_instance(placement.instance_type)
    layout = Layout(recipe=live.run.request.resolved, instance=instance, nodes=placement.nodes)
    return checkpoint_room_bytes(layout)


def relay_program(
    live: LiveRun,
    module: str,
    variables: Mapping[str, str],
    *,
    user: int,
    account: str = STAGER,
    reads_only: bool = False,
) -> Program:
    """Describe a program of the relay's image, off the training nodes."""
    return Program(
        container=CONTAINER,
        image=live.services.settings.relay_image,
        command=["python", "-m", f"stationmaster.relay.{module}"],
        variables=variables,
        # A listing of a million objects takes 2 GiB, the parts under way half of one.
        resources=one_cpu("1Gi", most="4Gi"),
        user=user,
        reads_only=reads_only,
        account=account,
        placement={"affinity": off_the_training_nodes()},
        deadline_s=DEADLINE_S,
    )


def node_program(
    spec: JobSpec,
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    image: str,
    num_gpus: int = 0,
    affinity: KubernetesObject | None = None,
) -> Program:
    """Describe a program on the nodes of the run's own job, as large as a pod of that."""
    apart = {"affinity": affinity} if affinity else {}
    return Program(
        container=CONTAINER,
        image=image,
        command=command,
        variables=variables,
        has_hub_token=True,
        resources=pod_resources(spec.instance, num_gpus=num_gpus, num_efa=0),
        placement={"nodeSelector": training_node_selector(spec), **ON_ANY_NODE, **apart},
        deadline_s=DEADLINE_S,
    )


def render_work(
    live: LiveRun, name: str, work: StagingWork, *programs: Program, number: int = 1
) -> list[KubernetesObject]:
    """Make a Job for each program, of `number` pods, and what they need beside them.

    Nothing in the cluster is the run's own before the first of them.
    """
    labels, cluster_id = staging_labels(live.run_id, work), live.cluster_id
    rendered = [
        namespace(),
        *render_storage(cluster_id, shared_storage(live.services, cluster_id)),
    ]
    if any(program.has_hub_token for program in programs):
        rendered += render_token(live.services, cluster_id)
    for count, program in enumerate(programs, start=1):
        rendered += [render_account(program.account)] if program.account else []
        of_job = live.job_name(name, count if count > 1 else None)
        rendered.append(run_job(program, of_job, labels, cluster_id=cluster_id, number=number))
    return rendered


def fail_with(what: str) -> Callable[[LiveRun, str], NoReturn]:
    """Make the `failed` of a Job without which the run cannot train."""

    def failed(live: LiveRun, why: str) -> NoReturn:
        raise DataNotStaged(f"{what}: {why}")

    return failed


def look_for(work: StagingWork) -> Callable[[LiveRun], Outcome]:
    """Make the `look` of a Job that brings one thing."""
    return lambda live: look_at_staging(live, work)


def look_at_staging(live: LiveRun, work: StagingWork, *, number: int = 1) -> Outcome:
    """Judge the work by what its pods say; while they work, their progress is to be recorded."""
    labels, gateway = staging_labels(live.run_id, work), live.kubernetes
    before = live.staging.since if live.staging else None
    since = before or live.run.entered(RunPhase.STAGING)
    outcome, pods = look_at_jobs(live, labels, since=since, number=number)
    if outcome.verdict is Verdict.WAITING:
        return Outcome(Verdict.WAITING, event=_reported(live, work, pods))
    if outcome.verdict is not Verdict.GOOD:
        return outcome
    ended = [gateway.end_line(pod.name) for pod in pods if pod.phase == "Succeeded"]
    line = _sum([read_staging_line(text) for text in ended], number)
    if line is None:
        # Its pods are gone, and with them what they said. Another one finds the data at once.
        for job in gateway.batch_jobs(labels=labels):
            gateway.delete("batch/v1", "Job", name=job.name)
        return Outcome(Verdict.WAITING)
    event = DataStaged(
        **live.stamp("data.staged", live.attempt.attempt_id, work),
        cluster_id=live.cluster_id,
        work=work,
        **line.model_dump(exclude=set(PrintedLine.model_fields)),
    )
    return Outcome(Verdict.GOOD, event=event)


def _reported(live: LiveRun, work: StagingWork, pods: Sequence[PodView]) -> DataReported | None:
    """Report how far it is, by the pod that says most; None where that is recorded."""
    running = [pod.name for pod in pods if pod.phase == "Running"]
    lines = [read_staging_line(live.kubernetes.last_log_line(name)) for name in running]
    said = [line for line in lines if isinstance(line, StagingLine)]
    if not said:
        return None
    line, staging = max(said, key=lambda each: each.staged_bytes), live.staging
    counts = (line.staged_bytes, line.total_bytes)
    if staging and (staging.work, staging.done_bytes, staging.total_bytes) == (work, *counts):
        return None
    return DataReported(
        **live.stamp("data", live.attempt.attempt_id, work, *counts),
        cluster_id=live.cluster_id,
        work=work,
        done_bytes=line.staged_bytes,
        total_bytes=line.total_bytes,
    )


def _sum(lines: Sequence[StagingLine | StagedLine | None], number: int) -> StagedLine | None:
    """Add up what `number` Jobs have brought; None where one says nothing any more.

    Of the pods of a single Job, the one counts that did the work and found nothing done.
    """
    ends = [line for line in lines if isinstance(line, StagedLine)]
    if len(ends) < number:
        return None
    line = min(ends, key=lambda line: line.was_there)
    if number < 2:
        return line
    counts = {"num_files": sum(each.num_files for each in ends)}
    counts["num_bytes"] = sum(each.num_bytes for each in ends)
    return line.model_copy(update=counts)
