"""The local AWS endpoint: one loopback server that answers for one emulated account.

Composed by local mode and by tests. It starts moto as `local.aws.moto_patches`
corrects it, the services of `local.aws.services`, and what carries events between them.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from moto.core.config import default_user_config
from moto.events.models import events_backends
from moto.moto_api._internal.models import moto_api_backend
from moto.stepfunctions.parser.models import stepfunctions_parser_backends
from werkzeug.serving import BaseWSGIServer, make_server

from stationmaster.local.aws import deployment, emulation, moto_patches, saved_account
from stationmaster.local.aws.access import AccessKey
from stationmaster.local.aws.clock import SHORTEST_WAIT_S, LifecycleClock, Ticker
from stationmaster.local.aws.dead_letters import DeadLetters
from stationmaster.local.aws.deployment import Deployment, DeploymentSpec
from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.event_delivery import Delivery, DeliveryError, RuleDelivery
from stationmaster.local.aws.faults import FaultInjector
from stationmaster.local.aws.front import OWN_CLIENT, Front, QuietHandler
from stationmaster.local.aws.http_api import HttpApi
from stationmaster.local.aws.iam.account import Account
from stationmaster.local.aws.iam.identities import Identities
from stationmaster.local.aws.observer import AwsObserver
from stationmaster.local.aws.runtime import Invoker, LambdaRuntime, UnknownFunctionError
from stationmaster.local.aws.services.eks import EksService
from stationmaster.local.aws.services.fsx import FsxService
from stationmaster.local.aws.services.pricing import PricingService
from stationmaster.local.aws.services.quotas import QuotasService
from stationmaster.local.aws.services.sagemaker import SageMakerService
from stationmaster.local.aws.streams import StreamPumps
from stationmaster.local.private import write_private
from stationmaster.local.saved import Saved

_HOST = "127.0.0.1"
ASKED_FILE = "asked.jsonl"
"""What the principals have asked IAM, left in the state directory by an endpoint that stops."""
_ACCOUNT = "123456789012"


class LocalAws:
    """An emulated AWS account on a loopback address; one at a time in a process."""

    account_id = _ACCOUNT
    region = "us-west-2"
    KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

    def __init__(
        self,
        *,
        state_dir: Path,
        invoker: LambdaRuntime,
        handlers: Collection[str],
        speed: float = 240.0,
        shortest_wait_s: float = SHORTEST_WAIT_S,
        observer: AwsObserver | None = None,
        kubernetes_endpoint: str = "",
        faults: set[str] | None = None,
        num_gpus: int | None = None,
        saved: Saved | None = None,
    ) -> None:
        """`speed` emulated seconds pass in one real second; `faults` are names of `local.faults`.
        No wait of a workflow is shorter than `shortest_wait_s` real seconds.

        `handlers` are the only `module.attribute`s that functions may have: a handler is code of
        this machine that a request would otherwise name.

        `num_gpus` is how many GPUs the account's machines have: EC2 describes none with more. None
        leaves every instance type as AWS publishes it.
        """
        self.url = ""
        self.http_url = ""
        self._state_dir = state_dir
        self._runtime = invoker
        self._handlers = frozenset(handlers)
        self._key = AccessKey.new()
        self._emulation = Emulation(
            account_id=_ACCOUNT,
            region=self.region,
            speed=speed,
            shortest_wait_s=shortest_wait_s,
            kubernetes_endpoint=kubernetes_endpoint,
            faults=faults if faults is not None else set(),
            num_gpus=num_gpus,
            saved=saved,
            observer=observer or AwsObserver(),
            clock=LifecycleClock(speed=speed),
            injector=FaultInjector(),
            identities=Identities(Account(_ACCOUNT, self.region)),
        )
        injector, clock = self._emulation.injector, self._emulation.clock
        self.inject, self.clear_injected = injector.inject, injector.clear
        self.forget_calls = injector.forget_calls
        self.finish_lifecycles, self.lifecycles_held = clock.finish, clock.held
        self._server: BaseWSGIServer | None = None
        self._front: Front | None = None
        self._eks: EksService | None = None
        self._http_api: HttpApi | None = None
        self._clients: dict[tuple[str, bool], Any] = {}
        self._clients_guard = threading.Lock()
        self._dead_letters = DeadLetters(client=lambda service: self._client(service, own=True))

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start with an empty account.

        Raises:
            RuntimeError: another endpoint runs in this process, or moto has another version.
        """
        moto_patches.apply()
        running = self._emulation
        emulation.activate(running)
        try:
            moto_api_backend.reset()
            default_user_config["stepfunctions"] = {"execute_state_machine": True}
            invoker = running.invoker = Invoker(
                runtime=self._runtime,
                handlers=self._handlers,
                account_id=_ACCOUNT,
                region=self.region,
                key_of=self._key_of,
            )
            running.delivery = RuleDelivery(
                send=self._send, discard=self._dead_letters.function_event
            )
            running.streams = StreamPumps(
                invoke=invoker.invoke, discard=self._dead_letters.stream_batch
            )
            running.ticker = Ticker(speed=running.speed, invoke=invoker.invoke)
            eks, fsx = EksService(running), FsxService(running)
            self._eks = eks
            running.identities.account.sources = (eks, fsx)
            services = {
                "eks": eks,
                "fsx": fsx,
                "sagemaker": SageMakerService(running, eks),
                "pricing": PricingService(running),
                "servicequotas": QuotasService(running),
            }
            front = self._front = Front(emulation=running, services=services, key=self._key)
            self._server = make_server(_HOST, 0, front, threaded=True, request_handler=QuietHandler)
            threading.Thread(
                target=self._server.serve_forever,
                kwargs={"poll_interval": 0.05},
                name="aws-endpoint",
                daemon=True,
            ).start()
        except BaseException:
            emulation.deactivate(running)
            raise
        self.url = running.url = f"http://{_HOST}:{self._server.server_port}"
        self._http_api = HttpApi(invoke=invoker.invoke)
        self.http_url = self._http_api.url
        running.clock.start()
        self._runtime.configure(self.environment())
        self._write_environment()

    def stop(self) -> None:
        """Stop serving and end every thread and process that this endpoint started."""
        if self._server is None:
            return
        self._emulation.ticker.stop()
        if self._http_api is not None:
            self._http_api.stop()
        self._stop_executions()
        self._emulation.streams.stop()
        self._emulation.delivery.stop()
        self._emulation.clock.stop()
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        self._emulation.invoker.close()
        self.identities.write_asked(self._state_dir / ASKED_FILE)
        with self._clients_guard:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
        default_user_config.pop("stepfunctions", None)
        emulation.deactivate(self._emulation)

    def __enter__(self) -> LocalAws:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- use --------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Return the variables that point any AWS SDK at this endpoint."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self._key.key_id,
            "AWS_SECRET_ACCESS_KEY": self._key.secret,
            "AWS_SESSION_TOKEN": "local",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def pod_key(self, namespace: str, service_account: str, pod: str) -> dict[str, str]:
        """Return the variables with the key of a pod's role; none without a Pod Identity."""
        role_arn, tags = "", dict[str, str]()
        if self._eks is not None:
            role_arn, tags = self._eks.session_of(namespace, service_account)
        tags = {**tags, "kubernetes-pod-name": pod}
        key = self.identities.assume(role_arn, tags)
        if key is None:
            return {}
        return dict(zip(self.KEY_VARIABLES, (key.key_id, key.secret, "local"), strict=True))

    def client(self, service: str) -> Any:
        """Return a boto3 client on this endpoint, the same one each time."""
        return self._client(service, own=False)

    def deploy(self, spec: DeploymentSpec) -> Deployment:
        """Create everything in `spec`, start its schedules and serve its routes; repeatable."""
        made = deployment.create(
            spec, client=lambda service: self._client(service, own=True), region=self.region
        )
        for schedule in spec.schedules:
            self._emulation.ticker.add(schedule)
        if self._http_api is not None:
            self._http_api.add(spec.routes)
        return made

    def restore(self) -> None:
        """Give the deployed account what was saved of the last start; see `saved_account`."""
        if self._emulation.saved is not None:
            saved_account.restore(self._emulation, self._emulation.saved)

    def function_arn(self, name: str) -> str:
        """Return the ARN that a function of this name has."""
        return f"arn:aws:lambda:{self.region}:{_ACCOUNT}:function:{name}"

    def state_machine_arn(self, name: str) -> str:
        """Return the ARN that a state machine of this name has."""
        return f"arn:aws:states:{self.region}:{_ACCOUNT}:stateMachine:{name}"

    @property
    def application(self) -> Front:
        """What the server serves, a WSGI application, for callers in this process."""
        assert self._front is not None, "the endpoint is not started"
        return self._front

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The (signing name, operation) of each API call so far, deployment left out."""
        return self._emulation.injector.calls

    @property
    def identities(self) -> Identities:
        """The account's principals; who is none of them has every right."""
        return self._emulation.identities

    @property
    def faults(self) -> set[str]:
        """The faults that are on; add to it or remove from it at any time."""
        return self._emulation.faults

    def settle(self, *, timeout_s: float = 600.0) -> bool:
        """Wait until events and stream records were delivered."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            parts = (self._emulation.delivery, self._emulation.streams)
            if all(part.idle for part in parts):
                return True
            time.sleep(0.01)
        return False

    # -- inside -----------------------------------------------------------------------------------

    def _key_of(self, function: str) -> AccessKey | None:
        """Return the key of a function's role, None when it has no role of its own."""
        principal = self.identities.named(function)
        return None if principal is None else principal.key

    def _client(self, service: str, *, own: bool) -> Any:
        with self._clients_guard:
            found = self._clients.get((service, own))
            if found is None:
                # Typed as Any: the stubs overload `client` by literal service names only.
                session: Any = boto3.Session(
                    aws_access_key_id=self._key.key_id,
                    aws_secret_access_key=self._key.secret,
                    region_name=self.region,
                )
                found = self._clients[service, own] = session.client(
                    service,
                    endpoint_url=self.url,
                    config=Config(
                        user_agent_extra=OWN_CLIENT if own else "",
                        retries={"total_max_attempts": 1},
                        max_pool_connections=32,
                    ),
                )
            return found

    def _send(self, delivery: Delivery) -> None:
        """Make one attempt to deliver an event."""
        try:
            payload, failed = self._emulation.invoker.invoke(delivery.target_arn, delivery.payload)
        except UnknownFunctionError as exc:
            raise DeliveryError(str(exc)) from exc
        if failed:
            raise DeliveryError(payload[:500].decode(errors="replace"))

    def _stop_executions(self) -> None:
        """Stop what runs, silently: nobody is left to read it."""
        bus = events_backends[_ACCOUNT][self.region].event_buses.get("default")
        if bus is not None:
            bus.rules.clear()
        for execution in stepfunctions_parser_backends[_ACCOUNT][self.region]._get_executions():
            execution.stop(stop_date=None, error=None, cause="the local endpoint stops")

    def _write_environment(self) -> None:
        """Leave a file for `source`, so that the owner's AWS tools can look at this account."""
        self._state_dir.mkdir(parents=True, exist_ok=True)
        lines = [
            f"export {name}={shlex.quote(value)}" for name, value in self.environment().items()
        ]
        write_private(self._state_dir / "aws.env", "\n".join([*lines, ""]).encode())
