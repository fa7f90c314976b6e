"""The fewest configs that serve every tuned point, of those measured at all of them."""

from __future__ import annotations

from collections.abc import Sequence

from .portfolio import Portfolio, usable

SEARCHED = 20_000  # steps of the search for a smaller cover than the greedy one
Times = Sequence[Sequence[float | None]]


def covering(table: Portfolio, *, within: float = 0.03, most: int = 10) -> Portfolio:
    """The portfolio to keep of a table of winners, each measured at every tuned point.

    It has the fewest configs that serve every point within the loss, as `fewest` chooses them.
    """
    return table.only(fewest([row.time_ms for row in table.rows], within=within, most=most))


def fewest(times: Times, *, within: float = 0.03, most: int = 10) -> list[int]:
    """The indices, ascending, of the fewest configs that serve every point within the loss.

    `times[p][c]` is config c's time at point p, None where it was not measured. A point is served
    by a config that loses at most `within` of the best time there (0.03: 3 %). Of covers of one
    size the one of least loss over all points is taken. Where more than `most` are needed, the
    `most` are taken that lose least, one after the other. Raises `ValueError` where `most` is
    below 1 or `within` below 0.
    """
    if most < 1 or within < 0:
        raise ValueError("a cover has 1 config or more, and loses 0 or more")
    losses = [row for row in map(_losses, times) if any(loss is not None for loss in row)]
    if not losses:
        return []
    search = _Search(losses, within)
    chosen = search.smallest(most)
    return sorted(chosen if chosen is not None else search.best_of(most))


def _losses(row: Sequence[float | None]) -> list[float | None]:
    best = min((time for time in row if time is not None and usable(time)), default=None)
    return [
        time / best - 1 if best is not None and time is not None and usable(time) else None
        for time in row
    ]


class _Search:
    """Covers of points by configs, by size and then by loss. Points are bits of a mask."""

    def __init__(self, losses: Sequence[Sequence[float | None]], within: float) -> None:
        self.losses = losses
        self.configs = range(len(losses[0]))
        self.serves = [
            sum(
                1 << point
                for point, row in enumerate(losses)
                if (loss := row[config]) is not None and loss <= within
            )
            for config in self.configs
        ]
        self.steps = 0

    def smallest(self, most: int) -> list[int] | None:
        """The smallest cover of at most so many configs, or None."""
        every = (1 << len(self.losses)) - 1
        greedy = self._greedy(every)
        for size in range(1, min(most, len(greedy)) + 1):
            covers: list[list[int]] = []
            self._extend(every, [], size, covers)
            if covers:
                return min(covers, key=lambda cover: (self._loss(cover), sorted(cover)))
            if self.steps >= SEARCHED:
                break
        return greedy if len(greedy) <= most else None

    def _greedy(self, missing: int) -> list[int]:
        chosen: list[int] = []
        while missing:
            best = max(self.configs, key=lambda c: (self.serves[c] & missing).bit_count())
            chosen.append(best)
            missing &= ~self.serves[best]
        return chosen

    def _extend(self, missing: int, chosen: list[int], size: int, covers: list[list[int]]) -> None:
        """Every way to cover what is missing by so many configs; each way covers, first, the
        point that the fewest configs serve."""
        self.steps += 1
        if not missing:
            covers.append(chosen)
            return
        most = max((self.serves[c] & missing).bit_count() for c in self.configs)
        if size * most < missing.bit_count() or self.steps >= SEARCHED:
            return
        points = [p for p in range(len(self.losses)) if missing >> p & 1]
        servers = [[c for c in self.configs if self.serves[c] >> p & 1] for p in points]
        for config in min(servers, key=len):
            self._extend(missing & ~self.serves[config], [*chosen, config], size - 1, covers)

    def best_of(self, most: int) -> list[int]:
        """So many configs that lose little: each added is the one that helps most."""
        chosen: list[int] = []
        for _ in range(min(most, len(self.configs))):
            left = [config for config in self.configs if config not in chosen]
            chosen.append(min(left, key=lambda config: self._loss([*chosen, config])))
        return chosen

    def _loss(self, chosen: Sequence[int]) -> float:
        """The loss over all points; one that none of them was measured at counts as 100 times."""
        return sum(
            min((loss for c in chosen if (loss := row[c]) is not None), default=100.0)
            for row in self.losses
        )
