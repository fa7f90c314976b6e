"""Times of single launches on a GPU.

Each launch is timed by a pair of events, with the L2 cache cleared before it, as Triton's
`do_bench` does. Two things differ. The hooks around a launch stay outside its events. And the
GPU is held back, by clearing the cache a few times more, until the launches are queued: else a
GPU that waits for the host has the host's time between its events. A batch in which it waited
all the same is taken again with the GPU held back for longer.

A pair of events adds some 2 µs of the GPU's own to a launch: much for a kernel of 3 µs. Launches
of less than 10 µs are therefore timed from CUDA graphs: one of clearings and launches, less one
of as many clearings. Only where no hook runs around a launch: it would run within the graph.

A launch's place in the queue has its own time, too, since the GPU fetches what is queued piece by
piece: on an H200 every second launch, or every fourth, took 0.75 µs more (5 % of a GEMV), and the
last five 0.5 µs less. Launches that are compared must share the places out among them. So a turn
of several calls has an odd number of launches, which brings each call to every place of two, four
or eight in as many turns, and clearings come after the last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from .bench import Call

log = logging.getLogger("shipconf.sampler")

SHORT_MS = 0.010  # launches below this are timed from graphs
FIRST_CLEARS = 4  # of some 60 µs each on an H200
MOST_CLEARS = 512
CLEARS_AFTER = 16
LAUNCHES_IN_GRAPH = 16


class CallFailed(Exception):
    """A launch or a hook around it raised; `index` says whose, its cause is the error."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Sampler:
    """Times launches on Triton's current device."""

    def __init__(self) -> None:
        from triton.runtime import driver

        self._gpu = driver.active.get_device_interface()
        self._cache = driver.active.get_empty_cache_for_benchmark()
        self._clear: Callable[[], Any] = lambda: driver.active.clear_cache(self._cache)
        self._events: list[tuple[Any, Any]] = []
        self._clears = FIRST_CLEARS

    def warm_up(self, call: Call, ms: float) -> None:
        """Launch for this long: a GPU that was idle has its clock to bring up."""
        (times,) = self.sample([call], 1)
        done = times[0]
        while done < ms:
            (times,) = self.sample([call], max(1, min(50, int((ms - done) / (times[0] + 0.05)))))
            done += sum(times) + 0.05 * len(times)  # and the clearing between them

    def sample(self, calls: Sequence[Call], turns: int) -> list[list[float]]:
        """The times in ms of `turns` launches of each call, in turn.

        Those of several calls are fit to be compared where `turns` is 2, 4 or 8. Raises
        `CallFailed` for what a call raises, and what the device does when it is waited for.
        """
        while True:
            try:
                late = self._queue(calls, turns)
            finally:
                self._gpu.synchronize()
            if not late:
                break
            if self._clears >= MOST_CLEARS:
                log.debug("the GPU waits for the host: %d launches are timed with it", late)
                break
            self._clears *= 2
        each = _launches(calls)
        times = [start.elapsed_time(end) for start, end in self._events[: turns * each]]
        return [times[index::each] for index in range(len(calls))]

    def _queue(self, calls: Sequence[Call], turns: int) -> int:
        """Queue the launches, and count those that the GPU reached before they were there."""
        turn = list(enumerate(calls))
        if len(turn) < _launches(turn):
            turn.append(turn[-1])
        self._grow(turns * len(turn))
        for _ in range(self._clears):
            self._clear()
        late = 0
        events = iter(self._events)
        for _ in range(turns):
            for index, call in turn:
                start, end = next(events)
                try:
                    with call.around():
                        self._clear()
                        start.record()
                        call.launch()
                        end.record()
                        late += start.query()
                except Exception as error:
                    raise CallFailed(index) from error
        for _ in range(CLEARS_AFTER if len(calls) > 1 else 0):
            self._clear()
        return late

    def _grow(self, count: int) -> None:
        while len(self._events) < count:
            pair = [self._gpu.Event(enable_timing=True) for _ in range(2)]
            self._events.append((pair[0], pair[1]))

    def graph_of(self, launch: Callable[[], Any] | None) -> Call:
        """A call that replays clearings, each with a launch after it, from a graph.

        Raises what the capture raises; the device goes on working.
        """
        try:
            return Call(self._capture(launch or (lambda: None)).replay)
        except Exception:
            self._gpu.synchronize()
            raise

    def replay(self, graphs: Sequence[Call], empty: Call, turns: int) -> list[list[float]]:
        """The times in ms of launches that graphs replay, in turn; `empty` only clears."""
        try:
            *with_launches, clearings = self.sample([*graphs, empty], turns)
        except CallFailed as failure:
            if failure.index == len(graphs):  # not one of them
                raise failure.__cause__ or failure from None
            raise
        return [
            [max(0.0, time - clearing) / LAUNCHES_IN_GRAPH
             for time, clearing in zip(times, clearings)]
            for times in with_launches
        ]  # fmt: skip

    def _capture(self, launch: Callable[[], Any]) -> Any:
        import torch

        cuda: Any = torch.cuda
        graph = cuda.CUDAGraph()
        with cuda.stream(cuda.Stream()):
            # Not `torch.cuda.graph`, which collects garbage and empties torch's cache first.
            # Other threads may go on using the GPU: only this one's mistakes spoil the capture.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for _ in range(LAUNCHES_IN_GRAPH):
                    self._clear()
                    launch()
            finally:
                graph.capture_end()
        return graph


def _launches(calls: Sequence[Any]) -> int:
    """How many launches a turn of these has: an odd number."""
    return len(calls) | 1
