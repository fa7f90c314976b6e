"""`shipconf tune module:kernel`: tune through the kernel's workload, into the user store."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import device as devices
from .. import misses, points, settings, sweep
from ..configs import config_text
from ..errors import ShipconfError
from ..keys import canonical, to_json
from . import progress, tables
from .arguments import add_command, pair, share

if TYPE_CHECKING:
    from ..points import Point
    from ..records import Record
    from ..resolver import Match

SHAPE = """It imports the kernel, and so torch and triton. A worker process measures, so a candidate
that breaks the GPU's context costs that candidate. After several points of a key, or a further one
of a key that has a portfolio, the winners are measured at all its points, and the portfolio of
those that serve them is written. With --json: {"tuned": [{"kernel", "values", "dtypes", "path",
"config", "time_ms", "default_ms", "seconds"}], "portfolios": [{"kernel", "values", "dtypes",
"path", "configs", "points", "kept", "loss"}], "faults": [{"path", "where", "what"}]}; with
--dry-run, {"points": [{"kernel", "values", "dtypes", "path", "served_by"}], "portfolios":
[{"kernel", "values", "dtypes", "points", "within"}], "faults"}. What cannot be tuned is told at
the end, with exit code 1, and the rest is tuned."""
EXAMPLE = """  shipconf tune shipconf_gemm.kernel:gemm_kernel -k N=4096 -k K=4096 --at M=1,16,64 \\
      --dtypes float16
  shipconf tune --from misses.jsonl    what launches missed on this kind of device"""

Fault = tuple[str, str]
Entry = dict[str, Any]
FAILURES = (ShipconfError, ValueError, TypeError, RuntimeError, OSError)


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(
        commands, "tune", run, help="tune a kernel through its workload, into the user store",
        more=SHAPE, example=EXAMPLE,
    )  # fmt: skip
    parser.add_argument("kernel", nargs="*", help="module:kernel, or file.py:kernel")
    parser.add_argument("-k", "--key", action="append", default=[], type=pair,
                        metavar="NAME=VALUE", help="a key entry, in JSON or as text")  # fmt: skip
    parser.add_argument("--at", action="append", default=[], type=_nearest,
                        metavar="NAME=VALUE[,VALUE…]",
                        help="values of a nearest entry; each combination is tuned")  # fmt: skip
    parser.add_argument("--dtypes", help="one dtype, or one for each tensor joined by '-'")
    parser.add_argument("--from", dest="misses", type=Path, metavar="FILE",
                        help="tune what launches missed: the file of SHIPCONF_MISSES")  # fmt: skip
    parser.add_argument("--to", type=Path, metavar="DIR",
                        help="a user store of its own instead of this user's")  # fmt: skip
    parser.add_argument("--within", type=share, default=0.03, metavar="SHARE",
                        help="what the best config of a portfolio may lose at a tuned point: 3%% "
                        "or 0.03, which it is if left out")  # fmt: skip
    parser.add_argument("--force", action="store_true",
                        help="tune even where a record exists; the new one supersedes the "
                        "package's")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true",
                        help="print what would be tuned, and into which file")  # fmt: skip


def run(chosen: argparse.Namespace) -> int:
    """Tune every point asked for; returns the exit code."""
    if chosen.to is not None:
        settings.use_cache_dir(chosen.to)
    todo, faults = _points(chosen)
    if chosen.dry_run:
        found, portfolios = _planned(todo, faults, chosen)
    else:
        found, portfolios = _tuned(todo, faults, chosen)
    if chosen.json:
        tables.document({
            "points" if chosen.dry_run else "tuned": found,
            "portfolios": portfolios,
            "faults": [{"path": "", "where": where, "what": what} for where, what in faults],
        })  # fmt: skip
    for where, what in faults:
        tables.say(f"shipconf tune: {where}: {what}")
    return 1 if faults else 0


def _points(chosen: argparse.Namespace) -> tuple[list[Point], list[Fault]]:
    if chosen.misses is None:
        if len(chosen.kernel) != 1:
            raise ShipconfError("name one kernel as module:kernel, or misses with --from FILE")
        near: dict[str, list[int]] = {}
        for name, values in chosen.at:
            near.setdefault(name, []).extend(values)
        dtypes = chosen.dtypes
        if dtypes and "-" in dtypes:
            dtypes = dtypes.split("-")
        return points.asked(chosen.kernel[0], dict(chosen.key), near, dtypes), []
    if chosen.key or chosen.at or chosen.dtypes:
        raise ShipconfError("-k, --at and --dtypes are not for --from: the misses tell them")
    found = misses.read(chosen.misses)
    faults = [(f"{chosen.misses}: line {number}", what) for number, what in found.faults]
    todo: list[Point] = []
    for point in points.missed(found, chosen.kernel, devices.name_here()):
        if isinstance(point, tuple):
            faults.append(point)
        else:
            todo.append(point)
    return todo, faults


def _tuned(
    todo: list[Point], faults: list[Fault], chosen: argparse.Namespace
) -> tuple[list[Entry], list[Entry]]:
    """Tune each point, then cross-measure each key; print a line for each but with --json."""
    done: list[Entry] = []
    tuned: dict[Point, bool] = {}
    with progress.shown(len(todo)):
        for point in todo:
            state = _state(point, faults)
            if state is None:
                continue
            start = time.monotonic()
            try:
                record = point.kernel.tune(
                    dtypes=point.dtypes, force=chosen.force, within=None, **point.values
                )
            except FAILURES as error:
                faults.append((f"{point.target} {point}", str(error)))
                continue
            path, match = state
            tuned[point] = match is None or match.record != record
            done.append(_with_record(_described(point, path), record, time.monotonic() - start))
            if not chosen.json:
                print(f"{point}: {_result(record)}", flush=True)
        crossed = [
            _crossed(group, faults, chosen, anew=any(tuned[point] for point in group))
            for group in points.by_key(list(tuned))
        ]
    return done, [entry for entry in crossed if entry is not None]


def _crossed(
    group: list[Point], faults: list[Fault], chosen: argparse.Namespace, *, anew: bool
) -> Entry | None:
    first = group[0]
    entry = _key(first, first.given)
    try:
        kept = sweep.cross(points.series_of(group), within=chosen.within, anew=anew)
    except FAILURES as error:
        faults.append((f"{first.target} {_words(entry['values'])}", f"no new portfolio: {error}"))
        return None
    if kept is None:
        return None
    if not chosen.json:
        print(f"{_words(entry['values']) or first.target}: {kept}", flush=True)
    return {**entry, **vars(kept)}


def _planned(
    todo: list[Point], faults: list[Fault], chosen: argparse.Namespace
) -> tuple[list[Entry], list[Entry]]:
    """Print, but with --json, what would be tuned, and where a portfolio would be measured."""
    found: list[Entry] = []
    planned: dict[Point, bool] = {}
    for point in todo:
        if (state := _state(point, faults)) is not None:
            path, match = state
            served_by = f"{match.source}, {match.rule}" if match else "nothing"
            found.append({**_described(point, path), "served_by": served_by})
            planned[point] = chosen.force or match is None or match.rule != "exact"
    portfolios = [
        {
            **_key(group[0], group[0].given), "points": [point.at for point in group],
            "within": chosen.within,
        }
        for group in points.by_key(list(planned))
        if sweep.is_due(
            points.series_of(group), anew=any(planned[point] for point in group), planned=True
        )
    ]  # fmt: skip
    if not chosen.json:
        tables.table(["kernel", "point", "served by", "file"], [
            [entry["kernel"], _words(entry["values"]), entry["served_by"], entry["path"]]
            for entry in found
        ])  # fmt: skip
        for entry in portfolios:
            print(
                f"then, for {_words(entry['values']) or entry['kernel']}: all winners measured at "
                f"{', '.join(map(_words, entry['points']))} and at what is stored beside them; "
                f"the fewest are kept that lose at most {entry['within']:.1%}"
            )
    return found, portfolios


def _state(point: Point, faults: list[Fault]) -> tuple[Path, Match | None] | None:
    """Of `Point.state`; None, and a fault, where the kernel cannot be tuned for it."""
    try:
        return point.state()
    except ShipconfError as error:
        faults.append((f"{point.target} {point}", str(error)))
        return None


def _key(point: Point, values: Mapping[str, Any]) -> Entry:
    return {
        "kernel": point.target,
        "values": {name: to_json(canonical(value)) for name, value in values.items()},
        "dtypes": point.dtypes,
    }


def _described(point: Point, path: Path) -> Entry:
    return {**_key(point, point.values), "path": str(path)}


def _with_record(entry: Entry, record: Record, seconds: float) -> Entry:
    time_ms = record.time_ms["median"] if record.time_ms else None
    return {
        **entry, "config": dict(record.config), "time_ms": time_ms,
        "default_ms": record.default_ms, "seconds": round(seconds, 3),
    }  # fmt: skip


def _result(record: Record) -> str:
    if record.time_ms is None:
        return f"{config_text(record.config)}: not measured: no choice"
    time_ms = record.time_ms["median"]
    gain = f", {record.default_ms / time_ms:.2f} times the default" if record.default_ms else ""
    return f"{config_text(record.config)}: {time_ms:.4g} ms{gain}"


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={tables.value(value)}" for name, value in values.items())


def _nearest(text: str) -> tuple[str, list[int]]:
    name, equals, values = text.partition("=")
    try:
        if not (name and equals):
            raise ValueError
        return name, [int(value) for value in values.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"wants NAME=INTEGER[,INTEGER…], not {text!r}"
        ) from None  # fmt: skip
