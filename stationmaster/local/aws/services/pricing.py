"""The Price List Query API, as far as nodes of SageMaker HyperPod go; moto 5.2.5 has none of it.

Its prices are emulated: a quarter more than EC2's, which is what ml.g5.8xlarge has at AWS.
"""

from __future__ import annotations

import json
from typing import Any, Final

from stationmaster.domain.catalogue.instances import CATALOGUE, HYPERPOD
from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.wire import NativeService, paged

_MORE_THAN_EC2: Final = 1.25


class PricingService(NativeService):
    """The API of prices."""

    signing_name = "pricing"

    def __init__(self, emulation: Emulation) -> None:
        self.emulation = emulation

    def get_products(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return what matches all filters, each as a text of JSON."""
        wanted = {each["Field"]: each["Value"] for each in params.get("Filters", [])}
        found = [
            json.dumps(product)
            for product in self._products()
            if params["ServiceCode"] == "AmazonSageMaker"
            and wanted.items() <= product["product"]["attributes"].items()
        ]
        return {"FormatVersion": "aws_v1", **paged("PriceList", found, params)}

    def _products(self) -> list[dict[str, Any]]:
        return [
            {
                "product": {
                    "attributes": {
                        "component": "Cluster",
                        "instanceType": f"{HYPERPOD}{name}-Cluster",
                        "regionCode": self.emulation.region,
                        "usagetype": f"{kind}Cluster:{HYPERPOD}{name}",
                    }
                },
                "terms": {"OnDemand": {"term": {"priceDimensions": {"price": price}}}},
            }
            for name, instance in CATALOGUE.items()
            if instance.price_per_hour_usd is not None
            for kind, share in (("", 1.0), ("Reserved", 0.5))
            for usd in [instance.price_per_hour_usd * _MORE_THAN_EC2 * share]
            for price in [{"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}}]
        ]
