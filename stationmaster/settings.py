"""Deployment settings: the only reader of the environment in the product.

Every Lambda function, the relay and the command line get their settings here; `stacks` and local
mode write the same variables with `Settings.to_environment`. Secrets are never settings: the value
that is read here is the id of a secret in Secrets Manager.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from pydantic import Field, SecretStr, ValidationError

from stationmaster.domain.catalogue.recipes import Framework
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.images import RELAY_IMAGE, TRAINING_IMAGE
from stationmaster.domain.names import TAG_DEPLOYMENT
from stationmaster.domain.outside import first_problem
from stationmaster.domain.rules import Rules

PREFIX: Final = "STATIONMASTER_"
HUB_URL: Final = "https://huggingface.co"

# A list of which the items share a beginning and an end.
_GROUP: Final = re.compile(r"(?P<head>[^,]*)\{(?P<items>[^{}]*,[^{}]*)\}(?P<tail>[^,]*)")
# Short lists stay readable; those of roles are long.
_WORTH_SHORTENING: Final = 100


class Settings(Frozen, extra="forbid"):
    """What differs between deployments. Durations are in seconds."""

    deployment: str = Field(default="stationmaster", description="prefix of what is created")
    tags: tuple[str, ...] = Field(
        default=(), description="further tags of everything that is created, KEY=VALUE each"
    )
    region: str
    table_name: str
    bus_name: str
    artifacts_bucket: str = Field(default="", description="S3 bucket of what runs leave behind")
    train_state_machine_arn: str = ""
    cluster_state_machine_arn: str = ""
    teardown_state_machine_arn: str = ""

    schedule_group: str = Field(default="", description="group of the clocks of kept clusters")
    keep_clock_function_arn: str = Field(default="", description="what such a clock invokes")
    scheduler_role_arn: str = Field(default="", description="with which it may invoke that")

    vpc_id: str = ""
    subnet_ids: tuple[str, ...] = Field(
        default=(), description="private subnets, each in another availability zone"
    )
    cluster_role_arn: str = ""
    node_role_arn: str = ""
    relay_role_arn: str = Field(default="", description="the relay's role, through Pod Identity")
    saver_role_arn: str = Field(
        default="", description="role of the job that saves results, through Pod Identity"
    )
    stager_role_arn: str = Field(
        default="", description="role of the job that copies data, through Pod Identity"
    )
    dataset_buckets: tuple[str, ...] = Field(
        default=(), description="S3 buckets that dataset=s3:// may name; * for any"
    )
    linked_buckets: tuple[str, ...] = Field(
        default=(), description="those of dataset_buckets that FSx may link; * for any"
    )
    link_saves_s: float = Field(
        default=600, description="data is linked where training begins so much sooner than by copy"
    )
    eks_clusters: tuple[str, ...] = Field(
        default=(), description="existing EKS clusters that cluster=eks: may name; * for any"
    )
    hugging_face_token_in_eks_clusters: bool = Field(
        default=False, description="whether pods in existing EKS clusters get the hub's token"
    )
    file_systems: tuple[str, ...] = Field(
        default=(), description="ids that file_system= may name; * for any"
    )
    reservations: tuple[str, ...] = Field(
        default=(), description="ids that capacity=odcr: and block: may name; * for any"
    )
    image_registries: tuple[str, ...] = Field(
        default=(), description="registries, HOST or HOST/PATH, whose images image= may name"
    )
    image_channels: tuple[str, ...] = Field(
        default=(), description="Slack channels in which image= and command= may be typed"
    )
    allow_commands: bool = Field(
        default=True, description="false where command= would run on somebody's own machine"
    )
    push_organisations: tuple[str, ...] = Field(
        default=(), description="owners on the Hugging Face hub that push_to= may name; * for any"
    )
    rules_file: str = Field(
        default="", description="file with the rules of channels; nobody is refused without it"
    )
    operations_channel: str = Field(
        default="", description="id of the Slack channel that is told what needs a person; none"
    )
    max_concurrent_runs: int = Field(
        default=0, ge=0, description="runs that may be open at a time; 0 for any number"
    )
    max_concurrent_runs_per_channel: int = Field(
        default=0, ge=0, description="of them in one channel; 0 for any number"
    )
    max_usd_per_hour: float = Field(
        default=0, ge=0, description="USD an hour that all clusters may cost; 0 for any amount"
    )
    max_usd_per_hour_per_channel: float = Field(
        default=0, ge=0, description="of that in one channel; 0 for any amount"
    )
    fsx_csi_role_arn: str = Field(default="", description="the FSx CSI driver's role")
    cluster_access_role_arns: tuple[str, ...] = Field(
        default=(), description="roles of the functions that talk to a run's Kubernetes API"
    )
    kubectl_role_arns: tuple[str, ...] = Field(
        default=(), description="IAM roles of people who may use kubectl on the clusters"
    )
    public_api: bool = Field(
        default=True, description="false: clusters' Kubernetes APIs are reached in the network only"
    )
    api_cidrs: tuple[str, ...] = Field(
        default=(), description="from where they are reached publicly; anywhere if empty"
    )
    functions_security_group_id: str = Field(
        default="", description="group of the functions that are in the network, where they are"
    )
    kubernetes_version: str = Field(
        default="", description="of new clusters; chosen from what EKS offers if empty"
    )
    node_repair: bool = Field(
        default=False,
        description="EKS watches nodes, and replaces or reboots those that are broken",
    )
    metrics_role_arn: str = Field(
        default="",
        description="role of the CloudWatch agent on clusters with GPUs; none without it",
    )
    training_image: str = TRAINING_IMAGE
    cpu_image: str = Field(
        default="",
        description="image of the product's trainer, and of checks, where no GPU is used; the "
        "training image without it",
    )
    megatron_image: str = Field(
        default="", description="image of the recipes that Megatron-LM trains; none without it"
    )
    nemo_image: str = Field(
        default="",
        description="image of the recipes that Megatron-Bridge trains, which also converts "
        "published weights for Megatron-LM; none without it",
    )
    nemo2_image: str = Field(default="", description="image of NeMo 2's recipe; none without it")
    torchtitan_image: str = Field(
        default="", description="image of the recipes that torchtitan trains; none without it"
    )
    relay_image: str = RELAY_IMAGE
    image_copies: str = Field(
        default="", description="repository with copies of upstream images; those without it"
    )
    relay_replicas: int = Field(
        default=2, ge=1, le=3, description="relays of a run, on different nodes; one of them sends"
    )

    slack_secret_id: str = Field(
        default="", description="secret with the JSON fields bot_token and signing_secret"
    )
    hugging_face_secret_id: str = Field(
        default="", description="secret with the JSON field token, handed to training pods if set"
    )
    relay_secret_id: str = Field(
        default="", description="secret with the JSON field key, of which relays' keys are made"
    )
    slack_api_url: str = "https://slack.com/api/"
    hub_url: str = Field(
        default=HUB_URL, description="the Hugging Face hub; HF_ENDPOINT where this is not set"
    )

    provision_timeout_s: float = Field(default=3600, description="cluster, nodes, file system each")
    plugin_timeout_s: float = Field(default=900)
    check_timeout_s: float = Field(default=900)
    job_start_timeout_s: float = Field(default=1200, description="image pull and rendezvous")
    release_job_timeout_s: float = Field(
        default=300, description="pods get this long to end at a teardown"
    )
    release_timeout_s: float = Field(default=3600, description="each deletion of a teardown")
    creation_grace_s: float = Field(
        default=120, description="a creation that was asked for before a drain may appear so late"
    )

    kubeconfig: str = Field(
        default="", description="use this cluster instead of asking EKS for an endpoint and a token"
    )
    emulated_speed: float | None = Field(
        default=None,
        description="emulated seconds in a real one, where machines are emulated and cost nothing",
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read STATIONMASTER_* and AWS_REGION.

        Raises:
            PermanentError: naming the variable that is missing or has a bad value.
        """
        source = os.environ if environ is None else environ
        values: dict[str, object] = {}
        for name, field in cls.model_fields.items():
            raw = source.get(PREFIX + name.upper())
            if raw is None and name == "region":
                raw = source.get("AWS_REGION") or source.get("AWS_DEFAULT_REGION")
            if raw is None and name == "hub_url":
                raw = source.get("HF_ENDPOINT") or None
            if raw is None or (raw == "" and not field.is_required()):
                continue
            values[name] = _listed(raw) if field.annotation == tuple[str, ...] else raw
        try:
            return cls.model_validate(values)
        except ValidationError as exc:
            problem = exc.errors()[0]
            name = f"{PREFIX}{str(problem['loc'][0]).upper()}"
            raise PermanentError(
                f"setting {name} is {problem['type'].replace('_', ' ')}: {problem['msg']}"
            ) from exc

    @property
    def dashboard_url(self) -> str:
        """The address of the deployment's dashboard; "" where the account is emulated."""
        if self.emulated_speed is not None:
            return ""
        console = f"https://{self.region}.console.aws.amazon.com/cloudwatch/home"
        return f"{console}?region={self.region}#dashboards/dashboard/{self.deployment}"

    @property
    def shared_tags(self) -> dict[str, str]:
        """The tags of everything that this deployment creates."""
        own = dict(each.partition("=")[::2] for each in self.tags)
        return {**own, TAG_DEPLOYMENT: self.deployment}

    def trainer_image(self, *, on_gpus: bool) -> str:
        """Return the image that has the product's own trainer, for such nodes."""
        return self.training_image if on_gpus or not self.cpu_image else self.cpu_image

    def image_of(self, framework: Framework, *, on_gpus: bool = True) -> str:
        """Return the image for pods of `framework`; "" where the deployment has none."""
        match framework:
            case "megatron-lm":
                return self.megatron_image
            case "megatron-bridge":
                return self.nemo_image
            case "nemo":
                return self.nemo2_image
            case "torchtitan":
                return self.torchtitan_image
            case "fsdp" | "ddp" | "torch-elastic":
                return self.trainer_image(on_gpus=on_gpus)

    def to_environment(self) -> dict[str, str]:
        """Return the variables that `from_environment` reads back to an equal object.

        Lambda takes 4 KB of variables, so defaults are left out, and a long list has what its
        items share once, as a shell writes it: `role/{one,two}-eu`.
        """
        variables = {}
        for name, value in self.model_dump(exclude_none=True, exclude_defaults=True).items():
            text = _list_text(value) if isinstance(value, tuple) else str(value)
            variables[PREFIX + name.upper()] = text
        return variables


def _list_text(items: tuple[str, ...]) -> str:
    """Return the items with commas between them; what they begin and end with is written once."""
    plain = ",".join(items)
    head = _shared_start(items)
    rests = [item[len(head) :] for item in items]
    tail = _shared_start([rest[::-1] for rest in rests])[::-1]
    # A value that the CDK knows later stands here as ${Token[NAME]}, and must not be cut.
    if any(part.count("${") != part.count("}") for part in (head, tail)):
        return plain
    short = f"{head}{{{','.join(rest[: len(rest) - len(tail)] for rest in rests)}}}{tail}"
    return short if len(short) + _WORTH_SHORTENING <= len(plain) else plain


def _shared_start(texts: Sequence[str]) -> str:
    """Return the longest start of all texts; "" where there is one only."""
    if len(texts) < 2:
        return ""
    first, last = min(texts), max(texts)  # these two differ soonest
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(character for character, _ in same)


def _listed(text: str) -> list[str]:
    """Return what `_list_text` wrote; commas alone will do."""
    grouped = _GROUP.fullmatch(text)
    if grouped is None:
        return [item for item in text.split(",") if item]
    return [f"{grouped['head']}{item}{grouped['tail']}" for item in grouped["items"].split(",")]


def read_rules(path: Path) -> Rules:
    """Read the rules of channels from a JSON file.

    Raises:
        OSError: it cannot be opened.
        ValueError: one sentence that names the field and what was expected.
    """
    try:
        return Rules.model_validate_json(path.read_bytes())
    except ValidationError as exc:
        raise ValueError(f"{path}: {first_problem(exc)}") from exc


def own_region() -> str | None:
    """Read AWS_REGION, which boto3 itself does not; it counts more than what boto3 reads."""
    return os.environ.get("AWS_REGION") or None


def artifacts_bucket() -> str:
    """Read the bucket of results alone, for a command line without other settings; may be ""."""
    return os.environ.get(f"{PREFIX}ARTIFACTS_BUCKET", "")


class HubAccess(Frozen):
    """How a command line on somebody's machine asks the hub: with that person's own token."""

    url: str = HUB_URL
    token: SecretStr = SecretStr("")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> HubAccess:
        """Read HF_ENDPOINT and HF_TOKEN, as Hugging Face's own tools do."""
        source = os.environ if environ is None else environ
        return cls(
            url=source.get("HF_ENDPOINT") or HUB_URL,
            token=SecretStr(source.get("HF_TOKEN", "")),
        )
