"""`stationmaster nccl-report`: the verdict on a log of nccl-tests."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stationmaster.cli.input_files import opened
from stationmaster.diagnosis.nccl.log import read_log
from stationmaster.diagnosis.nccl.operations import OPERATIONS
from stationmaster.diagnosis.nccl.report import NcclReport, TestReport, Verdict
from stationmaster.diagnosis.nccl.transport import Kind
from stationmaster.diagnosis.nccl.verdict import judge
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.errors import BadCommand
from stationmaster.domain.sizes import size_text

_STYLES: Final = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}
_BAR: Final = "\u2588"
_BAR_WIDTH: Final = 30
# Rows below it are all but 0 GB/s; the table leaves them out, the JSON has them.
_SMALLEST_SHOWN_BYTES: Final = 1 << 20
_MAX_LINE: Final = 1 << 16
# As many as a picture has colours.
_MOST_LOGS: Final = 6
_NO_PILLOW: Final = "--plot needs Pillow; run: pip install 'stationmaster[bot]'"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


def add_to(commands: Any) -> None:
    """Add the command to the command line's parser."""
    parser = commands.add_parser(
        "nccl-report", help="whether the output of nccl-tests shows a network to train on"
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="the log of the test; - reads standard input; of several, a table sets them side by "
        "side, e.g. with 4, 1 and 0 interfaces",
    )
    parser.add_argument("--instance", required=True, metavar="TYPE", help="where it ran")
    parser.add_argument("--nodes", required=True, type=_count, metavar="N", help="on how many")
    parser.add_argument(
        "--operation", choices=OPERATIONS, help="what it measured, where the log does not say it"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw bandwidth over size")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read the logs and print the verdict; 0 all pass or warn, 1 one fails.

    Raises:
        UnknownInstance: as said.
        BadCommand: a file cannot be read, or has nothing of NCCL; there are too many.
    """
    files: list[str] = arguments.files
    if len(files) > _MOST_LOGS or len(set(files)) < len(files):
        raise BadCommand(
            f"expected 1 to {_MOST_LOGS} logs, each once, got {len(files)}: {' '.join(files)[:80]}"
        )
    reports = [_read(file, arguments) for file in files]
    if arguments.plot:
        _plot(dict(zip(files, reports, strict=True)), arguments.plot)
    if arguments.json:
        shown = [report.model_dump_json(indent=2) for report in reports]
        print(shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]")
    elif len(reports) == 1:
        print_report(reports[0])
    else:
        _print_side_by_side(dict(zip(files, reports, strict=True)))
    return int(any(report.verdict is Verdict.FAIL for report in reports))


def _read(file: str, arguments: argparse.Namespace) -> NcclReport:
    log = read_log(_lines(file), operation=arguments.operation)
    if log.is_empty:
        raise BadCommand(
            f'"{file}" has no output of nccl-tests; give the log of its launcher, '
            "e.g. of: kubectl logs job/nccl-tests-launcher"
        )
    return judge(log, get_instance(arguments.instance), num_nodes=arguments.nodes)


def _print_side_by_side(reports: dict[str, NcclReport]) -> None:
    """Print a row a log, each against the fastest, and what speaks against each."""
    console = Console()
    table = Table("log", "test", "transport", "busbw GB/s", "of fastest", "verdict", box=None)
    fastest = max((each.judged_busbw_gbps or 0 for each in reports.values()), default=0)
    for file, report in reports.items():
        busbw, verdict = report.judged_busbw_gbps, report.verdict
        table.add_row(
            Text(file),
            Text(report.operation or "unnamed"),
            _transport(report),
            "-" if busbw is None else f"{busbw:g}",
            "-" if busbw is None or not fastest else f"{busbw / fastest:.0%}",
            Text(verdict.value.upper(), style=_STYLES[verdict]),
        )
    console.print(table, highlight=False)
    for file, report in reports.items():
        for finding in report.findings:
            mark = (f"  {finding.verdict.value:<5}", _STYLES[finding.verdict])
            console.print(Text.assemble(mark, f"{file}: {finding.text}"), soft_wrap=True)


def print_report(report: NcclReport) -> None:
    """Print the verdict, what was measured, why, and what to do next."""
    console = Console()
    for test in report.tests:
        _print_test(test, report, console)
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_row("transport", _transport(report))
    versions = _versions(report)
    if versions:
        facts.add_row("versions", versions)
    console.print(facts, highlight=False)
    console.print()
    style = _STYLES[report.verdict]
    console.print(
        Text.assemble(
            (f"{report.verdict.value.upper()}", f"bold {style}"),
            f"  {report.nodes} x {report.instance_type}",
        )
    )
    for finding in report.findings:
        mark = (f"  {finding.verdict.value:<5}", _STYLES[finding.verdict])
        console.print(Text.assemble(mark, finding.text), soft_wrap=True)
    for index, step in enumerate(report.next_steps):
        lead = "next" if index == 0 else ""
        console.print(Text.assemble((f"  {lead:<5}", "bold"), step), soft_wrap=True)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) > 0):
        raise argparse.ArgumentTypeError(f'"{text}" is no number of nodes; give 1 or more')
    return int(text)


def _print_test(test: TestReport, report: NcclReport, console: Console) -> None:
    ranks = f", {test.num_ranks} ranks" if test.num_ranks else ""
    name = test.operation or "an unnamed test"
    console.print(Text(f"{name} on {report.nodes} x {report.instance_type}{ranks}", style="bold"))
    shown = [row for row in test.rows if row.size_bytes >= _SMALLEST_SHOWN_BYTES] or test.rows
    table = Table("size", "time us", "algbw GB/s", "busbw GB/s", "", box=None)
    for column in table.columns[:-1]:
        column.justify = "right"
        column.no_wrap = True
    top = max([row.busbw_gbps for row in shown] + [test.reference_busbw_gbps or 0, 1e-9])
    for row in shown:
        is_judged = row.size_bytes == test.judged_size_bytes
        table.add_row(
            size_text(row.size_bytes),
            f"{row.time_us:,.0f}" if row.time_us >= 100 else f"{row.time_us:.1f}",
            f"{row.algbw_gbps:.2f}",
            f"{row.busbw_gbps:.2f}",
            Text(
                _BAR * round(row.busbw_gbps / top * _BAR_WIDTH),
                style=_STYLES[test.verdict] if is_judged else "cyan",
            ),
        )
    console.print(table, highlight=False)
    console.print(_limits(test), highlight=False, soft_wrap=True)
    console.print()


def _limits(test: TestReport) -> str:
    if test.judged_busbw_gbps is None or test.judged_size_bytes is None:
        return "  no size of it is judged"
    return (
        f"  judged at {size_text(test.judged_size_bytes)}: {test.judged_busbw_gbps:g} GB/s; fails "
        f"below {test.floor_busbw_gbps:g}, warns below {test.warn_busbw_gbps:g}\n"
        f"  published for healthy fabrics: {test.reference_busbw_gbps:g} GB/s "
        "(--json has the source)"
    )


def _plot(reports: dict[str, NcclReport], path: Path) -> None:
    """Write the chart of a report's main test, or of several with a line each.

    Raises:
        BadCommand: nothing can be drawn, or the file cannot be written.
    """
    try:
        from stationmaster.charts import busbw  # Pillow, for this only
    except ImportError as exc:
        raise BadCommand(_NO_PILLOW) from exc
    points = [[(row.size_bytes, row.busbw_gbps) for row in each.rows] for each in reports.values()]
    report, *others = reports.values()
    ranks = f"{report.num_ranks} ranks, " if report.num_ranks else ""
    try:
        if others:
            names = [f"{Path(file).name}: {_transport(each)}" for file, each in reports.items()]
            lines = dict(zip(names, points, strict=True))
            png = busbw.busbw_lines(lines, title="NCCL bus bandwidth of several logs")
        else:
            png = busbw.busbw_chart(
                points[0],
                title=f"{report.operation or 'unnamed test'} on {report.nodes} x "
                f"{report.instance_type}",
                subtitle=f"nccl-tests, {ranks}transport: {_transport(report)}",
                verdict=report.verdict.value,
                levels=busbw.limit_levels(
                    reference_gbps=report.reference_busbw_gbps,
                    warn_gbps=report.warn_busbw_gbps,
                    floor_gbps=report.floor_busbw_gbps,
                ),
                judged_size_bytes=report.judged_size_bytes,
            )
    except ValueError as exc:
        raise BadCommand(f"--plot {path}: {exc}") from exc
    _write(png, path)


def _write(png: bytes, path: Path) -> None:
    try:
        path.write_bytes(png)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise BadCommand(
            f'--plot "{path}" cannot be written: {reason.lower()}; give a file in a folder that '
            "exists"
        ) from exc


def _transport(report: NcclReport) -> str:
    match report.transport:
        case Kind.EFA:
            words = ["EFA"]
        case Kind.SOCKET:
            words = ["sockets" if report.provider is None else f"sockets ({report.provider})"]
        case Kind.UNKNOWN:
            words = ["unknown"]
    if report.num_nics is not None:
        words.append(f"{report.num_nics} of {report.num_nics_expected} interfaces")
    if report.gpudirect is not None:
        words.append("GPUDirect RDMA" if report.gpudirect else "without GPUDirect RDMA")
    return ", ".join(words)


def _versions(report: NcclReport) -> str:
    named = (("NCCL", report.nccl_version), ("aws-ofi-nccl", report.plugin_version))
    return ", ".join(f"{name} {version}" for name, version in named if version)


def _lines(file: str) -> Iterator[str]:
    """Yield the file's lines; a line without an end comes in pieces, whatever it has instead."""
    with opened(file, advice="give the log of nccl-tests") as stream:
        yield from _decoded(stream)


def _decoded(stream: Any) -> Iterator[str]:
    """Yield lines of UTF-16 with its mark, else of UTF-8; \\r and \\n end a line."""
    reader = io.BufferedReader(stream)
    encoding = "utf-16" if reader.peek(2)[:2] in _UTF_16 else "utf-8"
    text = io.TextIOWrapper(reader, encoding=encoding, errors="replace", newline=None)
    try:
        while line := text.readline(_MAX_LINE):
            yield line
    finally:
        text.detach().detach()  # standard input stays open
