"""How a tuning measures on a GPU: a few launches of each candidate, then finals in turn."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from .bench import Call, Timing
from .finals import Finals
from .sampler import LAUNCHES_IN_GRAPH, SHORT_MS, CallFailed, Sampler

log = logging.getLogger("shipconf.gpu_bench")

# From here on a launch's own power sets the clock, so each finalist is measured for as long as
# the clock takes to follow: measured one by one in turn, configs 6 % apart seemed equal.
LONG_MS = 0.3
BLOCK_MS = 100.0
LONG_ROUNDS = 2  # at least, since they take so long
LONG_SPREAD = 0.01  # by which two blocks of one config differ
WARM_UP_MS = 100.0
HOPELESS = 1.5  # a candidate whose first launches take this much longer gets no more of them
FINALISTS = 32
FEW_FINALISTS = 8  # of long launches
TURNS = 8  # launches of each finalist in a round, or half as many
ROUND_MS = 60.0  # about as long as a round of `TURNS` takes at most
CLEARING_MS = 0.06  # of the L2 cache, on an H200
GRAPHS = 4  # placements for which a finalist is captured
LEAST_MS = 0.001  # no launch lasts less, whatever a graph's time less another's says
FINALS_S = 1.0  # for rounds beyond the least number, where the winner stays unclear
LONG_FINALS_S = 3.0

C = TypeVar("C", bound=Hashable)


class GpuBench:
    """Times candidates on the current GPU, whose memory it takes for the time of a tuning.

    `warmup` is for how many ms the GPU is kept busy before the first measurement (100), `rep`
    how many ms of launches of each finalist are measured at least; without it, as many as it
    takes to tell who wins. With `replays`, very short launches may be timed from CUDA graphs.
    """

    rigor = "full"

    def __init__(self, warmup: float | None, rep: float | None, *, replays: bool) -> None:
        self.warmup_ms = WARM_UP_MS if warmup is None else warmup
        self.rep_ms = rep or 0.0
        self.replays = replays
        self._warm = False
        self._opened = 0.0
        self._turns = TURNS
        self._long = False
        self._calls: dict[Any, Sequence[Call]] = {}
        self._empty: Call | None = None  # of those calls that are graphs

    @functools.cached_property
    def sampler(self) -> Sampler:
        return Sampler()

    def first(self, call: Call, best_ms: float) -> Timing:
        """The time of one candidate alone. Raises what the launch raises, and the device."""
        call()  # which loads it
        try:
            if not self._warm:
                self.sampler.warm_up(call, self.warmup_ms)
                self._warm = True
            (times,) = self.sampler.sample([call], 3)
            if min(times) <= HOPELESS * best_ms:
                times += self.sampler.sample([call], 7)[0]
        except CallFailed as failure:
            raise failure.__cause__ or failure from None
        return Timing.of_samples(times)

    @staticmethod
    def finalists(best_ms: float) -> int:
        """How many may be finalists: the longer a launch, the fewer."""
        return FEW_FINALISTS if best_ms >= LONG_MS else FINALISTS

    @staticmethod
    def finals(finalists: Sequence[C], best_ms: float, kind: type[Finals[C]] = Finals) -> Finals[C]:
        """Finals of a kind for these, in order of preference."""
        if best_ms >= LONG_MS:
            return kind(finalists, least_rounds=LONG_ROUNDS, least_spread=LONG_SPREAD)
        return kind(finalists)

    def open_finals(self, calls: Mapping[Any, Sequence[Call]], best_ms: float) -> None:
        """Begin, with calls of each finalist at one placement after another: each round takes
        the next. The time for the finals runs from now."""
        self._opened = time.monotonic()
        self._calls = dict(calls)
        self._long = best_ms >= LONG_MS
        turn_ms = len(calls) * (best_ms + CLEARING_MS)
        if self._long:
            self._turns = 2 + int(BLOCK_MS / best_ms)
        elif self.replays and best_ms < SHORT_MS and self._capture(calls):
            self._turns = max(1, min(TURNS, int(ROUND_MS / (LAUNCHES_IN_GRAPH * turn_ms))))
        else:
            self._turns = TURNS if TURNS * turn_ms <= ROUND_MS else TURNS // 2

    def _capture(self, calls: Mapping[Any, Sequence[Call]]) -> bool:
        """Put graphs in the place of the calls; False, and the calls stay, where that fails."""
        try:
            graphs = {
                name: [self.sampler.graph_of(call.launch) for call in several[:GRAPHS]]
                for name, several in calls.items()
            }
            self._empty = self.sampler.graph_of(None)
        except Exception as error:
            log.debug("not timed from graphs: %r", error)
            return False
        self._calls = dict(graphs)
        return True

    def round(self, finalists: Sequence[Any], number: int) -> dict[Any, list[float]]:
        """The times in ms of these in a round. Raises `CallFailed` and what the device does."""
        several = [self._calls[finalist] for finalist in finalists]
        calls = [placed[number % len(placed)] for placed in several]
        if self._empty is not None:
            times = self.sampler.replay(calls, self._empty, self._turns)
        elif self._long:
            times = self._blocks(calls)
        else:
            times = self.sampler.sample(calls, self._turns)
        return dict(zip(finalists, times))

    def _blocks(self, calls: Sequence[Call]) -> list[list[float]]:
        """One call after another, without the first quarter of each block."""
        times = []
        for index, call in enumerate(calls):
            try:
                (block,) = self.sampler.sample([call], self._turns)
            except CallFailed as failure:
                raise CallFailed(index) from failure.__cause__
            times.append(block[len(block) // 4 :])
        return times

    def close(self) -> None:
        """Let go of the calls, and of the tensors in them."""
        self._calls, self._empty = {}, None

    def enough(self, finals: Finals[Any]) -> bool:
        """Whether the finals may end: decided, or out of time; and as long as `rep` asks."""
        if finals.rounds < finals.least_rounds or any(
            self._measured_ms(finals.times[finalist]) < self.rep_ms for finalist in finals.live
        ):
            return False
        limit_s = LONG_FINALS_S if self._long else FINALS_S
        return finals.decided or time.monotonic() - self._opened > limit_s

    def _measured_ms(self, times: Sequence[float]) -> float:
        """How long the launches took that these are the times of."""
        launches = LAUNCHES_IN_GRAPH if self._empty is not None else 1
        return launches * max(sum(times), LEAST_MS * len(times))
