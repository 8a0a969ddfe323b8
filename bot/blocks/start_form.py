"""The form of a start, which `/train` alone opens: its fields, and the plan of what is in them.

Slack keeps what was entered where a field of the new view has the ids of the old one, so the fields
are always the same, and only the plan below them changes.
"""

from __future__ import annotations

from typing import Any, Final

from bot.actions import FORM, FORM_FIELD, FormNotes
from bot.blocks import mrkdwn as md
from bot.blocks.elements import Block, Content, context, divider, section
from stationmaster.domain.approvals import Approval
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.commands.grammar import MAX_COMMAND_CHARACTERS
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.planning.plan import Plan

View = dict[str, Any]

RECIPE: Final = "recipe"
MORE: Final = "more"
"""The field of all other keys."""
AS_RECIPE: Final = "default"
"""The choice that types no key."""
_MOST_SAID: Final = 500


def start_form(notes: FormNotes, plan: list[Block], *, note: str = "") -> View:
    """Make the form with the plan of what is in its fields; `note` comes before the plan."""
    recipes = [(name, f"{name}: {recipe.summary}") for name, recipe in CATALOGUE.items()]
    machines = [(name, _machine(each)) for name, each in INSTANCES.items()]
    own = [(AS_RECIPE, "as the recipe has it")]
    blocks = [
        _field(RECIPE, "Recipe", _choice(recipes), is_optional=False, is_followed=True),
        _field("name", "Name", _text("books-v3"), hint="On its card, in lists and in commands."),
        _field("instance", "Machines", _choice(own + machines, first=0), is_followed=True),
        _field("nodes", "Nodes", _text("2, or 2:8 for as many as there are"), is_followed=True),
        _field("steps", "Steps", _text("as the recipe has it"), is_followed=True),
        _field("dataset", "Data", _text("s3://BUCKET/PREFIX or hub:ORG/NAME"), is_followed=True),
        _field(
            MORE,
            "More keys",
            _text("preset=smoke learning_rate=3e-4 keep=2h", most=MAX_COMMAND_CHARACTERS),
            hint="As after /train. Enter in a field brings its plan up to date.",
            is_followed=True,
        ),
        divider(),
        *([section(note)] if note else []),
        *plan,
    ]
    return {
        "type": "modal",
        "callback_id": FORM,
        "title": _plain("New training run"),
        "submit": _plain("Start"),
        "close": _plain("Cancel"),
        "private_metadata": notes.model_dump_json(),
        "blocks": blocks,
    }


def nothing_planned() -> list[Block]:
    """Stand where the plan will."""
    return [section("*Plan*\nChoose a recipe: what it takes and costs is shown here.")]


def no_plan(message: str) -> list[Block]:
    """Say why there is no plan of what was entered."""
    return [section(f"*Plan*\n{md.WARNING} {md.escape(message, _MOST_SAID)}")]


def form_plan(plan: Plan, approval: Approval | None, *, command: str) -> list[Block]:
    """Say whether a start fits, what it costs, how long it takes, and who is asked first."""
    lines = [f"*Plan* {md.DOT} {plan.node_words} {md.TIMES} {md.escape(plan.instance_type)}"]
    price = f"{md.money(plan.price_per_hour_usd)} an hour"
    what = "first step" if plan.trains_recipe else "starts"
    first = f"{what} after about {md.duration(plan.time_to_first_step_s)}"
    if plan.trains_recipe:
        memory = plan.memory_per_gpu_gib
        holder = "GPU" if plan.num_gpus else "process"
        mark, fit = (md.DONE, "fits") if plan.fits else (md.FAILED, "does not fit")
        lines.append(
            f"{mark} {fit}: {memory.total:.1f} of {memory.available:.1f} GiB on each {holder}"
        )
        cost = f"*about {md.money_escaped(plan.estimated_cost_usd)}* {md.DOT} {price}"
        lines.append(f"{cost} {md.DOT} about {md.duration(plan.estimated_duration_s)}, {first}")
    else:
        lines.append(
            f"*{price}* {md.DOT} starts after about {md.duration(plan.time_to_first_step_s)}"
        )
    if approval is not None:
        why = md.escape("; ".join(approval.reasons), _MOST_SAID)
        lines.append(f"\u270b somebody else is asked first: {why}")
    notes = [each for each in plan.warnings if each != plan.price_note][:3]
    lines += [f"{md.WARNING} {md.escape(each, 300)}" for each in notes]
    return [section("\n".join(lines)), context(md.code(f"{COMMAND} {command}", _MOST_SAID))]


def form_answer(content: Content) -> View:
    """Show an answer in the place of the form."""
    return {
        "type": "modal",
        "title": _plain("New training run"),
        "close": _plain("Close"),
        "blocks": content.blocks,
    }


def _machine(instance: InstanceType) -> str:
    gpus = f"{instance.num_gpus} {instance.gpu}" if instance.num_gpus else "no GPU"
    price = instance.price_per_hour_usd
    cost = "no known price" if price is None else f"{md.money(price)} an hour"
    return f"{instance.name}, {gpus}, {cost}"


def _field(
    name: str,
    label: str,
    element: Block,
    *,
    is_optional: bool = True,
    is_followed: bool = False,
    hint: str = "",
) -> Block:
    made = {
        "type": "input",
        "block_id": name,
        "label": _plain(label),
        "element": element,
        "optional": is_optional,
        "dispatch_action": is_followed,
    }
    return made | ({"hint": _plain(hint)} if hint else {})


def _text(placeholder: str, *, most: int = 400) -> Block:
    return {
        "type": "plain_text_input",
        "action_id": FORM_FIELD,
        "placeholder": _plain(placeholder),
        "max_length": most,
    }


def _choice(choices: list[tuple[str, str]], *, first: int | None = None) -> Block:
    options = [{"text": _plain(md.cut(text, 75)), "value": value} for value, text in choices[:100]]
    chosen = {"initial_option": options[first]} if first is not None else {}
    made = {"type": "static_select", "action_id": FORM_FIELD, "options": options}
    return made | {"placeholder": _plain("Choose")} | chosen


def _plain(text: str) -> Block:
    return {"type": "plain_text", "text": text, "emoji": True}
