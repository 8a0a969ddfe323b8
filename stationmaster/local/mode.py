"""Local mode: the whole product on this machine, against three loopback endpoints.

It deploys what `lambdas.registry` lists onto the local AWS endpoint, lets node groups appear in the
local cluster, and lets the local Slack deliver to the shipped bot. Nothing here takes part in a
run.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lambdas import registry
from stationmaster.domain.cluster.events import ClusterEvent
from stationmaster.domain.names import NAMESPACE
from stationmaster.domain.run.events import RunEvent
from stationmaster.domain.trackers import VARIABLES
from stationmaster.local import faults
from stationmaster.local.aws import (
    Deployment,
    DeploymentSpec,
    InProcessRuntime,
    LambdaRuntime,
    LocalAws,
)
from stationmaster.local.aws.clock import SHORTEST_WAIT_S
from stationmaster.local.cluster import LocalCluster, back_off
from stationmaster.local.cluster_behind_eks import ClusterBehindEks
from stationmaster.local.handler_log import HANDLER_LOG
from stationmaster.local.interrupted import resume
from stationmaster.local.private import write_private
from stationmaster.local.product import committed_policies, give_roles, product
from stationmaster.local.run_pane import RunPane
from stationmaster.local.saved import NAME as SAVED
from stationmaster.local.saved import Saved
from stationmaster.local.slack.records import TRAINING_CHANNEL_ID
from stationmaster.local.slack.server import LocalSlack
from stationmaster.local.slack_app import app_config
from stationmaster.local.state_directory import StateDirectory
from stationmaster.local.stream_events import StreamEvents, TappedRuntime
from stationmaster.rendering.rendezvous import IMAGE as ETCD_IMAGE
from stationmaster.settings import HubAccess, Settings

REPOSITORY: Final = Path(__file__).resolve().parents[2]
DEPLOYMENT: Final = "stationmaster"
ARTIFACTS_BUCKET: Final = f"{DEPLOYMENT}-artifacts"
_POD_PYTHON: Final = Path(__file__).parent / "pod_python"
REGION: Final = LocalAws.region
# No image is pulled here. What image= may name stands for the programs of this Python, as the
# images of the product do.
_REGISTRY: Final = "localhost/stationmaster"
_IMAGE_SETTINGS: Final = ("training_image", "relay_image")
_IMAGES: Final = (
    *(str(Settings.model_fields[name].default) for name in _IMAGE_SETTINGS),
    f"{_REGISTRY}/training:local",
)
# The one upstream image whose program a machine may have.
_ETCD_IMAGES: Final = (ETCD_IMAGE,) if shutil.which("etcd") else ()
# Emulated seconds in one real second: an EKS cluster that takes 8 minutes is there in 0.7 s.
DEFAULT_SPEED: Final = 720.0


@dataclass(frozen=True)
class RealSlack:
    """The app in a workspace of slack.com, in place of the local Slack."""

    api_url: str
    bot_token: str
    app_token: str


@dataclass(frozen=True)
class LocalOptions:
    """How local mode is to run; limits are real seconds, since emulated work is quick."""

    state_dir: Path
    port: int = 8700
    speed: float = DEFAULT_SPEED
    faults: frozenset[str] = frozenset()
    runtime: LambdaRuntime | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    shortest_wait_s: float = SHORTEST_WAIT_S
    # Further settings of the product by name, such as a person's deployment has.
    settings: Mapping[str, str] = field(default_factory=dict)
    # A directory of programs that pods find first, e.g. a torchrun that only says that it trains.
    extra_path: Path | None = None
    # Further variables of each container.
    pod_environment: Mapping[str, str] = field(default_factory=dict)
    # Whether command= may run what is typed in the channel, on this machine and as this user.
    allow_commands: bool = False
    # Slack gives the bot 3 s; where nobody looks on, a slow machine may take longer.
    answer_within_s: float = 3.0
    # The workspace to talk to, by Socket Mode; the local Slack unless it is given.
    slack: RealSlack | None = None
    # Whether messages and runs outlive it, in a file of the state directory.
    is_saved: bool = False
    # Called when the port and the state directory are this local mode's, before it starts the rest.
    on_claimed: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        for fault in self.faults - faults.FAULTS.keys():
            known = ", ".join(faults.FAULTS)
            raise ValueError(f'fault "{fault}" is not known; use one of {known}')


class LocalMode:
    """The three endpoints and the deployed product, started and stopped together."""

    def __init__(self, options: LocalOptions) -> None:
        self.options = options
        self.settings: Settings | None = None
        self._events = StreamEvents()
        state = options.state_dir
        self._pod_environment: dict[str, str] = {}
        self._slack_secret = {
            "bot_token": f"xoxb-{secrets.token_hex(16)}",
            "signing_secret": secrets.token_hex(16),
            "app_token": f"xapp-{secrets.token_hex(16)}",
        }
        if options.slack is not None:
            self._slack_secret["bot_token"] = options.slack.bot_token
            self._slack_secret["app_token"] = options.slack.app_token
        self.cluster = LocalCluster(
            state_dir=state,
            pod_environment=self._pod_environment,
            pod_identity=self._pod_identity,
            python_path=REPOSITORY,
            file_system_dir=self._file_system_dir,
            kubectl_namespace=NAMESPACE,
            only_images=(*_IMAGES, *_ETCD_IMAGES),
            # Containers run in real time: their back-offs must not be over before they start.
            speed=min(options.speed, back_off.DEFAULT_SPEED),
        )
        self.processes_left: list[str] = []
        """What could not be ended when local mode stopped."""
        self.aws: LocalAws | None = None
        self.saved: Saved | None = None
        self.slack = LocalSlack(
            host_port=options.port,
            app=app_config(),
            bot_token=self._slack_secret["bot_token"],
            signing_secret=self._slack_secret["signing_secret"],
            app_token=self._slack_secret["app_token"],
            delivery_url=self._delivery_url,
            answer_within_s=options.answer_within_s,
            look_at_run=RunPane(lambda: self.settings).look,
        )
        self.state = StateDirectory(state)

    def on_event(self, listener: Callable[[RunEvent | ClusterEvent], None]) -> None:
        """Call `listener` for each event once, as the table's stream delivers it."""
        self._events.listeners.append(listener)

    def start(self) -> None:
        """Start everything, with what the last start has saved where this one saves as well.

        Raises:
            OSError: the page's port or the state directory is in use by another local mode.
            ValueError: the state directory is not a local mode's.
        """
        self.state.claim()
        if self.options.slack is None:
            self.slack.start()
        self.state.empty()
        self.options.on_claimed()
        if self.options.is_saved:
            self._show_saved()
        HANDLER_LOG.path = self.state.path / "functions.log"
        HANDLER_LOG.path.unlink(missing_ok=True)
        self.cluster.faults |= self.options.faults - set(faults.names("aws"))
        self.cluster.start()
        self.aws = LocalAws(
            state_dir=self.options.state_dir,
            invoker=TappedRuntime(self.options.runtime or InProcessRuntime(), self._events),
            handlers={function.handler for function in registry.FUNCTIONS},
            speed=self.options.speed,
            shortest_wait_s=self.options.shortest_wait_s,
            observer=ClusterBehindEks(self.cluster, self.options.state_dir),
            kubernetes_endpoint=self.cluster.url,
            faults=set(self.options.faults & set(faults.names("aws"))),
            num_gpus=self.cluster.num_gpus,
            saved=self.saved,
        )
        self.aws.start()
        self._pod_environment.update(self._node_environment())
        self._import_handlers()
        self._deploy()
        if self.saved is not None and self.settings is not None:
            resume(self.aws, self.saved, self.settings)

    def stop(self) -> None:
        """Stop everything; pods are ended with their process groups."""
        self.processes_left = self.cluster.stop()
        if self.aws is not None:
            self.aws.stop()
        self.slack.stop()
        if self.saved is not None:
            self.saved.close()
        if self.settings is not None:
            self._settings_file.unlink(missing_ok=True)
        self.state.release()

    def __enter__(self) -> LocalMode:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _show_saved(self) -> None:
        """Open the file of the last start; show its messages, or move it aside."""
        self.saved = Saved(self.state.path / SAVED)
        if self.options.slack is not None:
            return  # Slack keeps its messages itself
        try:
            self.slack.keep_in(self.saved)
        except (KeyError, TypeError, ValueError) as exc:
            self.saved.move_aside(f"{type(exc).__name__}: {exc}")
            self.slack.keep_in(self.saved)

    def _delivery_url(self) -> str:
        assert self.aws is not None
        return f"{self.aws.http_url}{registry.ROUTES[0].path}"

    def _file_system_dir(self, volume_handle: str) -> Path | None:
        directory = self.options.state_dir.resolve() / "file-systems" / volume_handle
        return directory if directory.is_dir() else None

    def _pod_identity(self, namespace: str, service_account: str, pod: str) -> Mapping[str, str]:
        """Return the key that Pod Identity gives to a pod's role, and to no other pod."""
        return {} if self.aws is None else self.aws.pod_key(namespace, service_account, pod)

    def _node_environment(self) -> dict[str, str]:
        """Return what a node gives to each pod here: the AWS endpoint and this Python's programs.

        In production the image brings the programs.
        """
        assert self.aws is not None
        programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        if self.options.extra_path is not None:
            programs.insert(0, str(self.options.extra_path))
        return {
            **{
                name: value
                for name, value in self.aws.environment().items()
                if name not in self.aws.KEY_VARIABLES
            },
            "PATH": os.pathsep.join(programs),
            "HOME": os.environ.get("HOME", "/tmp"),
            # Stores of PyTorch, and gloo's sockets, listen on loopback only.
            "PYTHONPATH": os.pathsep.join((str(_POD_PYTHON), str(REPOSITORY))),
            "GLOO_SOCKET_IFNAME": next(
                name for _, name in socket.if_nameindex() if name in ("lo", "lo0")
            ),
            "PYTHONUNBUFFERED": "1",
            "HF_ENDPOINT": HubAccess.from_environment().url,
            # Two nodes of a run share this machine's cores.
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2)),
            **self.options.pod_environment,
        }

    def _deploy(self) -> None:
        """Create the account's long-lived part, then functions that know of it, then feeds."""
        assert self.aws is not None
        base = self.aws.deploy(
            DeploymentSpec(
                roles=["cluster", "nodes", "relay", "saver", "stager", "fsx-csi", "scheduler"],
                network=DEPLOYMENT,
                secrets={
                    "slack": json.dumps(self._slack_secret),
                    "huggingface": json.dumps(
                        {"token": os.environ.get("HF_TOKEN", "")}
                        | {name: os.environ.get(name, "") for name in VARIABLES}
                    ),
                    "relay": json.dumps({"key": secrets.token_hex(32)}),
                },
            )
        )
        self.settings = self._settings(base)
        self._write_settings(self.settings)
        give_roles(
            self.aws,
            base,
            text=committed_policies(REPOSITORY),
            deployment=DEPLOYMENT,
            table=DEPLOYMENT,
            bucket=ARTIFACTS_BUCKET,
        )
        self.aws.deploy(
            product(
                self.settings.to_environment() | self.aws.environment(),
                deployment=DEPLOYMENT,
                artifacts_bucket=ARTIFACTS_BUCKET,
                repository=REPOSITORY,
            )
        )

    def _import_handlers(self) -> None:
        """Import them here, so that their loggers write to the state directory's file.

        And so that the first command does not wait for imports.
        """
        with redirect_stdout(HANDLER_LOG):
            for function in registry.FUNCTIONS:
                module, _, attribute = function.handler.rpartition(".")
                getattr(importlib.import_module(module), attribute)

    def _write_settings(self, settings: Settings) -> None:
        """Leave the settings for `stationmaster results`, which runs beside this local mode."""
        variables = settings.to_environment().items()
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables]
        write_private(self._settings_file, "".join(lines).encode())

    @property
    def _settings_file(self) -> Path:
        return self.state.path / "settings.env"

    def _settings(self, base: Deployment) -> Settings:
        assert self.aws is not None
        return Settings(
            deployment=DEPLOYMENT,
            region=REGION,
            table_name=DEPLOYMENT,
            bus_name=DEPLOYMENT,
            artifacts_bucket=ARTIFACTS_BUCKET,
            schedule_group=DEPLOYMENT,
            keep_clock_function_arn=self.aws.function_arn(registry.KEEP_CLOCK.name),
            scheduler_role_arn=base.role_arns["scheduler"],
            cluster_state_machine_arn=self.aws.state_machine_arn("cluster"),
            train_state_machine_arn=self.aws.state_machine_arn("train"),
            teardown_state_machine_arn=self.aws.state_machine_arn("teardown"),
            vpc_id=base.vpc_id,
            subnet_ids=tuple(base.subnet_ids),
            cluster_role_arn=base.role_arns["cluster"],
            node_role_arn=base.role_arns["nodes"],
            relay_role_arn=base.role_arns["relay"],
            saver_role_arn=base.role_arns["saver"],
            stager_role_arn=base.role_arns["stager"],
            # Whatever a person puts into a bucket of this account.
            dataset_buckets=("*",),
            image_registries=(_REGISTRY,),
            image_channels=(TRAINING_CHANNEL_ID,) if self.options.slack is None else (),
            allow_commands=self.options.allow_commands,
            linked_buckets=("*",),
            # Whatever a person makes in this account.
            eks_clusters=("*",),
            file_systems=("*",),
            reservations=("*",),
            # Wherever the token of this person, HF_TOKEN, may write.
            push_organisations=("*",),
            fsx_csi_role_arn=base.role_arns["fsx-csi"],
            # One of the functions' roles, as the policies name it, stands for all of them here: the
            # local Kubernetes API has one administrator.
            cluster_access_role_arns=(
                self.aws.identities.account.arn(f"iam:role/ensure-cluster-{self.aws.region}"),
            ),
            slack_secret_id="slack",
            hugging_face_secret_id="huggingface",
            relay_secret_id="relay",
            **self._places(),
        )

    def _places(self) -> dict[str, Any]:
        """Return the settings that only this machine knows: addresses, the pace, and its limits."""
        return {
            "slack_api_url": (self.options.slack or self.slack).api_url,
            "hub_url": HubAccess.from_environment().url,
            "kubeconfig": str(self.cluster.kubeconfig),
            "emulated_speed": self.options.speed,
            # All nodes are this machine, which goes as a whole; each relay is a process of it.
            "relay_replicas": 1,
            **faults.limits_with(self.options.faults),
            **self.options.limits,
            **self.options.settings,
        }


def describe_endpoints(mode: LocalMode) -> dict[str, Any]:
    """Addresses that a person may want to use beside the page."""
    assert mode.aws is not None
    page = {"page": mode.slack.page_url} if mode.options.slack is None else {}
    return {
        **page,
        "kubeconfig": str(mode.cluster.kubeconfig),
        "aws": mode.aws.url,
        "aws key": str(mode.options.state_dir / "aws.env"),
        "function log": str(mode.options.state_dir / "functions.log"),
    }
