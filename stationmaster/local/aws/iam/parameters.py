"""The parameters of a request, whatever protocol its service speaks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from botocore.exceptions import UnknownServiceError

from stationmaster.local.aws.services.wire import ApiRequest, rest_parameters, service_model

_TAG = re.compile(r"TagSpecification\.(\d+)\.Tag\.(\d+)\.(Key|Value)")


def parameters_of(service: str, request: ApiRequest) -> dict[str, Any]:
    """Return what a request asks for, by the API's own names; flat where the protocol is."""
    try:
        protocol = str(service_model(service).metadata["protocol"])
    except UnknownServiceError:
        return {}
    if protocol == "rest-xml":
        return dict(rest_parameters(service, request))
    if protocol in ("ec2", "query") and "X-Amz-Target" not in request.headers:
        return _first(request.body.decode("utf-8", errors="replace") or request.query)
    try:
        stated = json.loads(request.body) if request.body else {}
    except ValueError:
        return {}
    body = stated if isinstance(stated, dict) else {}
    if "X-Amz-Target" in request.headers:
        return body
    return {**body, **rest_parameters(service, request)}


def request_tags(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags that a request puts on what it creates, in each of AWS's three notations."""
    stated = parameters.get("tags") or parameters.get("Tags") or {}
    if isinstance(stated, Mapping):
        tags = {str(key): str(value) for key, value in stated.items()}
    else:
        tags = {tag["Key"]: tag["Value"] for tag in stated}
    flat: dict[tuple[str, str], dict[str, str]] = {}
    for name, value in parameters.items():
        if match := _TAG.fullmatch(name):
            flat.setdefault((match[1], match[2]), {})[match[3]] = str(value)
    return tags | {tag["Key"]: tag.get("Value", "") for tag in flat.values() if "Key" in tag}


def _first(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
