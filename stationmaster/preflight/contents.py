"""What has to be there beside machines: images, models, buckets, secrets."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.account import Account, read_ecr_image
from stationmaster.domain.errors import (
    BadParameter,
    NotPossibleNow,
    PermanentError,
    TransientError,
)
from stationmaster.domain.images import copy_of
from stationmaster.domain.sizes import size_text
from stationmaster.preflight.findings import Check, Finding, absent, present
from stationmaster.preflight.subject import DEPLOYMENT, Subject
from stationmaster.rendering.rendezvous import IMAGE as ETCD_IMAGE
from stationmaster.services import Services

_IMAGES: Final = "images"
_MODELS: Final = "model-access"
_ARTIFACTS: Final = "artifacts-bucket"
_DATA: Final = "data-bucket"
_SECRETS: Final = "secrets"


def _look_for_images(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding for each image that a start pulls; only ECR's can be asked."""
    settings = services.settings
    images = {"relay": settings.relay_image}
    if settings.image_copies:  # all are copied before anything is built
        images["etcd"] = copy_of(ETCD_IMAGE, settings.image_copies)
    if subject.trains:
        own = settings.image_of(subject.framework, on_gpus=subject.needs_cuda)
        images["training"] = subject.image or own
    return [found for each in images.items() for found in _judge_image(account, *each)]


def _judge_image(account: Account, what: str, image: str) -> list[Finding]:
    found = read_ecr_image(image)
    if found is None or found.region != account.region:
        return present(
            _IMAGES,
            f"whether the {what} image {image} exists is not asked: its registry is not "
            f"ECR in {account.region}",
        )
    if account.has_image(found):
        return present(_IMAGES, f"the {what} image {image} is there")
    return absent(
        _IMAGES,
        f"the {what} image {image} is not in its registry",
        "build and push it with container/build.sh, see docs/deploy.md; or name one that is there",
    )


def _look_at_models(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding for each repository: many on the hub are gated by a licence."""
    found: list[Finding] = []
    for repository in subject.repositories:
        try:
            services.hub.check_readable(repository)
        except BadParameter as error:
            found += absent(
                _MODELS,
                str(error),
                "the token of the pods is the field token of the deployment's Hugging Face "
                "secret, see docs/deploy.md",
            )
        else:
            found += present(_MODELS, f"{repository} can be read from the Hugging Face hub")
    return found


def _look_at_artifacts(services: Services, account: Account, subject: Subject) -> list[Finding]:
    bucket = services.settings.artifacts_bucket
    problem = account.bucket_problem(bucket)
    if not problem:
        return present(_ARTIFACTS, f"bucket {bucket} is there")
    return absent(
        _ARTIFACTS,
        f"the artifacts bucket {bucket} {problem}, and results would have no place",
        "deploy the data stack again, and let nothing else change its bucket",
    )


def _look_at_data(services: Services, account: Account, subject: Subject) -> list[Finding]:
    assert subject.dataset is not None
    try:
        listing = services.datasets.measure(subject.dataset, subject.task)
    except NotPossibleNow as error:
        if isinstance(error.__cause__, TransientError):
            raise error.__cause__ from error  # S3 did not answer, which says nothing of the data
        # The sentence has its remedy.
        return absent(_DATA, str(error))
    least = "" if listing.is_complete else "at least "
    return present(_DATA, f"{subject.dataset.uri} holds {least}{size_text(listing.num_bytes)}")


def _look_at_secrets(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding for each secret; Slack's is asked for with the deployment only."""
    settings = services.settings
    found: list[Finding] = []
    if settings.slack_secret_id and subject == DEPLOYMENT:
        try:
            services.secrets.slack()
        except PermanentError as error:
            found += _wrong_secret("Slack", error)
        else:
            found += present(_SECRETS, "the Slack secret is filled in")
    if settings.hugging_face_secret_id:
        try:
            token = services.secrets.hugging_face_token()
        except PermanentError as error:
            return found + _wrong_secret("Hugging Face", error)
        said = "no token, so gated models cannot be read" if token is None else "a token"
        found += present(_SECRETS, f"the Hugging Face secret has {said}")
    return found


def _wrong_secret(whose: str, error: PermanentError) -> list[Finding]:
    if "AccessDenied" in str(error):
        raise error  # who asks may not read it; others may
    remedy = f"put the fields of the {whose} secret in, see docs/deploy.md"
    return absent(_SECRETS, str(error), remedy)


def _has_secrets(services: Services, subject: Subject) -> bool:
    settings = services.settings
    return bool(settings.hugging_face_secret_id or settings.slack_secret_id)


CHECKS: Final = (
    Check(_IMAGES, lambda _services, _subject: True, _look_for_images),
    Check(_MODELS, lambda _services, subject: bool(subject.repositories), _look_at_models),
    Check(
        _ARTIFACTS,
        lambda services, _subject: bool(services.settings.artifacts_bucket),
        _look_at_artifacts,
    ),
    Check(_DATA, lambda _services, subject: subject.dataset is not None, _look_at_data),
    Check(_SECRETS, _has_secrets, _look_at_secrets),
)
