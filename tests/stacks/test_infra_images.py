"""The project that builds the container images: it has what they are built from, and may push."""

from __future__ import annotations

import json
from pathlib import Path

from infra_templates import ROOT, Resource, Template, as_list, of_type, reference, text_of


def copied(dockerfile: Path) -> set[str]:
    """Top-level names that a Dockerfile copies from the repository."""
    lines = [line.split() for line in dockerfile.read_text().splitlines()]
    return {
        source.partition("/")[0]
        for line in lines
        if line[:1] == ["COPY"] and not line[1].startswith("--from")
        for source in line[1:-1]
    }


def test_source_has_what_the_images_are_built_from_and_nothing_else(
    templates: dict[str, Template], assembly: Path
) -> None:
    from stacks.image_builds import BUILT_FROM  # starts the CDK, which other workers do without

    dockerfiles = sorted((ROOT / "container").glob("*/Dockerfile"))
    assert len(dockerfiles) == 9
    for dockerfile in dockerfiles:
        assert copied(dockerfile) <= set(BUILT_FROM), dockerfile

    files = json.loads((assembly / "stationmaster-images.assets.json").read_text())["files"]
    (source,) = [each["source"]["path"] for each in files.values() if "zip" in str(each)]
    assert {each.name for each in (assembly / source).iterdir()} == set(BUILT_FROM)
    assert not list((assembly / source).rglob("__pycache__"))


def test_project_builds_the_tag_that_runs_use_and_pushes_to_both_repositories(
    templates: dict[str, Template],
) -> None:
    resources: dict[str, Resource] = templates["images"]["Resources"]
    (project,) = of_type(resources, "AWS::CodeBuild::Project").values()
    properties = project["Properties"]
    (command,) = json.loads(text_of(properties["Source"]["BuildSpec"]).replace("{AWS", "AWS"))[
        "phases"
    ]["build"]["commands"]

    assert properties["Name"] == "stationmaster-images"
    assert command.startswith("bash container/build.sh 0.1.0 {AccountId}.dkr.ecr.{Region}.")
    assert command.endswith(" training relay")
    assert properties["Environment"]["PrivilegedMode"] is True
    assert properties["Environment"]["ComputeType"] == "BUILD_GENERAL1_LARGE"
    pushed = {
        reference(resource)
        for policy in of_type(resources, "AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if "ecr:PutImage" in as_list(statement["Action"])
        for resource in as_list(statement["Resource"])
    }
    assert pushed == set(of_type(resources, "AWS::ECR::Repository"))
