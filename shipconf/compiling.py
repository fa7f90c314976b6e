"""Compile many candidates at once: Triton compiles without the GIL, so threads scale."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from .records import Device

C = TypeVar("C")


def workers() -> int:
    """As many compilers as this process may use processors."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def compile_all(
    candidates: Sequence[C], warm_up: Callable[[C], Any], kernel: Any, device: Device, *,
    in_turn: bool = False,
) -> dict[C, str | Exception]:  # fmt: skip
    """Compile every candidate with `warm_up`; return those that cannot run, with why.

    Those are candidates whose compilation fails, and those that need more shared memory than a
    block of the device can have. `kernel` is the JIT function that they are candidates of. With
    `in_turn`, `warm_up` runs for one at a time, on this thread: it changes arguments they share.
    """
    try:
        from triton.runtime._async_compile import AsyncCompileMode
    except ImportError:  # before Triton 3.6
        results = _in_threads(candidates, warm_up, in_turn=in_turn)
    else:
        results = _in_async_mode(candidates, warm_up, AsyncCompileMode)
        _forget_failed(kernel)
    failed: dict[C, str | Exception] = {}
    for candidate, result in results.items():
        if isinstance(result, Exception):
            failed[candidate] = result
            continue
        shared = getattr(getattr(result, "metadata", None), "shared", 0)
        if device.shared_memory and shared > device.shared_memory:
            limit = device.shared_memory
            failed[candidate] = f"needs {shared} bytes of shared memory, the device has {limit}"
    return failed


def _in_async_mode(candidates: Sequence[C], warm_up: Callable[[C], Any], mode: Any) -> dict[C, Any]:
    """Arguments are bound and hooks run on the calling thread; only compiling is parallel."""
    results: dict[C, Any] = {}
    futures: dict[C, Future[Any]] = {}
    with ThreadPoolExecutor(workers()) as pool, mode(pool, ignore_errors=True):
        for candidate in candidates:
            results[candidate] = _result(warm_up, candidate)
            # Kept here, since a `FutureKernel` drops its future, and with it the error.
            if isinstance(future := getattr(results[candidate], "future", None), Future):
                futures[candidate] = future
    for candidate, future in futures.items():
        results[candidate] = future.exception() or future.result()
    return results


def _forget_failed(kernel: Any) -> None:
    """Drop what failed compilations leave in the kernel's cache in Triton 3.6 and 3.7.

    A later launch would take the leftover for a compiled kernel.
    """
    for kernels, *_ in getattr(kernel, "device_caches", {}).values():
        for key, compiled in list(kernels.items()):
            future = getattr(compiled, "future", None)
            if isinstance(future, Future) and future.done() and future.exception() is not None:
                del kernels[key]


def _in_threads(
    candidates: Sequence[C], warm_up: Callable[[C], Any], *, in_turn: bool
) -> dict[C, Any]:
    import torch

    if in_turn:
        return {candidate: _result(warm_up, candidate) for candidate in candidates}

    cuda: Any = torch.cuda
    device = cuda.current_device() if cuda.is_initialized() else None

    def start() -> None:
        if device is not None:
            cuda.set_device(device)  # a new thread starts on device 0

    with ThreadPoolExecutor(workers(), initializer=start) as pool:
        futures = {candidate: pool.submit(warm_up, candidate) for candidate in candidates}
    return {c: future.exception() or future.result() for c, future in futures.items()}


def _result(warm_up: Callable[[C], Any], candidate: C) -> Any:
    try:
        return warm_up(candidate)
    except Exception as error:
        return error
