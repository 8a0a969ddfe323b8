"""What SageMaker asks for an hour of a HyperPod node, by AWS's Price List Query API.

Source: the price list of service AmazonSageMaker, whose attributes are component, instanceType,
regionCode and usagetype. No account has been asked.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from stationmaster.aws.calls import Adapter, listed
from stationmaster.domain.catalogue.instances import HYPERPOD
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.outside import first_problem

PRICE_ACTIONS: Final = ("pricing:GetProducts",)

_Usd = Annotated[float, Field(ge=0, le=100_000)]


class _Given(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class _Price(_Given):
    unit: str
    price_per_unit: dict[str, _Usd]


class _Term(_Given):
    price_dimensions: dict[str, _Price]


class _Terms(_Given):
    on_demand: dict[str, _Term] = Field(alias="OnDemand", default={})


class _Attributes(_Given):
    usagetype: str


class _Product(_Given):
    attributes: _Attributes


class _Offer(_Given):
    product: _Product
    terms: _Terms


class PriceList(Adapter):
    """Reads prices; each is asked for once while a function is warm."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._known: dict[str, float | None] = {}

    def of_hyperpod(self, instance_type: str) -> float | None:
        """Return the USD an hour of one node on demand, in the deployment's region.

        None where the list has no price, or several.

        Args:
            instance_type: as EC2 calls it, without "ml.".

        Raises:
            TransientError: AWS does not answer.
            PermanentError: it refuses, or its answer cannot be read.
        """
        if instance_type not in self._known:
            self._known[instance_type] = self._ask(f"{HYPERPOD}{instance_type}")
        return self._known[instance_type]

    def _ask(self, name: str) -> float | None:
        wanted = {
            "component": "Cluster",
            "instanceType": f"{name}-Cluster",
            "regionCode": self._settings.region,
        }
        what = f"reading the price of {name}"
        filters = [
            {"Type": "TERM_MATCH", "Field": field, "Value": value}
            for field, value in wanted.items()
        ]
        asked = {"ServiceCode": "AmazonSageMaker", "Filters": filters}
        found = listed(self._client, "get_products", "PriceList", what, **asked)
        try:
            offers = [_Offer.model_validate_json(each) for each in found]
        except ValidationError as error:
            raise PermanentError(f"{what}: {first_problem(error)}") from None
        # Spot instances and those of a training plan have usage types of their own.
        usage = re.compile(rf"([A-Z0-9]+-)?Cluster:{re.escape(name)}")
        prices = {
            price.price_per_unit["USD"]
            for offer in offers
            if usage.fullmatch(offer.product.attributes.usagetype)
            for term in offer.terms.on_demand.values()
            for price in term.price_dimensions.values()
            if price.unit == "Hrs" and price.price_per_unit.get("USD", 0) > 0
        }
        return prices.pop() if len(prices) == 1 else None
