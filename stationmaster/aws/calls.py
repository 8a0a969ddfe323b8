"""How every AWS call is made: client settings, and vendor errors turned into our own.

Throttles, timeouts and server errors become TransientError, which the state machines retry;
anything else becomes PermanentError with AWS's own sentence, unless the caller expects it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
)

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.settings import Settings, own_region

if TYPE_CHECKING:
    from botocore.config import Config

_TRANSIENT_CODES: Final = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "ProvisionedThroughputExceededException",
        "RequestTimeout",
        "RequestTimeoutException",
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "InternalServerException",
        "ServerException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "SlowDown",
        "UnavailableException",
        "TransactionInProgressException",
    }
)


class Adapter:
    """Asks one service of AWS, for a deployment."""

    def __init__(self, settings: Settings, client: Any) -> None:
        self._settings = settings
        self._client = client


class AwsNotFound(Exception):
    """AWS does not know the resource; adapters turn it into None or into "gone"."""


class AwsConflict(Exception):
    """AWS refuses because of the resource's state (exists already, in use, dependency)."""


class AwsConditionFailed(Exception):
    """A condition of a DynamoDB write was not met; nothing was written."""


class AwsTokenUnused(Exception):
    """Nobody waits for a Step Functions task token: its execution has ended or continued."""


_NOT_FOUND_CODES: Final = frozenset(
    {
        "ResourceNotFound",
        "ResourceNotFoundException",
        "NotFoundException",
        "FileSystemNotFound",
        "InvalidGroup.NotFound",
        "InvalidInstanceType",
        "ExecutionDoesNotExist",
        "NoSuchKey",
        "NoSuchResourceException",
        "RepositoryNotFoundException",
        "ImageNotFoundException",
        "404",  # S3 answers HeadObject without a body, and so without a code
    }
)
_CONFLICT_CODES: Final = frozenset(
    {
        "ResourceInUseException",
        "ResourceInUse",
        "ExecutionAlreadyExists",
        "InvalidGroup.Duplicate",
        "InvalidPermission.Duplicate",
        "DependencyViolation",
    }
)


# What a person has to do where AWS's own sentence does not say it.
_REMEDIES: Final = {
    "UnsupportedAvailabilityZoneException": "a deployment names its subnets with vpc_id and "
    "subnet_ids: two of them have to be in such zones, and none in another",
}

_CONDITION_CODES: Final = frozenset(
    {
        "ConditionalCheckFailedException",
        "TransactionCanceledException",
        "TransactionConflictException",
    }
)
_UNUSED_TOKEN_CODES: Final = frozenset({"TaskDoesNotExist", "TaskTimedOut", "InvalidToken"})


def make_client(service: str, *, region: str | None, config: Config | None = None) -> Any:
    """Make a boto3 client; boto3 itself honours AWS_ENDPOINT_URL.

    Without `region` it is that of the environment or the profile.

    Raises:
        PermanentError: neither has one or it is none, or the profile or its file is not there.
    """
    # Half of what importing the bot would take; its first command needs them.
    import boto3

    from stationmaster.aws.configs import CONFIG

    try:
        return boto3.client(service, region_name=region or own_region(), config=config or CONFIG)  # type: ignore[call-overload]  # the stubs list literal names
    except BotoCoreError as exc:
        why = str(exc).rstrip(".")
        raise PermanentError(f"AWS is not set up: {why}; set AWS_REGION or AWS_PROFILE") from exc


@contextmanager
def aws_call(what: str, *conflicts: str, new: Collection[str] = ()) -> Iterator[None]:
    """Translate what goes wrong inside: `what` says in the error what was being done.

    `conflicts` are AWS's error codes that this call alone takes for an AwsConflict. `new` names
    something that was made a moment ago, such as its id, as a refusal would: AWS's services learn
    of each other's resources after some seconds, so such a refusal is worth another try.

    Raises:
        AwsNotFound, AwsConflict, AwsConditionFailed, AwsTokenUnused: for the caller to handle.
        TransientError: a throttle, a timeout or a 5xx.
        PermanentError: anything else, with AWS's code and message.
    """
    try:
        yield
    except ClientError as exc:
        error = exc.response.get("Error", {})
        code = str(error.get("Code", "Unknown"))
        status = exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        sentence = f"{what}: AWS answers {code}: {error.get('Message', '')}".rstrip(": ")
        if code in _REMEDIES:
            sentence = f"{sentence.rstrip('.')}; {_REMEDIES[code]}"
        if code in _CONFLICT_CODES or code in conflicts:
            raise AwsConflict(sentence) from exc
        if any(each in str(error.get("Message", "")) for each in new):
            raise TransientError(sentence) from exc
        if code in _NOT_FOUND_CODES:
            raise AwsNotFound(sentence) from exc
        if code in _CONDITION_CODES:
            raise AwsConditionFailed(sentence) from exc
        if code in _UNUSED_TOKEN_CODES:
            raise AwsTokenUnused(sentence) from exc
        if code in _TRANSIENT_CODES or status >= 500:
            raise TransientError(sentence) from exc
        raise PermanentError(sentence) from exc
    except NoCredentialsError as exc:
        raise PermanentError(f"{what}: no AWS credentials were found") from exc
    except BotoCoreError as exc:
        raise TransientError(f"{what}: {exc}") from exc


@contextmanager
def ignoring_existing(what: str, *codes: str, new: Collection[str] = ()) -> Iterator[None]:
    """Call as aws_call, for a creation: a resource from an earlier attempt is no error.

    `codes` are what AWS answers for this kind of resource, besides the codes of all kinds; `new` is
    as for aws_call.
    """
    with suppress(AwsConflict), aws_call(what, *codes, new=new):
        yield


@contextmanager
def ignoring_gone_or_busy(what: str, *codes: str) -> Iterator[None]:
    """Call as aws_call, for a deletion: what is gone is done, what is in use is left for later.

    `codes` are what AWS answers for this kind of resource, besides the codes of all kinds.
    """
    with suppress(AwsNotFound, AwsConflict), aws_call(what, *codes):
        yield


def listed(client: Any, operation: str, key: str, what: str, **arguments: Any) -> Iterator[Any]:
    """Yield what an operation lists, page by page, as `aws_call`; `key` is its name for that."""
    with aws_call(what):
        for page in client.get_paginator(operation).paginate(**arguments):
            yield from page[key]


def health_issues(described: Any) -> str:
    """Write the health issues that EKS reports of one of its resources; "" for none."""
    issues = described.get("health", {}).get("issues", [])
    return "; ".join(f"{each.get('code')}: {each.get('message')}" for each in issues)
