"""What a node of HyperPod costs an hour, as AWS's price list has it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stationmaster.aws.price_list import PriceList
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.local.aws import LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings


def offer(usagetype: str, *usd: str, unit: str = "Hrs") -> str:
    """One product of the list with a price for each of `usd`."""
    prices = {str(n): {"unit": unit, "pricePerUnit": {"USD": each}} for n, each in enumerate(usd)}
    terms = {"OnDemand": {"SKU.TERM": {"priceDimensions": prices}}} if usd else {}
    return json.dumps({"product": {"attributes": {"usagetype": usagetype}}, "terms": terms})


class Listed:
    """Answers with these products, each on a page of its own."""

    def __init__(self, *offers: str) -> None:
        self.pages = [{"PriceList": [each]} for each in offers]

    def get_paginator(self, _operation: str) -> Listed:
        return self

    def paginate(self, **_: Any) -> list[dict[str, Any]]:
        return self.pages


def test_price_of_a_node_is_read_once_and_lookalikes_are_not_it(
    aws: LocalAws, settings: Settings
) -> None:
    services = Services(settings)
    of_ec2 = get_instance("g5.8xlarge").price_per_hour_usd
    assert of_ec2 is not None

    aws.inject("pricing", "GetProducts", "ThrottlingException", times=10)
    with pytest.raises(TransientError):
        services.price_list.of_hyperpod("g5.8xlarge")
    aws.clear_injected()

    assert services.price_list.of_hyperpod("g5.8xlarge") == pytest.approx(1.25 * of_ec2)
    assert services.price_list.of_hyperpod("g5.none") is None
    aws.inject("pricing", "GetProducts", "InternalErrorException", times=10)
    assert services.price_list.of_hyperpod("g5.8xlarge") == pytest.approx(1.25 * of_ec2)
    aws.clear_injected()


@pytest.mark.parametrize(
    ("offers", "usd"),
    [
        ([offer("USE1-Cluster:ml.g5.8xlarge", "3.06")], 3.06),
        (
            [offer("ReservedCluster:ml.g5.8xlarge", "1"), offer("Cluster:ml.g5.8xlarge", "2")],
            2,
        ),
        ([offer("USE1-Cluster:ml.g5.8xlargeX", "3.06")], None),
        ([offer("USE1-Cluster:ml.g5.8xlarge", "0.0")], None),
        ([offer("USE1-Cluster:ml.g5.8xlarge", "3", unit="GB")], None),
        ([offer("USE1-Cluster:ml.g5.8xlarge")], None),
        ([offer("USE1-Cluster:ml.g5.8xlarge", "3", "4")], None),
        ([], None),
    ],
)
def test_price_is_the_only_one_an_hour_of_that_type(
    settings: Settings, offers: list[str], usd: float | None
) -> None:
    assert PriceList(settings, Listed(*offers)).of_hyperpod("g5.8xlarge") == usd


@pytest.mark.parametrize("said", ["", "[]", "{}", offer("Cluster:ml.g5.8xlarge", "nan"), "\ud800"])
def test_answer_that_cannot_be_read_is_one_sentence(settings: Settings, said: str) -> None:
    with pytest.raises(PermanentError, match=r"reading the price of ml\.g5\.8xlarge: "):
        PriceList(settings, Listed(said)).of_hyperpod("g5.8xlarge")
