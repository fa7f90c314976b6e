"""Jobs run in forked processes, for what they leave on disk.

Python code scales over processes, not over threads. A child is a copy of a process that may have
threads and a GPU's context, of which nothing may be used in it. So it runs nothing but the jobs,
closes the files it inherited (one may be a lock), and ends without cleaning up. Locks that other
threads held at the fork stay locked in it: a child that does not get on is killed, and its job
is the caller's again.

Not by `multiprocessing`: it refuses a daemonic process its children, as workers of serving engines
are, and its pools pickle the jobs, which are closures.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import select
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from . import forks

log = logging.getLogger("shipconf.children")

STUCK_S = 120  # without any news from the children; whole seconds, as `alarm` takes
LARGE = 4 << 30  # bytes of memory of its own, whose tables a fork copies: 22 ms at 1 GB resident
PROCESSES = 32  # at most: one is forked after the other, and each needs memory of its own
MOST = 1000  # jobs at once, whose numbers fit into the smallest pipe, of one page

CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")

_NUMBER = struct.Struct("=I")
_NEWS = struct.Struct("=III")  # the child's process, the number of the job, and what of it:
_BEGUN = 0
_DONE = 1
_FAILED = 2

Job = Callable[[], object]

_forking = forks.lock()
_stuck = False  # a child of this process was, so it has no others


class Ended(NamedTuple):
    """How a job ended: done, with the signal that its process crashed of, or in another way."""

    number: int
    done: bool = False
    crash: str | None = None


def usable() -> bool:
    """Whether this process may have children, and forks fast enough."""
    if _stuck or sys.platform != "linux":
        return False
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        for number in (0, 1, 2):  # or a pipe would be what the compiler writes its errors to
            os.fstat(number)
    except OSError:
        return False
    anonymous = re.search(r"^RssAnon:\s*(\d+) kB$", status, re.MULTILINE)
    return anonymous is not None and int(anonymous[1]) << 10 < LARGE


def run(jobs: Sequence[Job], count: int) -> Generator[Ended, None, None]:
    """Run each job at most once, in up to `count` processes; yield those done and those crashed.

    A crash is told of only where other jobs are done: else the fork may be to blame. What raised
    is not yielded, nor what no process got to, since one was stuck or the system refused a fork.
    """
    left = list(range(len(jobs)))
    any_done = False
    crashed = []
    while left and not _stuck:
        ended = set()
        with closing(_batch(jobs, left[:MOST], count)) as batch:
            for job in batch:
                ended.add(job.number)
                if job.done:
                    any_done = True
                    yield job
                elif job.crash:
                    crashed.append(job)
        if not ended:
            break
        left = [number for number in left if number not in ended]
    if any_done:
        yield from crashed


def _batch(jobs: Sequence[Job], numbers: Sequence[int], count: int) -> Generator[Ended, None, None]:
    """Every job that began."""
    at: dict[int, int] = {}  # by process: the job it is at
    statuses: dict[int, int] = {}
    left = len(numbers)
    with _forked(jobs, numbers, count, statuses) as news:
        for child, number, what in _read(news):
            if what == _BEGUN:
                at[child] = number
                continue
            yield Ended(at.pop(child), done=what == _DONE)
            left -= 1
            if not left:
                break
    for child, number in at.items():
        yield Ended(number, crash=_crash(statuses.get(child, 0)))


def _read(news: int) -> Iterator[tuple[int, int, int]]:
    """What the children tell, until all have ended or none tells anything any more."""
    global _stuck
    waiting = select.poll()
    waiting.register(news, select.POLLIN)
    while waiting.poll(STUCK_S * 1000):
        told = os.read(news, _NEWS.size)
        if not told:
            return
        yield _NEWS.unpack(told)
    _stuck = True
    log.warning("child processes that compile do not get on: threads of this one do from now on")


def _crash(status: int) -> str | None:
    if not os.WIFSIGNALED(status):
        return None
    name = signal.Signals(os.WTERMSIG(status)).name
    return name if name in CRASHES else None


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals that end a program come afterwards: one in between would lose a child, or let it go
    on as a copy of this program."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ending())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _ending() -> list[signal.Signals]:
    return [signal.SIGINT, signal.SIGTERM, signal.SIGALRM]


@contextmanager
def _forked(
    jobs: Sequence[Job], numbers: Sequence[int], count: int, statuses: dict[int, int]
) -> Iterator[int]:
    """Children at work, and the pipe of their news. At the end none is left, and `statuses` has
    how each ended."""
    todo, numbers_in = os.pipe()
    os.write(numbers_in, b"".join(map(_NUMBER.pack, numbers)))
    os.close(numbers_in)
    news, news_in = os.pipe()
    children: list[int] = []
    try:
        try:
            _fork(min(count, len(numbers), PROCESSES), children, lambda: _work(jobs, todo, news_in))
        finally:
            os.close(news_in)
        yield news
    finally:
        os.close(news)
        os.close(todo)
        with _uninterrupted():
            for child in children:
                with suppress(ChildProcessError, ProcessLookupError):  # somebody else waited for it
                    statuses[child] = _end(child)


def _fork(count: int, children: list[int], work: Callable[[], NoReturn]) -> None:
    """Add so many children, or as many as the system allows."""
    _flush()  # or each child would write what is in the buffers once more
    # A thread that leaves `catch_warnings` puts back what another one has set meanwhile.
    with _forking, suppress(OSError), warnings.catch_warnings(), _uninterrupted():
        # Python 3.12 and JAX warn of a fork with threads: the top of this module says what is done.
        warnings.simplefilter("ignore")
        for _ in range(count):
            if child := os.fork():
                children.append(child)
            else:
                work()


def _end(child: int) -> int:
    """The status of a child, which is killed where it has not ended."""
    ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return status


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or not there
            stream.flush()


def _work(jobs: Sequence[Job], todo: int, news: int) -> NoReturn:
    """A child's whole life: one job after the other, until there are none."""
    try:
        gc.disable()  # which might end objects of a GPU
        signal.set_wakeup_fd(-1)  # else each signal would be written to a file that is not its own
        # Two handlers of crashes that call each other, of Python and of LLVM, would never end.
        crashes = [getattr(signal, name) for name in CRASHES]
        for number in (*_ending(), signal.SIGCHLD, *crashes):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ending())
        _close_all_but(todo, news)
        while told := os.read(todo, _NUMBER.size):
            (number,) = _NUMBER.unpack(told)
            signal.alarm(2 * STUCK_S)  # for when the parent is not there to kill it
            os.write(news, _NEWS.pack(os.getpid(), number, _BEGUN))
            what = _DONE
            try:
                jobs[number]()
            except Exception:
                what = _FAILED  # the caller finds out why
            _flush()
            os.write(news, _NEWS.pack(os.getpid(), number, what))
    finally:
        os._exit(0)


def _close_all_but(*pipes: int) -> None:
    kept = {0, 1, 2, *pipes}
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # which has no file
            kept.add(stream.fileno())
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the one that lists them
                os.close(int(name))
