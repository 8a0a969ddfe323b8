"""Names, labels and keys: what they may consist of. Pure.

Source: apimachinery, util/validation/validation.go; the sentences are its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stationmaster.domain.catalogue.pytorch_job_rules import DNS_1035_FORM, DNS_1035_MESSAGE
from stationmaster.local.cluster.api.validation.problems import Problems

_LABEL_FORM = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_FORM = f"{_LABEL_FORM}(\\.{_LABEL_FORM})*"
_NAME_PART_FORM = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE_FORM = f"({_NAME_PART_FORM})?"
_KEY_FORM = "[-._a-zA-Z0-9]+"
_LABEL, _SUBDOMAIN, _DNS_1035, _NAME_PART, _VALUE, _KEY = (
    re.compile(rf"{form}\Z")
    for form in (
        _LABEL_FORM,
        _SUBDOMAIN_FORM,
        DNS_1035_FORM,
        _NAME_PART_FORM,
        _VALUE_FORM,
        _KEY_FORM,
    )
)

_LABEL_MESSAGE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    f"for validation is '{_LABEL_FORM}')"
)
_SUBDOMAIN_MESSAGE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    f"for validation is '{_SUBDOMAIN_FORM}')"
)
_NAME_PART_MESSAGE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_NAME_PART_FORM}')"
)
_VALUE_MESSAGE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
    f"'12345', regex used for validation is '{_VALUE_FORM}')"
)
_KEY_MESSAGE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name', "
    f" or 'KEY_NAME',  or 'key-name', regex used for validation is '{_KEY_FORM}')"
)


def _longer(most: int) -> str:
    return f"must be no more than {most} bytes"


def _problems(text: str, most: int, form: re.Pattern[str], message: str) -> list[str]:
    """Check a text against a greatest length in bytes and a form that `message` describes."""
    found = [] if len(text) <= most else [_longer(most)]
    return found if form.match(text) else [*found, message]


def label_problems(text: str) -> list[str]:
    """Check against an RFC 1123 label: names of containers, volumes, namespaces."""
    return _problems(text, 63, _LABEL, _LABEL_MESSAGE)


def subdomain_problems(text: str) -> list[str]:
    """Check against an RFC 1123 subdomain: the names of most objects."""
    return _problems(text, 253, _SUBDOMAIN, _SUBDOMAIN_MESSAGE)


def dns_1035_problems(text: str) -> list[str]:
    return _problems(text, 63, _DNS_1035, DNS_1035_MESSAGE)


def qualified_problems(text: str) -> list[str]:
    """Check against a qualified name: keys of labels and annotations, resources."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return [
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
            f"'123-abc', regex used for validation is '{_NAME_PART_FORM}') with an optional DNS "
            "subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    found = []
    if slash and not prefix:
        found.append("prefix part must be non-empty")
    elif slash:
        found += [f"prefix part {each}" for each in subdomain_problems(prefix)]
    if not name:
        found.append("name part must be non-empty")
    elif len(name) > 63:
        found.append(f"name part {_longer(63)}")
    return found if _NAME_PART.match(name) else [*found, _NAME_PART_MESSAGE]


def key_problems(text: str) -> list[str]:
    """Check a key of a ConfigMap or Secret."""
    return _problems(text, 253, _KEY, _KEY_MESSAGE)


def check_labels(labels: Mapping[str, Any] | None, path: str, problems: Problems) -> None:
    """Check keys and values of labels."""
    for key, value in (labels or {}).items():
        for message in qualified_problems(key):
            problems.invalid(path, key, message)
        for message in _problems(str(value), 63, _VALUE, _VALUE_MESSAGE):
            problems.invalid(path, value, message)


def check_metadata(metadata: Mapping[str, Any], path: str, problems: Problems) -> None:
    """Check labels and annotations."""
    check_labels(metadata.get("labels"), f"{path}.labels", problems)
    for key in metadata.get("annotations") or {}:
        for message in qualified_problems(key.lower()):
            problems.invalid(f"{path}.annotations", key, message)
