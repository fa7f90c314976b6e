"""`shipconf list`: what a package, a wheel, a folder or the user store holds."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..declared import current_fingerprints
from ..inventory import Held, Inventory, describe, different, speedups, stale_count, take
from ..inventory import tuning_times as times_of
from ..keys import dtypes_text
from ..records import in_order
from ..sources import open_source
from . import tables
from .arguments import add_command, add_selection, selection

SHAPE = """With --json: {"source": {"kind", "path"}, "files": [{"path", "kernel", "form" (records or
flat), "device", "key", "dtypes", "nearest", "points", "tuned_at" [oldest, newest], "rigor",
"triton", "torch", "speedup" [least, median, greatest], "stale" (how many)}], "faults": [{"path",
"where", "what"}]}. What is not known is null or empty."""
EXAMPLE = """  shipconf list                        the user store
  shipconf list shipconf_gemm          an installed package, which is not imported
  shipconf list dist/pkg-1.0-py3-none-any.whl --device "NVIDIA H200" --json
  shipconf list ./pkg --import         says as well which records are stale"""
Current = Mapping[str, set[Any]]


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(
        commands, "list", run, help="list what a package, wheel, folder or the user store holds",
        more=SHAPE, example=EXAMPLE,
    )  # fmt: skip
    add_source(parser)


def add_source(parser: argparse.ArgumentParser) -> None:
    """The arguments of `list` and `show`: what is looked at, and which records of it."""
    parser.add_argument("source", nargs="?", help="a package by its import name, a folder, a "
                        "wheel, or one file; the user store if left out")  # fmt: skip
    parser.add_argument("--import", dest="imported", nargs="?", const="", metavar="PACKAGE",
                        help="import the kernels of the source, or of this package, and so torch "
                        "and triton, to tell which records are stale")  # fmt: skip
    add_selection(parser)


def run(chosen: argparse.Namespace) -> int:
    """A line for each file; returns the exit code."""
    inventory, current = look(chosen)
    if chosen.json:
        return finish(chosen, inventory, current, with_records=False)
    rows = [_row(held, current) for held in inventory.held]
    columns = ["kernel", "device", "key", "points", "tuned", "triton", "rigor", "speed-up", "stale"]
    empty = [not any(row[i] for row in rows) for i in range(len(columns))]
    if rows:
        tables.table(
            [name for name, left_out in zip(columns, empty) if not left_out],
            [[cell for cell, left_out in zip(row, empty) if not left_out] for row in rows],
        )
    return finish(chosen, inventory, current, with_records=False)


def look(chosen: argparse.Namespace) -> tuple[Inventory, Current | None]:
    """What the arguments ask for, and the current fingerprints of the kernels if they say so."""
    source = open_source(chosen.source)
    inventory = take(source)
    wanted = selection(chosen)
    kept = [(held, wanted.of(held.file)) for held in inventory.held]
    if inventory.held and not any(file for _, file in kept):
        tables.say(f"{source.root} has {len(kept)} files of records, and none is asked for")
    elif not inventory.held:
        tables.say(f"{source.root} has no files of records")
    inventory.held = [Held(held.member, file, held.flat) for held, file in kept if file]
    if chosen.imported is None:
        return inventory, None
    package = open_source(chosen.imported or chosen.source)
    tables.say(f"importing the kernels of {package.root}")
    return inventory, current_fingerprints(package)


def finish(
    chosen: argparse.Namespace, inventory: Inventory, current: Current | None, *,
    with_records: bool,
) -> int:  # fmt: skip
    """Print the JSON document if it is asked for, else the faults; returns the exit code."""
    if chosen.json:
        files = [describe(held, current, with_records=with_records) for held in inventory.held]
        tables.document({
            "source": {"kind": inventory.source.kind, "path": str(inventory.source.root)},
            "files": files, "faults": tables.fault_documents(inventory.faults),
        })  # fmt: skip
    else:
        tables.faults(inventory.faults)
    return 1 if inventory.faults else 0


def key_words(held: Held) -> str:
    """The exact key and the dtypes in words: `N=4096 K=4096 float16`."""
    file = held.file
    words = [f"{name}={tables.value(value)}" for name, value in file.key.items()]
    return " ".join([*words, dtypes_text(file.dtypes)] if file.dtypes else words)


def _row(held: Held, current: Current | None) -> list[str]:
    file = held.file
    times, ratios, stale = times_of(file), speedups(file), stale_count(file, current)
    return [
        file.kernel, file.device.name, key_words(held), _points(held),
        tables.age(times[-1] if times else None), ", ".join(different(file, "triton")),
        ", ".join(different(file, "rigor")),
        f"{ratios[1]:.2f} ({ratios[0]:.2f} to {ratios[2]:.2f})" if ratios else "",
        "" if stale is None else f"{stale} of {len(file.records)}" if stale else "no",
    ]  # fmt: skip


def _points(held: Held) -> str:
    """The tuned values: `M=1, 16, 64`, at most eight of them."""
    names, records = held.file.nearest, in_order(held.file)
    if not names:
        return ""
    shown = ["×".join(str(record.at[name]) for name in names) for record in records[:8]]
    more = f" and {len(records) - 8} more" if len(records) > 8 else ""
    return f"{'×'.join(names)}={', '.join(shown)}{more}"
