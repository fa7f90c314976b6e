"""What a choice loses against the best that was measured, and where.

A portfolio tells its own loss: each tuned point is hidden in turn, a config is chosen for it from
the others, and compared with what was measured there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .choice import Predictor, surrounding
from .keys import distance
from .portfolio import Portfolio, Row, usable
from .records import Device


@dataclass(frozen=True)
class Loss:
    """A point, the config chosen for it (an index of the portfolio), and what that loses there.

    `loss` is 0.05 where the chosen config takes 5 % longer than the best.
    """

    at: Mapping[str, int]
    index: int
    loss: float


@dataclass(frozen=True)
class Summary:
    """Losses in four figures: percentiles are values that occur (the nearest rank)."""

    mean: float
    p90: float
    p95: float
    worst: float
    count: int

    def __str__(self) -> str:
        figures = (self.mean, self.p90, self.p95, self.worst)
        return "mean {:.1%}, p90 {:.1%}, p95 {:.1%}, worst {:.1%}".format(*figures)


def summary(losses: Iterable[float]) -> Summary:
    """The four figures. Raises `ValueError` where there is no loss."""
    ordered = sorted(losses)
    if not ordered:
        raise ValueError("no losses")

    def at_least(share: float) -> float:
        return ordered[math.ceil(share * len(ordered)) - 1]

    mean = math.fsum(ordered) / len(ordered)
    return Summary(mean, at_least(0.9), at_least(0.95), ordered[-1], len(ordered))


def left_out(portfolio: Portfolio, device: Device) -> list[Loss]:
    """For each tuned point what a choice from the others loses there, in the order of rows.

    Points without any time, and a portfolio of one point, tell nothing.
    """
    found = [predicted(others, device, row) for row, others in _hiding(portfolio)]
    return [loss for loss in found if loss is not None]


def left_out_nearest(portfolio: Portfolio) -> list[Loss]:
    """The same for a choice of the config that is fastest at the nearest of the other points."""
    found = [nearest(others, row) for row, others in _hiding(portfolio)]
    return [loss for loss in found if loss is not None]


def _hiding(portfolio: Portfolio) -> Iterator[tuple[Row, Portfolio]]:
    for hidden, row in enumerate(portfolio.rows):
        others = tuple(other for i, other in enumerate(portfolio.rows) if i != hidden)
        yield row, dataclasses.replace(portfolio, rows=others)


def predicted(
    portfolio: Portfolio, device: Device, row: Row, *, best_ms: float | None = None,
    predictor: Predictor | None = None,
) -> Loss | None:  # fmt: skip
    """What the choice by predicted time loses at a measured point that the portfolio lacks.

    The best is `best_ms`, else the fastest of the row. None where nothing can be chosen, or the
    chosen one was not measured there.
    """
    predictor = predictor or Predictor(portfolio, device)
    choices = predictor.predict(row.at, row.programs)
    return _loss(row, choices[0].index, best_ms) if choices else None


def nearest(portfolio: Portfolio, row: Row, *, best_ms: float | None = None) -> Loss | None:
    """What the fastest config of the nearest tuned point loses at a measured point.

    Of equally near points the one of larger values is taken, as in a lookup.
    """
    tuned = [other for other in portfolio.rows if any(map(usable, other.time_ms))]
    if not tuned:
        return None
    close = min(
        tuned,
        key=lambda other: (
            round(distance(row.at, other.at), 9), [-other.at[name] for name in row.at],
        ),
    )  # fmt: skip
    return _loss(row, fastest(close.time_ms), best_ms)


def oracle(row: Row, *, best_ms: float | None = None) -> Loss | None:
    """What the best config of the portfolio loses at a measured point: no choice loses less."""
    if not any(map(usable, row.time_ms)):
        return None
    return _loss(row, fastest(row.time_ms), best_ms)


def worth_tuning(losses: Sequence[Loss], most: int = 3) -> list[dict[str, int]]:
    """The points that would help most if tuned next, the one that promises most first.

    `losses` are those of `left_out`. A choice is least sure far from tuned points where these are
    badly predicted by one another: each point halfway, in octaves, between two that are next to
    each other counts as the mean of their losses times their distance. Where nothing is lost,
    there is nothing to tune.
    """
    points = [(i, _octaves(loss.at)) for i, loss in enumerate(losses)]
    known = [dict(loss.at) for loss in losses]
    promises: dict[tuple[int, ...], tuple[float, dict[str, int]]] = {}
    for i, one in enumerate(losses):
        for j, _ in surrounding(_octaves(one.at), [point for point in points if point[0] != i]):
            other = losses[j]
            middle = {
                name: round(math.sqrt(max(1, one.at[name]) * max(1, other.at[name])))
                for name in one.at
            }
            promise = (one.loss + other.loss) / 2 * distance(one.at, other.at)
            if promise > 0 and middle not in known:
                name = tuple(middle.values())
                promises[name] = max(promises.get(name, (0.0, middle)), (promise, middle),
                                     key=lambda pair: pair[0])  # fmt: skip
    ordered = sorted(promises.items(), key=lambda item: (-item[1][0], item[0]))
    return [middle for _, (_, middle) in ordered[:most]]


def _octaves(at: Mapping[str, int]) -> tuple[float, ...]:
    return tuple(math.log2(max(1, value)) for value in at.values())


def fastest(times: Sequence[float | None]) -> int:
    """The index of the smallest time. Raises `ValueError` where there is none."""
    return min((time, i) for i, time in enumerate(times) if time is not None and usable(time))[1]


def _loss(row: Row, index: int, best_ms: float | None) -> Loss | None:
    took = row.time_ms[index]
    if took is None or not usable(took):
        return None
    best = best_ms if best_ms is not None else row.time_ms[fastest(row.time_ms)]
    assert best is not None
    return Loss(row.at, index, took / best - 1)
