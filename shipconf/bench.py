"""How a candidate is timed: by the user's function, by the wall clock, or from a CUDA graph.

`sampler.Sampler` is how a GPU is timed where the author says nothing else.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
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
        if not all(0 <= value < math.inf for value in (median, p20, p80)):
            raise ValueError(f"do_bench returned {times_ms!r}, which is no time")
        return cls(median, p20, p80)

    @classmethod
    def of_samples(cls, times_ms: Sequence[float]) -> Timing:
        """From single launches."""
        if len(times_ms) == 1:
            return cls(times_ms[0], times_ms[0], times_ms[0])
        fifths = statistics.quantiles(times_ms, n=5, method="inclusive")
        return cls(statistics.median(times_ms), fifths[0], fifths[3])

    @property
    def noise(self) -> float:
        """Half the spread between the percentiles, relative to the median."""
        return (self.p80 - self.p20) / 2 / self.median if self.median else 0.0

    def document(self) -> dict[str, float]:
        """Rounded to nanoseconds, as records store it."""
        fields = {"median": self.median, "p20": self.p20, "p80": self.p80}
        return {name: round(value, 6) for name, value in fields.items()}


@dataclass(frozen=True, eq=False)
class Call:
    """One call to measure: the launch, what the hooks do before and after it, and the named
    arguments that they are given."""

    launch: Callable[[], Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    named: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> None:
        with self.around():
            self.launch()


@dataclass(frozen=True)
class Bench:
    """A way to time one call, alone and once: there are no finals.

    `rigor` is what a record says of it.
    """

    measure: Callable[[Call], Timing]
    rigor: str = "full"


def of_user(do_bench: Callable[..., Any]) -> Bench:
    """The user's `do_bench(fn, quantiles=…)`, used wherever something is measured."""
    return Bench(lambda call: Timing.of(do_bench(call, quantiles=QUANTILES)))


def of_graph(rep: int | None) -> Bench:
    """Triton's `do_bench_cudagraph`: `rep` ms (100) of launches replayed from a graph.

    It leaves the L2 cache warm; this is what `use_cuda_graph=True` asks for.
    """
    from triton.testing import do_bench_cudagraph

    return Bench(
        lambda call: Timing.of(do_bench_cudagraph(call, rep=rep or 100, quantiles=QUANTILES))
    )


def of_interpreter() -> Bench:
    """Wall clock: the interpreter knows no device time."""
    return Bench(_wall_clock, "quick")


def _wall_clock(call: Call, calls: int = 3, budget_s: float = 1.0) -> Timing:
    times_ms: list[float] = []
    with interpreter_lock:
        while len(times_ms) < calls and sum(times_ms) < 1e3 * budget_s:
            start = time.perf_counter()
            call()
            times_ms.append(1e3 * (time.perf_counter() - start))
    return Timing(statistics.median(times_ms), min(times_ms), max(times_ms))
