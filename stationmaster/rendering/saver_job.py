"""The Job that saves a run's result, or backs a run up, with its account and rights.

Account and Job are the run's own; the role that says what it may do in the namespace, to read pods
and their logs, is the same for every run of a cluster. It runs `python -m stationmaster.relay.save`
in the relay's image, off the training nodes, and mounts the file system read-only. In AWS, through
Pod Identity, it may write below `runs/RUN/` of one bucket, and delete nothing.

A Job's template cannot be changed: to save again with other facts, delete the Job first.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import (
    SAVER,
    results_account,
    run_job_name,
)
from stationmaster.domain.results import RunFacts
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.metadata import (
    account_subject,
    namespace,
    off_the_training_nodes,
    render_account,
    render_role,
    run_labels,
)
from stationmaster.rendering.run_job import Program, one_cpu, run_job, unexpanded_json

SAVE: Final = "save"
BACKUP: Final = "backup"
CONTAINER: Final = "save"
# A terabyte takes 20 minutes at the 1 GB/s of a system node: a saver that hangs is ended.
DEADLINE_S: Final = 6 * 3600


def render_saving(
    facts: RunFacts,
    *,
    cluster_id: ClusterId,
    image: str,
    bucket: str,
    region: str,
    backup_number: int | None = None,
) -> list[KubernetesObject]:
    """Make all that saving a result needs, the namespace first; `image` is the relay's.

    With `backup_number` the Job is that of a backup of a run that trains.
    """
    run_id = facts.run_id
    program = Program(
        container=CONTAINER,
        image=image,
        command=["python", "-m", "stationmaster.relay.save"],
        variables={
            "STATIONMASTER_ARTIFACTS_BUCKET": bucket,
            "STATIONMASTER_RUN_DIRECTORY": f"{RUNS_DIRECTORY}/{run_id}",
            "STATIONMASTER_RUN_FACTS": unexpanded_json(facts.model_dump_json()),
            "AWS_REGION": region,
        },
        resources=one_cpu("768Mi", most="1Gi"),
        user=65532,
        reads_only=True,
        account=results_account(run_id),
        placement={"affinity": off_the_training_nodes()},
        deadline_s=DEADLINE_S,
    )
    name, labels = run_job_name(run_id, SAVE), run_labels(run_id, "saving")
    if backup_number is not None:
        name, labels = run_job_name(run_id, BACKUP, backup_number), run_labels(run_id, "backup")
    job = run_job(program, name, labels, cluster_id=cluster_id)
    rights = render_saving_rights(results_account(run_id), binding=run_job_name(run_id, SAVE))
    return [namespace(), *rights, job]


def render_saving_rights(account: str = SAVER, *, binding: str = SAVER) -> list[KubernetesObject]:
    """Make the account and rights of a run's savers; of no run where none is named."""
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    ]
    subject = account_subject(account)
    return [render_account(account), *render_role(SAVER, rules, subject, binding=binding)]
