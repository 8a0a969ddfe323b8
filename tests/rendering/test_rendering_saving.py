"""The Job that saves a result: what hurts when it is wrong."""

from __future__ import annotations

import json
from typing import Any

from stationmaster.domain.results import RunFacts
from stationmaster.rendering.saver_job import render_saving

RUN_ID = "tiny-llama-0123abcd"


def render(run_id: str = RUN_ID, **facts: Any) -> dict[str, Any]:
    objects = render_saving(
        RunFacts(
            run_id=run_id,
            recipe="tiny-llama",
            nodes=2,
            instance_type="c5.2xlarge",
            outcome="succeeded",
            **facts,
        ),
        cluster_id="warm-cluster",
        image="relay:1",
        bucket="artifacts",
        region="us-west-2",
    )
    return {item["kind"]: item for item in objects}


def pod(objects: dict[str, Any]) -> Any:
    return objects["Job"]["spec"]["template"]["spec"]


def test_savers_of_two_runs_have_accounts_of_their_own_and_the_same_rights() -> None:
    first, second = render(), render("tiny-llama-4567cdef")

    same = [kind for kind in first if first[kind] == second[kind]]
    assert same == ["Namespace", "Role"]
    assert first["Job"]["metadata"]["name"] == f"{RUN_ID}-save"
    assert first["RoleBinding"]["subjects"][0]["name"] == pod(first)["serviceAccountName"]
    # The AWS role of the account reaches what lies under its name: that of the run.
    assert pod(first)["serviceAccountName"] == RUN_ID
    assert first["ServiceAccount"]["metadata"]["name"] == RUN_ID


def test_saver_may_read_pods_and_logs_and_nothing_else() -> None:
    rules = render()["Role"]["rules"]

    granted = {(rule["resources"][0], *rule["verbs"]) for rule in rules}
    assert granted == {("pods", "list"), ("pods/log", "get")}


def test_saver_mounts_the_clusters_file_system_read_only() -> None:
    spec = pod(render())

    (mount,) = spec["containers"][0]["volumeMounts"]
    (volume,) = spec["volumes"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/fsx", True)
    assert volume["persistentVolumeClaim"]["claimName"] == "warm-cluster-fsx"
    assert mount["name"] == volume["name"]


def test_saver_stays_off_the_training_nodes() -> None:
    spec = pod(render())

    assert "tolerations" not in spec
    (preferred,) = spec["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert preferred["preference"]["matchExpressions"][0]["values"] == ["training"]


def test_job_is_not_started_again_after_a_refusal_and_stays_readable() -> None:
    spec = render()["Job"]["spec"]

    (rule,) = spec["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2, 3])
    assert rule["onExitCodes"]["containerName"] == pod(render())["containers"][0]["name"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # which the policy demands
    assert "ttlSecondsAfterFinished" not in spec
    assert spec["backoffLimit"] > 0
    assert spec["activeDeadlineSeconds"] > 0


def test_text_of_a_person_in_the_facts_is_not_expanded_by_the_kubelet() -> None:
    (container,) = pod(render(overrides={"dataset": "$(AWS_REGION)"}))["containers"]

    variables = {item["name"]: item["value"] for item in container["env"]}
    said = variables["STATIONMASTER_RUN_FACTS"]
    assert "$" not in said
    assert json.loads(said)["overrides"] == {"dataset": "$(AWS_REGION)"}
    assert variables["STATIONMASTER_RUN_DIRECTORY"] == f"/fsx/runs/{RUN_ID}"
