"""What nobody's workflow can end: found by the reaper, and posted in the operations channel.

A cluster whose item in the table is lost or unreadable while all that costs is there, and a group
that AWS left behind a receipt and does not let go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from moto.ec2.models import ec2_backends

from bot.blocks import mrkdwn as md
from stationmaster.aws.eks_security_groups import EKS_TAG
from stationmaster.aws.table import PARTITION_KEY, SORT_KEY
from stationmaster.domain.names import cluster_name
from stationmaster.services import Services
from stationmaster.steps.parts.leftovers import left_in_account, release_left
from stationmaster.steps.parts.orphans import Orphans, Standing, find_orphans
from tests.chaos.points import Verdict
from tests.chaos.rules import Fault, Hold
from tests.chaos.scene import OPERATIONS_CHANNEL_ID, Named, Place, Scene
from tests.chaos.watched import AnId

_PASSES: Final = 8
_SOON: Final = timedelta(minutes=2)
CORE: Final = frozenset(
    {
        "own: cluster's item is lost while all is there",
        "own: cluster's item is unreadable while all is there",
    }
)


def points() -> Iterator[Named]:
    """Group, name, place and play of each."""
    lost = partial(_spoil, _lose, Standing.UNKNOWN)
    yield "loss of an item", "own: cluster's item is lost while all is there", Place.OWN, lost
    damaged = partial(_spoil, _damage, Standing.UNREADABLE)
    name = "own: cluster's item is unreadable while all is there"
    yield "damage of an item", name, Place.OWN, damaged
    yield "stuck group", "own: group that AWS left behind is in use", Place.OWN, _stick


def _spoil(
    spoil: Callable[[Scene, AnId], None], standing: Standing, scene: Scene, name: str
) -> Verdict:
    world, verdict, held = scene.world, Verdict(), list[Hold]()

    def hold(owner: AnId) -> None:
        held.append(world.runtime.hold(owner, "start-teardown"))

    # All that costs is there when a plugin fails.
    run_id = world.request(name, Fault("install-plugin"), before=hold)
    world.until(held[0].reached.is_set, "its teardown is to start")
    spoil(scene, run_id)
    held[0].released.set()
    world.until_still(run_id)

    first = _pass(scene, run_id, after=_SOON)
    verdict.expect(first is not None, "the reaper does not find it")
    if first is not None:
        verdict.expect(first.standing is standing, f"the reaper says that it is {first.standing}")
        verdict.wrong += _not_posted_once(scene, first)
    later = _pass(scene, run_id, after=timedelta(days=30))
    verdict.expect(later is not None and not later.deleted, "the reaper deletes it by its tags")
    _lose(scene, run_id)  # what is unreadable stays so
    for _ in range(_PASSES):  # a person deletes it
        release_left(world.services, run_id, left_in_account(world.services, run_id))
        world.aws.finish_lifecycles()
    verdict.orphans += scene.left_of(run_id)
    return verdict


def _stick(scene: Scene, name: str) -> Verdict:
    """Somebody's interface holds EKS's group, which AWS did not delete with the cluster."""
    world, verdict = scene.world, Verdict()
    settings, ec2 = world.services.settings, world.aws.client("ec2")
    run_id = world.request(name, Fault("install-plugin"))
    world.until_rested(run_id, torn_down=True)
    of_cluster = cluster_name(run_id)
    # Nobody but AWS may set such a tag.
    group = ec2_backends[world.aws.account_id][world.aws.region].create_security_group(
        f"eks-cluster-sg-{of_cluster}",
        "EKS's own",
        vpc_id=settings.vpc_id,
        tags={EKS_TAG: of_cluster},
    )
    holder = ec2.create_network_interface(SubnetId=settings.subnet_ids[0], Groups=[group.id])

    stuck = [_pass(scene, run_id, after=_SOON) for _ in range(2)]
    verdict.expect(all(stuck), "the reaper forgets what it could not delete")
    verdict.wrong += [
        each for found in stuck[:1] if found for each in _not_posted_once(scene, found)
    ]
    interface = holder["NetworkInterface"]["NetworkInterfaceId"]
    ec2.delete_network_interface(NetworkInterfaceId=interface)
    _pass(scene, run_id, after=_SOON)

    verdict.orphans += scene.left_of(run_id)
    return verdict


def _pass(scene: Scene, cluster_id: AnId, *, after: timedelta) -> Orphans | None:
    """Look at the account as the reaper does, so long from now; what it found of one cluster."""
    world = scene.world
    settings = world.services.settings
    world.runtime.notifier_rests = False
    found = find_orphans(Services(settings, now=lambda: datetime.now(UTC) + after))
    world.aws.finish_lifecycles()
    world.aws.settle()
    world.runtime.notifier_rests = True
    return next((each for each in found if each.cluster_id == cluster_id), None)


def _not_posted_once(scene: Scene, found: Orphans) -> Sequence[str]:
    """What is wrong with what the operations channel hears of it."""
    posts = [
        message
        for message in scene.world.mode.slack.messages(OPERATIONS_CHANNEL_ID)
        if md.escape(found.finding) in json.dumps(message.blocks)
    ]
    return [] if len(posts) == 1 else [f'"{found.finding}": {len(posts)} posts, expected one']


def _lose(scene: Scene, cluster_id: AnId) -> None:
    scene.world.aws.client("dynamodb").delete_item(
        TableName=scene.world.services.settings.table_name, Key=_key(cluster_id)
    )


def _damage(scene: Scene, cluster_id: AnId) -> None:
    scene.world.aws.client("dynamodb").update_item(
        TableName=scene.world.services.settings.table_name,
        Key=_key(cluster_id),
        UpdateExpression="SET body = :body",
        ExpressionAttributeValues={":body": {"S": "no JSON"}},
    )


def _key(cluster_id: AnId) -> dict[str, Any]:
    return {PARTITION_KEY: {"S": f"CLUSTER#{cluster_id}"}, SORT_KEY: {"S": "STATE"}}
