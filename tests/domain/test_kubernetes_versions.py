"""Which Kubernetes version a new cluster gets of those that EKS offers."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
import yaml

from stationmaster.domain.catalogue.kubernetes_versions import (
    CHECKED,
    OfferedVersion,
    Support,
    choose_version,
    unfit,
)
from stationmaster.domain.errors import PermanentError

STANDARD, EXTENDED = Support.STANDARD, Support.EXTENDED
MANIFESTS = Path(__file__).parent.parent.parent / "manifests"


def offer(version: str, support: Support = STANDARD, *, default: bool = False) -> OfferedVersion:
    return OfferedVersion(version, support, default, date(2026, 7, 29))


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([offer("1.34"), offer("1.35", default=True), offer("1.36")], "1.35"),
        ([offer("1.34"), offer("1.35"), offer("1.36")], "1.36"),
        ([offer("1.35"), offer("1.37", default=True)], "1.35"),
        ([offer("1.35", EXTENDED, default=True), offer("1.36")], "1.36"),
        ([offer("1.34", EXTENDED), offer("1.36", EXTENDED), offer("1.37")], "1.36"),
        ([offer("1.9"), offer("1.32", EXTENDED)], "1.32"),
    ],
)
def test_default_comes_first_then_the_newest_of_what_was_checked(offered, chosen):
    assert choose_version(offered).version == chosen
    assert choose_version(reversed(offered)).version == chosen


def test_version_that_is_set_is_taken_whatever_else_is_offered():
    offered = [offer("1.33", EXTENDED), offer("1.35", default=True), offer("1.37")]

    assert choose_version(offered, wanted="1.33").version == "1.33"
    assert choose_version(offered, wanted="1.37").version == "1.37"


def test_version_that_eks_does_not_offer_is_refused_with_those_it_does():
    with pytest.raises(PermanentError, match=r"no Kubernetes 1\.30, only 1\.34, 1\.35; set"):
        choose_version([offer("1.35"), offer("1.34")], wanted="1.30")


def test_nothing_that_was_checked_is_refused_with_what_was():
    with pytest.raises(PermanentError, match=r"offers Kubernetes 1\.99, .* with 1\.31 to 1\.36"):
        choose_version([offer("1.99")])


def test_extended_support_costs_six_times_as_much_and_is_said():
    chosen = offer("1.33", EXTENDED)

    assert (chosen.usd_per_hour, offer("1.33").usd_per_hour) == (0.60, 0.10)
    assert unfit(chosen) == (
        "Kubernetes 1.33 is in extended support since 29 July 2026: EKS charges $0.60 an hour for "
        "each control plane, $0.10 in standard support"
    )


def test_version_that_is_set_and_was_not_checked_is_said():
    assert "checked with 1.31 to 1.36" in unfit(offer("1.37"), wanted="1.37")
    assert unfit(offer("1.36"), wanted="1.36") == ""


@pytest.mark.parametrize(
    ("plugin", "tag"),
    [
        ("training-operator", "v1-93c5489"),
        ("nvidia-device-plugin", "v0.20.0"),
        ("efa-device-plugin", "v0.5.20"),
        ("mpi-operator", "0.8.0"),
    ],
)
def test_table_is_read_again_when_a_plugin_gets_another_version(plugin, tag):
    """Another tag: find out what it supports, then change CHECKED and this."""
    images = [
        container["image"]
        for path in (MANIFESTS / plugin).glob("*.yaml")
        for item in yaml.safe_load_all(path.read_text())
        if item["kind"] in ("Deployment", "DaemonSet")
        for container in item["spec"]["template"]["spec"]["containers"]
    ]

    assert plugin in CHECKED
    assert [image.rpartition(":")[2] for image in images] == [tag]
