"""The form of a start, which `/train` alone opens: its fields, and the plan of what is in them.

Slack keeps what was entered where a field of the new view has the ids of the old one, so the fields
are always the same, and only the plan below them changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bot.actions import FORM, FORM_FIELD, FormNotes
from bot.blocks import mrkdwn as md
from bot.blocks.elements import Block, Content, choice, context, divider, plain, section
from stationmaster.domain.approvals import Approval
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.hub import HUB_PREFIX
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.commands.grammar import MAX_COMMAND_CHARACTERS
from stationmaster.domain.commands.parameters import split_words
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.spelling import typed_word

View = dict[str, Any]

CHANNEL: Final = "channel"
RECIPE: Final = "recipe"
HUB: Final = "hub"
"""The recipe whose model the other keys begin with."""
FIELDS: Final = ("name", "instance", "nodes", "steps", "dataset", "budget")
"""The keys that have a field."""
MORE: Final = "more"
"""The field of all other keys."""
AS_RECIPE: Final = "default"
"""The choice that types no key."""
_MOST_SAID: Final = 500
_MOST_IN_FIELD: Final = 400


def _machine(instance: InstanceType) -> str:
    gpus = f"{instance.num_gpus} {instance.gpu}" if instance.num_gpus else "no GPU"
    price = instance.price_per_hour_usd
    cost = "no known price" if price is None else f"{md.money(price)} an hour"
    return f"{instance.name}, {gpus}, {cost}"


_MACHINES: Final[Mapping[str, str]] = {
    AS_RECIPE: "as the recipe has it",
    **{name: _machine(each) for name, each in INSTANCES.items()},
}


def start_form(notes: FormNotes, plan: list[Block], *, note: str = "") -> View:
    """Make the form with the plan of what is in its fields; `note` comes before the plan."""
    filled = fields_of(notes.words)

    def choose(name: str, choices: Mapping[str, str], first: str = "") -> Block:
        return choice(choices, action_id=FORM_FIELD, chosen=filled.get(name, first))

    def text(name: str, placeholder: str, most: int = _MOST_IN_FIELD) -> Block:
        made = {"type": "plain_text_input", "action_id": FORM_FIELD, "max_length": most}
        initial = {"initial_value": filled[name]} if filled.get(name) else {}
        return made | {"placeholder": plain(placeholder)} | initial

    recipes = {name: f"{name}: {recipe.summary}" for name, recipe in CATALOGUE.items()}
    hub = {HUB: "hf:ORG/MODEL of the Hugging Face hub, first in More keys"}
    blocks = [
        *([] if notes.channel else [_channel()]),
        _field(RECIPE, "Recipe", choose(RECIPE, recipes | hub), is_optional=False),
        _field("name", "Name", text("name", "books-v3"), hint="On its card and in commands."),
        _field("instance", "Machines", choose("instance", _MACHINES, AS_RECIPE)),
        _field("nodes", "Nodes", text("nodes", "2, or 2:8 for as many as there are")),
        _field("steps", "Steps", text("steps", "as the recipe has it")),
        _field("dataset", "Data", text("dataset", "s3://BUCKET/PREFIX or hub:ORG/NAME")),
        _field("budget", "Budget", text("budget", "in US dollars; the run is stopped there")),
        _field(
            MORE,
            "More keys",
            text(MORE, "preset=smoke learning_rate=3e-4 keep=2h", MAX_COMMAND_CHARACTERS),
            hint="As after /train. Enter in a field brings its plan up to date.",
        ),
        divider(),
        *([section(note)] if note else []),
        *plan,
    ]
    return {
        "type": "modal",
        "callback_id": FORM,
        "title": plain("New training run"),
        "submit": plain("Start"),
        "close": plain("Cancel"),
        "private_metadata": notes.model_dump_json(),
        "blocks": blocks,
    }


def fields_of(words: str) -> dict[str, str]:
    """Return what the fields are filled with, of the words of a start as after /train.

    What has no field, or no room in it, is among the other keys.
    """
    if not words:
        return {}
    recipe, *pairs = split_words(words)
    filled, more = {RECIPE: recipe}, []
    if recipe.startswith(HUB_PREFIX):
        filled, more = {RECIPE: HUB}, [recipe]
    for pair in pairs:
        key, _, value = pair.partition("=")
        has_room = value in _MACHINES if key == "instance" else len(value) <= _MOST_IN_FIELD
        if key in FIELDS and has_room:
            filled[key] = value
        else:
            more.append(typed_word(pair))
    return filled | {MORE: " ".join(more)}


def _channel() -> Block:
    element = {
        "type": "conversations_select",
        "action_id": FORM_FIELD,
        "placeholder": plain("Choose"),
        "filter": {"include": ["public", "private"]},
    }
    hint = "Its card is posted there."
    return _field(CHANNEL, "Channel", element, is_optional=False, hint=hint)


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
        lines.append(f"*{price}* {md.DOT} {first}")
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
        "title": plain("New training run"),
        "close": plain("Close"),
        "blocks": content.blocks,
    }


def _field(
    name: str,
    label: str,
    element: Block,
    *,
    is_optional: bool = True,
    hint: str = "",
) -> Block:
    made = {
        "type": "input",
        "block_id": name,
        "label": plain(label),
        "element": element,
        "optional": is_optional,
        "dispatch_action": name != "name",  # which no plan depends on
    }
    return made | ({"hint": plain(hint)} if hint else {})
