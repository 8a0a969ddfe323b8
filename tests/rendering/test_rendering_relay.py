"""Runs may share a cluster: a relay is its run's own, account and rights are the cluster's."""

from __future__ import annotations

from stationmaster.rendering import pytorch_job
from stationmaster.rendering.relay import render_relay, render_relay_rights


def render(run_id):
    return render_relay(
        run_id,
        job=run_id,
        image="relay:1",
        bus_name="bus",
        bucket="results",
        region="us-west-2",
        backend=pytorch_job,
    )


def test_relay_of_a_run_is_a_deployment_of_its_own_with_the_shared_account():
    runs = ("tiny-llama-aaaaaaaa", "tiny-llama-bbbbbbbb")
    (lease, first), (other_lease, second) = (render(run_id) for run_id in runs)
    (account,) = (
        each for each in render_relay_rights(pytorch_job) if each["kind"] == "ServiceAccount"
    )

    for run_id, relay in zip(runs, (first, second), strict=True):
        assert (relay["kind"], relay["metadata"]["name"]) == ("Deployment", f"{run_id}-relay")
    assert lease["metadata"]["name"] != other_lease["metadata"]["name"]
    for relay in (first, second):
        pod = relay["spec"]["template"]
        assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"]
        assert relay["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    matched = [each["spec"]["selector"]["matchLabels"] for each in (first, second)]
    assert not matched[0].items() <= second["spec"]["template"]["metadata"]["labels"].items()
