"""Infrastructure that fails: each run says what failed, tears down and leaves an empty account."""

from e2e_world import world


def test_run_when_aws_has_no_nodes_says_so_and_leaves_nothing(tmp_path):
    with world(tmp_path, faults=frozenset({"node-group-fails"})) as faulty:
        run_id = faulty.start("/train llama2-7b nodes=2")
        run = faulty.wait_for_receipt(run_id)

        assert run.phase.value == "failed"
        assert "InsufficientInstanceCapacity" in run.reason
        assert faulty.left(run_id) == []
        card = str(faulty.card(run_id).blocks)
        assert "nothing billable is left" in card
        assert "AWS has no free instances of this type" in card
        assert "`/train plan llama2-7b instance=TYPE`" in card


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
