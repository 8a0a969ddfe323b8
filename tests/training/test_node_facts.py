"""What a pod says of its node, with stand-ins for the node's programs."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from forked_ranks import results, run_ranks
from hub_lone import lone_ranks

from stationmaster.diagnosis.gpu_health import judge, read_facts
from training.gpu_use import GpuUse, watch_gpu
from training.node_facts import efa_devices, known_fields, loaded_modules, plugin_version
from training.parallel import least_over_ranks

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
