"""Secrets in clear, and images: their versions and regions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from stationmaster.diagnosis.lint.containers import Container
from stationmaster.diagnosis.lint.findings import Found, found
from stationmaster.diagnosis.lint.manifest import Manifest
from stationmaster.diagnosis.lint.placeholders import is_unresolved, placeholders
from stationmaster.diagnosis.lint.versions import defects_of, split_image

_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY(?:_ID)?|PRIVATE_KEY|CREDENTIALS)$"
)
# Hugging Face, AWS, Weights & Biases, GitHub, Slack; private keys.
_SECRET_TEXT: Final = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bA[KS]IA[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{30,}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
)
_SECRET_FLAG: Final = re.compile(
    r"--(?:[A-Za-z]+[-_])*(?:token|password|api[-_]key|secret)(?:=(?P<value>.*))?$", re.DOTALL
)
_LOGIN: Final = re.compile(r"(?:login|auth)\b[^\n;&|]{0,200}?--token[ =](?P<value>[^\s;&|]+)")
_FIX: Final = (
    "put it into a Secret, and read it with valueFrom: {secretKeyRef: {name: NAME, key: KEY}}; "
    "a token that was written down here should be replaced"
)


def check(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        for container in pod.containers:
            yield from _variables(container)
            yield from _words(container)
            yield from _image(container)


def _variables(container: Container) -> Iterator[Found]:
    for variable in container.env:
        value = variable.value or ""
        looks = _SECRET_TEXT.search(value) is not None
        named = _SECRET_NAME.search(variable.name.upper()) is not None
        if looks or (named and value and not value.startswith(("/", "$("))):
            later = ", also when envsubst has put it there" if is_unresolved(value) else ""
            message = (
                f"{variable.name} has its value in the manifest: everybody who may read the job "
                f"reads it{later}"
            )
            yield found("secret-in-clear", (*variable.path, "value"), message, fix=_FIX)


def _words(container: Container) -> Iterator[Found]:
    words = container.arguments
    for place, (path, word) in enumerate(words):
        flag = _SECRET_FLAG.match(word)
        value = ""
        if flag is not None:
            following = words[place + 1][1] if place + 1 < len(words) else ""
            value = flag["value"] if flag["value"] is not None else following
        login = _LOGIN.search(word)
        if login is not None:
            value = login["value"]
        if _SECRET_TEXT.search(word) or (value and _is_clear(value, container)):
            message = "a token is part of the command: it shows in the pod, in ps and in logs"
            yield found("secret-in-clear", path, message, fix=_FIX)


def _is_clear(value: str, container: Container) -> bool:
    """Say whether a flag is given the secret itself, and no file or variable."""
    value = value.strip("\"'")
    if not value or value.startswith(("-", "/", "$(")):
        return False
    return not any(
        each.text == value and each.name in container.names for each in placeholders(value)
    )


def _image(container: Container) -> Iterator[Found]:
    image, path = container.image, (*container.path, "image")
    if not image or is_unresolved(image):
        return
    _, tag = split_image(image)
    if "@" not in image and tag in ("", "latest"):
        what = "has no version" if not tag else "has the tag latest"
        yield found(
            "image-tag",
            path,
            f'image "{image}" {what}: nodes that start at different times may run different ones, '
            "and a run cannot be repeated",
            fix="name a version, or a digest (@sha256:...)",
        )
    for version, defect in defects_of(image):
        message = f"{defect.name} {version} {defect.what} ({defect.source})"
        yield found("image-version", path, message, fix=defect.remedy)
