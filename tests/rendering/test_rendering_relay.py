"""Runs may share a cluster: what belongs to one run is named after it, the rest is shared."""

from __future__ import annotations

from stationmaster.rendering.relay import render_relay


def render(run_id):
    return render_relay(run_id, job=run_id, image="relay:1", bus_name="bus", region="us-west-2")


def test_relays_of_two_runs_have_their_own_deployments_and_the_same_account_and_rights():
    first, second = render("tiny-llama-aaaaaaaa"), render("tiny-llama-bbbbbbbb")

    differing = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    assert [(a["kind"], a["metadata"]["name"], b["metadata"]["name"]) for a, b in differing] == [
        ("Deployment", "tiny-llama-aaaaaaaa-relay", "tiny-llama-bbbbbbbb-relay")
    ]
