"""`shipconf verify`: everything that is wrong with the records of a package, at once."""

from __future__ import annotations

import argparse
from typing import Any

from ..sources import open_source
from ..verify import Checks, Report, verify
from . import tables
from .arguments import add_command, share

SHAPE = """It imports the kernels, and so torch and triton, unless told not to; it needs no GPU.
With --json: {"source": {"kind", "path"}, "files", "records", "faults": [{"path", "where",
"what"}], "notes": [the same], "compiled": [{"path", "where", "shared", "limit", "registers",
"spills"}], "measured": [{"path", "where", "ratio", "recorded"}]}. A note is no fault."""
EXAMPLE = """  shipconf verify shipconf_gemm
  shipconf verify dist/pkg-1.0-py3-none-any.whl --compile
  shipconf verify ./configs --no-import       a folder without its code
  shipconf verify shipconf_gemm --max-loss 5%
  shipconf verify shipconf_gemm --measure     on a GPU of the records' kind"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(
        commands, "verify", run, help="report everything that is wrong with a package's records",
        more=SHAPE, example=EXAMPLE,
    )  # fmt: skip
    parser.add_argument("source", help="a package by its import name, a folder, or a wheel")
    parser.add_argument("--no-import", action="store_true", help="import nothing: neither knobs "
                        "nor staleness are checked")  # fmt: skip
    parser.add_argument("--compile", action="store_true", help="compile each record that carries "
                        "its signature for its own device")  # fmt: skip
    parser.add_argument("--measure", action="store_true", help="measure the records of this "
                        "machine's device against the default; 5 %% less is a fault")  # fmt: skip
    parser.add_argument("--max-loss", type=share, metavar="SHARE", help="5%% or 0.05: a fault "
                        "where a choice between tuned points would lose more")  # fmt: skip
    parser.add_argument("--allow-gaps", action="store_true", help="gaps in what was tuned are "
                        "notes, not faults")  # fmt: skip


def run(chosen: argparse.Namespace) -> int:
    """Print the report; returns the exit code."""
    if chosen.no_import and (chosen.compile or chosen.measure):
        tables.say("shipconf verify: --compile and --measure import the kernels")
        return 2
    source = open_source(chosen.source)
    if source.has_code and not chosen.no_import:
        tables.say(f"importing the kernels of {source.root}")
    report = verify(source, Checks(
        kernel=not chosen.no_import, compile=chosen.compile, measure=chosen.measure,
        gaps=not chosen.allow_gaps, max_loss=chosen.max_loss,
    ))  # fmt: skip
    if chosen.json:
        tables.document({
            "source": {"kind": source.kind, "path": str(source.root)},
            "files": report.files, "records": report.records,
            "faults": tables.fault_documents(report.faults),
            "notes": tables.fault_documents(report.notes),
            "compiled": list(map(vars, report.compiled)),
            "measured": list(map(vars, report.measured)),
        })  # fmt: skip
    else:
        _print(report)
    return 1 if report.faults else 0


def _print(report: Report) -> None:
    for fault in report.faults:
        print(fault)
    for note in report.notes:
        print(f"note: {note}")
    for one in report.measured:
        print(f"{one.path}: {one.where}: {one.ratio:.3f} times as fast as the default, "
              f"{one.recorded:.3f} when it was tuned")  # fmt: skip
    compiled = f", {len(report.compiled)} compiled" if report.compiled else ""
    tables.say(f"{report.files} files, {report.records} records{compiled}: "
               f"{len(report.faults)} faults, {len(report.notes)} notes")  # fmt: skip
