"""Names of container images: what is one, what stays the same, and from where it may come."""

import pytest

from stationmaster.domain.errors import BadCommand
from stationmaster.domain.images import is_from, is_prefix, names_digest, read_image

DIGEST = "sha256:" + "0a" * 32
TEAM = "123456789012.dkr.ecr.us-west-2.amazonaws.com/team"


@pytest.mark.parametrize(
    "name",
    [
        f"{TEAM}/trainer:1.0",
        f"{TEAM}/trainer:latest@{DIGEST}",
        f"{TEAM}/a/b__c.d-e/trainer:V1_2@{DIGEST}",
        "registry.example.com:5000/x:1",
        "localhost/stationmaster/training:local",
    ],
)
def test_image_with_a_registry_and_a_tag_or_digest_is_taken_as_typed(name: str):
    assert read_image(name) == name
    assert names_digest(name) == (DIGEST in name)


@pytest.mark.parametrize("name", [f"{TEAM}/trainer", f"{TEAM}/trainer:latest"])
def test_image_that_may_change_under_a_run_is_refused(name: str):
    with pytest.raises(BadCommand, match="may be another image each time"):
        read_image(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "trainer:1",
        "user@registry.example.com/x:1",
        "registry.example.com/X:1",
        "registry.example.com/../x:1",
        "registry.example.com/x:1\n",
        "<http://registry.example.com/x:1|registry.example.com/x:1>",
        "registry.example.com/\u0435xample:1",  # a Cyrillic letter
        f"registry.example.com/{'x' * 300}:1",
        "registry.example.com/x@sha512:" + "0a" * 64,
    ],
)
def test_what_is_no_reference_is_refused(name: str):
    with pytest.raises(BadCommand, match="expected REGISTRY/NAME:TAG"):
        read_image(name)
    assert not is_from(name, ["registry.example.com", "user@registry.example.com", "trainer"])


@pytest.mark.parametrize(
    ("prefix", "image", "allowed"),
    [
        (TEAM, f"{TEAM}/trainer:1", True),
        (TEAM, f"{TEAM}/deep/trainer@{DIGEST}", True),
        (TEAM, f"{TEAM}-evil/trainer:1", False),
        (f"{TEAM}/trainer", f"{TEAM}/trainer-2:1", False),
        ("allowed.example.com", "allowed.example.com.evil.com/x:1", False),
        ("allowed.example.com", "allowed.example.com:443/x:1", False),
        ("allowed.example.com/team", "allowed.example.com/x:team", False),
    ],
)
def test_registries_are_compared_by_whole_parts(prefix: str, image: str, *, allowed: bool):
    assert is_prefix(prefix)
    assert is_from(image, ["other.example.org", prefix]) == allowed


@pytest.mark.parametrize(
    "text",
    ["", "/", "*", "https://a.example.com", "a.example.com/*", "A.example.com", "team", "a b"],
)
def test_what_is_no_registry_is_known(text: str):
    assert not is_prefix(text)


def test_long_names_are_read_in_no_time():
    # Each would take a pattern that tries all ways apart for ever.
    for text in ("a.b/" + "a-" * 50_000, "a." * 50_000, "a.b/" + "a" * 100_000 + "!"):
        with pytest.raises(BadCommand):
            read_image(text)
