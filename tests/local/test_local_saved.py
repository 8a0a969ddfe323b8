"""What a local mode saves for its next start, and what it makes of a file that it cannot read."""

import sqlite3
import time

import pytest

from stationmaster.local import saved as saved_rows
from stationmaster.local.mode import LocalMode, LocalOptions
from stationmaster.local.saved import NAME, Saved
from stationmaster.local.slack.records import GENERAL_CHANNEL_ID
from stationmaster.services import Services


def started(state_dir):
    return LocalMode(LocalOptions(state_dir=state_dir, port=0, is_saved=True, answer_within_s=600))


def wait_for(condition):
    deadline = time.monotonic() + 600
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_next_start_has_messages_items_and_objects_and_ends_the_run_that_was_live(tmp_path):
    with started(tmp_path) as mode:
        mode.slack.say("of yesterday", channel=GENERAL_CHANNEL_ID)
        mode.slack.type_command("/train tiny-llama nodes=1 steps=20 name=live")
        mode.slack.type_command("/train cluster create kept nodes=1 ttl=2h")
        services = Services(mode.settings)
        wait_for(lambda: [r for r in services.runs.list_open() if r.phase != "requested"])
        wait_for(lambda: any("live: " in message.text for message in mode.slack.messages()))
        mode.aws.client("s3").create_bucket(
            Bucket="books", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        for key in ("kept.txt", "deleted.txt"):
            mode.aws.client("s3").put_object(Bucket="books", Key=key, Body=key.encode())
        upload_in_parts(mode.aws.client("s3"))
        mode.aws.client("s3").delete_object(Bucket="books", Key="deleted.txt")

    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    with started(tmp_path) as mode:
        services = Services(mode.settings)
        wait_for(lambda: not services.cluster_states.list_open())
        card = wait_for(
            lambda: [m for m in mode.slack.messages() if m.text.startswith("live: failed")]
        )[0]
        listed = mode.aws.client("s3").list_objects_v2(Bucket="books")["Contents"]
        part = mode.aws.client("s3").head_object(Bucket="books", Key="parts", PartNumber=2)
        assert part["ContentLength"] == len(b"the second")
        assert [message.text for message in mode.slack.messages(GENERAL_CHANNEL_ID)] == [
            "of yesterday"
        ]

    assert "local mode was stopped" in card.text
    assert [each["Key"] for each in listed] == ["kept.txt", "parts"]


def upload_in_parts(s3):
    """A resumed run asks for the parts of a checkpoint by their numbers."""
    place = {"Bucket": "books", "Key": "parts"}
    place["UploadId"] = s3.create_multipart_upload(**place)["UploadId"]
    made = [
        {
            "PartNumber": number,
            "ETag": s3.upload_part(**place, PartNumber=number, Body=body)["ETag"],
        }
        for number, body in ((1, b"x" * 5 * 1024**2), (2, b"the second"))
    ]
    s3.complete_multipart_upload(**place, MultipartUpload={"Parts": made})


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.write_bytes(b"no database" * 1000), "file is not a database"),
        (lambda path: change(path, "PRAGMA user_version = 9"), "it has version 9, expected 1"),
        (lambda path: change(path, "UPDATE saved SET about = '{'"), "a row is not JSON"),
        (lambda path: change(path, "UPDATE saved SET about = '{}'"), "TypeError"),
    ],
)
def test_damaged_file_is_moved_aside_and_the_start_is_empty(damage, why, tmp_path):
    with started(tmp_path) as mode:
        mode.slack.say("lost", channel=GENERAL_CHANNEL_ID)
    damage(tmp_path / NAME)

    with started(tmp_path) as mode:
        assert mode.saved.damage.startswith("runs and messages of earlier starts cannot be read")
        assert why in mode.saved.damage
        assert mode.slack.messages(GENERAL_CHANNEL_ID) == []

    assert (tmp_path / f"{NAME}.damaged").exists()


def change(path, statement):
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_start_keeps_the_newest_rows_and_bytes_of_each_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_rows, "MOST_ROWS", 3)
    monkeypatch.setattr(saved_rows, "MOST_BYTES", 5)
    first = Saved(tmp_path / NAME)
    for number in range(4):
        first.put("message", str(number), {"number": number})
        first.put("object", str(number), {"number": number}, b"xx")
    first.put("message", "1", {"number": 1})
    first.put("message", "3", None)
    first.put("message", "4", {"number": 4})
    first.close()

    again = Saved(tmp_path / NAME)

    assert [about["number"] for about, _ in again.rows("message")] == [2, 1, 4]
    assert [about["number"] for about, _ in again.rows("object")] == [2, 3]
    again.close()
