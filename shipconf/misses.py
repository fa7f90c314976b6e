"""The misses that `SHIPCONF_MISSES` collected: read, counted, grouped, the worst first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigFileError
from .keys import AskedDtypes, Value, dtypes_text, from_json, to_json
from .records import parse_json


@dataclass(frozen=True)
class Miss:
    """One launch that found nothing stored: a line of the file.

    `target` is where the kernel is, as `module:kernel`; None where the line does not say.
    """

    kernel: str
    target: str | None
    device: str
    key: Mapping[str, Value]
    nearest: Mapping[str, int]
    dtypes: AskedDtypes

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Equal for misses that one file of records would serve, given the right points."""
        key = json.dumps({name: to_json(value) for name, value in self.key.items()})
        return self.kernel, self.device, key, dtypes_text(self.dtypes)


@dataclass
class Group:
    """The misses of one kernel, device, key and dtypes: how often each point was asked for."""

    first: Miss
    points: dict[str, int] = field(default_factory=dict)  # the nearest values in JSON → count

    @property
    def count(self) -> int:
        return sum(self.points.values())

    def worst(self) -> list[tuple[dict[str, int], int]]:
        """The points with their counts, the most frequent first; equal ones in order of value."""
        points = [(json.loads(text), count) for text, count in self.points.items()]
        return sorted(points, key=lambda point: (-point[1], list(point[0].values())))


@dataclass
class Misses:
    """What a file of misses holds; `faults` are lines that say no miss: their number and why."""

    path: Path
    groups: list[Group] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(group.count for group in self.groups)


def read(path: Path) -> Misses:
    """Read a file of misses, the group with the most first. Raises `OSError`."""
    misses = Misses(path)
    groups: dict[tuple[str, str, str, str], Group] = {}
    for number, found in _lines(path):
        if isinstance(found, str):
            misses.faults.append((number, found))
            continue
        group = groups.setdefault(found.group, Group(found))
        point = json.dumps(dict(found.nearest))
        group.points[point] = group.points.get(point, 0) + 1
    misses.groups = sorted(groups.values(), key=lambda group: (-group.count, group.first.group))
    return misses


def _lines(path: Path) -> Iterator[tuple[int, Miss | str]]:
    """Each line's number with its miss, or what is wrong with it."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield number, _miss(parse_json(line, path))
            except ConfigFileError as error:
                yield number, error.what
            except ValueError as error:
                yield number, str(error)


def _miss(document: Any) -> Miss:
    if not isinstance(document, dict):
        raise ValueError("must be an object")
    kinds: dict[str, tuple[type, ...]] = {
        "kernel": (str,), "device": (str,), "key": (dict,), "nearest": (dict,),
        "dtypes": (dict, str, list, type(None)),
    }  # fmt: skip
    for name, kind in kinds.items():
        if name not in document:
            raise ValueError(f"{name}: is missing")
        if not isinstance(document[name], kind):
            raise ValueError(f"{name}: is {json.dumps(document[name])[:60]}")
    for name, value in document["nearest"].items():
        if type(value) is not int:
            raise ValueError(f"nearest.{name}: must be an integer, not {json.dumps(value)[:60]}")
    dtypes, target = document["dtypes"], document.get("target")
    return Miss(
        kernel=document["kernel"],
        target=target if isinstance(target, str) else None,
        device=document["device"],
        key={name: from_json(value) for name, value in document["key"].items()},
        nearest=document["nearest"],
        dtypes=_dtypes(dtypes),
    )


def _dtypes(document: Any) -> AskedDtypes:
    """The dtypes, each a name, or for a tuple a list of names. Raises `ValueError`."""
    entries = document.values() if isinstance(document, dict) else document
    for entry in entries if isinstance(entries, (list, dict)) or document else ():
        members = entry if isinstance(entry, list) else [entry]
        if not all(isinstance(member, str) for member in members):
            raise ValueError(f"dtypes: must be names of dtypes, not {json.dumps(document)[:60]}")
    return tuple(document) if isinstance(document, list) else document
