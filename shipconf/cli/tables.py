"""Tables and documents on stdout, talk on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ..inventory import Fault
from ..keys import Dtype

if TYPE_CHECKING:
    from ..draft import Written

MOST_IN_RICH = 200  # rows; rich lays out a thousand of them in half a second


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table: by rich on a terminal; as aligned text into a pipe, or without rich."""
    if is_terminal() and len(rows) <= MOST_IN_RICH:
        try:
            return _rich(columns, rows, title)
        except ModuleNotFoundError:  # the extra `cli` is not installed
            pass
    if title:
        print(title)
    cells = [columns, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def is_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def value(content: Any) -> str:
    """A key's or a knob's value in short: a string without quotes, the rest as in the file."""
    if isinstance(content, str):
        return content
    if isinstance(content, tuple):
        return f"[{','.join(map(value, content))}]"
    if isinstance(content, Dtype):
        return content.name
    return json.dumps(content, ensure_ascii=False)


def _rich(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left")
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))  # Text: a bracket in a cell is no markup
    Console(file=sys.stdout).print(shown)


def document(content: Mapping[str, Any]) -> None:
    """Print one JSON document: in many lines on a terminal, else in one, which is faster."""
    print(json.dumps(content, indent=2 if is_terminal() else None))


def faults(found: Iterable[Fault]) -> None:
    """Print each fault on stderr: `path: where: what`."""
    for fault in found:
        print(fault, file=sys.stderr)


def fault_documents(found: Iterable[Fault]) -> list[dict[str, str]]:
    """The faults in JSON: `path`, `where` and `what` of each."""
    return [{"path": f.path, "where": f.where, "what": f.what} for f in found]


def say(words: str) -> None:
    """Talk, which is no result."""
    print(words, file=sys.stderr)


def age(when: datetime | None) -> str:
    """How long ago: `3 d`, or "" where it is not known."""
    if when is None:
        return ""
    seconds = max(0.0, (datetime.now(timezone.utc) - when).total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def written(changes: Iterable[Written], *, dry_run: bool) -> None:
    """Print the path of each file that changed; with `dry_run` the diff of each that would."""
    for change in changes:
        print(change.diff() if dry_run else change.path, end="" if dry_run else "\n")


def written_documents(changes: Iterable[Written]) -> list[dict[str, Any]]:
    """The changed files in JSON: `path`, and whether it is `new`."""
    return [{"path": str(change.path), "new": change.before is None} for change in changes]
