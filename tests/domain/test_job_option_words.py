"""queue=, priority_class=, host_network= and nccl_debug=: read, refused, typed again, explained."""

import pytest

from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.commands.grammar import parse_command, parse_request
from stationmaster.domain.commands.own_code import OwnCodeRules
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.errors import UserError
from stationmaster.domain.run.request import JobOptions
from tests.support.factories import CLUSTER_ID, make_cluster

RULES = OwnCodeRules(channel_id="C1", registries=("registry.example.com",), channels=("C1",))


def start_of(text: str) -> StartRun:
    command = parse_command(
        text, find_cluster=lambda _: make_cluster(ClusterPhase.READY), own_code=RULES
    )
    assert isinstance(command, StartRun)
    return command


def test_job_options_are_read_explained_and_can_be_typed_again():
    start = start_of(
        "tiny-llama on=lab queue=night priority_class=high host_network=TRUE NCCL_DEBUG=info"
    )

    assert start.cluster_id == CLUSTER_ID
    assert start.job_options == JobOptions(
        queue="night", priority_class="high", host_network=True, nccl_debug="INFO"
    )
    assert start.words == (
        "tiny-llama on=lab queue=night priority_class=high host_network=true nccl_debug=INFO"
    )
    assert start_of(start.words) == start
    for words in (
        "queue=night: the job waits, suspended",
        "priority_class=high: its pods may evict",
        "reach the nodes' AWS credentials",
        "nccl_debug=INFO: NCCL writes all",
    ):
        assert any(words in warning for warning in start.plan.warnings)
    assert parse_request(["tiny-llama", "queue=night"]).job_options.queue == "night"
    assert start_of("tiny-llama host_network=false").job_options == JobOptions()


@pytest.mark.parametrize(
    ("words", "said", "suggestion"),
    [
        ("queue=night", "queue=night needs on=CLUSTER or cluster=eks:NAME", "plan tiny-llama"),
        ("priority_class=high", "for the run has no such class", "plan tiny-llama"),
        ("on=lab queue=Night_1", "expected the name of a queue of Kueue", "plan tiny-llama on=lab"),
        ("on=lab queue=-a", "a letter or digit first", "plan tiny-llama on=lab"),
        ("host_network=yes", "expected true or false", "plan tiny-llama"),
        ("nccl_debug=trace", "expected WARN or INFO", "plan tiny-llama"),
        ("hostNetwork=true", "did you mean host_network", "tiny-llama host_network=true"),
        ("on=lab queue_name=a", "did you mean queue", "tiny-llama on=lab queue=a"),
        (
            "on=lab priorityClass=high",
            "did you mean priority_class",
            "tiny-llama on=lab priority_class=high",
        ),
        (
            "host_network=true image=registry.example.com/x:1",
            "host_network=true and image= do not go together",
            "plan tiny-llama host_network=true",
        ),
        ("command=true host_network=true", "fetch the node's AWS credentials", None),
    ],
)
def test_job_option_that_is_not_accepted_is_refused_with_what_is(
    words: str, said: str, suggestion: str | None
):
    with pytest.raises(UserError, match=said) as refused:
        start_of(f"tiny-llama {words}")

    if suggestion is not None:
        assert refused.value.suggestion == f"/train {suggestion}"
