"""`shipconf misses`: what launches asked for and did not find, the worst first."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import settings
from ..errors import ShipconfError
from ..keys import dtypes_text, to_json
from ..misses import Group, Misses, read
from . import tables
from .arguments import add_command

SHAPE = """A launch that found nothing appends a line to the file of SHIPCONF_MISSES, once a process
for each shape. With --json: {"path", "count", "groups": [{"kernel", "device", "key", "dtypes",
"count", "points": [{"nearest", "count"}]}], "faults": [{"path", "where", "what"}]}, worst first."""
EXAMPLE = """  SHIPCONF_OFFLINE=1 SHIPCONF_MISSES=misses.jsonl python serve.py
  shipconf misses misses.jsonl
  shipconf tune --from misses.jsonl    fills the gaps, where tuning is allowed"""
MOST_POINTS = 8  # in a cell of the table


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(
        commands, "misses", run, help="count and group what launches did not find", more=SHAPE,
        example=EXAMPLE,
    )  # fmt: skip
    parser.add_argument("file", nargs="?", type=Path,
                        help="the file; that of SHIPCONF_MISSES if left out")  # fmt: skip


def run(chosen: argparse.Namespace) -> int:
    """A line for each kernel, device, key and dtypes; returns the exit code."""
    path = chosen.file or settings.misses_path()
    if path is None:
        raise ShipconfError("no file given, and SHIPCONF_MISSES is not set")
    misses = read(path)
    found = [(str(path), f"line {number}", what) for number, what in misses.faults]
    if chosen.json:
        tables.document({
            "path": str(path), "count": misses.count, "groups": list(map(_document, misses.groups)),
            "faults": [dict(zip(("path", "where", "what"), fault)) for fault in found],
        })  # fmt: skip
        return 1 if found else 0
    _print(misses)
    for fault in found:
        tables.say(": ".join(fault))
    return 1 if found else 0


def _print(misses: Misses) -> None:
    if not misses.groups:
        tables.say(f"{misses.path} holds no misses")
        return
    tables.table(
        ["misses", "kernel", "device", "key", "points"],
        [
            [str(group.count), group.first.kernel, group.first.device, _key(group), _points(group)]
            for group in misses.groups
        ],
    )
    tables.say(f"to fill the gaps, where tuning is allowed: shipconf tune --from {misses.path}")


def _document(group: Group) -> dict[str, Any]:
    first = group.first
    return {
        "kernel": first.kernel, "device": first.device,
        "key": {name: to_json(value) for name, value in first.key.items()},
        "dtypes": first.dtypes, "count": group.count,
        "points": [{"nearest": near, "count": count} for near, count in group.worst()],
    }  # fmt: skip


def _key(group: Group) -> str:
    words = [f"{name}={tables.value(value)}" for name, value in group.first.key.items()]
    return " ".join([*words, dtypes_text(group.first.dtypes)]).strip()


def _points(group: Group) -> str:
    """`M=16 (3 times), 4096`: most frequent first."""
    shown = []
    for near, count in group.worst()[:MOST_POINTS]:
        times = f" ({count} times)" if count > 1 else ""
        shown.append(" ".join(f"{name}={value}" for name, value in near.items()) + times)
    more = len(group.points) - MOST_POINTS
    return ", ".join(filter(None, shown)) + (f" and {more} more" if more > 0 else "")
