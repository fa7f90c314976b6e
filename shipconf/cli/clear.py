"""`shipconf clear`: remove records from the user store."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..clearing import Plan, Removal, Wanted, clear, plan
from ..declared import current_fingerprints
from ..errors import ShipconfError
from ..sources import open_source
from . import tables
from .arguments import add_command, age_s

SHAPE = """Only the user store is touched. Lock files stay, and so does what another process is
tuning. With --json: {"removed": [{"path", "kernel", "records", "left"}], "kept": [{"path", "why"}],
"dry_run"}; it does not ask, so it needs --yes or --dry-run."""
EXAMPLE = """  shipconf clear --dry-run
  shipconf clear --older-than 30d
  shipconf clear --kernel gemm_kernel --yes
  shipconf clear --stale shipconf_gemm       what was tuned for other versions of its kernels"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(
        commands, "clear", run, help="remove records from the user store; asks first", more=SHAPE,
        example=EXAMPLE,
    )  # fmt: skip
    parser.add_argument("--kernel", metavar="NAME", default="", help="of this kernel only")
    parser.add_argument("--older-than", type=age_s, metavar="AGE",
                        help="tuned before the last 30m, 12h, 7d or 2w")  # fmt: skip
    parser.add_argument("--stale", metavar="PACKAGE",
                        help="only records of other versions of this package's kernels, which "
                        "imports them, and so torch and triton")  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="remove nothing")


def run(chosen: argparse.Namespace) -> int:
    """Show what would go, ask, and remove it; returns the exit code."""
    wanted = Wanted(
        kernel=chosen.kernel, older_than_s=chosen.older_than, current=_current(chosen.stale)
    )
    try:
        made = plan(wanted)
    except RuntimeError as error:
        raise ShipconfError(str(error)) from error
    if not chosen.json:
        _show(made)
    if chosen.dry_run or not made.removals:
        return _finish(chosen, made)
    if not chosen.yes and not _agreed(chosen, made):
        return 2
    done = clear(made, wanted)
    if not chosen.json:
        tables.say(f"removed {_amount(done)}")
    return _finish(chosen, done)


def _current(package: str | None) -> Any:
    if package is None:
        return None
    source = open_source(package)
    tables.say(f"importing the kernels of {source.root}")
    return current_fingerprints(source)


def _show(made: Plan) -> None:
    if made.removals:
        rows = [[r.kernel, _parts(r), str(r.path)] for r in made.removals]
        tables.table(["kernel", "goes", "file"], rows)
    else:
        tables.say("nothing to remove")


def _parts(removal: Removal) -> str:
    if removal.records and removal.left:
        return f"{removal.records} of {removal.records + removal.left} records"
    return f"{removal.records} records" if removal.records else "the file"


def _agreed(chosen: argparse.Namespace, made: Plan) -> bool:
    if chosen.json or not sys.stdin.isatty():
        raise ShipconfError("nobody to ask: add --yes to remove, or --dry-run to look")
    tables.say(f"remove {_amount(made)}? [y/N] ")
    agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        tables.say("nothing was removed")
    return agreed


def _amount(made: Plan) -> str:
    return f"{made.records} records in {len(made.removals)} files"


def _finish(chosen: argparse.Namespace, done: Plan) -> int:
    """Tell what was kept, or print the JSON document; returns the exit code."""
    kept = [{"path": str(path), "why": why} for path, why in done.kept]
    if chosen.json:
        removed = [{**vars(removal), "path": str(removal.path)} for removal in done.removals]
        tables.document({"removed": removed, "kept": kept, "dry_run": chosen.dry_run})
    else:
        for one in kept:
            tables.say(f"kept {one['path']}: {one['why']}")
    return 1 if kept else 0
