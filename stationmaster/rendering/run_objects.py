"""All objects of one run together, with example names of what is around it.

For `stationmaster render` and the committed examples.

The steps apply the same pieces one after another, because each needs what the ones before it made.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.recipes import FRAMEWORK_IMAGES
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.ids import RunId
from stationmaster.domain.images import RELAY_IMAGE, TRAINING_IMAGE, product_image
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.rendering.job_backends import backend_of
from stationmaster.rendering.job_spec import KubernetesObject, job_spec
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.relay import render_relay, render_relay_rights
from stationmaster.rendering.rendezvous import render_rendezvous
from stationmaster.rendering.shared_volume import SharedStorage, render_storage

# What the objects name and a request does not say.
BUCKET: Final = "stationmaster-artifacts"
REGION: Final = "us-west-2"
_BUS: Final = "stationmaster"
_FILE_SYSTEM: Final = "fs-0123456789abcdef0"
_MOUNT_NAME: Final = "abcdefgh"


def render_all(
    request: TrainingRequest,
    *,
    run_id: RunId,
    kind: JobKind = JobKind.PYTORCH_JOB,
) -> list[KubernetesObject]:
    """Return every object of the run in an order in which they can be applied.

    Raises:
        UserError: the recipe, the instance type or an override is not known, or jobs of the kind
            cannot do what is asked.
    """
    assignment = first_assignment(run_id, request)
    framework = FRAMEWORK_IMAGES.get(request.resolved.framework)
    image = product_image(framework) if framework is not None else TRAINING_IMAGE
    spec = job_spec(request, assignment, run_id=run_id, image=image)
    storage = SharedStorage(
        file_system_id=_FILE_SYSTEM,
        dns_name=f"{_FILE_SYSTEM}.fsx.{REGION}.amazonaws.com",
        mount_name=_MOUNT_NAME,
        storage_gib=spec.recipe.file_system_gib,
    )
    backend = backend_of(kind)
    if refusal := backend.refusal(least=spec.least_nodes, most=spec.nodes):
        raise BadParameter(refusal)
    relay = render_relay(
        run_id,
        job=assignment.job,
        image=RELAY_IMAGE,
        bus_name=_BUS,
        bucket=BUCKET,
        region=REGION,
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
