"""A GPU of two clocks: the host's, and that of a queue which works off what the host puts in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

CLEARING_MS = 0.06
HOST_MS = 0.01  # what a clearing or a launch takes of the host's time


class FakeGpu:
    """Stands in for Triton's driver, torch's interface to the device, and its CUDA graphs.

    `done` has what was queued, in order; `host_ms` and `queue_ms` are the clocks.
    """

    def __init__(self) -> None:
        self.host_ms = 0.0
        self.queue_ms = 0.0
        self.done: list[Any] = []
        self.captured: list[tuple[Any, float]] | None = None

    def put(self, name: Any, ms: float, host_ms: float = HOST_MS) -> None:
        """Queue work that lasts so long, after the host's own part of it."""
        if self.captured is not None:
            self.captured.append((name, ms))
            return
        self.host_ms += host_ms
        self.queue_ms = max(self.queue_ms, self.host_ms) + ms
        self.done.append(name)

    def launch(self, name: Any, ms: float, host_ms: float = HOST_MS) -> Callable[[], None]:
        return lambda: self.put(name, ms, host_ms)

    # --- what the driver has ------------------------------------------------------------------

    def get_device_interface(self) -> Any:
        return SimpleNamespace(Event=self.event, synchronize=self.synchronize)

    def get_empty_cache_for_benchmark(self) -> str:
        return "the cache"

    def clear_cache(self, cache: str) -> None:
        assert cache == "the cache"
        self.put("clear", CLEARING_MS)

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        return _Event(self)

    def synchronize(self) -> None:
        self.host_ms = max(self.host_ms, self.queue_ms)
        self.done.append("synchronize")

    # --- CUDA graphs --------------------------------------------------------------------------

    def graph(self) -> Any:
        return _Graph(self)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield


class _Event:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.at_ms = 0.0

    def record(self) -> None:
        self.at_ms = max(self.gpu.queue_ms, self.gpu.host_ms)
        self.gpu.done.append("record")

    def query(self) -> bool:
        return self.at_ms <= self.gpu.host_ms

    def elapsed_time(self, end: _Event) -> float:
        return end.at_ms - self.at_ms


class _Graph:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.work: list[tuple[Any, float]] = []

    def capture_begin(self, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local" and self.gpu.captured is None
        self.gpu.captured = self.work

    def capture_end(self) -> None:
        self.gpu.captured = None

    def replay(self) -> None:
        self.gpu.put([name for name, _ in self.work], sum(ms for _, ms in self.work))


def installed(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU in the place of Triton's and torch's, for the time of a test."""
    made = FakeGpu()
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=made))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", made.graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", made.stream)
    return made
