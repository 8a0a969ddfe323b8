"""Why a deployment without an image cannot run a recipe that another framework trains. Pure."""

from __future__ import annotations

from stationmaster.domain.catalogue.recipes import FRAMEWORK_IMAGES, FRAMEWORK_NAMES, Recipe


def why_no_image(recipe: Recipe, *, is_this_machine: bool) -> str:
    """Say why a deployment without the framework's image cannot run the recipe, and what to do.

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
    """Say why a deployment without the image that converts weights cannot run this recipe."""
    image = FRAMEWORK_IMAGES["megatron-bridge"]
    return (
        f"weights={recipe.weights_to_convert} are converted by Megatron-Bridge, and this "
        f'deployment has no image of it: add "{image}" to more_images in '
        "cdk.json, deploy and build the images, see docs/deploy.md; or name a checkpoint of "
        "Megatron with weights=/fsx/PATH"
    )
