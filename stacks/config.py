"""What differs between two deployments of the infrastructure; read from cdk.json by `app.py`."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from stationmaster.domain.frozen import Frozen
from stationmaster.domain.images import is_prefix
from stationmaster.domain.rules import ChannelId, ChannelRules, Rules
from stationmaster.domain.teams import IN_TEAM
from stationmaster.settings import Settings

_VPC_ID: Final = re.compile(r"vpc-(?:[0-9a-f]{8}|[0-9a-f]{17})")
# Without commas, which the functions' environment separates them by.
_ROLE_ARN: Final = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=.@/-]+")
# Exact names: a pattern would let people name clusters that nobody has offered.
_EKS_NAME: Final = r"^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$"
_SUBNET_ID: Final = re.compile(r"subnet-(?:[0-9a-f]{8}|[0-9a-f]{17})")
# A zone of a region; those named after a city (local zones) have neither EKS nor FSx.
_ZONE: Final = r"^[a-z]{2}(?:-[a-z]+)+-[0-9][a-f]$"
# Of those that AWS's services take in common: none with a comma, which separates them.
_TAG: Final = r"^[A-Za-z0-9_.:/+@-][A-Za-z0-9_ .:/+@-]{0,127}=[A-Za-z0-9_ .:/+@=-]{0,255}$"
# What the fields below that are lists may take of the 4 KB that a function's variables have; the
# rest is kept for what the stacks write themselves, and for settings to come.
MOST_LISTED: Final = 900


def _registry(text: str) -> str:
    if not is_prefix(text):
        raise ValueError(f'"{text}" is no registry: expected HOST or HOST/PATH, in lower case')
    return text


class StageConfig(Frozen, extra="forbid"):
    """The `stationmaster` object of cdk.json's context; every field can be left out."""

    # With a function's name and the region it is a role's name, of 64 characters at most.
    deployment: str = Field(default="stationmaster", pattern=r"^[a-z][a-z0-9-]{0,27}$")
    """Prefix of the functions', their roles' and the state machines' names"""
    permissions_boundary: str = Field(
        default="",
        pattern=r"^(arn:aws[a-z-]*:iam::([0-9]{12}|aws):policy/[A-Za-z0-9_+=,.@/-]{1,512})?$",
    )
    """ARN of the policy that bounds every role of the stacks"""
    # Functions' variables name some roles.
    role_path: str = Field(default="/", max_length=64, pattern=r"^/([A-Za-z0-9_+=.@-]+/)*$")
    """Path of every role of the stacks"""
    tags: tuple[Annotated[str, Field(pattern=_TAG)], ...] = Field(default=(), max_length=20)
    """Further tags of all that the stacks and runs create, KEY=VALUE each"""
    image_tag: str = "0.1.0"
    """Tag that container/build.sh pushed"""
    more_images: tuple[
        Literal["cpu", "dlc", "megatron", "nccl-tests", "nemo", "nemo2", "torchtitan"], ...
    ] = ()
    """Images that are built and kept besides those that every run takes"""
    kubernetes_version: str = Field(default="", pattern=r"^(1\.[0-9]{1,3})?$")
    """Version of new EKS clusters, 1.N; chosen from what EKS offers if empty"""
    node_repair: bool = False
    """Whether EKS replaces or reboots nodes that it finds broken"""
    gpu_metrics: bool = False
    """Whether CloudWatch gets metrics of GPUs, which costs"""
    dataset_buckets: tuple[str, ...] = ()
    """S3 buckets that runs may be trained from, dataset=s3://BUCKET/..."""
    dataset_key_arns: tuple[str, ...] = ()
    """KMS keys that objects in these buckets are encrypted with"""
    linked_buckets: tuple[str, ...] = ()
    """Those of dataset_buckets that FSx may link to file systems"""
    eks_clusters: tuple[Annotated[str, Field(pattern=_EKS_NAME)], ...] = ()
    """Existing EKS clusters that runs may use, cluster=eks:NAME"""
    hugging_face_token_in_eks_clusters: bool = False
    """Whether pods in these get the deployment's token of the hub"""
    file_systems: tuple[Annotated[str, Field(pattern=r"^fs-[0-9a-f]{8,40}$")], ...] = ()
    """FSx file systems that runs may use, file_system=fs-..."""
    reservations: tuple[Annotated[str, Field(pattern=r"^cr-[0-9a-f]{8,40}$")], ...] = ()
    """Capacity reservations and blocks that runs may use, capacity="""
    kubectl_role_arns: tuple[str, ...] = ()
    """IAM roles of people who may use kubectl on the clusters"""
    vpc_id: str = ""
    """An existing network to use, with subnet_ids; made where empty"""
    subnet_ids: tuple[str, ...] = ()
    """Its private subnets, in two zones at least, for clusters"""
    image_registries: tuple[Annotated[str, AfterValidator(_registry)], ...] = ()
    """Registries, HOST or HOST/PATH, whose images runs may use, image="""
    image_channels: tuple[
        Annotated[str, Field(pattern=rf"^{IN_TEAM}[CG][A-Z0-9]{{2,30}}$")], ...
    ] = ()
    """Ids of Slack channels in which image= and command= may be typed"""
    push_organisations: tuple[str, ...] = ()
    """Owners on the Hugging Face hub that runs may push to, push_to=..."""
    operations_channel: str = Field(default="", pattern=rf"^({IN_TEAM}[CG][A-Z0-9]{{2,20}})?$")
    """Id of the Slack channel that is told what needs a person"""
    max_concurrent_runs: int = Field(default=0, ge=0)
    """Runs that may be open at a time; 0 for any number"""
    max_concurrent_runs_per_channel: int = Field(default=0, ge=0)
    """Of them in one channel; 0 for any number"""
    max_usd_per_hour: float = Field(default=0, ge=0, allow_inf_nan=False)
    """Of all clusters; 0 for any amount"""
    max_usd_per_hour_per_channel: float = Field(default=0, ge=0, allow_inf_nan=False)
    """Of those of one channel; 0 for any"""
    channels: dict[ChannelId, ChannelRules] = {}
    """Who may do what in which channel, by its id; * for the others"""
    num_nat_gateways: int = Field(default=1, ge=1)
    """Training nodes of a run are in one zone; each gateway costs"""
    zones: tuple[Annotated[str, Field(pattern=_ZONE)], ...] = ()
    """Zones of the new network, two to six; the region's first two if empty"""
    interface_endpoints: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9.-]{1,60}$")], ...] = ()
    """AWS services that the new network reaches without its NAT gateway"""
    public_api: bool = True
    """false: clusters' Kubernetes APIs are reached in the network only"""
    api_cidrs: tuple[str, ...] = ()
    """Where public_api lets people in from; anywhere if empty"""
    alarm_emails: tuple[Annotated[str, Field(pattern=r"^[^@\s,]+@[^@\s,]+$")], ...] = ()
    """Who gets a mail when an alarm is raised; each confirms it once"""
    alarm_usd_per_hour: float = Field(default=500, gt=0)
    """An alarm is raised when all clusters together cost more"""
    trace_functions: bool = True
    """Send traces of the functions to X-Ray; false: send none"""
    relay_replicas: int = Field(default=2, ge=1, le=3)
    """Relays of a run, on different nodes; one of them sends"""
    requests_per_second: int = Field(default=20, ge=1)
    """Of the public HTTP API"""

    @model_validator(mode="after")
    def _use_a_whole_network(self) -> StageConfig:
        if bool(self.vpc_id) != bool(self.subnet_ids):
            has, lacks = ("vpc_id", "subnet_ids") if self.vpc_id else ("subnet_ids", "vpc_id")
            raise ValueError(
                f"{has} is given without {lacks}: give both for a network that exists, or neither "
                "for a new one"
            )
        if not self.vpc_id:
            return self
        if not _VPC_ID.fullmatch(self.vpc_id):
            raise ValueError(
                f'vpc_id "{self.vpc_id}" is no id; expected vpc- and 8 or 17 hex digits'
            )
        for subnet_id in self.subnet_ids:
            if not _SUBNET_ID.fullmatch(subnet_id):
                raise ValueError(
                    f'subnet_ids has "{subnet_id}", which is no id; expected subnet- and 8 or 17 '
                    "hex digits"
                )
        if len(set(self.subnet_ids)) < max(2, len(self.subnet_ids)):
            raise ValueError(
                f"subnet_ids has {', '.join(self.subnet_ids)}; expected at least two different "
                "subnets, in two zones, because EKS needs two"
            )
        for field in ("num_nat_gateways", "zones", "interface_endpoints"):
            if field in self.model_fields_set:
                raise ValueError(
                    f"{field} is for a new network; a network that exists keeps its own way "
                    f"out: leave one of vpc_id and {field} out"
                )
        return self

    @model_validator(mode="after")
    def _use_zones_of_one_region(self) -> StageConfig:
        if not self.zones:
            return self
        if not 2 <= len(set(self.zones)) == len(self.zones) <= 6:
            raise ValueError(
                f"zones has {', '.join(self.zones)}; expected two to six different zones, because "
                "EKS needs two"
            )
        if len({zone[:-1] for zone in self.zones}) > 1:
            raise ValueError(
                f"zones has {', '.join(self.zones)}; expected zones of one region, the deployment's"
            )
        return self

    @field_validator("interface_endpoints")
    @classmethod
    def _name_services_once(cls, services: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(services)) < len(services):
            raise ValueError(f"{', '.join(services)} has a service twice; name each once")
        return services

    @model_validator(mode="after")
    def _fit_into_variables(self) -> StageConfig:
        """Check that the lists fit: each is a variable of every function; buckets' keys are only in
        policies.
        """
        lists = {
            name: ",".join(value)
            for name in Settings.model_fields
            if isinstance(value := getattr(self, name, None), tuple) and value
        }
        total = sum(len(text) for text in lists.values())
        if total > MOST_LISTED:
            longest = max(lists, key=lambda name: len(lists[name]))
            raise ValueError(
                f"{', '.join(lists)} take {total} characters together, and {MOST_LISTED} fit into "
                f"the functions' variables; shorten {longest}, which takes {len(lists[longest])}"
            )
        return self

    @field_validator("tags")
    @classmethod
    def _leave_our_tags_alone(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        keys = [each.partition("=")[0] for each in tags]
        for key in keys:
            if key.lower().startswith(("aws:", "stationmaster:")) or key == "Name":
                raise ValueError(f'"{key}" is a tag that AWS or Stationmaster sets; leave it out')
            if keys.count(key) > 1:
                raise ValueError(f'"{key}" is given twice; give each tag once')
        return tags

    @model_validator(mode="after")
    def _let_people_in_by_address(self) -> StageConfig:
        for cidr in self.api_cidrs:
            try:
                ipaddress.IPv4Network(cidr)
            except ValueError:
                raise ValueError(
                    f'api_cidrs has "{cidr}"; expected an IPv4 network such as 203.0.113.0/24'
                ) from None
        if self.api_cidrs and not self.public_api:
            raise ValueError(
                "api_cidrs lets addresses into a public API, and public_api is false: leave one out"
            )
        return self

    @property
    def rules(self) -> str:
        """The rules of channels as the bot reads them; "" without any."""
        return Rules(channels=self.channels).model_dump_json() if self.channels else ""

    @property
    def functions_join_network(self) -> bool:
        """Whether functions reach clusters from inside of the network, whose addresses stay."""
        return bool(self.api_cidrs) or not self.public_api

    @field_validator("kubectl_role_arns")
    @classmethod
    def _name_roles(cls, arns: tuple[str, ...]) -> tuple[str, ...]:
        for arn in arns:
            if not _ROLE_ARN.fullmatch(arn):
                raise ValueError(
                    f'"{arn}" is no ARN of an IAM role; expected '
                    "arn:aws:iam::ACCOUNT:role/NAME, not that of a session (sts) or a user"
                )
        return arns

    @model_validator(mode="after")
    def _link_what_may_be_read(self) -> StageConfig:
        others = [name for name in self.linked_buckets if name not in self.dataset_buckets]
        if others:
            raise ValueError(
                f"linked_buckets names {', '.join(others)}, which dataset_buckets does not: add "
                "them there as well"
            )
        return self


def read_context(path: Path) -> dict[str, Any]:
    """Read the context in a cdk.json, as the CDK's command line does; empty without that file.

    Raises:
        ValueError: one sentence that says what was expected.
    """
    try:
        written = json.loads(path.read_text())
        context = written.get("context", {})
        if not isinstance(context, dict):
            raise TypeError
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f'{path} is not read: expected JSON, {{"context": {{...}}}}') from None
    return context


def read_config(
    context: Mapping[str, Any] | None, *, source: str = "cdk.json, object stationmaster"
) -> StageConfig:
    """Read the configuration that `source` has: the context of cdk.json, or a file.

    Raises:
        ValueError: one sentence that names the field and what was expected.
    """
    try:
        return StageConfig.model_validate(context or {})
    except ValidationError as exc:
        problem = exc.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        raise ValueError(f"{source}: {f'{field}: ' if field else ''}{message}") from exc
