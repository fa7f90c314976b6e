"""`shipconf show`: the records themselves, with their configs, times and versions."""

from __future__ import annotations

import argparse
from typing import Any

from ..inventory import Held, speedup, tuned_at
from ..records import Record, in_order
from . import tables
from .arguments import add_command
from .listing import Current, add_source, finish, key_words, look

EXAMPLE = """  shipconf show shipconf_gemm -k N=4096 -k K=4096
  shipconf show --kernel gemm_kernel --newer-than 7d --json"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(
        commands, "show", run, help="show the records: configs, times, versions, speed-up",
        more='With --json: what `list --json` prints, and in each file "records", as in the file.',
        example=EXAMPLE,
    )  # fmt: skip
    add_source(parser)


def run(chosen: argparse.Namespace) -> int:
    """A table for each file, a line for each record; returns the exit code."""
    inventory, current = look(chosen)
    if not chosen.json:
        for held in inventory.held:
            _print(held, current)
    return finish(chosen, inventory, current, with_records=True)


def _print(held: Held, current: Current | None) -> None:
    file = held.file
    known = (current or {}).get(file.kernel)
    columns = [*file.nearest, "config", "ms", "default", "speed-up", "tuned", "triton", "torch",
               "rigor", "stale"]  # fmt: skip
    rows = [
        [*(str(record.at[name]) for name in file.nearest), *_cells(record, known)]
        for record in in_order(file)
    ]
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    title = f"{file.kernel} on {file.device}: {key_words(held)}\n{held.member.path}"
    tables.table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], title)
    if not tables.is_terminal():
        print()


def _cells(record: Record, known: set[Any] | None) -> list[str]:
    time_ms = (record.time_ms or {}).get("median")
    ratio = speedup(record)
    stale = "" if known is None else "no"
    if known is not None and record.fingerprint not in known:
        stale = "stale" if record.fingerprint else "unknown"
    return [
        " ".join(f"{name}={tables.value(value)}" for name, value in record.config.items()),
        "" if time_ms is None else f"{time_ms:.4g}",
        "" if record.default_ms is None else f"{record.default_ms:.4g}",
        "" if ratio is None else f"{ratio:.2f}",
        tables.age(tuned_at(record)), record.triton or "", record.torch or "", record.rigor or "",
        stale,
    ]  # fmt: skip
