"""How the suite is dealt out to two processes at a time; most of its tests wait for something."""

import pytest


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, which share what they start.

    Those of the workflows stay together as a folder: all of them look at the same played runs, and
    the coverage of states is counted over them.
    """
    for item in items:
        folder = item.path.parent
        group = folder.name if folder.name == "workflow" else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
