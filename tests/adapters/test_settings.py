"""Settings: what is written to the environment is read back, and what is missing is named."""

import pytest

from stationmaster.domain.errors import PermanentError
from stationmaster.settings import Settings

FULL = Settings(
    region="us-west-2",
    table_name="t",
    bus_name="b",
    subnet_ids=("subnet-1", "subnet-2"),
    plugin_timeout_s=12.5,
    emulated_speed=720.0,
)


@pytest.mark.parametrize("settings", [FULL, Settings(region="r", table_name="t", bus_name="b")])
def test_settings_survive_the_environment(settings):
    assert Settings.from_environment(settings.to_environment()) == settings


def test_settings_take_the_region_from_aws_when_they_have_none():
    found = Settings.from_environment(
        {"AWS_REGION": "eu-west-1", "STATIONMASTER_TABLE_NAME": "t", "STATIONMASTER_BUS_NAME": "b"}
    )

    assert found.region == "eu-west-1"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"AWS_REGION": "r", "STATIONMASTER_BUS_NAME": "b"}, "STATIONMASTER_TABLE_NAME"),
        (FULL.to_environment() | {"STATIONMASTER_PLUGIN_TIMEOUT_S": "soon"}, "PLUGIN_TIMEOUT_S"),
    ],
    ids=["missing", "malformed"],
)
def test_settings_with_a_bad_variable_name_it(variables, words):
    with pytest.raises(PermanentError, match=words):
        Settings.from_environment(variables)
