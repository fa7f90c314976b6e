"""`shipconf merge`: several folders or cache trees into one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import ShipconfError
from ..merge import MergeReport, merge
from ..sources import Folder, open_source
from . import tables
from .arguments import add_command

MORE = """Files lie below the target as in their source. Of two records of one point the one tuned
later stays, then the one of more rigor, then the faster, then the one whose JSON text is greater;
so the order of the sources says nothing, and merging twice changes nothing. Files that differ in
device, key or dtypes are never merged. What is not understood is kept. Broken files and those of a
newer schema stay where they are and are reported. With --json: {"to", "read", "dry_run", "written":
[{"path", "new"}], "conflicts": [{"path", "at", "kept", "dropped", "why"}], "faults"}."""
EXAMPLE = """  shipconf merge machine1/ machine2/ machine3/ --to merged/
  shipconf merge rank*/cache --to ~/.cache/shipconf --dry-run"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(commands, "merge", run, more=MORE, example=EXAMPLE,
                         help="merge several folders or cache trees into one")  # fmt: skip
    parser.add_argument("sources", nargs="+", metavar="SOURCE",
                        help="a folder, a package by its import name, or a wheel")  # fmt: skip
    parser.add_argument("--to", required=True, type=Path, metavar="FOLDER",
                        help="the folder to merge into; it may exist, and be a source")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true",
                        help="write nothing; show what would change as a diff")  # fmt: skip


def run(chosen: argparse.Namespace) -> int:
    """Merge, and tell what was written; returns the exit code."""
    to: Path = chosen.to.expanduser()
    if refusal := Folder("folder", to).refusal():
        raise ShipconfError(refusal)
    if to.exists() and not to.is_dir():
        raise ShipconfError(f"{to} is no folder")
    report = merge([open_source(name) for name in chosen.sources], to, dry_run=chosen.dry_run)
    if chosen.json:
        tables.document({"to": str(to), "read": report.read, "dry_run": chosen.dry_run,
                         "written": tables.written_documents(report.written),
                         "conflicts": _conflicts(report),
                         "faults": tables.fault_documents(report.faults)})  # fmt: skip
    else:
        tables.written(report.written, dry_run=chosen.dry_run)
        for conflict in _conflicts(report):
            tables.say(f"{conflict['path']}: {conflict['at']}: two records; kept the one "
                       f"{conflict['why']}")  # fmt: skip
        tables.say(f"{report.read} files read, {len(report.written)} "
                   f"{'would change' if chosen.dry_run else 'written'}")  # fmt: skip
        tables.faults(report.faults)
    return 1 if report.faults else 0


def _conflicts(report: MergeReport) -> list[dict[str, Any]]:
    return [
        {"path": str(path), "at": dict(conflict.at), "kept": dict(conflict.kept.config),
         "dropped": dict(conflict.dropped.config), "why": conflict.why}
        for path, conflict in report.conflicts
    ]  # fmt: skip
