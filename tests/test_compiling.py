"""Many candidates compiled at once: in Triton's asynchronous mode, on threads of our own, and by
Triton's compiler itself in child processes."""

from __future__ import annotations

import contextvars
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from traced import Launching, h200
from triton import knobs
from triton.runtime.cache import FileCacheManager

from shipconf import Device, children, compiling
from shipconf.compiling import compile_all

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
ACTIVE: contextvars.ContextVar[Any] = contextvars.ContextVar("active", default=None)


class Mode:
    """What Triton 3.6 and later have: binding on the calling thread, compiling on the pool's."""

    def __init__(self, pool: Executor, ignore_errors: bool) -> None:
        self.pool = pool
        self.pending: dict[Any, Any] = {}

    def __enter__(self) -> Mode:
        ACTIVE.set(self)
        return self

    def submit(self, key: Any, compile_it: Callable[[], Any]) -> Any:
        if key not in self.pending:
            self.pending[key] = Pending(self.pool.submit(compile_it))
        return self.pending[key]


class Pending:
    """A kernel that will be there; asked, it puts itself into the kernel's cache."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future

    def result(self) -> Any:
        compiled = self.future.result()
        if isinstance(compiled.finish, Exception):
            raise compiled.finish
        compiled.asked = True
        return compiled


def compiled(shared: int = 0, finish: Exception | None = None) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(shared=shared), asked=False, finish=finish)


class Kernel:
    """Compiles what it is told to; `threads` has where each candidate was compiled."""

    def __init__(self) -> None:
        self.device_caches: dict[int, Any] = {}
        self.threads: dict[Any, int] = {}
        self.bound: list[Any] = []
        self.does: Callable[[Any], Any] = lambda candidate: compiled()
        self.key: Callable[[Any], Any] = lambda candidate: candidate

    def warm_up(self, candidate: Any) -> Any:
        self.bound.append((candidate, threading.get_ident()))
        if candidate == "unbound":
            raise TypeError("cannot bind")

        def compile_it() -> Any:
            self.threads[candidate] = threading.get_ident()
            return self.does(candidate)

        mode = ACTIVE.get()
        return compile_it() if mode is None else mode.submit(self.key(candidate), compile_it)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


MODULE = "triton.runtime._async_compile"


@pytest.fixture
def mode(monkeypatch):
    module = types.ModuleType(MODULE)
    module.AsyncCompileMode = Mode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)


@pytest.fixture
def old(monkeypatch):
    """Triton before 3.6, which has no such module."""
    monkeypatch.setitem(sys.modules, MODULE, None)


@pytest.fixture(params=["mode", "old"])
def either(request):
    """Whichever Triton it is."""
    request.getfixturevalue(request.param)
    return request.param


def all_of(kernel: Kernel, *candidates: Any, **options: Any) -> dict[Any, Any]:
    return dict(compile_all(candidates, kernel.warm_up, kernel, H200, **options))


# --- whichever Triton it is -------------------------------------------------------------------


@pytest.mark.usefixtures("either")
def test_every_candidate_comes_once_when_it_is_compiled(kernel):
    assert all_of(kernel, *range(20)) == dict.fromkeys(range(20))
    assert set(kernel.threads) == set(range(20))
    assert all_of(kernel) == {}


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_python_s_parser_failed_at_in_threads_is_compiled_again_alone(kernel, wrapped):
    """As Python 3.11.7 may; Triton wraps the error where a kernel calls another."""
    failed = iter([True])

    def compile_it(candidate: int) -> Any:
        if candidate == 3 and next(failed, False):
            error = SystemError("AST constructor recursion depth mismatch")
            if wrapped:
                raise ValueError("at 3:4") from error
            raise error
        return compiled()

    kernel.does = compile_it
    assert all_of(kernel, *range(5)) == dict.fromkeys(range(5))
    assert kernel.threads[3] == threading.get_ident()


@pytest.mark.usefixtures("either")
def test_candidates_come_as_they_are_done_not_in_order(kernel, monkeypatch):
    monkeypatch.setattr(compiling, "workers", lambda: 2)
    go_on = threading.Event()

    def compile_it(candidate: str) -> Any:
        if candidate == "slow":
            assert go_on.wait(60)
        return compiled()

    kernel.does = compile_it
    found = compile_all(["slow", "a", "b"], kernel.warm_up, kernel, H200)
    assert sorted([next(found), next(found)]) == [("a", None), ("b", None)]
    go_on.set()
    assert list(found) == [("slow", None)]


@pytest.mark.usefixtures("either")
def test_a_compilation_that_fails_is_told_of_and_the_others_go_on(kernel):
    def compile_it(candidate: str) -> Any:
        if candidate == "bad":
            raise ValueError("does not compile")
        return compiled()

    kernel.does = compile_it
    found = all_of(kernel, "a", "bad", "unbound", "b")
    assert str(found.pop("bad")) == "does not compile"
    assert isinstance(found["unbound"], TypeError) and str(found.pop("unbound")) == "cannot bind"
    assert found == {"a": None, "b": None}


@pytest.mark.usefixtures("either")
def test_what_needs_more_shared_memory_than_the_device_has_cannot_run(kernel):
    """Told by its metadata, without a launch."""
    kernel.does = lambda shared: compiled(shared)
    found = all_of(kernel, 0, H200.shared_memory, H200.shared_memory + 1)
    assert found.pop(232449) == "needs 232449 bytes of shared memory, the device has 232448"
    assert set(found.values()) == {None}
    unknown = Device("cuda", "NVIDIA H200", "sm_90", 132, 0)
    assert list(compile_all([10**9], kernel.warm_up, kernel, unknown)) == [(10**9, None)]


@pytest.mark.usefixtures("either")
def test_a_tuning_that_ends_early_compiles_no_further(kernel, monkeypatch):
    """What runs is waited for; what has not begun never does."""
    monkeypatch.setattr(compiling, "workers", lambda: 1)
    begun, closing = threading.Event(), threading.Event()

    def compile_it(candidate: int) -> Any:
        if candidate == 1:
            begun.set()
            assert closing.wait(60)
        return compiled()

    def shutdown(pool: Any, **options: Any) -> None:
        closing.set()
        plain_shutdown(pool, **options)

    plain_shutdown = ThreadPoolExecutor.shutdown
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shutdown)
    kernel.does = compile_it
    found = compile_all(range(50), kernel.warm_up, kernel, H200)
    assert next(found) == (0, None) and begun.wait(60)
    found.close()  # type: ignore[attr-defined]
    assert set(kernel.threads) <= {0, 1, 2}


def threads_of(kernel: Kernel) -> set[int]:
    return set(kernel.threads.values())


@pytest.mark.usefixtures("either")
def test_as_many_compile_at_once_as_there_are_workers(kernel, monkeypatch):
    monkeypatch.setattr(compiling, "workers", lambda: 4)
    barrier = threading.Barrier(4)

    def compile_it(candidate: int) -> Any:
        barrier.wait(60)  # which breaks unless four are here
        return compiled()

    kernel.does = compile_it
    assert all_of(kernel, *range(4)) == dict.fromkeys(range(4))
    assert len(threads_of(kernel)) == 4 and threading.get_ident() not in threads_of(kernel)


@pytest.mark.usefixtures("either")
def test_with_in_turn_arguments_are_bound_one_by_one_on_this_thread(kernel):
    """A hook changes arguments that all candidates share: a descriptor's block, say."""
    all_of(kernel, 1, 2, 3, in_turn=True)
    assert kernel.bound == [(number, threading.get_ident()) for number in (1, 2, 3)]


def test_there_is_a_worker_for_each_processor_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {1, 5, 7}, raising=False)
    assert compiling.workers() == 3


# --- with Triton's mode -----------------------------------------------------------------------


@pytest.mark.usefixtures("mode")
def test_arguments_are_bound_on_the_calling_thread(kernel):
    all_of(kernel, 1, 2, 3)
    assert {thread for _, thread in kernel.bound} == {threading.get_ident()}


@pytest.mark.usefixtures("mode")
def test_equal_candidates_are_compiled_once_and_each_is_told_of(kernel):
    """Configs that differ in what the compiler does not see."""
    kernel.key = lambda candidate: candidate % 2
    kernel.does = lambda candidate: compiled(shared=10**9 if candidate % 2 else 0)
    found = all_of(kernel, 0, 1, 2, 3)
    assert len(kernel.threads) == 2
    assert (found[0], found[2]) == (None, None)
    assert found[1] == found[3] and found[1].startswith("needs 1000000000 bytes")


@pytest.mark.usefixtures("mode")
def test_a_compiled_kernel_is_put_into_the_kernel_s_cache(kernel):
    """Asking for it does: else the first launch compiles it again."""
    made = [compiled() for _ in range(3)]
    kernel.does = lambda candidate: made[candidate]
    all_of(kernel, 0, 1, 2)
    assert [one.asked for one in made] == [True] * 3


@pytest.mark.usefixtures("mode")
def test_a_hook_of_triton_s_that_fails_after_compiling_is_that_candidate_s_failure(kernel):
    kernel.does = lambda candidate: compiled(finish=OSError("hook") if candidate == 1 else None)
    found = all_of(kernel, 0, 1, 2)
    assert isinstance(found[1], OSError) and (found[0], found[2]) == (None, None)


@pytest.mark.usefixtures("mode")
def test_what_is_launched_while_others_compile_is_none_of_the_mode_s_business(kernel):
    """A launch in it would only be queued."""
    for _ in compile_all(range(3), kernel.warm_up, kernel, H200):
        assert ACTIVE.get() is None
    assert ACTIVE.get() is None


@pytest.mark.usefixtures("mode")
def test_what_failed_or_was_cancelled_leaves_the_kernel_s_cache(kernel):
    """Triton 3.6 and 3.7 leave it there, and a launch takes it for a compiled kernel."""

    def ended(error: Exception | None) -> Any:
        future: Future[Any] = Future()
        if error is None:
            future.set_result(compiled())
        else:
            future.set_exception(error)
        return Pending(future)

    cancelled: Future[Any] = Future()
    cancelled.cancel()
    cache = {
        "done": ended(None), "failed": ended(ValueError()), "cancelled": Pending(cancelled),
        "running": Pending(Future()), "compiled": compiled(),
    }  # fmt: skip
    kernel.device_caches = {0: (cache, "more"), 1: ({"failed": ended(ValueError())},)}
    all_of(kernel, 1)
    assert list(cache) == ["done", "running", "compiled"]
    assert kernel.device_caches[1] == ({},)


@pytest.mark.usefixtures("mode")
def test_a_candidate_that_fails_once_its_compilation_is_submitted_has_failed(kernel):
    """As where a global variable has changed; its compilation never runs."""

    def warm_up(candidate: Any) -> Any:
        pending = kernel.warm_up(candidate)
        if candidate == "late":
            raise RuntimeError("a global has changed")
        return pending

    found = dict(compile_all(["a", "late", "b"], warm_up, kernel, H200))
    assert str(found.pop("late")) == "a global has changed"
    assert found == {"a": None, "b": None} and set(kernel.threads) == {"a", "b"}


@pytest.mark.usefixtures("mode")
def test_what_another_thread_compiles_already_is_waited_for(kernel):
    """And compiled here where that one gives up."""
    futures = {"theirs": Future[Any](), "given up": Future[Any]()}

    def warm_up(candidate: Any) -> Any:
        if candidate in futures and not futures[candidate].done():
            return Pending(futures[candidate])
        return kernel.warm_up(candidate)

    found = compile_all(["theirs", "ours", "given up"], warm_up, kernel, H200)
    assert next(found) == ("ours", None)
    futures["theirs"].set_result(compiled())
    futures["given up"].cancel()
    futures["given up"].set_running_or_notify_cancel()
    assert dict(found) == {"theirs": None, "given up": None}
    assert kernel.threads["given up"] == threading.get_ident()


# --- on threads of our own --------------------------------------------------------------------


@pytest.fixture
def device_of(monkeypatch, old) -> Iterator[dict[int, int]]:
    """Which GPU each thread is on; this one is on 3, a new one on 0."""
    on = {threading.get_ident(): 3}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: on.get(threading.get_ident(), 0))
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda index: on.__setitem__(threading.get_ident(), index)
    )
    yield on


def test_each_thread_compiles_for_the_device_of_this_one(device_of, kernel):
    all_of(kernel, *range(8))
    assert {device_of.get(thread, 0) for thread in threads_of(kernel)} == {3}


@pytest.mark.usefixtures("old")
def test_with_in_turn_one_thread_does_it_all_in_order(kernel):
    found = compile_all([1, 2, 3], kernel.warm_up, kernel, H200, in_turn=True)
    assert next(found) == (1, None)
    assert list(kernel.threads) == [1]  # the next begins when this one is taken
    assert list(found) == [(2, None), (3, None)]
    assert threads_of(kernel) == {threading.get_ident()}


# --- in processes, by Triton's own compiler ---------------------------------------------------

PARENT = os.getpid()
NOTES = "SHIPCONF_TEST_NOTES"  # names the folder
apart = pytest.mark.skipif(
    sys.platform != "linux" or find_spec(MODULE) is None,
    reason="needs Triton's asynchronous mode, which 3.6 brought, and a fork",
)


class Note:
    """Leaves the process that compiles; there, 64 crashes and 128 raises."""

    def __init__(self, block: int) -> None:
        with (Path(os.environ[NOTES]) / str(block)).open("a") as file:
            file.write(f"{os.getpid()} ")
        if block == 64 and os.getpid() != PARENT:
            os.kill(os.getpid(), signal.SIGSEGV)
        if block == 128:
            raise ValueError("not this one")


# Triton before 3.5 has none, and no asynchronous mode either.
@getattr(triton, "constexpr_function", lambda function: function)
def note(block):
    """Runs in the compiler, which takes a class but no function of Python's."""
    Note(block)
    return block


@triton.jit
def noted(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr, note(BLOCK))


@pytest.fixture
def compiler(tmp_path, monkeypatch) -> Iterator[Callable[..., dict[int, Any]]]:
    """Compiles `noted` with each block size for an H200, and tells why it cannot run."""
    (tmp_path / "notes").mkdir()
    monkeypatch.setenv(NOTES, str(tmp_path / "notes"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "workers", lambda: 2)
    monkeypatch.setattr(children, "LARGE", 1 << 60)
    out = torch.zeros(1, dtype=torch.int32)
    jit: Any = triton.JITFunction(noted.fn)

    def compile_them(*blocks: int) -> dict[int, Any]:
        jit.device_caches.clear()  # as a new process has it
        with h200(Launching()):
            found = compile_all(
                blocks, lambda block: jit.warmup(out, BLOCK=block, grid=(1,)), jit, H200
            )
            compiled = dict(found)
            for block in blocks:
                if compiled[block] is None:
                    before = processes(tmp_path)
                    assert jit.warmup(out, BLOCK=block, grid=(1,)).asm["ptx"]
                    assert processes(tmp_path) == before  # it is in the kernel's cache
        return compiled

    yield compile_them
    jit.device_caches.clear()


def processes(tmp_path: Path) -> dict[int, list[int]]:
    """Those that compiled each block."""
    return {
        int(path.name): [int(process) for process in path.read_text().split()]
        for path in (tmp_path / "notes").iterdir()
    }


@apart
def test_processes_compile_and_this_one_takes_it_from_triton_s_cache(compiler, tmp_path):
    assert compiler(1, 2, 4, 8, 16) == dict.fromkeys((1, 2, 4, 8, 16))
    found = processes(tmp_path)
    assert [len(found[block]) for block in (1, 2, 4, 8, 16)] == [1] * 5
    assert PARENT not in {process for (process,) in found.values()}


@apart
def test_what_is_cached_needs_no_process_and_one_alone_none_either(compiler, tmp_path, monkeypatch):
    compiler(1, 2, 4)
    before = processes(tmp_path)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    assert compiler(1, 2, 4) == dict.fromkeys((1, 2, 4))
    assert processes(tmp_path) == before
    assert compiler(1, 2, 4, 8) == dict.fromkeys((1, 2, 4, 8))
    assert processes(tmp_path) == {**before, 8: [PARENT]}


@apart
def test_a_crash_of_the_compiler_costs_only_the_candidate(compiler, tmp_path):
    found = compiler(1, 64, 2, 4)
    assert str(found.pop(64)) == "the compiler died of SIGSEGV"
    assert found == dict.fromkeys((1, 2, 4))
    assert PARENT not in processes(tmp_path)[64]


@apart
def test_what_a_process_fails_to_compile_is_told_as_this_one_fails(compiler, tmp_path):
    found = compiler(1, 128, 2)
    assert "not this one" in str(found.pop(128).__cause__) and found == dict.fromkeys((1, 2))
    assert processes(tmp_path)[128][-1] == PARENT


@apart
@pytest.mark.parametrize(
    "why", ["listener", "stages", "always", "one processor", "another cache", "no fork", "large"]
)
def test_this_process_compiles_where_another_could_not_stand_in(
    compiler, tmp_path, monkeypatch, why
):
    """The program listens to the compiler, say, or Triton is to compile whatever there is."""
    heard = []
    if why == "listener":
        monkeypatch.setattr(knobs.compilation, "listener", lambda **about: heard.append(about))
    elif why == "stages":
        monkeypatch.setattr(
            knobs.runtime, "add_stages_inspection_hook",
            lambda *args: heard.append(args) or ("key", "hash"),
        )  # fmt: skip
    elif why == "always":
        monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    elif why == "one processor":
        monkeypatch.setattr(compiling, "workers", lambda: 1)
    elif why == "another cache":
        monkeypatch.setenv("TRITON_CACHE_MANAGER", "caches:Elsewhere")
    elif why == "large":
        monkeypatch.setattr(children, "LARGE", 1 << 20)
    else:
        monkeypatch.setattr(os, "fork", lambda: (_ for _ in ()).throw(OSError("refused")))
    assert compiler(1, 2) == dict.fromkeys((1, 2))
    assert {process for found in processes(tmp_path).values() for process in found} == {PARENT}
    assert bool(heard) == (why in ("listener", "stages"))


@apart
def test_a_cache_that_cannot_be_written_is_each_candidate_s_failure(
    compiler, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    found = compiler(1, 2)
    assert set(found) == {1, 2} and all(isinstance(why, Exception) for why in found.values())


@apart
@pytest.mark.parametrize("close", [True, False])
def test_what_was_not_compiled_is_compiled_by_its_launch(compiler, monkeypatch, close):
    """Where the tuning ended early: once the first candidate came, or by an interrupt before."""
    out = torch.zeros(1, dtype=torch.int32)
    jit = triton.JITFunction(noted.fn)

    def warm_up(block: int) -> Any:
        return jit.warmup(out, BLOCK=block, grid=(1,))

    with h200(Launching()):
        warm_up(1)
        found = compile_all([1, 2, 4], warm_up, jit, H200)
        if close:
            assert next(found) == (1, None)
            found.close()  # type: ignore[attr-defined]
        else:
            monkeypatch.setattr(children, "run", lambda *args: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                list(found)
        assert warm_up(2).asm["ptx"]
        jit.device_caches.clear()


@apart
def test_an_interrupt_ends_it_at_once(compiler, tmp_path, monkeypatch):
    """While this process reads what another one compiled, say."""
    plain = FileCacheManager.get_group
    once = iter([KeyboardInterrupt()])

    def interrupted(manager: Any, name: str) -> Any:
        group = plain(manager, name)
        if group and os.getpid() == PARENT and (interrupt := next(once, None)):
            raise interrupt
        return group

    monkeypatch.setattr(FileCacheManager, "get_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiler(1, 2, 4)
