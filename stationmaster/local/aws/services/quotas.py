"""Service Quotas: EC2's vCPU quotas and CodeBuild's builds; moto 5.2.5 has none of them.

All have been raised, unless the fault "no-vcpu-quota" makes the account a new one, which has none
for machines with GPUs and for builds on the largest machines.
"""

from __future__ import annotations

from typing import Any, Final

from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.wire import ApiError, NativeService

NO_QUOTA: Final = "no-vcpu-quota"

# Code -> name, default value. Source: Service Quotas, EC2 and CodeBuild, and the EC2 user guide.
_QUOTAS: Final[dict[str, tuple[str, float]]] = {
    "L-1216C47A": ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 5.0),
    "L-417A185B": ("Running On-Demand P instances", 0.0),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 0.0),
    "L-2C3B7624": ("Running On-Demand Trn instances", 0.0),
    "L-34B43A08": ("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 5.0),
    "L-7212CCBC": ("All P4, P3 and P2 Spot Instance Requests", 0.0),
    "L-C4BD4855": ("All P5 Spot Instance Requests", 0.0),
    "L-3819A6DF": ("All G and VT Spot Instance Requests", 0.0),
    "L-6B0D517C": ("All Trn Spot Instance Requests", 0.0),
    "L-4DDC4A99": ("Concurrently running builds for Linux/Large environment", 1.0),
    "L-0397D009": ("Concurrently running builds for Linux/2XLarge environment", 0.0),
}
_BUILDS: Final = ("codebuild", "AWS CodeBuild")
_MACHINES: Final = ("ec2", "Amazon Elastic Compute Cloud (Amazon EC2)")
_GRANTED: Final = 50_000.0


class QuotasService(NativeService):
    """The Service Quotas API."""

    signing_name = "servicequotas"

    def __init__(self, emulation: Emulation) -> None:
        self.emulation = emulation

    def get_service_quota(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the value that applies; one that nobody asked to change has none, as at AWS."""
        code = self._code(params)
        if NO_QUOTA in self.emulation.faults and _QUOTAS[code][1] == 0:
            raise ApiError("NoSuchResourceException", f"no applied value for quota {code}")
        return {"Quota": self._quota(code, _GRANTED)}

    def get_aws_default_service_quota(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return what a new account has."""
        code = self._code(params)
        return {"Quota": self._quota(code, _QUOTAS[code][1])}

    def _code(self, params: dict[str, Any]) -> str:
        code = str(params.get("QuotaCode", ""))
        if code not in _QUOTAS or params.get("ServiceCode") != _service(code)[0]:
            raise ApiError(
                "NoSuchResourceException",
                f"quota {code} of service {params.get('ServiceCode')} does not exist",
            )
        return code

    def _quota(self, code: str, value: float) -> dict[str, Any]:
        region, (service, service_name) = self.emulation.region, _service(code)
        place = f"{region}:{self.emulation.account_id}:{service}/{code}"
        return {
            "ServiceCode": service,
            "ServiceName": service_name,
            "QuotaArn": f"arn:aws:servicequotas:{place}",
            "QuotaCode": code,
            "QuotaName": _QUOTAS[code][0],
            "Value": value,
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }


def _service(code: str) -> tuple[str, str]:
    return _BUILDS if "builds" in _QUOTAS[code][0] else _MACHINES
