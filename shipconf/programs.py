"""How many programs a launch runs: from its grid, or from the grids of other launches."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .portfolio import Portfolio


def of_grid(grid: Any, named: Mapping[str, Any]) -> int:
    """The size of a launch's grid: a tuple, or a function of the named arguments that returns one.

    Raises what the function raises, and `TypeError` where it returns something else.
    """
    size = grid(named) if callable(grid) else grid
    sizes = size if isinstance(size, (tuple, list)) else (size,)
    return math.prod(map(operator.index, sizes))


Rule = tuple[int, int]  # so many programs for each tile of that size; 0: always so many


class Sizes:
    """The size of the grid at any point for each config, as far as a portfolio's own points tell.

    It is told where one rule fits all points of a config: always the same, or a multiple of the
    tiles, of the size of one of the config's knobs, that cover the one `nearest` value.
    """

    def __init__(self, portfolio: Portfolio) -> None:
        rows = portfolio.rows
        names = tuple(rows[0].at) if rows else ()
        self._name = names[0] if len(names) == 1 else ""
        self._rules: list[set[Rule]] = []
        if self._name and all(row.programs is not None for row in rows):
            for i, config in enumerate(portfolio.configs):
                known = [
                    (max(1, row.at[self._name]), row.programs[i])
                    for row in rows if row.programs and not row.refuses(i)
                ]  # fmt: skip
                self._rules.append(set(_fitting(known, config)))

    def told(self, at: Mapping[str, int]) -> list[int] | None:
        """The sizes at a point. None where no rule fits some config, or rules that do say
        different things of the point."""
        found: list[int] = []
        for rules in self._rules:
            value = max(1, at[self._name])
            sizes = {each * -(-value // tile) if tile else each for each, tile in rules}
            if len(sizes) != 1:
                return None
            found += sizes
        return found or None


def _fitting(known: Sequence[tuple[int, int]], config: Mapping[str, Any]) -> Iterator[Rule]:
    """The rules that give these sizes, each at its value."""
    if not known:
        return
    value, first = known[0]
    if all(size == first for _, size in known):
        yield first, 0
    for tile in {1, *(v for v in config.values() if type(v) is int and v > 1)}:
        each, rest = divmod(first, -(-value // tile))
        if not rest and all(size == each * -(-value // tile) for value, size in known):
            yield each, tile
