"""Data sets of the Hugging Face hub, from a stand-in on the loopback."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_sets import language_training, number_tokenizer, numbered, write_rows
from hub_stand_in import HubStandIn, Repository

from stationmaster.domain.datasets import Preparation
from stationmaster.domain.errors import BadParameter, PermanentError
from training.data.corpus_lookup import find_corpus
from training.data.hub_files import open_on_hub
from training.data.rows import read_documents
from training.data.shards import read_packed
from training.data.streaming import StreamingSource
from training.data.targets import Target, find_target_on_hub
from training.data.token_work import TokenWork
from training.prepare import prepare

OLD, NEW = "a" * 40, "b" * 40
CONFIGS = [
    {
        "config_name": name,
        "data_files": [
            {"split": "train", "path": f"{name}/train.*.json.gz"},
            {"split": "validation", "path": [f"{name}/validation.*.json.gz"]},
        ],
    }
    for name in ("en", "de")
]


@pytest.fixture
def c4(hub: HubStandIn) -> Repository:
    return hub.datasets.setdefault("allenai/c4", Repository())


def files(directory: Path, *, first: int) -> dict[str, bytes]:
    """Two configurations of three files for training and one for validation, and others."""
    contents = {"README.md": b"# c4", "en/notes.txt": b"none"}
    for config in ("en", "de"):
        for number in range(3):
            name = f"{config}/train.{number}.json.gz"
            texts = [numbered(first + number + 3 * n, length=8) for n in range(12)]
            contents[name] = write_rows(directory / name, texts).read_bytes()
        name = f"{config}/validation.0.json.gz"
        texts = [numbered(2000, length=20)]
        contents[name] = write_rows(directory / name, texts).read_bytes()
    name = "data/train-0.parquet"
    contents[name] = write_rows(directory / name, list("abcdefgh")).read_bytes()
    return contents


def test_c4_is_the_english_configuration_at_its_newest_commit(
    hub: HubStandIn, c4: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c4.commits = {NEW: files(tmp_path, first=1)}
    c4.configs = CONFIGS
    monkeypatch.setenv("HF_TOKEN", hub.token)

    corpus = find_corpus("c4")
    texts = list(read_documents(corpus.files[1], start=10))

    prefix = f"hf://datasets/allenai/c4@{NEW}/en"
    assert corpus.files == tuple(f"{prefix}/train.{n}.json.gz" for n in range(3))
    assert corpus.held_out == (f"{prefix}/validation.0.json.gz",)
    assert corpus.revision == NEW
    assert texts == [numbered(1 + 1 + 3 * n, length=8) for n in (10, 11)]
    assert {token for _, path, token in hub.requests if "c4" in path} == {hub.token}


def test_a_data_set_without_card_is_read_by_its_file_names(c4: Repository, tmp_path: Path) -> None:
    c4.commits = {NEW: files(tmp_path, first=1)}

    corpus = find_corpus("hub:allenai/c4/data")

    assert [Path(file).name for file in corpus.files] == ["train-0.parquet"]
    assert list(read_documents(corpus.files[0], start=5)) == ["f", "g", "h"]
    assert len(find_corpus("hub:allenai/c4").files) == 7


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("hub:allenai/c4", "has the configurations en, de; name one as hub:ORG/NAME/CONFIG"),
        ("hub:allenai/c4/fr", "has the configurations en, de; name one"),
        ("hub:allenai/c5", "allenai/c5 is not on the Hugging Face hub, or it is private and HF_TO"),
        ("hub:lab/pictures", r"no files for training that end in \.jsonl"),
        ("hub:lab/gated", r"is gated: accept its terms at https://huggingface\.co/"),
    ],
)
def test_find_on_hub_what_cannot_be_read_is_explained_in_a_sentence(
    hub: HubStandIn, c4: Repository, tmp_path: Path, dataset: str, message: str
) -> None:
    c4.commits = {NEW: files(tmp_path, first=1)}
    c4.configs = CONFIGS
    hub.datasets["lab/pictures"] = Repository(commits={NEW: {"README.md": b"x", "a.png": b"x"}})
    hub.datasets["lab/gated"] = Repository(commits={NEW: {}}, gated=True)

    with pytest.raises(BadParameter, match=message):
        find_corpus(dataset)


def test_find_on_hub_unreachable_says_what_else_can_be_done(
    hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(
        PermanentError, match=r"did not answer for data set allenai/c4 .*python-code or"
    ):
        find_corpus("c4")


def test_open_on_hub_asks_again_where_a_download_broke_off(hub: HubStandIn, c4: Repository) -> None:
    contents = bytes(range(256)) * 40_000  # three requests of 4 MiB
    c4.commits = {NEW: {"a.bin": contents}}
    failures = iter([False, True, True, False, True, False])
    c4.fail = lambda path: next(failures)
    waits: list[float] = []

    with open_on_hub(
        f"hf://datasets/allenai/c4@{NEW}/a.bin", seekable=False, wait=waits.append
    ) as file:
        received = file.read()

    assert received == contents
    assert waits == [1, 2, 1]
    assert hub.file_requests() == 6


def test_open_on_hub_gives_up_on_a_hub_that_stays_broken(c4: Repository) -> None:
    c4.commits = {NEW: {"a.bin": bytes(100)}}
    c4.fail = lambda path: True
    waits: list[float] = []

    file = open_on_hub(f"hf://datasets/allenai/c4@{NEW}/a.bin", seekable=False, wait=waits.append)

    with pytest.raises(ConnectionError, match="peer closed connection"):
        file.read()
    assert 100 < sum(waits) < 150


def test_read_documents_file_that_is_gone_fails_at_once(c4: Repository) -> None:
    c4.commits = {NEW: {}}

    with pytest.raises(
        PermanentError, match=r"reading hf://datasets/allenai/c4@\w+/a.json broke off"
    ):
        list(read_documents(f"hf://datasets/allenai/c4@{NEW}/a.json"))


def test_stream_goes_on_at_the_commit_it_began_with(c4: Repository, tmp_path: Path) -> None:
    c4.configs = CONFIGS
    c4.commits = {OLD: files(tmp_path / "old", first=1)}
    tokenizer = number_tokenizer(tmp_path / "tokenizer")

    def source() -> StreamingSource:
        sizes = language_training(
            sequence_length=8, global_batch_size=3, micro_batch_size=3, eval_samples=1
        )
        return StreamingSource(find_corpus("c4"), tokenizer, sizes, rank=0, world_size=1)

    first = source()
    list(first.micro_batches(0))
    state = first.state()
    (expected,) = first.micro_batches(3)
    c4.commits[NEW] = files(tmp_path / "new", first=1001)
    again = source()
    assert again.facts()["dataset_revision"] == NEW
    assert again.identity == first.identity
    again.restore(state)
    (batch,) = again.micro_batches(3)

    assert batch.inputs.tolist() == expected.inputs.tolist()
    assert again.facts()["dataset_revision"] == OLD
    (held_out,) = again.evaluation_batches()
    assert held_out.inputs[0].tolist() == [2000] * 8


def test_c4_is_packed_in_parts_at_the_commit_that_the_run_began_with(
    c4: Repository, tmp_path: Path
) -> None:
    c4.configs = CONFIGS
    for name in ("old", "new"):
        (tmp_path / name / "en").mkdir(parents=True)
        (tmp_path / name / "de").mkdir()
    c4.commits[OLD] = files(tmp_path / "old", first=0)
    data = tmp_path / "data"

    def target(run_id: str) -> Target:
        settings: dict[str, str | int] = {"tokenizer": "bpe", "vocab_size": 270}
        return find_target_on_hub(
            data, "c4", run_id=run_id, preparation=Preparation.TOKENS, settings=settings
        )

    begun = target("run-1")
    c4.commits[NEW] = files(tmp_path / "new", first=500)
    assert target("run-1").name == begun.name
    assert target("run-2").name != begun.name

    work = TokenWork(begun)
    staged = prepare(work, processes=2, progress=lambda done, total: None)

    packed = read_packed(data / staged.root)
    plan = packed.manifest.plan
    assert (plan.dataset, plan.revision, len(packed.paths)) == ("hub:allenai/c4/en", OLD, 3)
    sizes = [len(c4.commits[OLD][f"en/train.{number}.json.gz"]) for number in range(3)]
    assert [share.weight for share in work.shares()] == sizes
    assert packed.manifest.num_documents == 36
    assert prepare(TokenWork(target("run-1")), processes=1, progress=print).was_there


def test_data_set_without_room_for_its_tokens_is_refused(c4: Repository, tmp_path: Path) -> None:
    c4.commits[OLD] = {"a.jsonl.gz": b"x" * 1000}
    settings: dict[str, str | int] = {"tokenizer": str(tmp_path), "vocab_size": 4096}
    target = find_target_on_hub(
        tmp_path,
        "hub:allenai/c4",
        run_id="r",
        preparation=Preparation.TOKENS,
        settings=settings,
    )
    number_tokenizer(tmp_path)

    with pytest.raises(BadParameter, match=r"needs up to 0\.0 GB when it is packed"):
        prepare(TokenWork(target), processes=1, progress=print, free_bytes=lambda path: 2999)
