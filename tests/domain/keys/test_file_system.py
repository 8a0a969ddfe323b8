"""What a person types of file systems: `file_system=` with a start, a plan and `cluster create`."""

from __future__ import annotations

import pytest

from stationmaster.domain.cluster.spec import FileSystemSpec, spec_for
from stationmaster.domain.commands.grammar import parse_request
from stationmaster.domain.commands.requests import CreateCluster, ShowPlan
from stationmaster.domain.datasets import Listing, Preparation
from stationmaster.domain.errors import NotPossibleNow
from tests.support.factories import make_request
from tests.support.typed import FILE_SYSTEM, STORAGE, Account, parse, refused, start_of


def test_run_on_a_file_system_that_exists_does_not_pay_for_it_and_is_told_so() -> None:
    account = Account()

    start = start_of(f"tiny-llama nodes=1 file_system={FILE_SYSTEM}", account=account)
    alone = start_of("tiny-llama nodes=1")
    request = make_request(nodes=1, file_system=start.options.file_system)
    spec = spec_for(request.resolved, nodes=1, instance_type="m5.2xlarge")

    assert account.asked == [FILE_SYSTEM]
    plan = start.plan
    storage = FileSystemSpec(storage_gib=1200, mbps_per_tib=125).price_per_hour_usd
    assert plan.price_per_hour_usd == pytest.approx(alone.plan.price_per_hour_usd - storage, 0.01)
    assert (plan.file_system_id, plan.file_system_gib) == (FILE_SYSTEM, 4800)
    assert f"no file system: {FILE_SYSTEM}, 4,800 GiB, is used and stays" in plan.will_create
    assert not any("1 FSx for Lustre" in line for line in plan.will_create)
    (note,) = (each for each in plan.warnings if FILE_SYSTEM in each)
    assert "in no price here" in note
    assert "how much of it is free is not known" in note
    assert "zone, us-west-2b" in note
    assert spec.file_system == STORAGE
    assert spec.price_per_hour_usd == pytest.approx(start.plan.price_per_hour_usd, 0.01)


@pytest.mark.parametrize(
    ("typed", "said", "meant"),
    [
        ("1300", "expected 1200 or a multiple of 2400", "file_system=1200"),
        ("900000", "up to 96000", "file_system=96000"),
        ("FS-0123456789ABCDEF0", f"did you mean {FILE_SYSTEM}", f"file_system={FILE_SYSTEM}"),
        (
            f"{FILE_SYSTEM}.fsx.us-west-2.amazonaws.com@tcp:/x",
            f"did you mean {FILE_SYSTEM}",
            f"file_system={FILE_SYSTEM}",
        ),
        ("mine", "expected the id of an FSx for Lustre file system", ""),
        ("\u0661\u0662\u0660\u0660", "expected the id of an FSx for Lustre file system", ""),
    ],
)
def test_malformed_file_system_is_refused_with_the_nearest_form(
    typed: str, said: str, meant: str
) -> None:
    for command, free in (("tiny-llama", "plan tiny-llama"), ("cluster create a", None)):
        error = refused(f"{command} file_system={typed}")

        assert said in str(error)
        if meant:
            assert error.suggestion.endswith(meant)
            assert parse(error.suggestion.removeprefix("/train ")) is not None
        elif free is not None:
            assert error.suggestion == f"/train {free}"


def test_file_system_that_cannot_be_used_is_asked_about_once_and_a_plan_without_it_is_offered() -> (
    None
):
    account = Account()

    error = refused("tiny-llama file_system=fs-99999999 steps=60", account=account)

    assert "there is no file system fs-99999999" in str(error)
    assert error.suggestion == "/train plan tiny-llama steps=60"
    assert account.asked == ["fs-99999999"]


def test_correction_without_the_file_system_names_no_data_that_would_lie_on_it() -> None:
    error = refused("tiny-llama dataset=/fsx/books file_system=fs-99999999 steps=60")
    meant = refused(f"tiny-llama dataset=/fsx/books file_system={FILE_SYSTEM.upper()}")

    assert error.suggestion == "/train plan tiny-llama steps=60"
    assert meant.suggestion == f"/train tiny-llama file_system={FILE_SYSTEM} dataset=/fsx/books"


def test_nobody_is_asked_about_a_file_system_where_no_account_is_at_hand() -> None:
    with pytest.raises(NotPossibleNow, match=f"file_system={FILE_SYSTEM} names a file system of"):
        parse_request(["tiny-llama", f"file_system={FILE_SYSTEM}"])


def test_data_that_a_file_system_cannot_hold_is_refused() -> None:
    def measured(gb: int) -> object:
        listing = Listing(
            source="s3://books/",
            num_bytes=gb * 10**9,
            num_objects=3,
            preparation=Preparation.NONE,
            prepared_bytes=0,
            is_complete=True,
        )
        return lambda source, task: listing

    text = "plan tiny-llama nodes=1 dataset=s3://books"
    fits = parse(f"{text} file_system={FILE_SYSTEM}", measure=measured(2000))
    assert isinstance(fits, ShowPlan)
    assert fits.request.plan.file_system_gib == 4800

    too_large = refused(f"{text} file_system={FILE_SYSTEM}", measure=measured(9000))
    assert f"file system {FILE_SYSTEM} has 4,800 GiB" in str(too_large)

    full = refused(
        f"{text} file_system={FILE_SYSTEM}", measure=measured(2000), account=Account(free_gib=100)
    )
    assert f"file_system={FILE_SYSTEM} has 100 GiB free" in str(full)

    guest = f"{text} cluster=eks:theirs storage=pvc:data"
    assert parse(guest, measure=measured(9000)), "a claim's size is not known"

    small = refused(f"{text} file_system=1200", measure=measured(2000))
    assert "file_system=1200 is too small" in str(small)
    assert "use file_system=2400" in str(small)


@pytest.mark.parametrize(
    ("key", "free", "what", "needed"),
    [
        ("weights=meta-llama/Llama-3.1-8B", 370, "data, weights that are converted and", 395),
        # The model that is made needs room beside three checkpoints of 112.4 GB, 314 GiB.
        ("dataset=mock", 320, "data and", 329),
    ],
)
def test_run_of_a_framework_that_a_file_system_has_no_room_for_is_refused(
    key: str, free: int, what: str, needed: int
) -> None:
    text = f"plan megatron-llama3-8b file_system={FILE_SYSTEM} {key}"

    full = refused(text, account=Account(free_gib=free))

    assert f"{free} GiB free, and {what} checkpoints need {needed} GiB" in str(full)
    assert isinstance(parse(text, account=Account(free_gib=needed)), ShowPlan)


def test_cluster_is_made_with_a_file_system_that_exists() -> None:
    wish = parse(f"cluster create team-a nodes=4 file_system={FILE_SYSTEM}")
    new = parse("cluster create team-a nodes=4 file_system=2400")
    same = parse("cluster create team-a nodes=4 file_system_gib=2400")

    assert isinstance(wish, CreateCluster)
    assert wish.spec.file_system == STORAGE
    assert isinstance(new, CreateCluster)
    assert (new, new.spec.file_system.existing_id) == (same, "")
    without = new.spec.price_per_hour_usd - new.spec.file_system.price_per_hour_usd
    assert wish.spec.price_per_hour_usd == pytest.approx(without)


@pytest.mark.parametrize(
    ("typed", "mbps", "usd_per_gib_month", "said"),
    [
        ("scratch-200", 200, 0.140, "SCRATCH_2 at 200 MB/s a TiB"),
        ("persistent-1000", 1000, 0.600, "PERSISTENT_2 at 1000 MB/s a TiB"),
    ],
)
def test_type_of_a_new_file_system_is_planned_priced_and_requested(
    typed: str, mbps: int, usd_per_gib_month: float, said: str
) -> None:
    start = start_of(f"llama2-7b nodes=2 file_system=4800 file_system_type={typed}")
    request = make_request(
        recipe="llama2-7b",
        file_system_gib=4800,
        file_system_mbps_per_tib=start.options.file_system_mbps_per_tib,
    )
    spec = spec_for(request.resolved, nodes=2, instance_type="p5.48xlarge").file_system

    assert any(f"4800 GiB {said}" in line for line in start.plan.will_create)
    assert spec == FileSystemSpec(storage_gib=4800, mbps_per_tib=mbps)
    assert spec.price_per_hour_usd == pytest.approx(4800 * usd_per_gib_month / 730)
    written_gb = 12 * 6.738
    assert start.plan.checkpoint_write_s == pytest.approx(written_gb * 1e3 / (4.8 * mbps), rel=0.01)
    is_warned = any("keeps no second copy" in note for note in start.plan.warnings)
    assert is_warned is (typed == "scratch-200")


@pytest.mark.parametrize(
    ("words", "said", "suggestion"),
    [
        (
            "file_system_type=SCRATCH_2",
            "expected scratch-200, persistent-125",
            "/train tiny-llama file_system_type=scratch-200",
        ),
        (
            "file_system_type=PERSISTENT_2_500",
            "expected scratch-200",
            "/train tiny-llama file_system_type=persistent-500",
        ),
        ("file_system_type=persistent-200", "expected scratch-200", "/train plan tiny-llama"),
        (
            f"file_system={FILE_SYSTEM} file_system_type=scratch-200",
            f"is of a new file system, and file_system={FILE_SYSTEM} exists",
            None,
        ),
    ],
)
def test_type_that_is_none_or_of_no_new_file_system_is_refused(
    words: str, said: str, suggestion: str | None
) -> None:
    error = refused(f"tiny-llama {words}")

    assert said in str(error)
    assert suggestion in (None, error.suggestion)
    parse(error.suggestion.removeprefix("/train "))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"tiny-llama on=team-a file_system={FILE_SYSTEM}", "cannot be used with on=team-a: a run"),
        ("tiny-llama on=team-a file_system=2400", "file_system=2400 cannot be used with on=team-a"),
        ("tiny-llama on=team-a file_system_type=scratch-200", "that cluster's file system is ther"),
        ("cluster create lab file_system=2400 file_system_gib=2400", "say the same thing twice"),
    ],
)
def test_file_system_of_a_cluster_is_named_once(text: str, said: str) -> None:
    assert said in str(refused(text))


GUEST = "tiny-llama nodes=2 cluster=eks:theirs"


def test_claim_of_an_existing_cluster_takes_the_place_of_a_file_system() -> None:
    start = start_of(f"{GUEST} storage=pvc:ml/data")

    chosen = start.options.file_system
    assert chosen is not None
    assert (chosen.claim, chosen.price_per_hour_usd) == ("ml/data", 0.0)
    assert start.resolved.file_system_id == "pvc:ml/data"
    usual = start_of("tiny-llama nodes=2").resolved
    assert start.resolved.file_system_gib == usual.file_system_gib, "planned as usual"
    kept = parse("cluster create lab cluster=eks:theirs storage=pvc:data")
    assert isinstance(kept, CreateCluster)
    assert kept.spec.file_system.claim == "default/data"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{GUEST} storage=data", "did you mean pvc:data"),
        (f"{GUEST} storage=pvc:a/b/c", "storage=pvc:a/b/c is not accepted: expected pvc:NAME"),
        (f"{GUEST} storage=pvc:data file_system=2400", "are of two file systems; keep one"),
        ("tiny-llama storage=pvc:data", "storage=pvc:default/data needs cluster=eks:NAME"),
        ("tiny-llama on=team-a storage=pvc:data", "leave storage= out"),
    ],
)
def test_claim_is_refused_where_it_cannot_be_used(text: str, says: str) -> None:
    error = refused(text)

    assert says in str(error)
    assert parse(error.suggestion.removeprefix("/train "))
