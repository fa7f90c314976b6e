"""Compile many candidates at once, in processes where that may be, else on threads.

Triton's compiler holds the GIL for a part of its work: on 16 cores, processes took 1.5 to 2.2 times
less than threads. A child process leaves what it compiled in Triton's cache on disk, from which
this one takes it.
"""

from __future__ import annotations

import contextvars
import hashlib
import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from . import children
from .records import Device

log = logging.getLogger("shipconf.compiling")

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
        results = _in_async_mode(candidates, warm_up, AsyncCompileMode, kernel)
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
    once (`SystemError: AST constructor recursion depth mismatch`), or whoever had begun to compile
    it gave it up."""
    while isinstance(error, Exception) and not isinstance(error, (SystemError, CancelledError)):
        error = error.__cause__
    return isinstance(error, (SystemError, CancelledError))


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
    candidates: Sequence[C], warm_up: Callable[[C], Any], mode: Any, kernel: Any
) -> Generator[tuple[C, Any], None, None]:
    """Arguments are bound and hooks run on the calling thread; only compiling is parallel."""
    later = _Later()
    futures: dict[Future[Any], tuple[Any, list[C]]] = {}  # equal candidates share one
    ready: list[tuple[C, Any]] = []

    def submit() -> None:
        mode(later, ignore_errors=True).__enter__()
        for candidate in candidates:
            result = _result(warm_up, candidate)
            if isinstance(future := getattr(result, "future", None), Future):
                futures.setdefault(future, (result, []))[1].append(candidate)
            else:
                ready.append((candidate, result))

    try:
        # In a context of its own, where the mode ends with it: what the caller launches while
        # others compile is none of the mode's business, whose own exit would wait for all.
        contextvars.copy_context().run(submit)
        yield from ready
        # Some may be another compilation's, and of some the launch failed once they were submitted.
        own = {future: job for future, job in later.jobs.items() if future in futures}
        others = [future for future in futures if future not in own]
        with closing(_run_all(own, kernel)) as done:
            for future in chain(done, as_completed(others)):
                pending, equal = futures[future]
                # Asking the pending kernel puts it into the kernel's cache; hooks run then.
                result = _result(lambda kernel: kernel.result(), pending)
                for candidate in equal:
                    yield candidate, result
    finally:
        for future in later.jobs:
            future.cancel()  # of those that have not begun: a launch would wait for ever


class _Later(Executor):
    """Keeps the jobs that it is given, with the futures of what they will return."""

    def __init__(self) -> None:
        self.jobs: dict[Future[Any], Callable[[], Any]] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs[future] = partial(fn, *args, **kwargs)
        return future


def _run_all(
    jobs: Mapping[Future[Any], Callable[[], Any]], kernel: Any
) -> Generator[Future[Any], None, None]:
    """Run the jobs; yield the future of each when it is done."""
    apart = _for_children(jobs, kernel)
    with closing(children.run([jobs[future] for future in apart], workers())) as all_ended:
        for ended in all_ended:
            future = apart[ended.number]
            if ended.crash:
                future.set_exception(RuntimeError(f"the compiler died of {ended.crash}"))
            else:  # the job finds what the child left in Triton's cache
                _resolve(future, jobs[future])
            yield future
    rest = [future for future in jobs if not future.done()]
    log.debug("of %d compilations, %d were left to threads", len(jobs), len(rest))
    with _pool() as pool:
        for future in rest:
            pool.submit(_resolve, future, jobs[future])
        yield from as_completed(rest)


def _resolve(future: Future[Any], job: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)  # who waits for it would wait for ever
            if not isinstance(error, Exception):
                raise


def _for_children(jobs: Mapping[Future[Any], Any], kernel: Any) -> list[Future[Any]]:
    """The futures of what children may compile: what Triton's cache on disk does not have.

    Nothing where Triton keeps it elsewhere or compiles whatever is there, or where the program
    listens to the compiler, which it could not in another process.
    """
    from triton import knobs
    from triton.runtime.cache import FileCacheManager, get_cache_manager

    hook = getattr(knobs.runtime, "add_stages_inspection_hook", None)  # since Triton 3.5
    listens = knobs.compilation.listener or hook
    on_disk = knobs.cache.manager_class in (None, FileCacheManager)
    if listens or knobs.compilation.always_compile or not on_disk or workers() == 1:
        return []

    def is_missing(key: str) -> bool:
        try:
            manager = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
            return not manager.get_group(f"{kernel.__name__[:150]}.json")
        except Exception:  # a broken cache: the compiler itself is to say so
            return False

    # Triton's mode gives each future the key that the compiler looks up.
    keys = {future: key for future in jobs if (key := getattr(future, "_key", None))}
    found = [future for future, key in keys.items() if is_missing(key)]
    return found if len(found) > 1 and children.usable() else []


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
