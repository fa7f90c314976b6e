"""Which config of a portfolio is fastest at a point that was not tuned: by predicted time.

A launch's programs run in rounds. What a config took for one round is measured at the tuned
points around the one asked for; between them it changes little, on a log scale evenly. The rounds
themselves are counted: they jump where the grid no longer fits into one more wave, which is what
a choice by distance alone cannot see.

Two limits bound the rounds. Where the programs that share a multiprocessor do not slow each other
down, a launch takes as many rounds as waves, however full the last one is. Where they share its
speed, the rounds are those of the fullest multiprocessor, program by program. A kernel lies
somewhere between, and the middle is taken: it is not fitted to a kernel or a device.

Where the grid does not depend on the point (a fixed grid, or a persistent kernel's, capped at the
multiprocessors), the rounds are equal and what remains is interpolation.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .keys import TIE
from .occupancy import resident
from .portfolio import Portfolio, usable
from .records import Device

MIDDLE = 0.5  # the share of the second limit


@dataclass(frozen=True)
class Prediction:
    """A config of a portfolio, by its index, and the time that a launch with it should take.

    `waves` is how many times the launch fills the device; None where that is not known.
    """

    index: int
    config: Mapping[str, Any]
    time_ms: float
    waves: int | None

    def __str__(self) -> str:
        if self.waves is None:
            return f"{self.time_ms:.4g} ms"
        return f"{self.time_ms:.4g} ms, {self.waves} wave{'' if self.waves == 1 else 's'}"


def rounds(programs: int, resident: int, multiprocessors: int, shared: float = MIDDLE) -> float:
    """How many rounds of programs a launch takes, with so many resident on a multiprocessor.

    `shared` says how much they share its speed, from 0 (waves alone) to 1.

    >>> rounds(1, 4, 132), rounds(528, 4, 132), rounds(529, 4, 132)
    (0.625, 1.0, 1.625)
    """
    if not multiprocessors:  # not known, or the interpreter: one program after the other
        return float(max(1, programs))
    fullest = max(1, -(-programs // multiprocessors))
    return (1 - shared) * -(-fullest // resident) + shared * fullest / resident


class Predictor:
    """Predicts launches on one device from a portfolio. Making one is for each file, not launch.

    Configs that do not fit the device, and times that are no times, are left out; of a point, the
    configs that do not run at one of the measured points around it.
    """

    def __init__(self, portfolio: Portfolio, device: Device, *, shared: float = MIDDLE) -> None:
        self.portfolio = portfolio
        self._shared = shared
        self._multiprocessors = device.multiprocessors
        self._names = tuple(portfolio.rows[0].at) if portfolio.rows else ()
        self._logs = [self._octaves(row.at) for row in portfolio.rows]
        self._nearest = Around(list(enumerate(self._logs)))
        self._resident = [
            resident(config, resources, device)
            for config, resources in zip(portfolio.configs, portfolio.resources)
        ]
        # A program of several CTAs takes as many places.
        self._ctas = [config.get("num_ctas") or 1 for config in portfolio.configs]
        self._scaled = all(row.programs is not None for row in portfolio.rows)
        # For each row and config the logarithm of the time of one round.
        self._pace: list[list[float]] = []
        for row in portfolio.rows:
            counts = row.programs if self._scaled else None
            self._pace.append([
                math.log(time_ms) - math.log(self._rounds(i, counts))
                if time_ms is not None and usable(time_ms) and self._resident[i] else math.nan
                for i, time_ms in enumerate(row.time_ms)
            ])  # fmt: skip
        self._refused = [
            frozenset(i for i in range(len(portfolio.configs)) if row.refuses(i))
            for row in portfolio.rows
        ]
        # Configs that were measured at the same rows are predicted from the same neighbours.
        groups: dict[tuple[int, ...], list[int]] = {}
        for i in range(len(portfolio.configs)):
            rows = tuple(r for r, pace in enumerate(self._pace) if not math.isnan(pace[i]))
            groups.setdefault(rows, []).append(i)
        groups.pop((), None)
        self._groups = [
            (Around([(row, self._logs[row]) for row in rows]), indices)
            for rows, indices in groups.items()
        ]

    def _octaves(self, at: Mapping[str, int]) -> tuple[float, ...]:
        return tuple([math.log2(max(1, at[name])) for name in self._names])

    def distance(self, at: Mapping[str, int]) -> float:
        """How far the nearest row is from the point, in octaves; infinite where there is none."""
        asked = self._octaves(at)
        return min(
            [sum(map(abs, map(operator.sub, self._logs[row], asked)))
             for row, _ in self._nearest.of(asked)],
            default=math.inf,
        )  # fmt: skip

    def _rounds(self, i: int, programs: Sequence[int] | None) -> float:
        if programs is None:
            return 1.0
        return rounds(
            programs[i] * self._ctas[i], self._resident[i], self._multiprocessors, self._shared
        )

    def predict(
        self, at: Mapping[str, int], programs: Sequence[int] | None = None
    ) -> list[Prediction]:
        """The configs by their predicted time at the point, fastest first; of equals, as stored.

        `at` has the point's `nearest` values. `programs` are the sizes of the launch's grid, one
        for each config of the portfolio; without them, or where the portfolio does not know its
        own, times are interpolated and nothing is said about waves.
        """
        counts = programs if self._scaled else None
        return [self._prediction(i, time_ms, counts) for time_ms, i in self._times(at, counts)]

    def first(
        self, at: Mapping[str, int], programs: Sequence[int] | None,
        serves: Callable[[int], bool], most: int = 2,
    ) -> list[Prediction]:  # fmt: skip
        """The first of `predict` whose indices serve, asked in order and no further than needed."""
        counts = programs if self._scaled else None
        serving = ((time_ms, i) for time_ms, i in self._times(at, counts) if serves(i))
        return [
            self._prediction(i, time_ms, counts) for time_ms, i in itertools.islice(serving, most)
        ]

    def _times(
        self, at: Mapping[str, int], programs: Sequence[int] | None
    ) -> list[tuple[float, int]]:
        """The predicted times with their configs' indices, ascending."""
        asked = self._octaves(at)
        refused: frozenset[int] = frozenset()
        if any(self._refused):  # what does not run beside the point may not run there either
            refused = refused.union(*(self._refused[row] for row, _ in self._nearest.of(asked)))
        found = []
        for around, indices in self._groups:
            paces = [0.0] * len(self._resident)
            for row, weight in around.of(asked):
                paces = [pace + weight * one for pace, one in zip(paces, self._pace[row])]
            found += [
                (math.exp(paces[i]) * self._rounds(i, programs), i)
                for i in indices if i not in refused
            ]  # fmt: skip
        found.sort()
        return found

    def _prediction(self, i: int, time_ms: float, programs: Sequence[int] | None) -> Prediction:
        return Prediction(i, self.portfolio.configs[i], time_ms, self._waves(i, programs))

    def _waves(self, i: int, programs: Sequence[int] | None) -> int | None:
        if programs is None or not self._multiprocessors:
            return None
        return max(
            1, -(-programs[i] * self._ctas[i] // (self._resident[i] * self._multiprocessors))
        )


def predict(
    portfolio: Portfolio, device: Device, at: Mapping[str, int],
    programs: Sequence[int] | None = None,
) -> list[Prediction]:  # fmt: skip
    """The configs of the portfolio by their predicted time at the point, fastest first.

    It is `Predictor(portfolio, device).predict(at, programs)`, for a single question.
    """
    return Predictor(portfolio, device).predict(at, programs)


class Around:
    """Finds what `surrounding` says of always the same points; of one coordinate, sorted once."""

    def __init__(self, points: Sequence[tuple[int, tuple[float, ...]]]) -> None:
        self._points = points
        self._axis: list[float] = []
        if points and len(points[0][1]) == 1:
            self._points = sorted(points, key=operator.itemgetter(1))
            self._axis = [log for _, (log,) in self._points]

    def of(self, asked: Sequence[float]) -> list[tuple[int, float]]:
        """The numbers of the points around the asked one, with their weights."""
        if not self._axis:
            return surrounding(asked, self._points)
        above = bisect.bisect_left(self._axis, asked[0] - TIE)
        if above == len(self._axis):
            return [(self._points[-1][0], 1.0)]
        over = self._axis[above] - asked[0]
        if above == 0 or over <= TIE:
            return [(self._points[above][0], 1.0)]
        under = asked[0] - self._axis[above - 1]
        share = over / (under + over)
        return [(self._points[above - 1][0], share), (self._points[above][0], 1 - share)]


def surrounding(
    asked: Sequence[float], points: Sequence[tuple[int, tuple[float, ...]]]
) -> list[tuple[int, float]]:
    """The points around the asked one, with weights that sum to 1: the nearer, the heavier.

    Points are numbered, their coordinates in octaves. Around are those that have no other between
    themselves and the one asked for: of one coordinate the next below and above, of two in a grid
    the corners of the cell. A point that is the asked one is alone.
    """
    offsets = []
    for number, logs in points:
        offset = list(map(operator.sub, logs, asked))
        offsets.append((sum(map(abs, offset)), number, offset))
    offsets.sort()
    kept: list[tuple[float, int, list[float]]] = []
    for candidate in offsets:
        for other in kept:
            if _between(other[2], candidate[2]):
                break
        else:
            kept.append(candidate)
    weights = [1 / max(distance, TIE) for distance, _, _ in kept]
    total = sum(weights)
    return [(number, weight / total) for (_, number, _), weight in zip(kept, weights)]


def _between(offset: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the first lies between the asked point and the other, in every coordinate."""
    for near, far in zip(offset, other):
        if near > TIE and far < near - TIE:
            return False
        if near < -TIE and far > near + TIE:
            return False
    return True
