"""What a source holds: every config file read, and every fault of every file in one report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from .errors import ConfigFileError
from .interop import flat
from .keys import to_json
from .records import (
    ConfigFile,
    Record,
    device_document,
    from_document,
    in_order,
    parse_json,
    record_document,
)
from .sources import Member, Source


@dataclass(frozen=True, order=True)
class Fault:
    """Something wrong with a file. `where` is the place in it, such as `records[3].at`, or ""."""

    path: str
    where: str
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.where, self.what) if part)


@dataclass(frozen=True)
class Held:
    """A file that could be read.

    Of a flat one, `file.kernel` is the name of its folder and `file.nearest` a guess.
    """

    member: Member
    file: ConfigFile
    flat: bool = False


@dataclass
class Inventory:
    """All that a source holds, and the faults of what could not be read."""

    source: Source
    held: list[Held] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def take(source: Source) -> Inventory:
    """Read every config file of the source; what is wrong with one does not hide the others."""
    inventory = Inventory(source)
    for member in source.configs():
        try:
            inventory.held.append(_read(member))
        except (OSError, ConfigFileError) as error:
            inventory.faults += faults_of(error, member.path)
    inventory.faults += [Fault(path, "", what) for path, what in source.unreadable]
    return inventory


def too_flat(held: Held) -> Fault:
    """Why a flat file cannot be merged or exported as it is."""
    what = "is of the flat form, which says too little for this: `shipconf import` reads it"
    return Fault(held.member.path, "", what)


def faults_of(error: OSError | ConfigFileError, path: str) -> list[Fault]:
    """The faults that an error stands for."""
    if isinstance(error, ConfigFileError):
        return [Fault(path, where, what) for where, what in error.faults]
    return [Fault(path, "", error.strerror or str(error))]


def _read(member: Member) -> Held:
    document = parse_json(member.read(), member.path)
    stem = member.file_name.removesuffix(".json")
    if flat.is_flat(stem, document):
        return Held(member, flat.read(stem, document, member.path, kernel=member.folder), flat=True)
    return Held(member, from_document(document, member.path))


def speedup(record: Record) -> float | None:
    """How many times faster the config was than the default in the same tuning, if measured."""
    time_ms = (record.time_ms or {}).get("median")
    return record.default_ms / time_ms if time_ms and record.default_ms else None


def speedups(file: ConfigFile) -> tuple[float, float, float] | None:
    """The least, the median and the greatest speed-up over the default, if any was measured."""
    known = [ratio for ratio in map(speedup, file.records) if ratio is not None]
    return (min(known), statistics.median(known), max(known)) if known else None


def tuned_at(record: Record) -> datetime | None:
    """When the record was tuned; None where it does not say, or not as ISO 8601."""
    text = (record.tuned_at or "").replace("Z", "+00:00")  # Python 3.10 does not know Z
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)


def tuning_times(file: ConfigFile) -> list[datetime]:
    """When the records of a file were tuned, oldest first."""
    return sorted(when for when in map(tuned_at, file.records) if when is not None)


def stale_count(file: ConfigFile, current: Mapping[str, set[str | None]] | None) -> int | None:
    """How many records are of another version of the kernel than those in `current`, which maps
    a kernel's name to its fingerprints; None where that is not known."""
    known = (current or {}).get(file.kernel)
    if known is None:
        return None
    return sum(record.fingerprint not in {None, *known} for record in file.records)


def describe(
    held: Held, current: Mapping[str, set[str | None]] | None = None, *, with_records: bool = False
) -> dict[str, Any]:
    """The document of one file that `list --json` prints; that of `show` has the records too."""
    file = held.file
    times = tuning_times(file)
    ratios = speedups(file)
    records = [record_document(record, file.nearest) for record in in_order(file)]
    return {
        "path": held.member.path,
        "kernel": file.kernel,
        "form": "flat" if held.flat else "records",
        "device": device_document(file.device),
        "key": {name: to_json(value) for name, value in file.key.items()},
        "dtypes": file.dtypes,
        "nearest": list(file.nearest),
        "points": [record["at"] for record in records],
        "tuned_at": [_utc(when) for when in (times[0], times[-1])] if times else [],
        "rigor": different(file, "rigor"),
        "triton": different(file, "triton"),
        "torch": different(file, "torch"),
        "speedup": [round(ratio, 4) for ratio in ratios] if ratios else None,
        "stale": stale_count(file, current),
        **({"records": records} if with_records else {}),
    }


def _utc(when: datetime) -> str:
    return when.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def different(file: ConfigFile, field_name: str) -> list[str]:
    """The different values that the records have in a field, sorted; None is left out."""
    return sorted({getattr(record, field_name) for record in file.records} - {None})
