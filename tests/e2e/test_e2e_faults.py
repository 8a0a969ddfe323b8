"""Infrastructure that fails: each run says what failed, tears down and leaves an empty account."""

import pytest
from e2e_world import poll, world

from stationmaster.domain.cluster.events import ClusterRequested
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_network import release_network


@pytest.mark.parametrize(
    ("fault", "command", "limits", "words", "cause", "next_command"),
    [
        (
            "file-system-fails",
            "/train tiny-llama nodes=2",
            {},
            "could not create file system",
            "AWS gave up on the file system",
            "`/train preflight tiny-llama`",
        ),
        (
            "node-group-fails",
            "/train llama2-7b nodes=2",
            {},
            "InsufficientInstanceCapacity",
            "AWS has no free instances of this type",
            "`/train plan llama2-7b instance=TYPE`",
        ),
        (
            "plugin-never-ready",
            "/train tiny-llama nodes=2",
            {"plugin_timeout_s": 4},
            "is not ready after",
            "was not ready in its time",
            "type its command again",
        ),
        (
            "pods-never-start",
            "/train tiny-llama nodes=2",
            {"job_start_timeout_s": 12},
            "is not scheduled",
            "was not ready in its time",
            "type its command again",
        ),
    ],
)
def test_run_when_infrastructure_fails_says_so_and_leaves_nothing(
    fault, command, limits, words, cause, next_command, tmp_path
):
    with world(tmp_path, faults=frozenset({fault}), limits=limits) as faulty:
        run_id = faulty.start(command)
        run = faulty.wait_for_receipt(run_id)

        assert run.phase.value == "failed"
        assert words.lower() in run.reason.lower()
        assert faulty.left(run_id) == []
        card = str(faulty.card(run_id).blocks)
        assert "nothing billable is left" in card
        assert cause in card
        assert next_command in card


def test_run_of_a_gpu_recipe_walks_to_the_gate_and_says_that_pods_cannot_run_here(tmp_path):
    with world(tmp_path) as healthy:
        run_id = healthy.start("/train llama2-7b nodes=2")
        run = healthy.wait_for_receipt(run_id)

        assert run.phase.value == "failed"
        assert "cannot run it" in run.reason
        card = str(healthy.card(run_id).blocks)
        assert "does not have the GPUs that the run asks for" in card
        assert "`/train llama2-7b preset=smoke`" in card
        assert run.phase_names == [
            "requested",
            "provisioning",
            "validating",
            "failed",
        ]
        assert {check.name for check in healthy.cluster(run_id).checks if check.passed} >= {
            "nodes",
            "gpus",
            "efa",
        }
        assert healthy.left(run_id) == []


def test_release_cluster_when_a_node_group_landed_after_its_release_deletes_both(tmp_path):
    with world(tmp_path) as healthy:
        services, run_id = healthy.services, "tiny-llama-0a1b2c3d"
        spec = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="m5.2xlarge")
        services.cluster_states.create(
            ClusterRequested(event_id="r", cluster_id=run_id, at=services.now(), spec=spec)
        )
        group = services.security_groups.ensure(run_id, instance_type="m5.2xlarge")
        services.clusters.ensure(run_id, version="1.35", security_group_id=group.group_id)
        poll(lambda: services.clusters.describe(run_id).status == "ACTIVE")
        services.launch_templates.ensure_system(run_id, security_group_ids=[group.group_id])
        services.node_groups.ensure_system(run_id, instance_type="c5.2xlarge")

        poll(lambda: release_cluster(services, run_id)["ready"])

        assert services.clusters.left(run_id) == services.node_groups.left(run_id) == []
        poll(lambda: release_network(services, run_id)["ready"])
        assert healthy.left(run_id) == []
