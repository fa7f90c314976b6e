"""One timing protocol, on a GPU and under the interpreter."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .device import interpreter_lock

QUANTILES = (0.5, 0.2, 0.8)


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, and the 20th and 80th percentile."""

    median: float
    p20: float
    p80: float

    @classmethod
    def of(cls, times_ms: Any) -> Timing:
        """From what a `do_bench` returns: three quantiles, or one number. Raises `ValueError`."""
        values = list(times_ms) if isinstance(times_ms, Iterable) else [times_ms] * 3
        if len(values) != 3:
            raise ValueError(f"do_bench returned {times_ms!r}, not one time for each quantile")
        median, p20, p80 = (float(value) for value in values)
        if not 0 <= median < float("inf"):
            raise ValueError(f"do_bench returned {times_ms!r}, which is no time")
        return cls(median, p20, p80)

    @property
    def noise(self) -> float:
        """Half the spread between the percentiles, relative to the median."""
        return (self.p80 - self.p20) / 2 / self.median if self.median else 0.0

    def document(self) -> dict[str, float]:
        """Rounded to nanoseconds, as records store it."""
        fields = {"median": self.median, "p20": self.p20, "p80": self.p80}
        return {name: round(value, 6) for name, value in fields.items()}


@dataclass(frozen=True)
class Bench:
    """How to time: `short` for a first pass over all candidates, `full` for the finalists.

    They are the same function where one pass is all there is. `rigor` is what a record says of
    a full measurement; `ignores_options` whether launch options cannot change a time; `warm_up`
    runs a kernel until the device's clock is up.
    """

    short: Callable[[Callable[[], Any]], Timing]
    full: Callable[[Callable[[], Any]], Timing]
    rigor: str
    ignores_options: bool = False
    warm_up: Callable[[Callable[[], Any]], Any] | None = None

    @property
    def single_pass(self) -> bool:
        return self.short is self.full


def of_user(do_bench: Callable[..., Any]) -> Bench:
    """The user's `do_bench(fn, quantiles=…)`, used wherever something is measured."""

    def measure(fn: Callable[[], Any]) -> Timing:
        return Timing.of(do_bench(fn, quantiles=QUANTILES))

    return Bench(measure, measure, "full")


def of_interpreter() -> Bench:
    """Wall clock: the interpreter knows no device time, and ignores launch options."""
    return Bench(_wall_clock, _wall_clock, "quick", ignores_options=True)


def _wall_clock(fn: Callable[[], Any], calls: int = 3, budget_s: float = 1.0) -> Timing:
    times: list[float] = []
    with interpreter_lock:
        while len(times) < calls and sum(times) < budget_s:
            start = time.perf_counter()
            fn()
            times.append(time.perf_counter() - start)
    times_ms = [1e3 * seconds for seconds in times]
    return Timing(statistics.median(times_ms), min(times_ms), max(times_ms))


def of_gpu(warmup: int | None, rep: int | None, use_cuda_graph: bool) -> Bench:
    """Triton's `do_bench`, which clears L2 before each launch; `warmup` and `rep` in ms.

    With `use_cuda_graph`, `do_bench_cudagraph`, which replays `rep` ms of launches from a graph and
    leaves L2 as it is.
    """
    from triton import testing

    if use_cuda_graph:

        def replay(fn: Callable[[], Any]) -> Timing:
            return Timing.of(testing.do_bench_cudagraph(fn, rep=rep or 100, quantiles=QUANTILES))

        return Bench(replay, replay, "full")

    def measure(fn: Callable[[], Any], warmup_ms: int, rep_ms: int) -> Timing:
        return Timing.of(testing.do_bench(fn, warmup=warmup_ms, rep=rep_ms, quantiles=QUANTILES))

    full_warmup, full_rep = warmup or 25, rep or 100
    return Bench(
        short=lambda fn: measure(fn, min(5, full_warmup), min(20, full_rep)),
        full=lambda fn: measure(fn, full_warmup, full_rep),
        rigor="full",
        warm_up=lambda fn: measure(fn, 300, 1),
    )
