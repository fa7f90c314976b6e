"""Points to tune: those that someone asks for, and those that launches missed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import stores
from .crosstab import Series
from .errors import ShipconfError
from .keys import Value, dtypes_text, one_or_each
from .misses import Misses
from .targets import load

if TYPE_CHECKING:
    from .kernel import ShippedKernel
    from .resolver import Match


@dataclass(frozen=True, eq=False)
class Point:
    """What to tune a kernel for: key and nearest values by name, and dtypes."""

    target: str
    kernel: ShippedKernel
    values: Mapping[str, Any]
    dtypes: Any

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values.items())

    @property
    def given(self) -> dict[str, Any]:
        """The values of the key entries."""
        names = self.kernel.subject.nearest_names
        return {name: value for name, value in self.values.items() if name not in names}

    @property
    def at(self) -> dict[str, int]:
        """The nearest values."""
        return {name: self.values[name] for name in self.kernel.subject.nearest_names}

    def state(self) -> tuple[Path, Match | None]:
        """The file that a record of it goes to, and what serves the point now.

        Raises `ShipconfError` where the kernel cannot be tuned for it.
        """
        try:
            query = self.kernel.query_for(self.dtypes, None, self.values)
            match = self.kernel.resolve_for(dtypes=self.dtypes, **self.values)
        except (TypeError, ValueError) as error:
            raise ShipconfError(f"{self.target}: {error}") from error
        folder = stores.user_folder(self.kernel.subject)
        path = folder / f"{stores.file_name(query.key, query.device)}.json"
        return path, match


def asked(
    target: str, key: Mapping[str, Value], near: Mapping[str, Sequence[int]], dtypes: Any
) -> list[Point]:
    """A point for each combination of nearest values. Raises `ShipconfError`."""
    kernel = _load(target)
    return [
        Point(target, kernel, {**key, **dict(zip(near, combination))}, dtypes)
        for combination in itertools.product(*near.values())
    ]


def series_of(points: Sequence[Point]) -> Series:
    """The points, which are of one key."""
    first = points[0]
    return Series(first.kernel, first.dtypes, first.given, [point.at for point in points])


def by_key(points: Sequence[Point]) -> list[list[Point]]:
    """The points of one kernel, key and dtypes together, in the order of the first of each."""
    groups: dict[Any, list[Point]] = {}
    for point in points:
        key = point.kernel.query_for(point.dtypes, None, point.values).key
        name = (point.target, key.exact, dtypes_text(key.dtypes))
        groups.setdefault(name, []).append(point)
    return list(groups.values())


def missed(
    misses: Misses, only: Sequence[str], device: str | None
) -> Iterator[Point | tuple[str, str]]:
    """A point for each miss, the worst first; or whose misses are left out, and why.

    `only` are the targets wanted, all where it is empty; a target that is given serves misses of
    its kernel that name none. `device` is the name of the device here, None where nobody knows.
    """
    kernels = {target: _load(target) for target in only}
    given = {kernel.name: target for target, kernel in kernels.items()}
    for group in misses.groups:
        first = group.first
        target = given.get(first.kernel) if only else first.target
        if only and target is None:
            continue
        if target is None:
            yield first.kernel, "the misses do not say where it is: name it as module:kernel"
            continue
        if device is not None and first.device != device:
            yield target, f"missed on {first.device}, and this is {device}"
            continue
        try:
            kernel = kernels.setdefault(target, kernels.get(target) or _load(target))
        except ShipconfError as error:
            yield target, str(error)
            continue
        if kernel.registered_workload is None:
            yield target, kernel.lacks_workload
            continue
        dtypes = one_or_each(first.dtypes) if isinstance(first.dtypes, dict) else first.dtypes
        for nearest, _ in group.worst():
            yield Point(target, kernel, {**first.key, **nearest}, dtypes)


def _load(target: str) -> ShippedKernel:
    try:
        kernel: ShippedKernel = load(target)
    except ValueError as error:
        raise ShipconfError(str(error)) from error
    return kernel
