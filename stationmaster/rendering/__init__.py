"""From a run to its Kubernetes objects: pure functions that return plain dicts.

Called by the steps, by `stationmaster render` and by the writer of manifests/examples. Nothing here
talks to a cluster, reads the environment or knows the time: the same run renders to the same
objects, byte for byte.
"""

from stationmaster.rendering.job_spec import JobSpec, job_spec
from stationmaster.rendering.run_objects import render_all

__all__ = ["JobSpec", "job_spec", "render_all"]
