"""The words after the subcommands that look at several runs, or at what people did. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from shlex import quote
from typing import Any, Final

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.spec import spec_for_any
from stationmaster.domain.commands.cluster_words import (
    DEFAULT_TTL_S,
    read_extension,
    read_nodes,
    read_size,
    read_view,
)
from stationmaster.domain.commands.parameters import read_pairs, shorten
from stationmaster.domain.commands.requests import CreateCluster, StudyRuns
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.table import Takes
from stationmaster.domain.durations import LONGEST_S, duration_of
from stationmaster.domain.errors import BadCommand
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.keys.budget import read_usd
from stationmaster.domain.keys.capacity import refuse_kept_block
from stationmaster.domain.keys.kept_cluster import ALONE, ON
from stationmaster.domain.keys.names import CLUSTER_KEYS
from stationmaster.domain.keys.questions import Questions
from stationmaster.domain.keys.registry import placed
from stationmaster.domain.planning.cost import JOB_START_S, TEARDOWN_S, TIME_TO_FIRST_STEP_S

# As a person types it, and as Slack sends it where it escapes names.
_MENTION: Final = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^>]*)?>|@([\w.-]+)")
_MONTH: Final = re.compile(r"20[0-9]{2}-(?:0[1-9]|1[0-2])")
# As pods are called without their run; of a TrainJob they are node-0-0.
_POD: Final = re.compile(r"(?:worker|master|launcher|node)-[0-9]{1,4}(?:-[0-9]{1,4})?")
MOST_COMPARED: Final = 6
_OF_CLUSTER: Final = CLUSTER_KEYS.keys() - {"nodes"}
_MADE_AND_DELETED_S: Final = TIME_TO_FIRST_STEP_S - JOB_START_S + TEARDOWN_S


def read_audit(words: Sequence[str]) -> tuple[str, str, int]:
    """Read what the audit is searched for: a run or cluster, a person, since when; each once."""
    found: dict[str, str] = {}
    for word in words:
        person = _person(word)
        key, value = ("about", word) if person is None else ("person", person)
        if "=" in word:
            key, _, value = word.partition("=")
        if key in found or key not in ("about", "person", "since"):
            raise BadCommand(
                f'/train audit takes a run, @person and since=7d, got "{shorten(" ".join(words))}"',
                suggestion="/train audit since=7d",
            )
        found[key] = value
    since_s = duration_of("since", found["since"]) if "since" in found else 0
    return found.get("about", ""), found.get("person", ""), since_s


def read_logs(words: Sequence[str]) -> tuple[RunId | None, str, str, int]:
    """Read the run, the pod, and the text and age of its lines; each at most once."""
    plain = [word for word in words if "=" not in word]
    keys = [word.partition("=")[::2] for word in words if "=" in word]
    found = {key.lower(): value for key, value in keys}
    is_known = found.keys() <= {"grep", "since"} and len(found) == len(keys) and len(plain) <= 2
    if not is_known or "" in found.values():
        raise BadCommand(
            "/train logs takes a run, one of its pods, grep=TEXT and since=10m, got "
            f'"{shorten(" ".join(words))}"',
            suggestion="/train logs",
        )
    if len(plain) == 1 and _POD.fullmatch(plain[0]):
        plain = ["", *plain]
    run, pod = [*plain, "", ""][:2]
    since_s = duration_of("since", found["since"]) if "since" in found else 0
    return RunId(run) if run else None, pod, found.get("grep", ""), since_s


def read_scale(words: Sequence[str]) -> tuple[str, int]:
    """Read the run, and on how many nodes it is to train."""
    if not words or "=" in words[0] or words[0].startswith("-"):
        raise BadCommand(
            "/train scale needs a run first: its id, or its name, or last for the newest",
            suggestion="/train list",
        )
    run = words[0]
    return run, read_nodes(words[1:], f"scale {shorten(run)}", instead=f"status {quote(run)}")


def read_runs(words: Sequence[str], name: str, *, most: int = 2) -> tuple[str, ...]:
    """Read the runs of the subcommand `name`, two to `most`, each once."""
    twice = next((word for word in words if words.count(word) > 1), None)
    if twice is None and 2 <= len(words) <= most:
        return tuple(words)
    how_many = "two runs" if most == 2 else f"two to {most} runs"
    got = f'"{shorten(twice)}" twice' if twice else f'"{shorten(" ".join(words)) or "none"}"'
    raise BadCommand(
        f"/train {name} takes {how_many}, by id or name, got {got}", suggestion="/train list"
    )


def read_study(
    words: Sequence[str], parse: Callable[[list[str], Questions], StartRun], ask: Questions
) -> StudyRuns:
    """Read a start for each value of each key; the last key changes fastest.

    Without `on=` each is planned for itself, which says what cluster they need, and then on that.

    Raises:
        UserError: they are too few or too many, one cannot be, or no one cluster does for all.
    """
    choices = [
        # A command may have commas of its own.
        [word] if key == "command" or not value else [f"{key}={each}" for each in value.split(",")]
        for word in words
        for key, _, value in [word.partition("=")]
    ]
    runs, alone = [list(each) for each in product(*choices)], f"{ALONE.name}=true"
    if not 2 <= len(runs) <= MOST_COMPARED:
        raise BadCommand(
            f"/train study takes a recipe and keys with several values, two to {MOST_COMPARED} "
            f'runs in all, got {len(runs)} of "{shorten(" ".join(words))}"',
            suggestion="/train help",
        )
    if any(word.startswith(f"{ON.name}=") for word in words):
        return StudyRuns(tuple(parse([*each, alone], ask) for each in runs))
    create = _cluster_of([parse(each, ask) for each in runs])
    runs = [[word for word in each if word.partition("=")[0] not in _OF_CLUSTER] for each in runs]
    if len({tuple(each) for each in runs}) < len(runs):
        raise BadCommand(
            f'two runs of "{shorten(" ".join(words))}" would be the same: without on= they share a '
            "cluster, so type one value of what that is made of, and no value twice"
        )
    its: dict[str, Any] = {"cluster_id": ClusterId(create.name), "spec": create.spec}
    there = replace(ask, find_cluster=lambda _: Cluster.model_construct(**its))
    starts = [parse([*each, f"{ON.name}={create.name}", alone], there) for each in runs]
    is_known = all(each.plan.trains_recipe for each in starts)  # of commands nobody knows
    in_turn = _MADE_AND_DELETED_S + sum(each.plan.longest_duration_s for each in starts)
    study_s = in_turn if is_known else DEFAULT_TTL_S
    return StudyRuns(tuple(starts), replace(create, ttl_s=min(study_s, LONGEST_S)))


def _cluster_of(starts: Sequence[StartRun]) -> CreateCluster:
    """Describe the cluster on which each of these has what it would make for itself."""
    plan, options = starts[0].plan, starts[0].options
    refuse_kept_block(options, "/train study without on=")
    spec = spec_for_any(
        get_instance(plan.instance_type),
        nodes=max(each.plan.nodes for each in starts),
        file_system_gib=max(each.plan.file_system_gib for each in starts),
        mbps_per_tib=starts[0].resolved.file_system_mbps_per_tib,
        existing=options.file_system,
    )
    return CreateCluster("study", placed(spec, options), 0, options)


def read_cost(words: Sequence[str]) -> tuple[str, str]:
    """Read whose cost is asked for, "" for all, and of which month, "" for the current one."""
    person = month = ""
    for word in words:
        named = _person(word)
        if named is not None and not person:
            person = named
        elif _MONTH.fullmatch(word) and not month:
            month = word
        else:
            raise BadCommand(
                f"/train cost takes @person and a month such as 2026-11, got "
                f'"{shorten(" ".join(words))}"'
            )
    return person, month


def read_budget(words: Sequence[str]) -> tuple[str, float]:
    """Read the run, and the dollars that it may cost in all."""
    values = read_pairs(words[1:])
    if not words or "=" in words[0] or list(values) != ["usd"]:
        raise BadCommand(
            f'/train budget takes a run and usd=N, got "{shorten(" ".join(words))}"',
            suggestion="/train list",
        )
    return words[0], read_usd("usd", values["usd"])


READERS: Final[Mapping[Takes, Callable[[Sequence[str]], tuple[Any, ...]]]] = {
    Takes.LOGS: read_logs,
    Takes.AUDIT: read_audit,
    Takes.LONGER_LIFE: read_extension,
    Takes.OTHER_SIZE: read_size,
    Takes.CLUSTER_VIEW: read_view,
    Takes.RUN_BUDGET: read_budget,
    Takes.RUN_SIZE: read_scale,
}


def _person(word: str) -> str | None:
    """Read a mention as the id or the name of a person; None where it is none."""
    mention = _MENTION.fullmatch(word)
    return None if mention is None else "".join(mention.groups(""))
