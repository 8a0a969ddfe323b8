"""python -m stationmaster.relay

The relay's process: a pod in the run's cluster (Deployment <run id>-relay). It needs
STATIONMASTER_RUN_ID, STATIONMASTER_JOB, STATIONMASTER_BUS_NAME, STATIONMASTER_RELAY_KEY,
STATIONMASTER_ARTIFACTS_BUCKET and AWS_REGION; AWS credentials come from Pod Identity, Kubernetes
access from the service account, or from $KUBECONFIG where that is set. It stays up after the job
has ended, until the teardown removes it; on SIGTERM it sends what it has and exits 0. With
STATIONMASTER_LEASE it is one of several, of which one sends at a time.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Final

import boto3
from botocore.config import Config

from stationmaster.domain.errors import PermanentError
from stationmaster.relay.batching import Batcher
from stationmaster.relay.bus import BusSender
from stationmaster.relay.cluster import ClusterApi
from stationmaster.relay.config import RelayConfig
from stationmaster.relay.kept_logs import KeptLogs
from stationmaster.relay.leadership import Leadership
from stationmaster.relay.metrics import RelayFigures, serve_metrics
from stationmaster.relay.saving.bucket import ResultsBucket
from stationmaster.relay.watching import RunWatcher

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient

logger = logging.getLogger("relay")

# Kubernetes sends SIGKILL 30 s after SIGTERM; the relay is gone well before.
FLUSH_WITHIN_S: Final = 4.0
SEND_LOGS_EVERY_S: Final = 20.0
EXIT_CRASHED: Final = 1
EXIT_BAD_SETTING: Final = 2


class _KeyValueFormatter(logging.Formatter):
    """One line a record: time, level, message, then the record's own fields as key=value."""

    _standard: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        fields = {k: v for k, v in vars(record).items() if k not in self._standard}
        return " ".join([text, *(f"{key}={value!r}" for key, value in fields.items())])


def main(variables: Mapping[str, str]) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    _log_to_stderr()
    try:
        config = RelayConfig.from_variables(variables)
    except PermanentError as error:
        logger.error("bad setting", extra={"error": str(error)})
        return EXIT_BAD_SETTING
    stop = threading.Event()
    _stop_on_signal(stop)
    logger.info("relay starts", extra=config.model_dump())

    api = ClusterApi.connect(variables.get("KUBECONFIG"))
    leadership = _leadership(api, config)
    may_send = leadership.leads if leadership else lambda: True
    sender = BusSender(
        _events_client(config), bus_name=config.bus_name, key=config.key, may_send=may_send
    )
    batcher = Batcher(run_id=config.run_id, sender=sender)
    crashed = _stop_on_crash(stop)
    with TemporaryDirectory() as scratch:
        kept = KeptLogs(Path(scratch), store=_bucket(config), may_send=may_send)
        watcher = RunWatcher(api=api, config=config, batcher=batcher, kept=kept, stop=stop)
        batcher.start(job_may_exist=watcher.job_may_exist, blind_s=watcher.blind_s)
        if leadership:
            leadership.start(batcher, stop)
        else:
            batcher.lead(None)
        watcher.start()
        figures = RelayFigures(config.run_id, batcher, sender, may_send, watcher.num_followed)
        serve_metrics(figures, config.address)
        while not stop.wait(SEND_LOGS_EVERY_S):
            kept.send()  # what the relay that led before this one has not sent
        sent = batcher.close(timeout_s=FLUSH_WITHIN_S)
        if leadership and not crashed.is_set():  # it may have missed something: the lease runs out
            leadership.give_back(batcher)
    logger.info("relay stops", extra={"everything_sent": sent})
    return EXIT_CRASHED if crashed.is_set() else 0


def _leadership(api: ClusterApi, config: RelayConfig) -> Leadership | None:
    if not config.lease:
        return None
    return Leadership(
        api,
        lease=config.lease,
        namespace=config.namespace,
        identity=f"{config.pod}_{secrets.token_hex(4)}",
        job=config.job,
    )


def _bucket(config: RelayConfig) -> ResultsBucket:
    return ResultsBucket.connect(
        bucket=config.bucket,
        run_id=config.run_id,
        region=config.region,
        connections=4,
        attempts=2,
    ).relayed(f"{config.pod}/")


def _events_client(config: RelayConfig) -> EventBridgeClient:
    # The sender retries by itself and without end; a call that hangs must not hold up SIGTERM.
    settings = Config(
        connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 1, "mode": "standard"}
    )
    return boto3.client("events", region_name=config.region, config=settings)


def _stop_on_signal(stop: threading.Event) -> None:
    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def _stop_on_crash(stop: threading.Event) -> threading.Event:
    """End the process when a thread crashes: Kubernetes starts a whole one in its place."""
    crashed = threading.Event()

    def handle(failure: threading.ExceptHookArgs) -> None:
        name = failure.thread.name if failure.thread else "?"
        logger.critical(
            "thread crashed",
            extra={"thread_name": name},
            exc_info=(failure.exc_type, failure.exc_value, failure.exc_traceback),  # type: ignore[arg-type]  # exc_value is None only while the interpreter ends
        )
        crashed.set()
        stop.set()

    threading.excepthook = handle
    return crashed


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_KeyValueFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("botocore").setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main(os.environ))
