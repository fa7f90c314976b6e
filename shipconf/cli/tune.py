"""`shipconf tune module:kernel`: tune through the kernel's workload, into the user store."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import device as devices
from .. import misses, points, settings
from ..configs import config_text
from ..errors import ShipconfError
from ..keys import canonical, to_json
from . import progress, tables
from .arguments import add_command, pair

if TYPE_CHECKING:
    from ..points import Point
    from ..records import Record

SHAPE = """It imports the kernel, and so torch and triton. A worker process measures, so a candidate
that breaks the GPU's context costs that candidate. With --json: {"tuned": [{"kernel", "values",
"dtypes", "path", "config", "time_ms", "default_ms", "seconds"}], "faults": [{"path", "where",
"what"}]}; with --dry-run, {"points": [{"kernel", "values", "dtypes", "path", "served_by"}],
"faults"}. What cannot be tuned is told at the end, with exit code 1, and the rest is tuned."""
EXAMPLE = """  shipconf tune shipconf_gemm.kernel:gemm_kernel -k N=4096 -k K=4096 --at M=1,16,64 \\
      --dtypes float16
  shipconf tune --from misses.jsonl    what launches missed on this kind of device"""

Fault = tuple[str, str]


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
    done = [_described(point, faults) for point in todo] if chosen.dry_run else (
        _tuned(todo, faults, force=chosen.force, quiet=chosen.json)
    )  # fmt: skip
    found = [entry for entry in done if entry is not None]
    if chosen.json:
        tables.document({
            "points" if chosen.dry_run else "tuned": found,
            "faults": [{"path": "", "where": where, "what": what} for where, what in faults],
        })  # fmt: skip
    elif chosen.dry_run:
        columns = ["kernel", "point", "served by", "file"]
        tables.table(columns, [
            [entry["kernel"], _words(entry["values"]), entry["served_by"], entry["path"]]
            for entry in found
        ])  # fmt: skip
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
    todo: list[Point], faults: list[Fault], *, force: bool, quiet: bool
) -> list[dict[str, Any] | None]:
    """Tune each point, and print a line for it unless `quiet`."""
    done: list[dict[str, Any] | None] = []
    with progress.shown(len(todo)):
        for point in todo:
            entry = _described(point, faults)
            start = time.monotonic()
            try:
                record = None if entry is None else point.kernel.tune(
                    dtypes=point.dtypes, force=force, **point.values
                )  # fmt: skip
            except (ShipconfError, ValueError, TypeError, RuntimeError) as error:
                faults.append((f"{point.target} {point}", str(error)))
                continue
            if entry is None or record is None:
                continue
            done.append(_with_record(entry, record, time.monotonic() - start))
            if not quiet:
                print(f"{point}: {_result(record)}", flush=True)
    return done


def _described(point: Point, faults: list[Fault]) -> dict[str, Any] | None:
    """The point in JSON; None, and a fault, where the kernel cannot be tuned for it."""
    try:
        path, served_by = point.state()
    except ShipconfError as error:
        faults.append((f"{point.target} {point}", str(error)))
        return None
    return {
        "kernel": point.target,
        "values": {name: to_json(canonical(value)) for name, value in point.values.items()},
        "dtypes": point.dtypes, "path": str(path), "served_by": served_by,
    }  # fmt: skip


def _with_record(entry: dict[str, Any], record: Record, seconds: float) -> dict[str, Any]:
    del entry["served_by"]
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


def _words(values: dict[str, Any]) -> str:
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
