"""Botocore's models of the services, read once by the whole process, and the clients' classes.

Each session of boto3 has a loader that lists the folders of all services and parses the list of
endpoints and each model that it meets. All only read, so importing this module, before moto, lets
all sessions of the process share one loader for each path on which models are looked for.

A client is made by first making its class, with a method for each operation: 700 for EC2, a third
of a second. So a service's class is made once, and what of its model is looked up is looked up
once. It is the same in all sessions of boto3, which adds the same methods to each; botocore's own
sessions would lack those, and nothing here makes a client with one that needs them.
"""

from __future__ import annotations

import functools
from typing import Any

import botocore.session
from botocore.client import ClientCreator

botocore.session.create_loader = functools.cache(botocore.session.create_loader)

_creator: Any = ClientCreator  # its stubs have no private methods
_make_class = _creator._create_client_class
_read_model = _creator._load_service_model
_classes: dict[str, Any] = {}
_models: dict[str, Any] = {}


def _class_of(self: Any, service_name: str, service_model: Any) -> Any:
    if service_name not in _classes:
        _classes[service_name] = _make_class(self, service_name, service_model)
    return _classes[service_name]


def _model_of(self: Any, service_name: str, api_version: str | None = None) -> Any:
    if api_version is not None:
        return _read_model(self, service_name, api_version)
    if service_name not in _models:
        _models[service_name] = _read_model(self, service_name)
    return _models[service_name]


_creator._create_client_class = _class_of
_creator._load_service_model = _model_of
