"""The state directory: ours by its marker, locked before anything changes, else left alone."""

import os
import socket
from pathlib import Path

import pytest

from stationmaster.local.mode import LocalMode, LocalOptions
from stationmaster.local.state_directory import MARKER, StateDirectory


def snapshot(folder):
    """Every path below `folder` with its content and time of change."""
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def claimed():
    """Claims folders, and lets them go at the end."""
    directories = []

    def claim(path):
        directories.append(StateDirectory(path))
        directories[-1].claim()
        return directories[-1]

    yield claim
    for directory in directories:
        directory.release()


def test_claim_of_a_new_folder_marks_it_for_its_owner_only(claimed, tmp_path):
    claimed(tmp_path / "new" / "state")

    assert (tmp_path / "new" / "state" / MARKER).read_text().startswith("The folder around")
    assert (tmp_path / "new" / "state").stat().st_mode & 0o777 == 0o700


def test_claim_after_a_release_empties_what_the_last_start_left(claimed, tmp_path):
    first = claimed(tmp_path)
    first.empty()
    (tmp_path / "pods" / "uid").mkdir()
    (tmp_path / "file-systems" / "fs-1").mkdir()
    first.release()

    second = claimed(tmp_path)
    second.empty()

    assert [*(tmp_path / "pods").iterdir(), *(tmp_path / "file-systems").iterdir()] == []


def test_claim_of_a_held_folder_is_refused_and_changes_nothing(claimed, tmp_path):
    claimed(tmp_path).empty()
    before = snapshot(tmp_path)

    with pytest.raises(OSError, match="is in use by another local mode; give another --state-dir"):
        claimed(tmp_path)

    assert snapshot(tmp_path) == before


def test_start_in_a_folder_without_our_marker_is_refused_and_changes_nothing(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    before = snapshot(tmp_path)
    mode = LocalMode(LocalOptions(state_dir=tmp_path, port=0))

    with pytest.raises(ValueError, match="has other content and was not made by"), mode:
        pytest.fail("it started")

    assert snapshot(tmp_path) == before


def test_start_on_a_taken_port_changes_nothing_in_its_state(claimed, tmp_path):
    first = claimed(tmp_path)
    first.empty()
    (tmp_path / "local.log").write_text("of the last start")
    first.release()
    before = snapshot(tmp_path)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        mode = LocalMode(LocalOptions(state_dir=tmp_path, port=taken.getsockname()[1]))
        with pytest.raises(OSError, match=r"of 127\.0\.0\.1 is taken"), mode:
            pytest.fail("it started")

    assert snapshot(tmp_path) == before


def test_claim_of_a_link_or_a_file_is_refused(claimed, tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").write_text("precious")

    with pytest.raises(ValueError, match=f"is a link to {tmp_path / 'target'}; give the folder"):
        claimed(tmp_path / "link")
    with pytest.raises(ValueError, match="file is not a folder; give another --state-dir"):
        claimed(tmp_path / "file")

    assert list((tmp_path / "target").iterdir()) == []
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("name", ["pods", "file-systems"])
def test_empty_follows_no_link_out_of_the_folder(name, claimed, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data").write_text("precious")
    directory = claimed(tmp_path / "state")
    (tmp_path / "state" / name).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ValueError, match=f"{name} is a link; local mode makes this folder itself"):
        directory.empty()

    assert (tmp_path / "elsewhere" / "data").read_text() == "precious"


def test_claim_follows_no_link_in_place_of_the_marker(claimed, tmp_path):
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / MARKER).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match=MARKER):
        claimed(tmp_path / "state")

    assert (tmp_path / "elsewhere").read_text() == "precious"


def test_claim_of_another_users_folder_is_refused(claimed, tmp_path):
    folder, owner = tmp_path / "theirs", 12345
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, owner, -1)
    else:  # only root can give a folder away
        folder, owner = Path("/"), 0

    with pytest.raises(ValueError, match=f"belongs to user {owner} and you are user"):
        claimed(folder)

    assert not (folder / MARKER).exists()
