"""Lambda function release-job: payload {cluster_id}."""

from lambdas.step import step_handler
from stationmaster.steps.release_job import release_job

handler = step_handler(release_job, "cluster_id")
