"""What is looked at before a start: what the start would need. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stationmaster.domain.catalogue.instances import InstanceType, get_instance
from stationmaster.domain.catalogue.recipes import Framework
from stationmaster.domain.cluster.spec import ClusterSpec, Reservation
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.datasets import AS_IT_IS, S3Source
from stationmaster.domain.planning.requirements import repositories_of
from stationmaster.domain.run.request import TrainingRequest


@dataclass(frozen=True)
class Machines:
    """Training nodes that would be made."""

    instance: InstanceType
    nodes: int
    least_nodes: int
    """With fewer a start is of no use."""
    reservation_id: str = ""
    """The capacity reservation or block that they are taken from; "" for none."""
    is_spot: bool = False


@dataclass(frozen=True)
class Subject:
    """One start, one cluster, or, where nothing is set, the deployment alone."""

    name: str = "the deployment"
    machines: Machines | None = None
    """None where no cluster would be made."""
    image: str = ""
    """Of the training pods, where it is not the deployment's; "" for that."""
    framework: Framework = "fsdp"
    """What trains; decides the deployment's image."""
    needs_cuda: bool = True
    """Whether pods may use GPUs; decides it as well."""
    repositories: tuple[str, ...] = ()
    """Of the Hugging Face hub, that the pods would read."""
    dataset: S3Source | None = None
    task: str = AS_IT_IS
    trains: bool = True
    """False for a cluster that no run uses yet."""


DEPLOYMENT = Subject()


def of_start(start: StartRun) -> Subject:
    """Return what a start would need that was typed and read."""
    asked = start.requested(command=f"/train {start.words}", team_id="", channel_id="", user_id="")
    return of_request(asked)


def of_request(request: TrainingRequest) -> Subject:
    """Return what a run needs that was requested."""
    wish = request.wish
    return Subject(
        name=request.command,
        machines=_machines(
            wish.instance_type, wish.nodes, request.min_nodes, request.reservation, request.is_spot
        )
        if request.cluster_id is None and not request.eks_name
        else None,
        image=request.image,
        framework=request.resolved.framework,
        needs_cuda=request.needs_cuda,
        repositories=() if request.program else repositories_of(request.resolved),
        dataset=request.data if isinstance(request.data, S3Source) else None,
        task=request.data_task,
    )


def of_cluster(spec: ClusterSpec, *, name: str) -> Subject:
    """Return what a cluster needs that no run has asked for."""
    machines = (
        None
        if spec.eks_name
        else _machines(
            spec.instance_type, spec.nodes, spec.min_nodes, spec.reservation, spec.is_spot
        )
    )
    return Subject(name=f"cluster {name}", machines=machines, trains=False)


def _machines(
    instance_type: str,
    nodes: int,
    min_nodes: int | None,
    reservation: Reservation | None,
    is_spot: bool,
) -> Machines:
    return Machines(
        get_instance(instance_type),
        nodes=nodes,
        least_nodes=nodes if min_nodes is None else min_nodes,
        reservation_id=reservation.reservation_id if reservation is not None else "",
        is_spot=is_spot,
    )
