"""What a person types about runs that were there before: rerun, keep, compare, diff, cost."""

from __future__ import annotations

import pytest

from stationmaster.domain.commands.resuming import asked_run
from stationmaster.domain.errors import RunNotFound
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.keys.questions import AskedRun
from tests.support.factories import make_request
from tests.support.typed import RUN, finding, kept, refused, start_of


def asked(**request: object):
    """Knows one run, which was asked for like this."""
    run = asked_run(RUN, make_request(**request))

    def find(label: str) -> AskedRun:
        if label not in ("last", RUN):
            raise RunNotFound(f'no run is called "{label}" in this channel')
        return run

    return find


@pytest.mark.parametrize(
    ("request_of", "typed", "words"),
    [
        ({}, "", "tiny-llama nodes=2 instance=m5.2xlarge"),
        (
            {"overrides": {"steps": "60", "seed": "7"}, "name": "books", "keep_s": 3600},
            "seed=8 nodes=1",
            "tiny-llama nodes=1 instance=m5.2xlarge keep=1h steps=60 seed=8",
        ),
        ({"overrides": {"steps": "60"}}, "preset=smoke", "tiny-llama preset=smoke steps=60"),
        ({"min_nodes": 1}, "name=again", "tiny-llama nodes=1:2 instance=m5.2xlarge name=again"),
        (
            {"cluster_id": ClusterId("team-a")},
            "",
            "tiny-llama nodes=2 instance=m5.2xlarge on=team-a",
        ),
        ({"nodes": 8, "keep_s": 60}, "on=team-a", "tiny-llama nodes=4 on=team-a keep=1m"),
    ],
)
def test_rerun_is_a_start_of_what_the_run_was_asked_for_with_typed_keys_over_it(
    request_of, typed, words
):
    cluster = kept()
    start = start_of(
        f"rerun {RUN} {typed}", find_asked=asked(**request_of), find_cluster=finding(cluster)
    )

    assert sorted(start.words.split()) == sorted(words.split())
    assert start.options.resume_from is None


def test_rerun_has_the_file_system_that_was_typed_and_not_the_one_that_was_planned():
    brought = {"overrides": {"dataset": "s3://bucket/text"}, "file_system_gib": 4800}
    typed = asked(**brought, command="/train tiny-llama file_system=4800")

    assert "file_system" not in asked(**brought)("last").words
    assert typed("last").words["file_system"] == "4800"


@pytest.mark.parametrize(
    ("text", "said", "suggestion"),
    [
        ("rerun", "/train rerun needs a run first", "/train list"),
        ("rerun lr=1", "/train rerun needs a run first", "/train list"),
        ("rerun other", 'no run is called "other"', None),
        (f"rerun {RUN} nodes=2 nodes=3", "nodes is given twice", None),
        (f"rerun {RUN} steps=+5", "add resume_from=RUN", "/train plan tiny-llama"),
        (f"keep {RUN} 4h", "did you mean /train cluster extend", f"/train cluster extend {RUN} 4h"),
        ("keep team-a", "did you mean /train cluster extend", "/train cluster extend team-a"),
        ("keep", "did you mean /train cluster extend", "/train cluster list"),
        ("price tiny-llama nodes=2", "did you mean /train cost", "/train plan tiny-llama nodes=2"),
        ("cost tinyllama nodes=0", 'a month such as 2026-11, got "tinyllama', "/train plan tiny"),
        ("cost run-1", 'got "run-1"', "/train status run-1"),
        ("cost 2026-13", 'got "2026-13"', "/train status 2026-13"),
        ("cost 2026-11 2026-12", 'got "2026-11 2026-12"', "/train status 2026-11"),
        ("compare a", 'takes two to 6 runs, by id or name, got "a"', "/train list"),
        ("compare a b a", 'got "a" twice', "/train list"),
        ("compare a b c d e f g", 'got "a b c d e f g"', "/train list"),
        ("diff a b c", 'takes two runs, by id or name, got "a b c"', "/train list"),
        (f"clone {RUN}", "did you mean /train rerun", f"/train rerun {RUN}"),
        ("clone other", "did you mean /train rerun", "/train list"),
        (f"rerun {RUN} --seed 8", 'write seed=8 for "--seed 8"', f"/train rerun {RUN} seed=8"),
        (f"teardown {RUN}", "did you mean /train stop", f"/train stop {RUN}"),
    ],
)
def test_words_about_a_run_that_are_not_accepted_say_what_is(text, said, suggestion):
    error = refused(text, find_asked=asked())

    assert said in str(error)
    assert (error.suggestion or "").startswith(suggestion or "")


def test_keep_of_a_run_on_a_kept_cluster_extends_that_cluster():
    find = asked(cluster_id=ClusterId("team-a-0a1b2c3d"))

    assert refused(f"keep {RUN} 1h", find_asked=find).suggestion == (
        "/train cluster extend team-a-0a1b2c3d 1h"
    )
