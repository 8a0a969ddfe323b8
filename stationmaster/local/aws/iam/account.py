"""What the emulated account has, as far as IAM asks: tags, networks, machines of task tokens.

Asked by `needs` and `on_behalf` while a request is looked at; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from moto.ec2.models import ec2_backends
from moto.logs.models import logs_backends
from moto.s3.models import s3_backends
from moto.secretsmanager.models import secretsmanager_backends
from moto.stepfunctions.parser.models import stepfunctions_parser_backends

# In place of the id that AWS gives to a part of a cluster, where a request names none.
ID_OF_PART: Final = "00000000-0000-0000-0000-000000000000"


@dataclass
class Account:
    """One account in one region; `sources` are the services that moto does not have."""

    account_id: str
    region: str
    sources: Iterable[Any] = ()
    # Buckets and tables whose contents are encrypted with the deployment's key: name -> key's ARN.
    keys: dict[str, str] = field(default_factory=dict)
    # Services that have made their role in this account.
    linked: set[str] = field(default_factory=set)

    def arn(self, template: str) -> str:
        """Write the ARN of "service:rest"; services without region or account leave them out."""
        if template == "*" or template.startswith("arn:"):
            return template
        service, _, rest = template.partition(":")
        region = "" if service in ("iam", "s3") else self.region
        account = "" if service == "s3" else self.account_id
        return f"arn:aws:{service}:{region}:{account}:{rest}"

    def tags_of(self, arn: str) -> dict[str, str] | None:
        """Return the tags of a resource, None when there is none of this ARN."""
        service, rest = arn.split(":", 5)[2::3]
        if service == "logs":
            name = rest.removeprefix("log-group:")
            logs = logs_backends[self.account_id][self.region]
            return dict(logs.list_tags_log_group(name)) if name in logs.groups else None
        part, _, identity = arn.rpartition("/")
        owned = [each for each in self.sources if each.owns_arn(arn)]
        for source in [self._ec2] if service == "ec2" else owned:
            for resource in source.iter_tagged_resources():
                named = resource.arn.rpartition("/")[0] if identity == ID_OF_PART else ""
                if arn == resource.arn or part == named:
                    return dict(resource.tags)
        return None

    def launch_template(self, stated: dict[str, str]) -> Any | None:
        """Return the launch template that a request names by id or name, or None."""
        for template in list(self._ec2.launch_templates.values()):
            if stated.get("id") == template.id or stated.get("name") == template.name:
                return template
        return None

    def vpc_of(self, subnet_id: str) -> str:
        """Return the network of a subnet, "" when there is no such subnet."""
        for zones in list(self._ec2.subnets.values()):
            if subnet_id in zones:
                return str(zones[subnet_id].vpc_id)
        return ""

    def secret_arn(self, name_or_arn: str) -> str:
        """Return the ARN of a secret; what is not found stays as it is."""
        secrets = secretsmanager_backends[self.account_id][self.region].secrets
        found = secrets.get(name_or_arn) if name_or_arn in secrets else None
        return name_or_arn if found is None else str(found.arn)

    def has_object(self, bucket: str, key: str) -> bool:
        """Say whether a bucket has an object of this key."""
        found = s3_backends[self.account_id]["aws"].buckets.get(bucket)
        return found is not None and found.keys.get(key) is not None

    def machine_of(self, token: str) -> str | None:
        """Return the ARN of the state machine that waits with a task token, None when none does."""
        backend = stepfunctions_parser_backends[self.account_id][self.region]
        for execution in backend._get_executions():
            worker = getattr(execution, "exec_worker", None)
            env = None if worker is None else worker.env
            if env is not None and env.callback_pool_manager.get(token) is not None:
                return str(execution.state_machine.arn)
        return None

    @property
    def _ec2(self) -> Any:
        return ec2_backends[self.account_id][self.region]
