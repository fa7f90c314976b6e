"""The union of config files: which may be merged, and which of two records stays.

The rule for two records of one point is a total order, so that a merge does not depend on the
order of its inputs: the one tuned later stays; then the one of more rigor; then the faster; and
of what still ties, the one whose JSON text is greater. Records stay whole: nothing is mixed.
Portfolios join where they have the same configs and resources, one fingerprint and one version of
Triton; others stand side by side. Of two rows of one point the complete one stays, then the faster.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .inventory import tuned_at
from .keys import to_json
from .portfolio import Portfolio, Row, usable
from .portfolio import document as portfolio_document
from .records import ConfigFile, Record, in_order, record_document
from .selection import RIGORS


@dataclass(frozen=True)
class Conflict:
    """Two different records of one point: the one that stayed, the other, and why."""

    at: Mapping[str, int]
    kept: Record
    dropped: Record
    why: str


def identity(file: ConfigFile) -> str:
    """Equal for files whose records may stand in one file: all but records and unknown fields."""
    of = file.device
    device = (of.backend, of.name, of.arch, of.multiprocessors, of.shared_memory)
    key = {name: to_json(value) for name, value in file.key.items()}
    return json.dumps([file.kernel, device, key, file.dtypes, file.nearest])


def agree(one: ConfigFile, other: ConfigFile) -> bool:
    """Whether one file can hold both, which have one identity: no unknown field has two values."""
    if ("portfolios" in one.extra and other.portfolios) or (
        "portfolios" in other.extra and one.portfolios
    ):
        return False  # malformed ones, which stay as they are
    return all(
        _text(a[name]) == _text(b[name])
        for a, b in ((one.extra, other.extra), (one.device.extra, other.device.extra))
        for name in a.keys() & b.keys()
    )


def point(record: Record) -> tuple[tuple[str, int], ...]:
    """The record's `at`, as something to look up by."""
    return tuple(sorted(record.at.items()))


def equal(one: ConfigFile, other: ConfigFile) -> bool:
    """Whether two files say the same, in whatever order their records stand."""
    return (
        (one.device.extra, one.extra, one.module) == (other.device.extra, other.extra, other.module)
        and _without_tables(one) == _without_tables(other)
        and _tables(one) == _tables(other)
        and in_order(one) == in_order(other)
    )


def _without_tables(file: ConfigFile) -> ConfigFile:
    return dataclasses.replace(file, records=(), portfolios=())


def _tables(file: ConfigFile) -> list[str]:
    return sorted(
        _text(portfolio_document(_in_order(table), file.nearest)) for table in file.portfolios
    )


def same(one: Record, other: Record) -> bool:
    """Whether two records say the same, in whatever order."""
    return _text(record_document(one, ())) == _text(record_document(other, ()))


def chosen(one: Record, other: Record) -> tuple[Record, Record, str]:
    """Of two records of one point the one that stays, the other, and why."""
    words = ("tuned later", "of more rigor", "that is faster", "of the greater text")
    first, second = _strength(one), _strength(other)
    why = next((word for word, a, b in zip(words, first, second) if a != b), "the same")
    return (one, other, why) if first >= second else (other, one, why)


def _strength(record: Record) -> tuple[float, int, float, str]:
    when = tuned_at(record)
    time_ms = (record.time_ms or {}).get("median")
    return (
        when.timestamp() if when else float("-inf"),
        RIGORS.index(record.rigor) if record.rigor in RIGORS else -1,
        -time_ms if time_ms is not None else float("-inf"),
        _text(record_document(record, tuple(record.at))),
    )


def unite(one: ConfigFile, other: ConfigFile) -> tuple[ConfigFile, list[Conflict]]:
    """The file that holds both, which agree, and the conflicts between their records."""
    records = {point(record): record for record in one.records}
    conflicts = []
    for record in other.records:
        known = records.get(point(record))
        if known is not None and not same(known, record):
            record, dropped, why = chosen(known, record)
            conflicts.append(Conflict(record.at, record, dropped, why))
        elif known is not None:
            continue
        records[point(record)] = record
    device = dataclasses.replace(one.device, extra={**other.device.extra, **one.device.extra})
    united = dataclasses.replace(
        one, device=device, records=tuple(records.values()), extra={**other.extra, **one.extra},
        portfolios=unite_portfolios([*one.portfolios, *other.portfolios]),
        module=min(filter(None, (one.module, other.module)), default=None),
    )  # fmt: skip
    return united, conflicts


def unite_portfolios(portfolios: Iterable[Portfolio]) -> tuple[Portfolio, ...]:
    """The fewest portfolios that hold all of these, the same ones whatever their order."""
    groups: dict[str, Portfolio] = {}
    for one in map(_in_order, portfolios):
        name = _text([one.configs, one.resources, one.fingerprint, one.triton, one.extra])
        known = groups.setdefault(name, one)
        rows = {_text(row.at): row for row in known.rows}
        for row in one.rows:
            rows[_text(row.at)] = max(row, rows.get(_text(row.at), row), key=_row_strength)
        groups[name] = dataclasses.replace(known, rows=tuple(rows[at] for at in sorted(rows)))
    return tuple(groups[name] for name in sorted(groups))


def _in_order(portfolio: Portfolio) -> Portfolio:
    """The portfolio with its configs in one order, whoever wrote it."""
    texts = [_text(config) for config in portfolio.configs]
    return portfolio.only(sorted(range(len(texts)), key=texts.__getitem__))


def _row_strength(row: Row) -> tuple[int, float, str]:
    times = [time_ms for time_ms in row.time_ms if time_ms is not None and usable(time_ms)]
    return len(times), -sum(times), _text(dataclasses.asdict(row))


def unite_all(files: Iterable[ConfigFile]) -> tuple[list[ConfigFile], list[Conflict]]:
    """The fewest files that hold all of these, which have one identity.

    It is one file, unless an unknown field of theirs has several values.
    """
    united: list[ConfigFile] = []
    conflicts: list[Conflict] = []
    # Sorted, so that which of several values comes first does not depend on the inputs' order.
    for file in sorted(files, key=lambda file: _text([file.extra, file.device.extra])):
        for i, known in enumerate(united):
            if agree(known, file):
                united[i], found = unite(known, file)
                conflicts += found
                break
        else:
            united.append(file)
    return united, conflicts


def _text(content: Any) -> str:
    return json.dumps(content, sort_keys=True)
