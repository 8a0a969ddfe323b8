"""What a command about a kept cluster answers to the one person who typed it; always ephemeral."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from bot.blocks import cluster_parts as parts
from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.cluster_card import EMOJI, cluster_card, goes, status
from bot.blocks.elements import Block, Content, context, header, section
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.shares import shares
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.names import NAMESPACE, cluster_name
from stationmaster.domain.run.view import ClusterView

if TYPE_CHECKING:
    from stationmaster.settings import Settings

_MAX_CLUSTERS: Final = 20
_MAX_SHARES: Final = 12
_MAX_ROLES: Final = 4


def cluster_requested(cluster: Cluster, *, created: bool) -> Content:
    """Answer a creation: what was understood, and where to look."""
    label = md.code(cluster.label, 60)
    verb = "waits for an approval" if cluster.awaits_approval else "is on its way"
    verb = verb if created else "was requested a moment ago; nothing new was started"
    price = md.money(cluster.spec.price_per_hour_usd)
    facts = (
        f"{parts.machines(cluster.spec)} {md.DOT} "
        f"{parts.storage(cluster.spec)} {md.DOT} {price} an hour once "
        f"it is there {md.DOT} goes {goes(cluster)}"
    )
    return Content(
        text=f"cluster {md.escape(cluster.label, 60)} {verb}",
        blocks=[
            section(f"{md.DONE} cluster {label} {verb}\n{facts}"),
            context(
                f"Its card is in this channel. `{COMMAND} RECIPE on={cluster.label}` runs on it, "
                "also now: the run then waits until it is ready."
            ),
        ],
    )


def clusters_list(views: Sequence[ClusterView], *, now: datetime) -> Content:
    """List the kept clusters of a channel."""
    if not views:
        return Content(
            text="there is no kept cluster in this channel",
            blocks=[
                section("There is no kept cluster in this channel."),
                context(
                    f"`{COMMAND} cluster create NAME` makes one, and keep=2h, typed with a start, "
                    "keeps a run's"
                ),
            ],
        )
    blocks: list[Block] = [header("Kept clusters")]
    blocks += [section(cluster_line(view, now=now)) for view in views[:_MAX_CLUSTERS]]
    hint = f"`{COMMAND} cluster show NAME` shows one of them, `{COMMAND} RECIPE on=NAME` uses it"
    blocks.append(context(hint))
    return Content(text=f"{len(views)} kept clusters of this channel", blocks=blocks)


def cluster_line(view: ClusterView, *, now: datetime) -> str:
    cluster = view.cluster
    emulated = " emulated" if view.emulated_speed else ""
    shown = [
        status(cluster),
        parts.machines(cluster.spec),
        f"{md.money_escaped(cluster.cost_usd(now))}{emulated} so far",
        f"{md.money_escaped(words.price_per_hour(cluster))} an hour",
        f"goes {goes(cluster)}",
    ]
    waiting = len(cluster.queue)
    if waiting:
        shown.insert(1, f"{waiting} waiting")
    name = md.code(cluster.label, 60)
    return f"{EMOJI[cluster.phase]} {name}\n{f' {md.DOT} '.join(shown)}"


def cluster_shown(view: ClusterView, *, settings: Settings, now: datetime) -> Content:
    """Show a cluster's card, who has paid for what, and how to reach it with kubectl."""
    cluster, card = view.cluster, cluster_card(view, now=now)
    blocks = [block for block in card.blocks if block["type"] != "actions"]
    split = shares(cluster, now)
    if split.runs:
        lines = parts.shares_of_runs([*split.runs.items()][-_MAX_SHARES:])
        hidden = len(split.runs) - len(lines)
        lines += [f"{hidden} earlier runs"] if hidden > 0 else []
        lines.append(f"{parts.own_share(cluster)}  {md.money_escaped(split.own)}")
        blocks.append(section("*Cost so far, by run*\n" + "\n".join(lines)))
    if not cluster.is_going_away and cluster.phase is not ClusterPhase.REQUESTED:
        blocks.append(section(_with_kubectl(cluster, settings)))
    return Content(text=card.text, blocks=blocks)


def nodes_follow(cluster: Cluster) -> Content:
    label = md.code(cluster.label, 60)
    text = f"Kubernetes is asked for the nodes of {label}; they follow in its card's thread"
    return Content(text=text, blocks=[section(f"{md.DONE} {text}.")])


def _with_kubectl(cluster: Cluster, settings: Settings) -> str:
    """Write the line that configures kubectl, and as whom."""
    title = "*Reach it with kubectl*"
    if settings.kubeconfig:  # has the clusters already
        config = md.in_code(settings.kubeconfig, 500)
        return f"{title}\n```kubectl --kubeconfig {config} get pods```"
    name = cluster.spec.eks_name or cluster_name(cluster.cluster_id)
    line = f"aws eks update-kubeconfig --name {name} --region {settings.region}"
    if cluster.spec.eks_name:
        return f"{title}\n```{line}```\nIts owner says which IAM roles it lets in."
    if not settings.kubectl_role_arns:
        return (
            f"{title}\n```{line}```\nNo IAM role of people is let in: kubectl_role_arns in "
            "cdk.json names none."
        )
    first, *others = settings.kubectl_role_arns[:_MAX_ROLES]
    also = f", as are {', '.join(md.code(each, 200) for each in others)}" if others else ""
    return (
        f"{title}\n```{line} --role-arn {first}```\nThe role {md.code(first, 200)} is let in"
        f"{also}: it may look, but for secrets, and exec into pods of namespace {NAMESPACE}."
    )


def cluster_extended(cluster: Cluster) -> Content:
    return _changed(cluster, f"stays: it goes {goes(cluster)}", waits=cluster.awaits_approval)


def cluster_deleted(view: ClusterView) -> Content:
    label = md.code(view.cluster.label, 60)
    runs = ", ".join(md.code(run_id, 80) for run_id in [*view.runs][:8])
    ending = f", and with it {runs}" if runs else ""
    text = f"cluster {label} is being deleted{ending}; its receipt follows in its card's thread"
    return Content(text=text, blocks=[section(f"\U0001f5d1\ufe0f {text}.")])


def cluster_resized(cluster: Cluster) -> Content:
    price = md.money(cluster.spec.price_per_hour_usd)
    machines = parts.machines(cluster.spec)
    waits = cluster.awaits_approval
    return _changed(cluster, f"changes to {machines}, {price} an hour", waits=waits)


def cluster_validated(cluster: Cluster) -> Content:
    what = "runs the usual checks and nccl-tests" if cluster.measures_nccl else "runs every check"
    return _changed(cluster, what)


def _changed(cluster: Cluster, what: str, *, waits: bool = False) -> Content:
    what = "waits for an approval, and nothing is changed before" if waits else what
    text = f"cluster {md.code(cluster.label, 60)} {what}; its card follows it"
    return Content(text=text, blocks=[section(f"{md.DONE} {text}.")])
