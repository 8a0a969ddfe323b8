"""What must outlive every deployment: table, artifacts bucket, key, secrets; and the event bus.

Everything stateful is here and is retained when the stack is deleted. Logical ids of this stack
never change: a changed id is a new, empty resource.
"""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_events as events
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from stacks.acknowledgements import accept
from stationmaster.aws import table
from stationmaster.domain.results import RELAYED_LOGS


class DataStack(cdk.Stack):
    """The table with its stream, artifacts bucket, encryption key, event bus and secrets."""

    def __init__(self, scope: Construct, construct_id: str, **kwargs: Any) -> None:
        super().__init__(scope, construct_id, **kwargs)
        self.key = kms.Key(
            self,
            "Key",
            description="Stationmaster's table, artifacts bucket and secrets",
            enable_key_rotation=True,
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        self.table = self._table()
        self.artifacts = self._artifacts()
        # Exported here by name, so that policies of other stacks can add the prefix of results.
        self.artifacts_arn = self.export_value(self.artifacts.bucket_arn)
        self.bus = events.EventBus(self, "Bus", description="Facts reported from running clusters")
        self.slack_secret = self._secret(
            "SlackSecret", "bot_token and signing_secret of the Slack app, filled in by hand"
        )
        self.hugging_face_secret = self._secret(
            "HuggingFaceSecret",
            "token of a Hugging Face account, filled in by hand; may stay empty",
        )
        self.relay_secret = self._secret(
            "RelaySecret",
            "key of which the keys of runs' relays are made; generated, nobody fills it in",
            generated="key",
        )
        results = "results of runs are here: stationmaster results RUN --bucket NAME"
        slack = "fill in bot_token and signing_secret here"
        token = "fill in token here, for models and data that need an account"
        for name, value, description in (
            ("ArtifactsBucketName", self.artifacts.bucket_name, results),
            ("SlackSecretArn", self.slack_secret.secret_arn, slack),
            ("HuggingFaceSecretArn", self.hugging_face_secret.secret_arn, token),
        ):
            cdk.CfnOutput(self, name, value=value, description=description)

    @property
    def table_arns(self) -> tuple[str, ...]:
        """The table and its indexes, for policies without a wildcard."""
        arn = self.table.table_arn
        return (arn, *(f"{arn}/index/{name}" for name in table.INDEXES))

    def _table(self) -> dynamodb.Table:
        # Not TableV2: with a key of ours that one cannot be synthesized for a region still unknown.
        made = dynamodb.Table(
            self,
            "Table",
            partition_key=_text(table.PARTITION_KEY),
            sort_key=_text(table.SORT_KEY),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            encryption=dynamodb.TableEncryption.CUSTOMER_MANAGED,
            encryption_key=self.key,
            stream=dynamodb.StreamViewType[table.STREAM_VIEW],
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            time_to_live_attribute=table.EXPIRES_AT,
            deletion_protection=True,
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        for name, (partition_key, sort_key) in table.INDEXES.items():
            made.add_global_secondary_index(
                index_name=name, partition_key=_text(partition_key), sort_key=_text(sort_key)
            )
        return made

    def _artifacts(self) -> s3.Bucket:
        """Make the only place where a trained model outlives its file system: nothing
        expires it.
        """
        bucket = s3.Bucket(
            self,
            "Artifacts",
            versioned=True,
            encryption=s3.BucketEncryption.KMS,
            encryption_key=self.key,
            bucket_key_enabled=True,  # one call of KMS for many objects
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            enforce_ssl=True,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="parts-of-unfinished-uploads",
                    abort_incomplete_multipart_upload_after=cdk.Duration.days(7),
                ),
                # What relays have read of logs; savers make the logs of results of it.
                s3.LifecycleRule(
                    id="relayed-logs",
                    prefix=f"{RELAYED_LOGS}/",
                    expiration=cdk.Duration.days(30),
                ),
                s3.LifecycleRule(
                    id="replaced-and-deleted-versions",
                    noncurrent_version_expiration=cdk.Duration.days(30),
                ),
            ],
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        assert bucket.policy is not None
        bucket.policy.apply_removal_policy(cdk.RemovalPolicy.RETAIN)
        accept(
            bucket,
            "S1",
            "two roles of ours use it; CloudTrail's data events record single accesses where that "
            "is wanted, and access logs would need another bucket that nobody reads",
        )
        return bucket

    def _secret(
        self, construct_id: str, description: str, *, generated: str = ""
    ) -> secretsmanager.Secret:
        """Make a secret without a value, which a person fills in, or with a `generated` field.

        With a template for its first value, a deployment that changes the template would overwrite
        the person's value.
        """
        secret = secretsmanager.Secret(
            self,
            construct_id,
            description=description,
            encryption_key=self.key,
            generate_secret_string=secretsmanager.SecretStringGenerator(
                secret_string_template="{}", generate_string_key=generated or "none"
            ),
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        if not generated:
            made = secret.node.default_child
            assert isinstance(made, secretsmanager.CfnSecret)
            made.add_property_deletion_override("GenerateSecretString")
        accept(
            secret,
            "SMG4",
            "with another key, nothing counts that relays report of runs that are under way"
            if generated
            else "their issuers have no interface that a rotation function could call",
        )
        return secret


def _text(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)
