"""`image=`, `command=` and `directory=`: what a run runs besides the product's own code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Final

from stationmaster.domain.catalogue.recipes import FRAMEWORK_NAMES, PRESET
from stationmaster.domain.datasets import PackedSource, read_dataset
from stationmaster.domain.errors import BadCommand, BadParameter, NotPossibleNow
from stationmaster.domain.images import is_from, names_digest, read_image
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.keys.questions import OwnCodeRules
from stationmaster.domain.planning.plan import LONGEST_COMMAND, Plan

_IMAGE: Final = Key(
    name="image",
    help="container image of the training pods, from a registry that the deployment allows",
    meanings=("container", "docker_image"),
    meant=str,
    is_resumed=True,
    typed=lambda options: options.image,
)
_COMMAND: Final = Key(
    name="command",
    help="what they run in place of the recipe's trainer, in quotes; see docs/training.md",
    meanings=("cmd", "script", "entrypoint"),
    meant=str,
    turn=1,
    is_resumed=True,
    typed=lambda options: shlex.join(options.program),
)

_DIRECTORY: Final = Key(
    name="directory",
    help="where the command of command= starts, an absolute path or $STATIONMASTER_OUTPUT_DIR; if "
    "not given, the folder of a script that the command names by an absolute path",
    meanings=("working_dir", "workdir", "working_directory", "cwd", "chdir"),
    meant=str,
    is_resumed=True,
    typed=lambda options: options.directory,
)
_VENV: Final = Key(
    name="venv",
    help="in local mode: the virtual environment whose programs the command of command= finds "
    "first, an absolute path",
    meanings=("virtualenv", "virtual_env", "conda_env"),
    meant=str,
    is_resumed=True,
    typed=lambda options: options.venv,
)

_MOST: Final = 64
_PROCESSES: Final = Key(
    name="processes_per_node",
    help="how many processes train on each node: of the recipe's trainer, from 1 to its GPUs, or "
    f"to {_MOST} on CPUs; of command=, which PET_NPROC_PER_NODE and WORLD_SIZE tell it",
    meanings=("nproc_per_node", "num_processes", "ppn"),
    choices=("1", "8"),
    is_resumed=True,
    typed=lambda options: str(options.processes_per_node or ""),
)

EXPANDED: Final = (
    "STATIONMASTER_OUTPUT_DIR",
    "STATIONMASTER_DATASET",
    "STATIONMASTER_RUN_ID",
    "STATIONMASTER_RESUME_DIR",
)
"""The variables that are filled in where they stand in a command, as $NAME or ${NAME}."""

# What starts a process for each GPU of a node and joins those of all nodes.
_JOINING: Final = frozenset({"torchrun", "mpirun", "srun", "torch.distributed.run"})
# Operators give a pod its own number and the number of processes, which torchrun alone can use.
_STATIC: Final = (
    "rendezvous=static: RANK is the pod's number, and WORLD_SIZE the number of all processes, so a "
    "script that calls init_process_group() itself, once on a node of several GPUs, waits 30 "
    "minutes in vain; start such a one with processes_per_node=1"
)
_WRAPPERS: Final = frozenset(
    {"env", "bash", "sh", "nohup", "nice", "time", "stdbuf", "numactl", "uv", "poetry", "conda"}
)
_LAUNCHER: Final = re.compile(r"(?:python[\d.]*|accelerate|deepspeed)$")
# A script that is named by where it is; the folder may not be the root.
_SCRIPT: Final = re.compile(r"/.+/[^/]+\.(?:py|sh)")
# About the recipe's trainer and its checkpoints, as the keys of recipes are.
_OF_TRAINER: Final = ("backup_every", "push_to")
# What still means something when another program takes the trainer's place.
_KEYS_BESIDES_A_COMMAND: Final = frozenset({PRESET, "dataset", "rendezvous"})
RESUME_DIR: Final = EXPANDED[3]
IN_OUTPUT: Final = f"${EXPANDED[0]}"
"""As a directory to start in: what a program writes where it starts is then saved."""


class Option(Part):
    """What was typed; empty where the product's own runs."""

    image: str = ""
    """The image of the training pods; "" for the deployment's."""
    program: tuple[str, ...] = ()
    """What they run in place of the recipe's trainer, as words that no shell reads; empty for
    that."""
    directory: str = ""
    """Where that starts, as it was typed; "" for the folder of its script, or the image's."""
    venv: str = ""
    """The virtual environment that it runs in; "" for none that was typed."""

    processes_per_node: int = 0
    """The training processes on each node; 0 for the recipe's number, or one for each GPU."""

    @property
    def working_directory(self) -> str:
        """Where the program starts; "" where only the image knows."""
        scripts = (word for word in self.program if _SCRIPT.fullmatch(word))
        return self.directory or next(scripts, "").rpartition("/")[0]


def read(typed: Typed) -> Option:
    """Read both, where the channel may have them."""
    image, command, rules = typed.get(_IMAGE), typed.get(_COMMAND), typed.ask.own_code
    for key in (key for key in (_IMAGE, _COMMAND, _VENV) if typed.get(key) is not None):
        _refuse_where_not_allowed(key.name, rules)
    if rules is None:
        directory = _directory(_DIRECTORY, typed)
        return Option(directory=directory, processes_per_node=_processes(typed))
    if typed.get(_VENV) is not None and not rules.is_this_machine:
        raise NotPossibleNow(
            "venv= names an environment of the machine that local mode runs on; elsewhere an image "
            "has the Python: build the environment into it and name it with image="
        )
    if command is not None and not rules.allows_commands:
        raise NotPossibleNow(
            "command= runs what is typed in the channel on this machine, with the rights of "
            "whoever started local mode, so it is off; start it with --allow-commands to allow it"
        )
    own = Option(
        image=_image(image, rules) if image is not None else "",
        program=_program(command) if command is not None else (),
        directory=_directory(_DIRECTORY, typed),
        venv=_directory(_VENV, typed),
        processes_per_node=_processes(typed),
    )
    if own.program:
        _refuse_idle_keys(typed)
    return own


def _refuse_where_not_allowed(key: str, rules: OwnCodeRules | None) -> None:
    if rules is None:
        raise NotPossibleNow(
            f"{key}= is allowed by a deployment for some of its channels, and none is known here; "
            "type the command in the channel"
        )
    if rules.is_anywhere:
        return
    missing = [
        field
        for field, value in (
            ("image_registries", rules.registries),
            ("image_channels", rules.channels),
        )
        if not value
    ]
    if missing:
        raise NotPossibleNow(
            f"{key}= is off in this deployment: set {' and '.join(missing)} in cdk.json and "
            "deploy again, see docs/deploy.md"
        )
    if rules.channel_id not in rules.channels:
        raise NotPossibleNow(
            f"{key}= is not allowed in this channel: add {rules.channel_id} to image_channels in "
            "cdk.json and deploy again, see docs/deploy.md"
        )


def _image(text: str, rules: OwnCodeRules) -> str:
    image = read_image(text)
    if not rules.is_anywhere and not is_from(image, rules.registries):
        allowed = ", ".join(rules.registries)
        why = "runs only" if not rules.is_this_machine else "runs no images, only the programs of"
        raise BadParameter(
            f'image="{image[:200]}" is not of an allowed registry: this deployment {why} {allowed}'
        )
    return image


def _directory(key: Key, typed: Typed) -> str:
    text = typed.get(key)
    if text is None:
        return ""
    if typed.get(_COMMAND) is None:
        raise BadParameter(f"{key.name}= has no effect without command=; leave it out")
    if key is _DIRECTORY and text == IN_OUTPUT:
        return text
    if not text.startswith("/") or not text.isprintable() or "$" in text:
        raise BadCommand(
            f"{key.name}={text[:80]} is not accepted: expected an absolute path, such as /opt/app"
            + (f", or {IN_OUTPUT}" if key is _DIRECTORY else "")
        )
    return text


def _processes(typed: Typed) -> int:
    return typed.whole(_PROCESSES, 1, _MOST) or 0


def _program(text: str) -> tuple[str, ...]:
    """Split a command into words as a shell does; nothing expands them."""
    if not all(character.isprintable() for character in text):
        raise BadCommand(
            "command= has a character that cannot be seen, such as a line break; write the "
            "command in one line"
        )
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise BadCommand(
            f"a quote is opened and not closed in command={text[:80]}; close it or leave it out"
        ) from exc
    if not words or not words[0]:
        raise BadCommand(
            'command= names no program; write it in quotes, command="torchrun train.py"'
        )
    return tuple(words)


def _refuse_idle_keys(typed: Typed) -> None:
    """Refuse keys of the recipe's trainer and its checkpoints, and data that only it reads."""
    keys = [key for key in _OF_TRAINER if key in typed.words]
    keys += [key for key in typed.words if key in typed.overrides]
    command = typed.get(_COMMAND) or ""
    if EXPANDED[1] in command and "dataset" not in typed.words:
        raise BadParameter(
            f"command= uses ${EXPANDED[1]}, and no dataset= is given; add "
            "dataset=s3://BUCKET/PREFIX or another word that the command understands"
        )
    idle = next((key for key in keys if key not in _KEYS_BESIDES_A_COMMAND), None)
    if idle is not None:
        raise BadParameter(
            f"{idle}= has no effect beside command=, which replaces the recipe's trainer; write "
            "it into the command, or leave it out"
        )
    dataset = typed.overrides.get("dataset", "")
    if isinstance(read_dataset(dataset), PackedSource):
        raise BadParameter(
            f'dataset="{dataset[:80]}" is packed for the recipe\'s trainer, which command= '
            "replaces; use s3://BUCKET/PREFIX, or a word that the command understands"
        )


def refuse(start: Start) -> None:
    """Refuse processes that a framework counts itself, and etcd with an image of people's own."""
    own, recipe = start.part(Option), start.recipe
    if own.processes_per_node and not own.program and not recipe.uses_own_trainer:
        raise BadParameter(
            f"{_PROCESSES.name}= has no effect with {recipe.name}: "
            f"{FRAMEWORK_NAMES[recipe.framework]} starts a process for each GPU; leave it out"
        )
    if start.part(Option).image and start.resolved.training.rendezvous == "etcd":
        raise BadParameter(
            "rendezvous=etcd waits for etcd with a program of the deployment's own image, which "
            "image= replaces; use rendezvous=c10d or static"
        )


def refuse_with_framework(start: Start, key: Key) -> None:
    """Refuse a key about checkpoints of the product's own trainer where a framework trains.

    Raises:
        BadParameter: it was typed for a recipe of another framework.
    """
    recipe = start.recipe
    if key.name in start.words and not recipe.uses_own_trainer and not start.part(Option).program:
        raise BadParameter(
            f"{key.name}= has no effect with {recipe.name}, whose checkpoints are those of "
            f"{FRAMEWORK_NAMES[recipe.framework]}; leave it out"
        )


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say what code of people's own means for the plan."""
    own = start.part(Option)
    if own.program:
        yield (
            f"runs {shlex.join(own.program)[:200]} in place of the recipe's trainer: its memory, "
            "duration and cost are not known, nothing is saved before it ends, and it is ended "
            f"after {LONGEST_COMMAND.days} days at the latest"
        )
    is_static = start.resolved.training.rendezvous == "static"
    joins_itself = is_static and own.processes_per_node == 1  # by init_process_group()
    if not joins_itself and (alone := _started_alone(own.program, plan.nodes)):
        yield alone
    is_plain = bool(own.program) and plan.nodes > 1 and not is_joining(own.program)
    is_plain = is_plain and not any(word.startswith("WORLD_SIZE=") for word in own.program)
    if is_plain and is_static and not joins_itself:
        yield _STATIC
    if own.program and plan.min_nodes is not None:
        yield (
            f"nodes={plan.node_words}: it gets all of {plan.nodes} nodes that are free, "
            f"{plan.min_nodes} at least, and may lose some; what it trains on another number of "
            "them, and that it goes on, is the command's own business"
        )
    if own.image:
        yield f"every training pod runs {own.image}"
        if not names_digest(own.image):
            yield (
                "the image is named by a tag: nodes that pull it before and after the tag moves "
                "run different code; a digest (@sha256:...) names one image for good"
            )


def is_joining(program: tuple[str, ...]) -> bool:
    """Say whether a command starts the processes of a node and joins those of all nodes."""
    return not _JOINING.isdisjoint(_names(program))


def _names(program: tuple[str, ...]) -> list[str]:
    """Return the words of a command without folders, those that it gives to a shell among them."""
    words = [part for word in program for part in (word.split() if " " in word else [word])]
    return [word.rpartition("/")[2] for word in words]


def _launcher(program: tuple[str, ...]) -> str:
    """Return the name of what a command starts, behind `env`, `uv run` and what is like them."""
    names = _names(program)
    if names[0] not in _WRAPPERS:
        return names[0]
    return next((name for name in names[1:] if _LAUNCHER.match(name)), names[0])


def _started_alone(program: tuple[str, ...], nodes: int) -> str:
    """Warn of a program that each node starts for itself; "" where nothing says so.

    It would train as many models as there are nodes, at as many times the price, and succeed.
    """
    if nodes < 2 or not program:
        return ""
    if "--standalone" in program:
        return (
            f"--standalone does not join the {nodes} nodes: each waits in vain for the others, or "
            "with --nnodes=1 trains for itself; leave it out"
        )
    if is_joining(program):
        return ""
    first = _launcher(program)
    # accelerate reads PET_* with torchrun's own parser, all but the backend, where a node has
    # several GPUs; where it has one, nothing starts torchrun.
    flags = ("--num_machines", "--rdzv_backend")
    if first == "accelerate" and not any(word.startswith(flags) for word in program):
        return (
            f"accelerate launch does not join the {nodes} nodes by itself; start it with "
            'command="torchrun SCRIPT ...", which accelerate understands, or, on nodes of several '
            'GPUs, with command="accelerate launch --rdzv_backend c10d SCRIPT ..."'
        )
    if first == "deepspeed":
        return (
            f"deepspeed without a host file trains on each of the {nodes} nodes for itself; start "
            'it with command="torchrun SCRIPT --deepspeed ..."'
        )
    if first.startswith("python") or first.endswith(".py"):
        return (
            f"{first} is started once on each of the {nodes} nodes, and nothing joins them unless "
            "the script does: they may train a model each, at as many times the price; start it "
            'with command="torchrun SCRIPT ..."'
        )
    return ""


FAMILY: Final = Family(
    keys=(_IMAGE, _COMMAND, _DIRECTORY, _VENV, _PROCESSES), read=read, refuse=refuse, note=note
)
