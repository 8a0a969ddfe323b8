"""queue=, priority_class=, host_network= and nccl_debug=: read, refused, typed again, explained."""

import pytest

from stationmaster.domain.commands.grammar import parse_request
from stationmaster.domain.keys.job_options import JobOptions
from tests.support.typed import refused, start_of


def test_job_options_are_read_explained_and_can_be_typed_again():
    start = start_of(
        "tiny-llama on=team-a queue=night priority_class=high host_network=TRUE NCCL_DEBUG=info"
    )

    assert start.options.cluster_id == "team-a-0a1b2c3d"
    assert start.options.job_options == JobOptions(
        queue="night", priority_class="high", host_network=True, nccl_debug="INFO"
    )
    assert start.words == (
        "tiny-llama on=team-a queue=night priority_class=high host_network=true nccl_debug=INFO"
    )
    assert start_of(start.words) == start
    for words in (
        "queue=night: the job waits, suspended",
        "priority_class=high: its pods may evict",
        "reach the nodes' AWS credentials",
        "nccl_debug=INFO: NCCL writes all",
    ):
        assert any(words in warning for warning in start.plan.warnings)
    assert parse_request(["tiny-llama", "queue=night"]).options.job_options.queue == "night"
    assert start_of("tiny-llama host_network=false").options.job_options == JobOptions()


@pytest.mark.parametrize(
    ("words", "said", "suggestion"),
    [
        ("queue=night", "queue=night needs on=CLUSTER or cluster=eks:NAME", "plan tiny-llama"),
        ("priority_class=high", "for the run has no such class", "plan tiny-llama"),
        (
            "on=team-a queue=Night_1",
            "expected the name of a queue of Kueue",
            "plan tiny-llama on=team-a",
        ),
        ("on=team-a queue=-a", "a letter or digit first", "plan tiny-llama on=team-a"),
        ("host_network=yes", "expected true or false", "plan tiny-llama"),
        ("nccl_debug=trace", "expected WARN or INFO", "plan tiny-llama"),
        ("hostNetwork=true", "did you mean host_network", "tiny-llama host_network=true"),
        ("on=team-a queue_name=a", "did you mean queue", "tiny-llama on=team-a queue=a"),
        (
            "on=team-a priorityClass=high",
            "did you mean priority_class",
            "tiny-llama on=team-a priority_class=high",
        ),
        (
            "host_network=true image=registry.example.com/team/x:1",
            "host_network=true and image= do not go together",
            "plan tiny-llama host_network=true",
        ),
        ("command=true host_network=true", "fetch the node's AWS credentials", None),
    ],
)
def test_job_option_that_is_not_accepted_is_refused_with_what_is(
    words: str, said: str, suggestion: str | None
):
    error = refused(f"tiny-llama {words}")

    assert said in str(error)
    if suggestion is not None:
        assert error.suggestion == f"/train {suggestion}"
