"""From a run to its Kubernetes objects: pure functions that return plain dicts.

The same run renders to the same objects, byte for byte.
"""

from stationmaster.rendering.job_spec import JobSpec, job_spec
from stationmaster.rendering.run_objects import render_all

__all__ = ["JobSpec", "job_spec", "render_all"]
