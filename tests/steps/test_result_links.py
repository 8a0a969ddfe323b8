"""Links to a result, as a person opens them: the right bytes, for their time, and no others."""

from __future__ import annotations

import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from stationmaster import commands
from stationmaster.commands.results import LINK_S, MAX_LINKS
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.results import MANIFEST_FILE
from stationmaster.domain.run import events as ev
from stationmaster.steps.verify_results import verify_results
from tests.support.artifacts_world import save_run
from tests.support.aws_steps import IDLE, Account

SPEED = IDLE
FILES = {
    "checkpoint/step-00000060/weights.pt": b"checkpoint",
    "metrics.jsonl": b"{}\n",
    "model/config.json": b"{}",
    "model/model.safetensors": b"weights & more",
}


@pytest.fixture(name="saved")
def account_with_a_result(account: Account) -> Account:
    account.train()
    account.happen(ev.TrainingStarted, total_steps=9)
    account.enter(ev.RunPhase.SAVING)
    save_run(account.aws.client("s3"), account.run_id, FILES)
    verify_results(account.services, account.run_id)
    return account


def links(account: Account, *, channel: str = "C1") -> commands.Links:
    return commands.link_results(account.services, account.run_id, channel_id=channel)


def opened(address: str) -> tuple[int, bytes, str]:
    """Status, bytes, and how a browser is told to save them."""
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read(), answer.headers["Content-Disposition"] or ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), ""


def test_links_download_the_files_of_the_result(saved: Account):
    found = links(saved)

    (manifest, address), *files = found.files
    assert manifest is None
    assert opened(address)[1] == saved.services.artifacts.read(saved.run_id).text
    assert {file.path: opened(link)[1] for file, link in files} == {
        path: FILES[path] for path in sorted(FILES) if not path.startswith("checkpoint")
    }
    assert (found.num_others, found.seconds) == (1, LINK_S)
    assert opened(address)[2] == f'attachment; filename="{MANIFEST_FILE}"'


def test_large_result_has_a_dozen_links_and_names_the_rest(saved: Account):
    shards = {f"model/model-{number:05}.safetensors": b"x" for number in range(20)}
    larger = save_run(saved.aws.client("s3"), saved.run_id, FILES | shards)
    saved.happen(ev.ResultsSaved, num_files=24, **larger.recorded)

    found = links(saved)

    assert len(found.files) == MAX_LINKS
    assert [file.path for file, _ in found.files[1:3] if file] == [
        "metrics.jsonl",
        "model/config.json",
    ]
    assert found.num_others == len(FILES | shards) - (MAX_LINKS - 1)


def test_run_without_a_result_has_no_links(account: Account):
    account.train()

    with pytest.raises(NotPossibleNow, match="has saved no result"):
        links(account)


def test_links_are_signed_for_one_object_of_one_run(saved: Account):
    for file, address in links(saved).files:
        path = file.path if file is not None else MANIFEST_FILE
        assert urlsplit(address).path.endswith(f"/runs/{saved.run_id}/{path}")
        assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in address
        assert f"X-Amz-Expires={LINK_S}" in address
