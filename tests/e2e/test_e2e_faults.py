"""Infrastructure that fails: each run says what failed, tears down and leaves an empty account."""

import pytest
from conftest import world


@pytest.mark.parametrize(
    ("fault", "command", "limits", "words"),
    [
        ("file-system-fails", "/train tiny-llama nodes=2", {}, "could not create file system"),
        (
            "node-group-fails",
            "/train llama2-7b nodes=2",
            {},
            "InsufficientInstanceCapacity",
        ),
        (
            "plugin-never-ready",
            "/train tiny-llama nodes=2",
            {"plugin_timeout_s": 4},
            "is not ready after",
        ),
        (
            "pods-never-start",
            "/train tiny-llama nodes=2",
            {"job_start_timeout_s": 4},
            "is not scheduled",
        ),
    ],
)
def test_run_when_infrastructure_fails_says_so_and_leaves_nothing(
    fault, command, limits, words, tmp_path
):
    with world(tmp_path, faults=frozenset({fault}), limits=limits) as faulty:
        run_id = faulty.start(command)
        run = faulty.wait_for_receipt(run_id)

        assert run.phase.value == "failed"
        assert words.lower() in run.reason.lower()
        assert faulty.left(run_id) == []
        assert "nothing billable is left" in str(faulty.card(run_id).blocks)


def test_run_of_a_gpu_recipe_walks_to_submission_and_says_that_pods_cannot_run_here(tmp_path):
    with world(tmp_path) as healthy:
        run_id = healthy.start("/train llama2-7b nodes=2")
        run = healthy.wait_for_receipt(run_id)

        assert run.phase.value == "failed"
        assert "cannot run it" in run.reason
        assert run.phase_names == [
            "requested",
            "provisioning",
            "validating",
            "submitting",
            "failed",
        ]
        assert {check.name for check in run.checks if check.passed} >= {"nodes", "gpus", "efa"}
        assert healthy.left(run_id) == []
