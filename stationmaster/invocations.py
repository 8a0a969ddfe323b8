"""What an invocation of a function leaves: lines in its log, figures, and a trace of what it did.

Lines and traces say which run or cluster it was about: the entry points of `lambdas` and `bot` open
a block for each. Lines of every module are JSON of Powertools where their loggers are below the
product's own; a trace is sent where Lambda has a daemon that takes it.

Powertools takes up to 90 ms to import, so the bot imports this module with its first request, and
tracer and metrics are imported when they are first needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger

from stationmaster.domain.census import NAMESPACE
from stationmaster.domain.errors import PermanentError, StationmasterError
from stationmaster.log_keys import bound, bound_keys

if TYPE_CHECKING:
    from aws_lambda_powertools import Tracer

# Loggers whose names begin with "stationmaster." write with this one's handler and level.
logger: Final = Logger(service="stationmaster")

# Lambda sets it for every function. Nothing else that runs handlers does.
_DAEMON: Final = "AWS_XRAY_DAEMON_ADDRESS"


@contextmanager
def about(what: str, keys: Mapping[str, Any]) -> Iterator[None]:
    """Say `keys` in every line of the block, and in the trace; it is called `what` there."""
    with bound(keys), _traced(what):
        yield


def guarded(call: Callable[[], Any], *, keys: Mapping[str, Any]) -> Any:
    """Run `call` with `keys` in every log line, and one line for its end; raise only our errors.

    Raises:
        StationmasterError: as raised by the call.
        PermanentError: in place of anything unexpected.
    """
    with about(str(keys.get("step", "call")), keys):
        try:
            result = call()
        except StationmasterError as exc:
            logger.warning("call ended in an error", extra={**keys, "error": repr(exc)})
            raise
        except Exception as exc:
            logger.exception("call broke", extra=dict(keys))
            raise PermanentError(f"internal error: {type(exc).__name__}: {exc}") from exc
        logger.info("call done", extra={**keys, "result": result})
        return result


def send_figures(figures: Mapping[str, float], *, deployment: str) -> None:
    """Log figures in the format that CloudWatch makes metrics of.

    Args:
        figures: by the names that they have there; one whose name ends in `Seconds` has that unit,
            every other is a count.
        deployment: its name, the one dimension of each figure.
    """
    # Imported where it is used, as the tracer is.
    from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

    metrics = EphemeralMetrics(namespace=NAMESPACE, service=deployment)
    for name, value in figures.items():
        unit = MetricUnit.Seconds if name.endswith("Seconds") else MetricUnit.Count
        metrics.add_metric(name=name, unit=unit, value=value)
    logger.info("figures counted", extra=dict(metrics.serialize_metric_set()))


@contextmanager
def _traced(what: str) -> Iterator[None]:
    """Open a part of the function's trace, which X-Ray finds by the bound keys."""
    tracer = _tracer()
    if tracer is None:
        yield
        return
    with tracer.provider.in_subsegment(name=what) as part:
        _annotate(part)
        yield
        _annotate(part)  # with what was learnt meanwhile


def _annotate(part: Any) -> None:
    for key, value in bound_keys().items():
        if isinstance(value, str):
            part.put_annotation(key=key, value=value)


@cache
def _tracer() -> Tracer | None:
    if _DAEMON not in os.environ:
        return None
    # Imported where it is used: it takes about 50 ms of CPU, and the bot has to answer in 3 s.
    from aws_lambda_powertools import Tracer

    # Calls of AWS are parts of the trace as well, by the name of the operation.
    return Tracer(service="stationmaster", patch_modules=("botocore",))
