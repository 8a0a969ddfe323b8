"""How the product's app looks in the local workspace: its command, hints and sample commands."""

from __future__ import annotations

from local.slack import ArgumentHint, Choice, SampleCommand, SlackAppConfig, SlashCommand
from stationmaster.domain.catalogue.entries import CATALOGUE as RECIPES
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.training_config import TrainingConfig
from stationmaster.domain.vocabulary import SUBCOMMANDS

_SUBCOMMAND_HELP = {
    "help": "how to use /train",
    "recipes": "what can be trained",
    "plan": "what a run would create and cost",
    "status": "the newest run, or one by id",
    "logs": "the last log lines of each pod",
    "stop": "stop a run and tear it down",
    "list": "the newest runs",
}


def app_config() -> SlackAppConfig:
    """The configuration of the app, from the catalogue and the grammar."""
    words = [Choice(recipe.name, recipe.summary) for recipe in RECIPES.values()]
    words += [Choice(name, _SUBCOMMAND_HELP[name]) for name in SUBCOMMANDS]
    recipes = [*RECIPES]
    keys = [
        ArgumentHint(
            "nodes", hint="how many instances", choices=["1", "2", "4"], after=[*recipes, "plan"]
        ),
        ArgumentHint(
            "instance", hint="EC2 instance type", choices=[*INSTANCES], after=[*recipes, "plan"]
        ),
        *(
            ArgumentHint(name, hint=field.description or "", after=[*recipes, "plan"])
            for name, field in TrainingConfig.model_fields.items()
        ),
    ]
    return SlackAppConfig(
        bot_name="Stationmaster",
        tagline="distributed training, one command at a time",
        commands=[
            SlashCommand(
                "/train",
                description="Train a model on a cluster that comes and goes with the run",
                usage_hint="RECIPE [nodes=N] [key=value ...]",
                arguments=[
                    ArgumentHint("recipe or subcommand", kind="word", choices=words),
                    ArgumentHint(
                        "recipe", kind="word", choices=words[: len(recipes)], after=["plan"]
                    ),
                    *keys,
                ],
            )
        ],
        sample_commands=[
            SampleCommand("/train tiny-llama nodes=2 steps=60", "train for real on this machine"),
            SampleCommand("/train plan llama2-7b nodes=2", "what two p4d would cost"),
            SampleCommand("/train recipes", "what can be trained"),
            SampleCommand("/train help", "how to use it"),
        ],
    )
