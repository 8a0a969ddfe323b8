"""All objects of one run together, for `stationmaster render` and the committed examples.

The steps apply the same pieces one after another, because each needs what the ones before it made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.domain.catalogue.recipes import FRAMEWORK_IMAGES, Framework
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.ids import RunId
from stationmaster.domain.images import RELAY_IMAGE, TRAINING_IMAGE, product_image
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.rendering.etcd import render_rendezvous
from stationmaster.rendering.job_backends import backend_of
from stationmaster.rendering.job_spec import KubernetesObject, job_spec
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.relay import render_relay, render_relay_rights
from stationmaster.rendering.shared_volume import SharedStorage, render_storage


@dataclass(frozen=True)
class Surroundings:
    """What the objects name and the request does not say; the defaults are examples."""

    training_image: str = TRAINING_IMAGE
    relay_image: str = RELAY_IMAGE
    bus_name: str = "stationmaster"
    bucket: str = "stationmaster-artifacts"
    region: str = "us-west-2"
    file_system_id: str = "fs-0123456789abcdef0"
    mount_name: str = "abcdefgh"

    def image_of(self, framework: Framework) -> str:
        """Return the image of the training pods, of a framework or of the product's own trainer."""
        image = FRAMEWORK_IMAGES.get(framework)
        return product_image(image) if image is not None else self.training_image


EXAMPLE: Final = Surroundings()


def render_all(
    request: TrainingRequest,
    *,
    run_id: RunId,
    surroundings: Surroundings = EXAMPLE,
    kind: JobKind = JobKind.PYTORCH_JOB,
) -> list[KubernetesObject]:
    """Return every object of the run in an order in which they can be applied.

    Raises:
        UserError: the recipe, the instance type or an override is not known, or jobs of the kind
            cannot do what is asked.
    """
    assignment = first_assignment(run_id, request)
    image = surroundings.image_of(request.resolved.framework)
    spec = job_spec(request, assignment, run_id=run_id, image=image)
    storage = SharedStorage(
        file_system_id=surroundings.file_system_id,
        dns_name=f"{surroundings.file_system_id}.fsx.{surroundings.region}.amazonaws.com",
        mount_name=surroundings.mount_name,
        storage_gib=spec.recipe.file_system_gib,
    )
    backend = backend_of(kind)
    if refusal := backend.refusal(least=spec.least_nodes, most=spec.nodes):
        raise BadParameter(refusal)
    relay = render_relay(
        run_id,
        job=assignment.job,
        image=surroundings.relay_image,
        bus_name=surroundings.bus_name,
        bucket=surroundings.bucket,
        region=surroundings.region,
        backend=backend,
    )
    return [
        namespace(),
        *render_storage(assignment.cluster_id, storage),
        *render_relay_rights(backend),
        *relay,
        *render_rendezvous(spec),
        *backend.render(spec),
    ]
