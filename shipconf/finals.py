"""Who wins among the finalists: candidates measured in turn, compared round by round.

Two processes that measure one pair of configs disagree on their ratio, since their tensors lie
elsewhere (see `placement`): on an H200 with a standard deviation of 0.15 %. A lead of up to four
of these, 0.6 %, counts as a tie, and of those tied with the fastest the earliest wins. The order
is that of preference, in which a default and an incumbent stand first: they are replaced only by
what is more than 0.6 % faster. A wider tie is no safer: with more candidates in it, more stand
near its edge, within it in one process and beyond it in the next.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

TIE = 0.006  # a lead that counts for nothing
SURE = 3.0  # standard errors from the edge of a tie
LEAST_SPREAD = 0.005  # of ratios between rounds: a few rounds may agree by chance
LEAST_ROUNDS = 8  # before anybody is dropped

C = TypeVar("C", bound=Hashable)


class Finals(Generic[C]):
    """The finalists in order of preference, and their times; `live` are those still measured.

    Nothing is decided before `least_rounds`, nor as if rounds differed by less than `least_spread`.

    A round is a few launches of each live finalist, in turn. What disturbs the GPU for longer
    than a round slows them all alike, so ratios within a round are compared, not times.
    """

    def __init__(
        self, finalists: Sequence[C], *, least_rounds: int = LEAST_ROUNDS,
        least_spread: float = LEAST_SPREAD,
    ) -> None:  # fmt: skip
        self.least_rounds = least_rounds
        self.least_spread = least_spread
        self.live = list(finalists)
        self.rounds = 0
        self.times: dict[C, list[float]] = {finalist: [] for finalist in finalists}
        self._logs: dict[C, list[float]] = {finalist: [] for finalist in finalists}

    def add(self, times: Mapping[C, Sequence[float]]) -> None:
        """Take a round: the times of each live finalist, in any unit."""
        for finalist in self.live:
            self.times[finalist] += times[finalist]
            self._logs[finalist].append(math.log(max(statistics.median(times[finalist]), 1e-9)))
        self.rounds += 1
        if self.live and self.rounds >= self.least_rounds:  # in the round all may have failed
            self._narrow()

    def drop(self, finalist: C) -> None:
        """Measure it no more, and never choose it: it failed."""
        self.live.remove(finalist)

    @property
    def decided(self) -> bool:
        """Whether further rounds would hardly change who wins."""
        return len(self.live) < 2 or (
            self.rounds >= self.least_rounds and self._surely_tied(self.live[0])
        )  # fmt: skip

    @property
    def winner(self) -> C:
        """The earliest of those tied with the fastest."""
        return next(c for c in self.live if self._lead(c)[0] <= math.log1p(TIE))

    def _narrow(self) -> None:
        """Drop who can win no more: the surely slower, and who stands behind one surely tied."""
        fastest = self._fastest()
        kept: list[C] = []
        beaten = False
        for finalist in self.live:
            mean, error = self._lead(finalist)
            slower = mean - SURE * error > math.log1p(TIE)
            if finalist == fastest or not (beaten or slower):
                kept.append(finalist)
            beaten = beaten or self._surely_tied(finalist)
        self.live = kept

    def _surely_tied(self, finalist: C) -> bool:
        mean, error = self._lead(finalist)
        return mean + SURE * error <= math.log1p(TIE)

    def _fastest(self) -> C:
        return min(self.live, key=lambda c: statistics.fmean(self._logs[c] or [math.inf]))

    def _lead(self, finalist: C) -> tuple[float, float]:
        """By how much the fastest leads it: the mean over rounds of the logarithm of the ratio
        of their medians, and its standard error."""
        fastest = self._fastest()
        ratios = [a - b for a, b in zip(self._logs[finalist], self._logs[fastest])]
        if finalist == fastest or not ratios:
            return 0.0, 0.0
        spread = max(self.least_spread, statistics.stdev(ratios)) if len(ratios) > 1 else math.inf
        return statistics.fmean(ratios), spread / math.sqrt(len(ratios))


class Comparison(Finals[C]):
    """Finals that nobody wins: all are measured in every round, for their times alone."""

    @property
    def decided(self) -> bool:
        """Whether there were as many rounds as there are at least."""
        return self.rounds >= self.least_rounds

    def _narrow(self) -> None:
        """Drop nobody."""
