"""uv gets what pip is configured with, or is not used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stationmaster.install.installers import (
    parse_pip_configuration,
    read_pip_configuration,
    uv_options,
)

BEST_MATCH = ("--index-strategy", "unsafe-best-match")


def test_parse_takes_the_section_that_pip_lets_win_unless_its_value_is_empty() -> None:
    listing = (
        ":env:.find-links='/from/environment'\n"
        ":env:.index-url=''\n"
        "global.find-links='/from/file'\n"
        "global.index-url='https://global/simple'\n"
        "install.index-url='https://install/simple'\n"
        "list.index-url='https://list/simple'\n"
    )

    assert parse_pip_configuration(listing) == {
        "find-links": "/from/environment",
        "index-url": "https://install/simple",
    }


def test_read_merges_the_configuration_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex_url = https://mirror/simple\nextra-index-url =\n  https://a/\n  https://b/\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_TRUSTED_HOST", "mirror")

    found = read_pip_configuration(Path(sys.executable))

    assert found["index-url"] == "https://mirror/simple"
    assert found["extra-index-url"].split() == ["https://a/", "https://b/"]
    assert found["trusted-host"] == "mirror"


@pytest.mark.parametrize(
    ("configuration", "arguments"),
    [
        ({"find-links": "/wheels /more"}, ("--find-links", "/wheels", "--find-links", "/more")),
        ({"constraint": "/etc/limits.txt"}, ("--constraint", "/etc/limits.txt")),
        ({"no-index": "true"}, ("--no-index",)),
        ({"no-index": "false", "no-cache-dir": "true"}, ()),
    ],
)
def test_options_of_pip_become_arguments_of_uv(
    configuration: dict[str, str], arguments: tuple[str, ...]
) -> None:
    assert uv_options(configuration).arguments == (*arguments, *BEST_MATCH)


def test_addresses_go_into_the_environment_where_no_process_list_shows_them() -> None:
    configuration = {
        "index-url": "https://me:secret@mirror/simple",
        "extra-index-url": "https://a/simple\nhttps://b/simple",
        "trusted-host": "mirror",
        "cert": "/etc/ca.pem",
        "proxy": "http://proxy:3128",
    }

    options = uv_options(configuration)

    assert options.arguments == BEST_MATCH
    assert options.environment == {
        "UV_DEFAULT_INDEX": "https://me:secret@mirror/simple",
        "UV_INDEX": "https://a/simple https://b/simple",
        "UV_INSECURE_HOST": "mirror",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "HTTP_PROXY": "http://proxy:3128",
        "HTTPS_PROXY": "http://proxy:3128",
    }


def test_an_option_that_uv_does_not_have_is_named() -> None:
    configuration = {"client-cert": "/me.pem", "only-binary": ":all:", "timeout": "180"}

    assert uv_options(configuration).untranslated == ("client-cert", "only-binary")


def test_every_argument_and_variable_is_one_that_uv_knows() -> None:
    configuration = {"find-links": "/wheels", "constraint": "/limits.txt", "no-index": "1"}
    uv = Path(sys.executable).parent / "uv"
    help_text = subprocess.run(
        [uv, "pip", "install", "--help"], check=True, capture_output=True, text=True
    ).stdout

    options = [word for word in uv_options(configuration).arguments if word.startswith("--")]

    # `--constraint` is an alias of the name that the help shows.
    assert [option for option in options if option not in help_text] == []
