"""What checks run in pods: a training, collectives, facts of a node, the speed of a file system."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from forked_ranks import results, run_ranks, start_ranks
from hub_lone import lone_ranks

from stationmaster.diagnosis.file_system_speed import read_speed
from stationmaster.diagnosis.gpu_health import judge, read_facts
from stationmaster.diagnosis.nccl.log import read_log
from stationmaster.diagnosis.nccl.machines import contradictions
from stationmaster.diagnosis.training_smoke import Tried, fault_of
from stationmaster.domain.progress_lines import FailedLine, read_line
from training import collectives, file_system_speed, smoke
from training.file_system_speed import file_system_of, main, read, write
from training.node_facts import efa_devices, known_fields, loaded_modules, plugin_version
from training.parallel import least_over_ranks
from training.waits import GpuUse, watch_gpu

SMALL = (
    *("tiny-llama", "preset=smoke", "log_every=1", "checkpoint_every=6", "eval_every=0"),
    "steps=6",
)


def _train(rank: int, out: str, arguments: list[str]) -> None:
    descriptor = os.open(f"{out}.{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os._exit(smoke.main(arguments, {**os.environ, "NODE_NAME": f"node-{rank}"}))


def train(log: Path, output_dir: Path, *keys: str, num_ranks: int) -> list[int]:
    """The exit codes of a training into a directory that is named as a check's job names it."""
    words = [*SMALL, *keys, "--output-dir", str(output_dir)]
    ends = start_ranks(_train, str(log), words, world_size=num_ranks)
    return [end.exit_code for end in ends]


def test_ranks_train_and_resume_with_the_same_losses_and_leave_nothing(tmp_path: Path):
    runs = tmp_path / "runs"
    for name in ("c-1-tr-before", "c-2-tr-old", "c-2-tr-now"):
        (runs / name / "checkpoints").mkdir(parents=True)
    hours_ago = time.time() - 7 * 3600
    os.utime(runs / "c-2-tr-old", (hours_ago, hours_ago))

    codes = train(tmp_path / "log", runs / "c-1-tr-0a1b2c", "global_batch_size=4", num_ranks=2)

    assert codes == [0, 0]
    tried = Tried()
    for rank in range(2):
        tried.take((tmp_path / f"log.{rank}").read_text().splitlines())
    assert fault_of(tried, num_ranks=2, steps=6, device="cpu") == ""
    assert tried.ranks[1].node == "node-1"
    assert (tried.ranks[1].resumed_from_step, tried.checkpoint_bytes > 1 << 20) == (3, True)
    assert [path.name for path in runs.iterdir()] == ["c-2-tr-now"], "it may be under way"


def test_failure_is_reported_and_leaves_nothing(tmp_path: Path):
    runs = tmp_path / "runs"
    (runs / "c-1-tr-0a1b2c" / "checkpoints").mkdir(parents=True)

    codes = train(tmp_path / "log", runs / "c-1-tr-0a1b2c", "dataset=/nowhere", num_ranks=1)

    assert codes == [1]
    [line] = [read_line(text) for text in (tmp_path / "log.0").read_text().splitlines()]
    assert isinstance(line, FailedLine)
    assert "/nowhere" in line.reason
    assert list(runs.iterdir()) == []


@pytest.mark.parametrize(("own", "other"), [("try", "data"), ("c-1-tr-0a1b2c", "my-data")])
def test_what_is_not_of_a_check_stays_whatever_its_age(tmp_path: Path, own: str, other: str):
    directory = tmp_path / other
    directory.mkdir()
    os.utime(directory, (0, 0))

    smoke.Leftovers(tmp_path / own).delete_earlier()

    assert directory.exists()


@pytest.mark.parametrize("ending", ["told", "orphaned"])
def test_process_that_is_ended_inside_native_code_deletes_what_it_wrote(
    tmp_path: Path, ending: str
):
    directory = tmp_path / "c-1-tr-0a1b2c"
    directory.mkdir()
    worker = (
        "import os, sys, pathlib, threading; from training.smoke import Leftovers; "
        "Leftovers(pathlib.Path(sys.argv[1])).delete_at_sigterm(); "
        "print(os.getpid(), flush=True); lock = threading.Lock(); lock.acquire(); lock.acquire()"
    )
    command = [sys.executable, "-c", worker, str(directory)]
    agent = f"import subprocess; subprocess.run({command!r})"
    with subprocess.Popen(
        [sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())

        os.kill(pid if ending == "told" else process.pid, signal.SIGTERM)

        process.stdout.read()  # until both are gone
    assert not directory.exists()


def _measure(rank: int, out: str, arguments: list[str]) -> None:
    if rank == 0:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
    node = {"NODE_NAME": f"node-{'abc'[rank]}", "LOCAL_RANK": "0"}
    assert collectives.main(arguments, {**os.environ, **node}) == 0


def test_tables_of_two_nodes_are_read_by_the_parser_of_nccl_tests(tmp_path):
    out = tmp_path / "log"

    words = ["--max-bytes", str(1 << 20)]
    results(start_ranks(_measure, str(out), words, world_size=2))

    reduced, sent = read_log(out.read_text().splitlines()).tables
    assert (reduced.operation, sent.operation) == ("all_reduce", "broadcast")
    for table in (reduced, sent):
        assert table.hosts == {"node-a", "node-b"}
        assert [row.size_bytes for row in table.rows] == [8 << 2 * n for n in range(9)]
        assert (table.max_bytes, table.is_complete, table.was_checked) == (8 << 16, True, True)
        assert table.num_wrong == 0
        assert all(row.judged.time_us > 0 for row in table.rows)
        operation = table.operation or ""
        assert contradictions(table.rows, operation=operation, num_ranks=2) == []


def test_each_node_of_three_is_measured_with_two_others_first(tmp_path):
    out = tmp_path / "log"

    results(start_ranks(_measure, str(out), ["--pairs", "--max-bytes", "4096"], world_size=3))

    *pairs, reduced, _ = read_log(out.read_text().splitlines()).tables
    assert [sorted(pair.hosts) for pair in pairs] == [
        ["node-a", "node-b"],
        ["node-b", "node-c"],
        ["node-a", "node-c"],
    ]
    assert [[row.size_bytes for row in pair.rows] for pair in pairs] == [[4096]] * 3
    assert len(reduced.hosts) == 3


def test_no_node_is_in_two_pairs_at_once():
    assert collectives.rounds_of_pairs(4) == [[(0, 1), (2, 3)], [(1, 2), (3, 0)]]


def _corrupt(_rank: int) -> None:
    device = collectives._join(os.environ)

    def damage(tensor):
        tensor[5] += 1

    for operation in (collectives.ALL_REDUCE, collectives.BROADCAST):
        tensor = torch.empty(64, device=device)
        assert collectives._compare(operation, tensor, damage, None) == 1
        assert collectives._compare(operation, tensor, lambda _: None, None) == 0


def test_one_wrong_value_is_counted():
    results(start_ranks(_corrupt, world_size=1))


@pytest.mark.parametrize("words", [["--max-bytes", "6"], ["--max-bytes", "1M"]])
def test_sizes_that_cannot_be_sent_are_refused(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        collectives.parse(words)

    assert words[1] in capsys.readouterr().err


# As nvidia-smi lists them: a name, perhaps a second one, an explanation.
HELP = """
List of valid properties to query for the switch "--query-gpu":

"driver_version"
The version of the installed NVIDIA display driver.

"index"
Zero based index of the GPU. Can change at each boot.

"uuid" or "gpu_uuid"
This value is the globally unique immutable identifier of the GPU.

"{clocks}.active"
Bitmask of active clock event reasons.
"""

NVIDIA_SMI = """\
#!{python}
import sys
if sys.argv[1] == "--help-query-gpu":
    print('''{help}''')
elif sys.argv[1].startswith("--query-gpu=index,uuid,driver_version,clocks"):
    shown = sys.argv[3].removeprefix("--id=").split(",") if sys.argv[3:] else "01234567"
    for index in shown:
        print(f"{{index}}, GPU-{{index}}f, 580.95.05, 0x0000000000000001")
else:
    sys.exit("Field is not a valid field to query.")
"""


def test_node_facts_of_a_pod_are_what_the_judgement_reads(tmp_path: Path):
    program = tmp_path / "nvidia-smi"
    # The list is long: 32,472 characters with driver 580, on an H200.
    text = 32_000 * " " + HELP.format(clocks="clocks_throttle_reasons")
    program.write_text(NVIDIA_SMI.format(python=sys.executable, help=text))
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}/nowhere"

    printed = [
        subprocess.run(
            [sys.executable, "-m", "training.node_facts"],
            env={"PATH": path, "CUDA_VISIBLE_DEVICES": visible},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for visible in ("", "2,5")
    ]

    every, some = (read_facts(line) for line in printed)
    assert every is not None
    assert some is not None
    assert judge({"n": every}, num_gpus=8, num_efa=0).faults == ()
    assert every.efa.output == "fi_info is not in the container"
    assert [line[:1] for line in some.nvidia_smi.output.splitlines()] == ["2", "5"]
    assert [len(output.splitlines()) for output in printed] == [1, 1]


def test_only_fields_that_the_driver_lists_are_asked_for():
    newer, older = (
        known_fields(HELP.format(clocks=clocks))
        for clocks in ("clocks_event_reasons", "clocks_throttle_reasons")
    )

    assert newer == ["index", "uuid", "driver_version", "clocks_event_reasons.active"]
    assert older == ["index", "uuid", "driver_version", "clocks_throttle_reasons.active"]
    assert known_fields("NVIDIA-SMI has failed") == ["index", "uuid", "driver_version"]


def test_efa_devices_are_counted_once_for_all_their_endpoints():
    domains = ("rdmap47s0-rdm", "rdmap47s0-rdm", "rdmap47s0-dgrm", "rdmap48s0-rdm")
    text = "".join(f"provider: efa\n    fabric: efa\n    domain: {name}\n" for name in domains)

    assert efa_devices(text) == ["rdmap47s0", "rdmap48s0"]
    assert efa_devices("fi_getinfo: -61 (No data available)") == []


def test_modules_are_found_by_their_whole_names():
    text = "nvidia_uvm 1 0 - Live 0x0\nefa_nv_peermem 1 0 - Live 0x0\nefa 1 1 - Live 0x0\n"

    assert loaded_modules(text) == ["efa", "efa_nv_peermem"]


def test_plugin_version_is_read_from_the_library(tmp_path: Path):
    library = tmp_path / "libnccl-net-ofi.so"
    (tmp_path / "libnccl-net.so").write_bytes(b"\x7fELF another plugin")
    library.write_bytes(b"\x7fELF\x00NET/OFI Initializing aws-ofi-nccl 1.18.0\x00")

    assert plugin_version([str(tmp_path / "no"), str(tmp_path)]) == "1.18.0"
    assert plugin_version([str(tmp_path / "no")]) == ""


def test_use_is_the_mean_of_what_was_printed_since_the_last_look(tmp_path):
    printed = tmp_path / "printed"
    prints = "printf '20\\n[N/A]\\n40\\n1000\\n-1\\n\\n'; touch $0; exec sleep 60"
    use = GpuUse(["bash", "-c", prints, str(printed)])
    while not printed.exists():
        time.sleep(0.01)

    use.close()

    assert use.take() == pytest.approx(0.3)
    assert use.take() is None


@pytest.mark.parametrize("command", [None, ["no-such-program"], ["bash", "-c", "exit 9"]])
def test_use_is_unknown_where_nothing_measures_it(command):
    use = GpuUse(command)

    assert use.take() is None
    use.close()


def test_cpu_is_not_measured():
    assert watch_gpu(torch.device("cpu")).take_least(lone_ranks()) is None
    assert least_over_ranks(0.4, lone_ranks()) == 0.4


def least(ranks, figures):
    return [least_over_ranks(figure[ranks.rank], ranks) for figure in figures]


def test_every_rank_gets_the_least_use_that_any_has():
    figures = [(0.9, 0.4), (None, 0.7), (None, None)]

    assert results(run_ranks(least, figures, world_size=2)) == [[0.4, 0.7, None]] * 2


MIB = 1 << 20
MOUNTS = """\
overlay / overlay rw 0 0
10.0.0.1@tcp:/abcd /fsx lustre rw,flock 0 0
tmpfs /fsx/runs/with\\040space tmpfs rw 0 0
"""


def start(directory: Path, own: str, *nodes: str, name: str = "p1") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "training.file_system_speed"),
            *(str(directory), "c-1", name, own, str(64 * MIB), *nodes),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_nodes_measure_together_and_leave_nothing(tmp_path: Path):
    old = tmp_path / "c-9.p1.x.0"
    mine, other = tmp_path / "c-1.p0.ip-1.us.0", tmp_path / "c-1-2.p0.x.0"
    for path in (old, mine, other):
        path.write_bytes(b"left")
    os.utime(old, (0, 0))

    started = [start(tmp_path, own, "a.b", "c.d") for own in ("a.b", "c.d")]
    outputs = [process.communicate(timeout=600)[0] for process in started]

    speeds = [read_speed(output) for output in outputs]
    assert [process.returncode for process in started] == [0, 0]
    assert [(speed.node, speed.read_from) for speed in speeds if speed] == [
        ("a.b", "c.d"),
        ("c.d", "a.b"),
    ]
    assert {speed.write.num_bytes for speed in speeds if speed} == {64 * MIB}
    assert {speed.read.num_bytes for speed in speeds if speed} == {64 * MIB}
    assert list(tmp_path.iterdir()) == [other], "another cluster may measure just now"


def test_measurement_that_is_stopped_deletes_what_its_node_wrote(tmp_path: Path):
    process = start(tmp_path, "a", "a", "b")
    while not list(tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.01)

    process.send_signal(signal.SIGTERM)

    process.communicate(timeout=600)
    assert process.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_threads_that_write_and_read_end_when_the_process_is_told_to(tmp_path, monkeypatch):
    stopped = threading.Event()
    stopped.set()
    monkeypatch.setattr(file_system_speed, "_STOPPED", stopped)
    paths = [tmp_path / "0", tmp_path / "1"]

    written = write(paths, num_bytes=1 << 40, phase_s=600.0)
    for path in paths:
        path.write_bytes(bytes(MIB))
    found, _ = read(paths, phase_s=600.0)

    assert (written.num_bytes, found.num_bytes) == (0, 0)
    stopped.clear()
    assert write(paths, num_bytes=1 << 40, phase_s=0.0).num_bytes == 0, "its time is over"


@pytest.mark.parametrize("directory", ["missing", "."])
def test_what_cannot_be_measured_is_one_sentence(tmp_path, monkeypatch, capsys, directory):
    monkeypatch.setattr(file_system_speed, "_WAIT_S", 0.0)

    code = main([str(tmp_path / directory), "c-1", "p1", "a", "8388608", "a", "b"])

    (said,) = capsys.readouterr().out.splitlines()
    assert code == 1
    assert said.startswith("the speed of the file system was not measured on a: ")
    assert ("b did not come" in said) == (directory == ".")
    assert list(tmp_path.iterdir()) == []


def test_alone_a_node_reads_its_own_files_past_the_page_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.delattr(os, "O_DIRECT", raising=False)

    assert main([str(tmp_path), "c-1", "p1", "a", str(8 * MIB), "a"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert (result["read_from"], result["cache"]) == ("a", "posix_fadvise")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/fsx/.stationmaster/storage-check/speed", "lustre"),
        ("/fsx-other", "overlay"),
        ("/fsx/runs/with space/x", "tmpfs"),
    ],
)
def test_file_system_is_that_of_the_nearest_mount(path: str, kind: str):
    assert file_system_of(Path(path), MOUNTS) == kind
    assert file_system_of(Path(path), "") == ""
