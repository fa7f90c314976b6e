"""How many programs a launch runs: from its grid, or from the grids of other launches."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from .portfolio import Portfolio


def of_grid(grid: Any, named: Mapping[str, Any]) -> int:
    """The size of a launch's grid: a tuple, or a function of the named arguments that returns one.

    Raises what the function raises, and `TypeError` where it returns something else.
    """
    size = grid(named) if callable(grid) else grid
    sizes = size if isinstance(size, (tuple, list)) else (size,)
    return math.prod(map(operator.index, sizes))


def told(portfolio: Portfolio, at: Mapping[str, int]) -> list[int] | None:
    """The size of the grid at a point for each config, as far as the portfolio's own points tell.

    It is told where one rule fits all points of a config: always the same, or a multiple of the
    tiles, of the size of one of the config's knobs, that cover the one `nearest` value. None where
    that does not hold for every config, or rules that fit say different things of the point.
    """
    if len(at) != 1 or not portfolio.rows:
        return None
    ((name, asked),) = at.items()
    points: list[tuple[int, tuple[int, ...]]] = []
    for row in portfolio.rows:
        if row.programs is None:
            return None
        points.append((max(1, row.at[name]), row.programs))
    found: list[int] = []
    for i, config in enumerate(portfolio.configs):
        own = [(value, programs[i]) for value, programs in points]
        sizes = _sizes(own, config, max(1, asked))
        if len(sizes) != 1:
            return None
        found += sizes
    return found


def _sizes(points: list[tuple[int, int]], config: Mapping[str, Any], asked: int) -> set[int]:
    """What each rule that fits the points says of the value asked for."""
    first_value, first = points[0]
    sizes = set()
    if all(programs == first for _, programs in points):
        sizes.add(first)
    for tile in {1, *(v for v in config.values() if type(v) is int and v > 1)}:
        each, rest = divmod(first, -(-first_value // tile))
        if not rest and all(programs == each * -(-value // tile) for value, programs in points):
            sizes.add(each * -(-asked // tile))
    return sizes
