"""A few configs of one key, each measured at every tuned point: strict parse and dump.

It is an optional part of a file of records, and readers that do not know it leave it alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import ConfigFileError

Fault = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured at one point, config by config in the portfolio's order.

    `at` has the point's `nearest` values, `time_ms` medians in milliseconds (None where a config
    was not measured), `programs` the size of the launch's grid, None where it is not known. A
    config without a time and with 0 programs does not run there: it failed, or must not.
    """

    at: Mapping[str, int]
    time_ms: tuple[float | None, ...]
    programs: tuple[int, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def refuses(self, index: int) -> bool:
        """Whether the config does not run there."""
        return self.time_ms[index] is None and self.programs is not None and (
            self.programs[index] == 0
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Portfolio:
    """Configs with their resources, and their times at every tuned point.

    `resources` has for each config bytes of `shared` memory, `registers` a thread, `spills`, and
    `warps` where they are not the config's. `extra` holds fields of newer versions.
    """

    configs: tuple[Mapping[str, Any], ...]
    resources: tuple[Mapping[str, int], ...]
    rows: tuple[Row, ...]
    fingerprint: str | None = None
    triton: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def only(self, indices: Sequence[int]) -> Portfolio:
        """The portfolio with these of its configs, in this order, measured at all its points."""
        return replace(
            self,
            configs=tuple(self.configs[i] for i in indices),
            resources=tuple(self.resources[i] for i in indices),
            rows=tuple(
                replace(
                    row,
                    time_ms=tuple(row.time_ms[i] for i in indices),
                    programs=None if row.programs is None
                    else tuple(row.programs[i] for i in indices),
                )
                for row in self.rows
            ),
        )  # fmt: skip

    def gaps(self) -> Iterator[Fault]:
        """The times that nothing can be predicted from, each with its place in the portfolio."""
        for i, row in enumerate(self.rows):
            for j, time_ms in enumerate(row.time_ms):
                if not usable(time_ms) and not row.refuses(j):
                    what = "is missing" if time_ms is None else f"is {time_ms}"
                    yield f"rows[{i}].time_ms[{j}]", f"{what}: no launch is predicted from it"


def usable(time_ms: float | None) -> bool:
    """Whether it is a time that something can be predicted from: finite and above 0."""
    return time_ms is not None and math.isfinite(time_ms) and time_ms > 0


# --- reading ---------------------------------------------------------------------------------

_KNOWN = ("fingerprint", "triton", "configs", "resources", "rows")
_ROW = ("at", "time_ms", "programs")


def from_list(documents: Any, nearest: tuple[str, ...], path: object = "") -> tuple[Portfolio, ...]:
    """The portfolios of a file, from parsed JSON. Raises `ConfigFileError` with every fault."""
    if not isinstance(documents, list):
        raise ConfigFileError(path, [("portfolios", "must be a list")])
    faults = [
        (f"portfolios[{i}]{'.' if where else ''}{where}", what)
        for i, document in enumerate(documents)
        for where, what in _faults(document, nearest)
    ]
    if faults:
        raise ConfigFileError(path, faults)
    return tuple(map(_portfolio, documents))


def from_document(document: Any, nearest: tuple[str, ...]) -> Portfolio:
    """One portfolio from parsed JSON. Raises `ConfigFileError` with every fault."""
    return from_list([document], nearest)[0]


def _portfolio(document: Mapping[str, Any]) -> Portfolio:
    return Portfolio(
        configs=tuple(document["configs"]),
        resources=tuple(document["resources"]),
        rows=tuple(_row(row) for row in document["rows"]),
        fingerprint=document.get("fingerprint"),
        triton=document.get("triton"),
        extra={name: value for name, value in document.items() if name not in _KNOWN},
    )


def _row(document: Mapping[str, Any]) -> Row:
    programs = document.get("programs")
    return Row(
        at=document["at"],
        time_ms=tuple(document["time_ms"]),
        programs=None if programs is None else tuple(programs),
        extra={name: value for name, value in document.items() if name not in _ROW},
    )


def _faults(document: Any, nearest: tuple[str, ...]) -> Iterator[Fault]:
    if not isinstance(document, dict):
        yield "", "must be an object"
        return
    for name in ("fingerprint", "triton"):
        if not isinstance(document.get(name), (str, type(None))):
            yield name, "must be a string"
    for name in ("configs", "resources", "rows"):
        entries = document.get(name)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            yield name, "must be a list of objects"
            return
    count = len(document["configs"])
    texts = [json.dumps(config, sort_keys=True) for config in document["configs"]]
    if not count or len(set(texts)) < count:
        yield "configs", "must be different configs, one at least"
    if len(document["resources"]) != count:
        yield "resources", f"must have {count} entries, one for each config"
    for i, resources in enumerate(document["resources"]):
        for name, value in resources.items():
            if name in ("shared", "registers", "spills", "warps") and not _count(value):
                yield f"resources[{i}].{name}", "must be a whole number, 0 or more"
    points = []
    for i, row in enumerate(document["rows"]):
        yield from ((f"rows[{i}].{name}", what) for name, what in _row_faults(row, nearest, count))
        points.append(json.dumps(row.get("at"), sort_keys=True))
    if len(set(points)) < len(points):
        yield "rows", "must be one for each point"


def _row_faults(row: Mapping[str, Any], nearest: tuple[str, ...], count: int) -> Iterator[Fault]:
    at = row.get("at")
    if not isinstance(at, dict) or set(at) != set(nearest) or not all(
        type(value) is int for value in at.values()
    ):  # fmt: skip
        yield "at", f"must have one integer for each of {list(nearest)}"
    times = row.get("time_ms")
    if not isinstance(times, list) or len(times) != count or not all(map(_time, times)):
        yield "time_ms", f"must be {count} times in milliseconds, or null, one for each config"
    programs = row.get("programs")
    if programs is not None and not (
        isinstance(programs, list) and len(programs) == count and all(map(_count, programs))
    ):
        yield "programs", f"must be {count} sizes of grids, one for each config"


def _time(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and value >= 0)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


# --- writing ---------------------------------------------------------------------------------


def document(portfolio: Portfolio, nearest: tuple[str, ...]) -> dict[str, Any]:
    """The portfolio as a file has it: rows by their point, ascending."""
    given = {"fingerprint": portfolio.fingerprint, "triton": portfolio.triton}
    rows = sorted(portfolio.rows, key=lambda row: [row.at[name] for name in nearest])
    return {
        **{name: value for name, value in given.items() if value is not None},
        "configs": [dict(config) for config in portfolio.configs],
        "resources": [dict(resources) for resources in portfolio.resources],
        "rows": [_row_document(row, nearest) for row in rows],
        **portfolio.extra,
    }


def _row_document(row: Row, nearest: tuple[str, ...]) -> dict[str, Any]:
    programs = {} if row.programs is None else {"programs": list(row.programs)}
    at = {name: row.at[name] for name in nearest}
    return {"at": at, "time_ms": list(row.time_ms), **programs, **row.extra}
