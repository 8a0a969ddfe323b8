"""The command line: `stationmaster local up|run`, `results`, `recipes`, `plan` and the others.

Exit codes: 0 done, 1 the answer is no (it does not fit, the run did not succeed), 2 bad input,
3 the run awaits an approval.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

from stationmaster import __version__
from stationmaster.cli import catalogues, lint, nccl_report, slack_manifest
from stationmaster.cli.plan_view import print_plan
from stationmaster.cli.state_directory import DEFAULT_STATE_DIR, RUN_STATE_DIR
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.commands.grammar import parse_request
from stationmaster.domain.errors import StationmasterError, UserError
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.keys.questions import ANYWHERE
from stationmaster.domain.planning.requirements import check_data
from stationmaster.domain.run.aggregate import new_run_id
from stationmaster.local import faults
from stationmaster.rendering.examples import to_yaml
from stationmaster.rendering.run_objects import render_all
from stationmaster.settings import HubAccess

OK, NO, BAD_INPUT = 0, 1, 2
T = TypeVar("T", int, float)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; the return value is the exit code."""
    arguments = make_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except UserError as error:
        print(f"stationmaster: {error}", file=sys.stderr)
        if error.suggestion:
            pasted = error.suggestion.removeprefix("/train plan ").replace(
                "/train", "stationmaster"
            )
            print(f"  try: {pasted}", file=sys.stderr)
        return BAD_INPUT
    except StationmasterError as error:
        print(f"stationmaster: {error}", file=sys.stderr)
        return NO
    except BrokenPipeError:
        # Whoever read the output has seen enough, e.g. head. What is left to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO
    except KeyboardInterrupt:
        print("stationmaster: interrupted", file=sys.stderr)
        return NO


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; docs/commands.md is drawn from it."""
    parser = argparse.ArgumentParser(
        prog="stationmaster", description="Distributed PyTorch training, run from a chat channel."
    )
    parser.add_argument("--version", action="version", version=f"stationmaster {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    recipes = commands.add_parser("recipes", help="what can be trained")
    recipes.add_argument("--json", action="store_true")
    recipes.set_defaults(run=catalogues.recipes)

    instances = commands.add_parser("instances", help="the EC2 instance types that are known")
    instances.add_argument("--json", action="store_true")
    instances.set_defaults(run=catalogues.instances)
    snippet = commands.add_parser(
        "snippet", help="a file with which your own script reports its steps"
    )
    snippet.add_argument("kind", choices=("hf", "lightning", "torch"))
    snippet.set_defaults(run=catalogues.snippet)

    plan = commands.add_parser("plan", help="what a run would create, need and cost")
    plan.add_argument("words", nargs="*", metavar="RECIPE key=value")
    plan.add_argument("--json", action="store_true")
    plan.set_defaults(run=_plan)

    render = commands.add_parser("render", help="a run's Kubernetes objects as YAML")
    render.add_argument("words", nargs="*", metavar="RECIPE key=value")
    render.add_argument(
        "--backend",
        choices=[kind.lower() for kind in JobKind],
        default=JobKind.PYTORCH_JOB.lower(),
        help="who runs the job: the Training Operator v1, or Kubeflow Trainer v2",
    )
    render.set_defaults(run=_render)

    nccl_report.add_to(commands)
    lint.add_to(commands)

    preflight = commands.add_parser("preflight", help="what the account lacks for these starts")
    preflight.add_argument("words", nargs="*", metavar="RECIPE key=value")
    preflight.add_argument("--json", action="store_true")
    preflight.add_argument(
        "--deployment", default="stationmaster", metavar="NAME", help="whose settings are looked up"
    )
    preflight.add_argument("--state-dir", type=_folder, metavar="DIR", help="of a local mode")
    preflight.set_defaults(
        run=lambda arguments: int(_loaded("preflight").preflight(arguments, look_up=_look_up))
    )

    diagnose = commands.add_parser(
        "diagnose", help="the root cause in pod logs, events, descriptions and dmesg"
    )
    diagnose.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a log, events or objects, or - for what is piped in",
    )
    diagnose.add_argument(
        "--instance", metavar="TYPE", help="what the nodes are: some have no EFA to miss"
    )
    diagnose.add_argument("--json", action="store_true")
    diagnose.set_defaults(run=_later("diagnose"))

    results = commands.add_parser("results", help="what a run has left: listed, or downloaded")
    results.add_argument("run_id", metavar="RUN")
    results.add_argument("--to", type=_folder, metavar="DIR", help="download into this folder")
    results.add_argument("--json", action="store_true")
    results.add_argument("--bucket", help="the artifacts bucket of a deployment")
    results.add_argument("--state-dir", type=_folder, metavar="DIR", help="of a local mode")
    results.set_defaults(run=_later("results"))

    report = commands.add_parser("report", help="all that is known of a run, as one offline page")
    report.add_argument("run_id", metavar="RUN")
    report.add_argument("--html", type=Path, metavar="FILE", help="RUN.html where none is named")
    report.add_argument("--json", type=Path, metavar="FILE", help="the same as data")
    report.add_argument("--otlp", metavar="FILE|URL", help="a trace, for Jaeger, Tempo and others")
    report.add_argument("--compare", metavar="RUN", help="beside this run, on the same charts")
    _add_deployment(report)
    report.set_defaults(run=_later("report"))

    train = commands.add_parser("train", help="start a run on a deployment, as /train does")
    train.add_argument(
        "words", nargs="+", metavar="COMMAND", help='in quotes: "RECIPE key=value ..."'
    )
    train.add_argument("--channel", required=True, metavar="ID", help="of the Slack channel, C...")
    train.add_argument("--wait", action="store_true", help="until it has ended")
    train.add_argument("--json", action="store_true", help="the run as JSON, at the end")
    _add_deployment(train)
    train.set_defaults(run=_later("train"))

    mcp = commands.add_parser("mcp", help="the channel's commands as an assistant's tools, stdio")
    mcp.add_argument("--channel", required=True, metavar="ID", help="of the Slack channel, C...")
    mcp.add_argument("--allow-start", action="store_true", help="also start, stop, resume, rerun")
    _add_deployment(mcp)
    mcp.set_defaults(run=_later("mcp_server", "serve", extra="mcp"))

    approve = commands.add_parser("approve", help="approve a run or cluster, as an identity of IAM")
    approve.add_argument("name", metavar="NAME", help="the id of a run, or the name of a cluster")
    _add_deployment(approve)
    approve.set_defaults(run=_later("approve"))

    audit = commands.add_parser("audit", help="export the audit of a channel, and check its chain")
    audit.add_argument("channel", metavar="CHANNEL", help="its id, C...")
    _add_deployment(audit)
    audit.set_defaults(run=_later("audit"))

    redrive = commands.add_parser("redrive", help="send dead letters again, or list them")
    redrive.add_argument("--dry-run", action="store_true", help="list them and change nothing")
    redrive.add_argument("--json", action="store_true")
    _add_deployment(redrive)
    redrive.set_defaults(run=_later("redrive"))

    drain = commands.add_parser("drain", help="take no new starts, and finish what is open")
    drain.add_argument("switch", choices=("on", "off", "status"))
    drain.add_argument(
        "--reason",
        default="it is about to be upgraded",
        metavar="TEXT",
        help="what whoever types a start reads",
    )
    _add_deployment(drain)
    drain.set_defaults(run=_later("remove", "drain"))
    remove = commands.add_parser("remove", help="delete the stacks of a deployment")
    remove.add_argument("--deployment", required=True, metavar="NAME", help="as in cdk.json")
    remove.add_argument("--dry-run", action="store_true", help="list what goes and what stays")
    remove.add_argument("--yes", metavar="NAME", help="the name again: delete them")
    remove.set_defaults(run=_later("remove"))
    secret = commands.add_parser("secret", help="fill in or rotate a secret with what stdin has")
    secret.add_argument("kind", choices=("slack", "huggingface", "wandb", "mlflow"))
    _add_deployment(secret)
    secret.set_defaults(run=_later("secret"))

    slack_manifest.add_to(commands)
    bot = commands.add_parser("bot", help="serve a workspace that reaches no address of yours")
    bot.add_argument("--socket", action="store_true", required=True, help="over Socket Mode")
    _add_deployment(bot)
    bot.add_argument("--rules", type=Path, metavar="FILE", help="who may do what in which channel")
    bot.set_defaults(run=_later("bot", "serve", extra="bot"))

    _add_local(commands)
    return parser


def _add_deployment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deployment", metavar="NAME", help="as in cdk.json")
    parser.add_argument("--state-dir", type=_folder, metavar="DIR", help="of a local mode")


def _add_local(commands: Any) -> None:
    local = commands.add_parser("local", help="the whole product on this machine")
    verbs = local.add_subparsers(required=True, metavar="up|run|chaos")
    up = verbs.add_parser("up", help="serve the channel's page until Ctrl-C")
    up.add_argument("--port", type=_port, default=8700, help="port of the page (default 8700)")
    up.add_argument(
        "--slack",
        choices=["socket"],
        help="in a real workspace, by Socket Mode: tokens in SLACK_BOT_TOKEN, SLACK_APP_TOKEN",
    )
    run = verbs.add_parser("run", help="type commands and wait for their receipts")
    run.add_argument(
        "commands",
        nargs="+",
        metavar="COMMAND",
        help='e.g. "/train tiny-llama nodes=2 steps=60"; each is typed when the one before it has '
        "ended",
    )
    run.add_argument(
        "--together", action="store_true", help="type all commands at once, wait for all"
    )
    run.add_argument("--json", type=Path, metavar="FILE", help="write what happens as JSON Lines")
    run.add_argument(
        "--results", type=_folder, metavar="DIR", help="download each run's result into DIR/RUN"
    )
    run.add_argument(
        "--timeout", type=_seconds, default=900, metavar="S", help="stop each run after S seconds"
    )
    run.add_argument("--port", type=_port, default=0, help="port of the page (default: a free one)")
    for parser, state_dir in ((up, DEFAULT_STATE_DIR), (run, RUN_STATE_DIR)):
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = f"faults that --fault takes:\n{faults.described()}"
        parser.add_argument("--state-dir", type=_folder, default=state_dir, metavar="DIR")
        parser.add_argument(
            "--speed", type=float, help="emulated seconds in one real second (default 720)"
        )
        parser.add_argument(
            "--fault",
            action="append",
            default=[],
            metavar="NAME",
            help="make something go wrong, to see the end; may be repeated",
        )
        parser.add_argument(
            "--rules",
            type=Path,
            metavar="FILE",
            help="who may do what in which channel: channels of cdk.json, in a file of its own",
        )
        parser.add_argument(
            "--allow-commands",
            action="store_true",
            help="let command= run what is typed in the channel on this machine, as you",
        )
    chaos = verbs.add_parser("chaos", help="random faults under several runs, and what must hold")
    chaos.add_argument("--seed", type=_seed, required=True, metavar="N", help="draws the faults")
    chaos.add_argument(
        "--minutes", type=_minutes, default=3.0, metavar="M", help="of faults (default 3)"
    )
    chaos.add_argument("--state-dir", type=_folder, default=RUN_STATE_DIR, metavar="DIR")
    chaos.set_defaults(run=_later("local_chaos", "chaos", extra="local"))
    up.set_defaults(run=_later("local_mode", "up", extra="local"))
    run.set_defaults(run=_later("local_mode", "run", extra="local"))


def _number(kind: type[T], fits: Callable[[T], bool], refusal: str) -> Callable[[str], T]:
    """Make a reader of numbers that fit; a whole one has nothing but digits."""

    def read(text: str) -> T:
        with suppress(ValueError):
            is_plain = kind is float or (text.isascii() and text.isdigit())
            if is_plain and fits(number := kind(text)):
                return number
        raise argparse.ArgumentTypeError(f'"{text}" {refusal}')

    return read


_port: Final = _number(int, lambda n: n <= 65535, "is no port; give 0 (a free one) to 65535")
_seed: Final = _number(int, lambda n: n < 10**18, "is no seed; give a whole number from 0 on")
_minutes: Final = _number(
    float, lambda n: 0 < n <= 60, "is no time; give minutes above 0, and at most 60"
)
_seconds: Final = _number(
    float, lambda n: 0 < n < float("inf"), "is no time; give a number of seconds above 0"
)


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError(f'"{text}" is no folder; give its path')
    return Path(text)


def _look_up(repository: str) -> LanguageModel:
    from stationmaster.hub import Hub  # an HTTP client, which most commands do without

    access = HubAccess.from_environment()
    return Hub(access.url, token=access.token).look_up(repository)


def _plan(arguments: argparse.Namespace) -> int:
    start = parse_request(arguments.words, look_up=_look_up, own_code=ANYWHERE)
    if not start.options.program:  # which knows itself what it can read
        check_data(start.resolved)
    if arguments.json:
        print(start.plan.model_dump_json(indent=2))
    else:
        print_plan(start.plan)
        if start.fitting_words:
            print(f"try   stationmaster plan {start.fitting_words}")
    return OK if start.plan.fits else NO


def _render(arguments: argparse.Namespace) -> int:
    kind = next(kind for kind in JobKind if kind.lower() == arguments.backend)
    start = parse_request(arguments.words, look_up=_look_up, own_code=ANYWHERE)
    typed = "/train " + " ".join(arguments.words)
    request = start.requested(command=typed, team_id="", channel_id="", user_id="")
    run_id = new_run_id(start.recipe, dedup_key=request.command)
    print(to_yaml(render_all(request, run_id=run_id, kind=kind)), end="")
    return OK


def _later(name: str, function: str = "", *, extra: str = "aws") -> Callable[..., int]:
    """Return what imports a module of this package once it is called, and calls its function."""
    return lambda arguments: int(getattr(_loaded(name, extra), function or name)(arguments))


def _loaded(name: str, extra: str = "aws") -> Any:
    """Import a module of this package that needs boto3, or moto, uvicorn and the rest of `local`.

    Raises:
        StationmasterError: the extra is not installed.
    """
    try:
        return import_module(f"stationmaster.cli.{name}")
    except ImportError as exc:
        raise StationmasterError(
            f"{name.replace('_', ' ')} needs the `{extra}` extra, {exc.name} is missing; "
            f"run: pip install 'stationmaster[{extra}]'"
        ) from exc
