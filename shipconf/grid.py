"""Gaps in what was tuned: keys, points and distances that a kernel's other files have."""

from __future__ import annotations

import itertools
import json
import math
import posixpath
from collections.abc import Iterator, Mapping, Sequence

from .inventory import Fault
from .keys import TIE, distance, dtypes_text, to_json
from .reach import Placed

MOST = 8  # points or keys that a line lists
Grid = dict[str, dict[tuple[str, str], list[Placed]]]  # device → key and dtypes → files


def gaps(placed: Sequence[Placed], max_distances: Mapping[str, float]) -> Iterator[Fault]:
    """The gaps of each kernel; `max_distances` has its limit in octaves, 2 where it is missing."""
    kernels: dict[tuple[str, ...], Grid] = {}
    for one in placed:
        file = one.held.file
        # Files with other key entries are of another kernel: folders without code mix them.
        name = (posixpath.dirname(one.path), file.kernel, *one.key.values)
        key = json.dumps({n: to_json(value) for n, value in one.key.values.items()})
        grid = kernels.setdefault(name, {}).setdefault(str(file.device), {})
        grid.setdefault((key, dtypes_text(file.dtypes)), []).append(one)
    for (folder, kernel, *_), devices in kernels.items():
        yield from _missing_keys(folder, devices)
        for files in devices.values():
            yield from _missing_points(files)
            for same in files.values():
                yield from _too_far(same, max_distances.get(kernel, 2.0))


def _missing_keys(folder: str, devices: Grid) -> Iterator[Fault]:
    every = dict.fromkeys(name for files in devices.values() for name in files)
    for device, files in devices.items():
        missing = [
            " ".join(
                [*(f"{n}={json.dumps(v)}" for n, v in json.loads(key).items()), dtypes]
            ).strip()
            for key, dtypes in every
            if (key, dtypes) not in files
        ]
        if missing:
            yield Fault(folder, device, f"gap: has no records for {_some(missing)}, as others have")


def _missing_points(files: Mapping[tuple[str, str], list[Placed]]) -> Iterator[Fault]:
    points = {name: {json.dumps(point) for point in _points(same)} for name, same in files.items()}
    every = set().union(*points.values())
    for name, same in files.items():
        missing = sorted((json.loads(point) for point in every - points[name]), key=_order)
        if missing:
            words = _some([_words(point) for point in missing])
            yield Fault(same[0].path, "records", f"gap: is not tuned at {words}, as others are")


def _too_far(same: Sequence[Placed], limit: float) -> Iterator[Fault]:
    """Neighbours so far apart that a launch between them is within reach of neither."""
    points = sorted(_points(same), key=_order)
    if len({tuple(point) for point in points}) > 1 or any(len(point) != 1 for point in points):
        return  # of several nearest values there are no neighbours
    for low, high in itertools.pairwise(points):
        apart = distance(low, high)
        # An integer lies between, and the middle is further from both than the limit.
        (name, first), (_, last) = *low.items(), *high.items()
        middle = {name: round(math.sqrt(max(1, first) * last))}
        if apart > 2 * limit + TIE and distance(middle, low) > limit < distance(middle, high):
            yield Fault(
                same[0].path, "records",
                f"gap: {_words(middle)} is more than {limit:g} octaves from {_words(low)} and "
                f"{_words(high)}",
            )  # fmt: skip


def _points(same: Sequence[Placed]) -> list[dict[str, int]]:
    return [dict(record.at) for one in same for record in one.held.file.records]


def _order(point: Mapping[str, int]) -> list[int]:
    return list(point.values())


def _words(point: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more
