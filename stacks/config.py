"""What differs between two deployments of the infrastructure; read from cdk.json by `app.py`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class StageConfig(BaseModel):
    """The `stationmaster` object of cdk.json's context; every field can be left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deployment: str = Field(
        default="stationmaster",
        pattern=r"^[a-z][a-z0-9-]{0,30}$",
        description="prefix of the functions' and state machines' names",
    )
    image_tag: str = Field(default="0.1.0", description="tag that container/build.sh pushed")
    kubernetes_version: str = "1.35"
    dataset_buckets: tuple[str, ...] = Field(
        default=(), description="S3 buckets that runs may be trained from, dataset=s3://BUCKET/..."
    )
    dataset_key_arns: tuple[str, ...] = Field(
        default=(), description="KMS keys that objects in these buckets are encrypted with"
    )
    linked_buckets: tuple[str, ...] = Field(
        default=(), description="those of dataset_buckets that FSx may link to file systems"
    )
    eks_clusters: tuple[str, ...] = Field(
        default=(), description="EKS clusters of others that runs may use, cluster=eks:NAME"
    )
    num_nat_gateways: int = Field(
        default=1, ge=1, description="training nodes of a run are in one zone; each gateway costs"
    )
    requests_per_second: int = Field(default=20, ge=1, description="of the public HTTP API")

    @model_validator(mode="after")
    def _link_what_may_be_read(self) -> StageConfig:
        others = [name for name in self.linked_buckets if name not in self.dataset_buckets]
        if others:
            raise ValueError(
                f"linked_buckets names {', '.join(others)}, which dataset_buckets does not: add "
                "them there as well"
            )
        return self
