"""What a start of a recipe that another framework trains is refused for. Pure.

`parameters` calls it while it reads a start, and the commands ask it about the image.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from stationmaster.domain.catalogue.recipes import FRAMEWORK_IMAGES, FRAMEWORK_NAMES, Recipe
from stationmaster.domain.commands.backing_up import BACKUP_EVERY
from stationmaster.domain.commands.resuming import RESUME_FROM
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.ids import RunId

# Keys that are about checkpoints of the product's own trainer.
_OWN_TRAINERS_KEYS: Final = (BACKUP_EVERY, RESUME_FROM)


def refuse_own_trainers_keys(recipe: Recipe, keys: Collection[str]) -> None:
    """Refuse keys that only the product's own trainer can follow.

    Raises:
        BadParameter: naming the first of them.
    """
    if recipe.uses_own_trainer:
        return
    idle = next((key for key in _OWN_TRAINERS_KEYS if key in keys), None)
    if idle is not None:
        raise BadParameter(
            f"{idle}= has no effect with {recipe.name}, whose checkpoints are those of "
            f"{FRAMEWORK_NAMES[recipe.framework]}; leave it out"
        )


def refuse_own_trainers_model(recipe: Recipe, weights: str, run_id: RunId | None) -> None:
    """Refuse first weights of a run of the product's own trainer.

    Raises:
        BadParameter: saying of which form they are.
    """
    if not recipe.uses_own_trainer and run_id is not None:
        raise BadParameter(
            f"weights={weights} names a run, whose model is in Hugging Face's form, and "
            f"{FRAMEWORK_NAMES[recipe.framework]} reads checkpoints of its own; leave it out"
        )


def why_no_image(recipe: Recipe, *, is_this_machine: bool) -> str:
    """Why a deployment without the framework's image cannot run the recipe, and what to do.

    Args:
        is_this_machine: pods are processes of the machine that the deployment runs on.
    """
    name, image = FRAMEWORK_NAMES[recipe.framework], FRAMEWORK_IMAGES[recipe.framework]
    if is_this_machine:
        return (
            f"{recipe.name} runs {name} in an image on GPUs, and local mode has neither; "
            "/train tiny-llama runs here, and /train plan shows what this one takes"
        )
    return (
        f'{recipe.name} runs {name}, and this deployment has no image of it: add "{image}" to '
        "more_images in cdk.json, deploy and build the images, see docs/deploy.md"
    )


def why_no_converter(recipe: Recipe) -> str:
    """Why a deployment without the image that converts weights cannot run the recipe with these."""
    image = FRAMEWORK_IMAGES["megatron-bridge"]
    return (
        f"weights={recipe.weights_to_convert} are converted by Megatron-Bridge, and this "
        f'deployment has no image of it: add "{image}" to more_images in '
        "cdk.json, deploy and build the images, see docs/deploy.md; or name a checkpoint of "
        "Megatron with weights=/fsx/PATH"
    )
