"""Compile many candidates at once: Triton compiles without the GIL, so threads scale."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
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
) -> Iterator[tuple[C, str | Exception | None]]:  # fmt: skip
    """Compile every candidate with `warm_up`; yield each when it is done, and why it cannot run.

    Those cannot whose compilation fails, or that need more shared memory than a block of the
    device can have. `kernel` is the JIT function that they are candidates of. With `in_turn`,
    `warm_up` runs for one at a time, on this thread: it changes arguments they share.
    """
    try:
        from triton.runtime._async_compile import AsyncCompileMode
    except ImportError:  # before Triton 3.6
        results = _in_threads(candidates, warm_up, in_turn=in_turn)
    else:
        results = _in_async_mode(candidates, warm_up, AsyncCompileMode)
    again = []
    try:
        for candidate, result in results:
            if _failed_by_chance(result):
                again.append(candidate)
            else:
                yield candidate, _reason(result, device)
    finally:
        results.close()
        _forget_failed(kernel)
    for candidate in again:
        yield candidate, _reason(_result(warm_up, candidate), device)


def _failed_by_chance(error: Any) -> bool:
    """Whether Python's parser failed, which before 3.11.8 and 3.12.2 it may in several threads at
    once (`SystemError: AST constructor recursion depth mismatch`)."""
    while isinstance(error, Exception) and not isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, SystemError)


def _reason(result: Any, device: Device) -> str | Exception | None:
    return result if isinstance(result, Exception) else _misfit(result, device)


def _misfit(compiled: Any, device: Device) -> str | None:
    shared, limit = getattr(getattr(compiled, "metadata", None), "shared", 0), device.shared_memory
    if limit and shared > limit:
        return f"needs {shared} bytes of shared memory, the device has {limit}"
    return None


@contextmanager
def _pool(**options: Any) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(workers(), **options)
    try:
        yield pool
    finally:  # a tuning that ends early compiles no further
        pool.shutdown(wait=True, cancel_futures=True)


def _in_async_mode(
    candidates: Sequence[C], warm_up: Callable[[C], Any], mode: Any
) -> Generator[tuple[C, Any], None, None]:
    """Arguments are bound and hooks run on the calling thread; only compiling is parallel."""
    futures: dict[Future[Any], tuple[Any, list[C]]] = {}  # equal candidates share one
    ready: list[tuple[C, Any]] = []

    def submit() -> None:
        mode(pool, ignore_errors=True).__enter__()
        for candidate in candidates:
            result = _result(warm_up, candidate)
            if isinstance(future := getattr(result, "future", None), Future):
                futures.setdefault(future, (result, []))[1].append(candidate)
            else:
                ready.append((candidate, result))

    with _pool() as pool:
        # In a context of its own, where the mode ends with it: what the caller launches while
        # others compile is none of the mode's business, whose own exit would wait for all.
        contextvars.copy_context().run(submit)
        yield from ready
        for future in as_completed(futures):
            pending, equal = futures[future]
            # Asking the pending kernel is what puts it into the kernel's cache; hooks run then.
            result = future.exception() or _result(lambda kernel: kernel.result(), pending)
            for candidate in equal:
                yield candidate, result


def _forget_failed(kernel: Any) -> None:
    """Drop what failed compilations leave in the kernel's cache in Triton 3.6 and 3.7.

    A later launch would take the leftover for a compiled kernel.
    """
    for kernels, *_ in getattr(kernel, "device_caches", {}).values():
        for key, compiled in list(kernels.items()):
            future = getattr(compiled, "future", None)
            if isinstance(future, Future) and (
                future.cancelled() or (future.done() and future.exception() is not None)
            ):
                del kernels[key]


def _in_threads(
    candidates: Sequence[C], warm_up: Callable[[C], Any], *, in_turn: bool
) -> Generator[tuple[C, Any], None, None]:
    import torch

    if in_turn:
        for candidate in candidates:
            yield candidate, _result(warm_up, candidate)
        return

    cuda: Any = torch.cuda
    device = cuda.current_device() if cuda.is_initialized() else None

    def start() -> None:
        if device is not None:
            cuda.set_device(device)  # a new thread starts on device 0

    with _pool(initializer=start) as pool:
        futures = {pool.submit(warm_up, candidate): candidate for candidate in candidates}
        for future in as_completed(futures):
            yield futures[future], future.exception() or future.result()


def _result(warm_up: Callable[[C], Any], candidate: C) -> Any:
    try:
        return warm_up(candidate)
    except Exception as error:
        return error
