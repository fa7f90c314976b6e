"""A process that tunes, so that a candidate which breaks the GPU's context costs only itself.

The worker is started when a tuning on purpose first needs it, serves one task after another, and
ends with its parent or after a minute without work. Where it dies, or reports that its context
is broken, it is started again: the journal has what it measured, and the candidate to leave out.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from . import forks, settings
from .errors import TuningError
from .records import Record
from .targets import Target

log = logging.getLogger("shipconf.worker")

IDLE_S = 60.0
MOST_DEATHS = 20  # in one tuning, of which two are needed to leave a candidate out

inside = False  # whether this process is a worker


def _folder() -> Path | None:
    with suppress(OSError):  # it may have been deleted
        return Path.cwd()
    return None


@dataclass(frozen=True)
class Task:
    """A tuning: of which kernel, for what, on which of the GPUs that this process sees.

    `workload` is where the kernel's workload is registered; `identity` and `declared` are the
    kernel's. With `points` there is nothing to tune: the winners there are measured at all of
    them, and those kept that lose at most `within`; `values` are the key's then.
    """

    kernel: Target
    workload: Target
    identity: str
    declared: tuple[str, ...]
    dtypes: Any
    values: Mapping[str, Any]
    force: bool
    device: int | None
    points: Sequence[Mapping[str, int]] = ()
    within: float = 0.0
    environment: Mapping[str, str] = field(default_factory=settings.environment)
    folder: Path | None = field(default_factory=_folder)  # which relative paths start from


@dataclass(frozen=True)
class Answer:
    """A tuning's record, whether it is in a file, and all times in ms, by config."""

    record: Record
    stored: bool
    times_ms: list[tuple[dict[str, Any], list[float]]]
    seconds: float | None


@dataclass(frozen=True)
class Crossed:
    """A portfolio that was written: its file, how many configs were measured at how many points,
    how many of them are kept, and what the best of those loses at most at a point."""

    path: str
    configs: int
    points: int
    kept: int
    loss: float

    def __str__(self) -> str:
        return (
            f"{self.configs} configs measured at {self.points} points; {self.kept} kept, of which "
            f"the best loses at most {self.loss:.1%}"
        )


class Unreachable(Exception):
    """A worker cannot do the task, or not for the same kernel; this process is to do it."""


class _Died(Exception):
    """The worker is gone."""


class Worker:
    """Starts the process when needed, and again when it has died."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._pid = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None

    def tune(self, task: Task) -> Answer:
        """What a worker tuned. Raises what the tuning raises, and `Unreachable`."""
        answer = self._do(task)
        assert isinstance(answer, Answer)
        return answer

    def cross(self, task: Task) -> Crossed | None:
        """What a worker kept of a task with points. Raises as `tune` does."""
        answer = self._do(task)
        assert answer is None or isinstance(answer, Crossed)
        return answer

    def _do(self, task: Task) -> Any:
        deaths = 0
        seen: set[frozenset[str]] = set()
        with self._lock:
            while True:
                try:
                    answer = self._ask(task)
                except _Died as error:
                    deaths += 1
                    self._tell_of_death(task, deaths, error)
                    continue
                if not (isinstance(answer, TuningError) and answer.fatal):
                    break
                self.close()
                reasons = frozenset(answer.reasons)
                if reasons in seen:  # nothing was written that would leave the candidate out
                    break
                seen.add(reasons)
                log.warning("%s; the tuning goes on in a new process", str(answer).splitlines()[0])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _tell_of_death(self, task: Task, deaths: int, error: Exception) -> None:
        code = self.close()
        if deaths >= MOST_DEATHS:
            raise TuningError(
                f"the process that tunes {task.kernel.name} died {deaths} times, at last with "
                f"exit code {code}",
                kernel=task.kernel.name, device="", key=str(dict(task.values)), reasons={},
                fatal=True,
            ) from error  # fmt: skip
        log.warning(
            "the process that tunes %s died with exit code %s; it is started again, with what it "
            "measured", task.kernel.name, code,
        )  # fmt: skip

    def _ask(self, task: Task) -> Any:
        try:
            message = pickle.dumps(task)
        except Exception as error:
            raise Unreachable(f"the task cannot be sent: {error!r}") from error
        if self._connection is None or self._pid != os.getpid() or self._process is None or (
            self._process.poll() is not None
        ):  # fmt: skip
            self._start()
        connection = self._connection
        assert connection is not None
        try:
            with _telling_of_death():
                connection.send_bytes(message)
            while True:
                with _telling_of_death():
                    answer = connection.recv()
                if not isinstance(answer, dict):
                    return answer
                record = logging.makeLogRecord(answer)
                if (logger := logging.getLogger(record.name)).isEnabledFor(record.levelno):
                    logger.handle(record)
        except _Died:
            raise
        except BaseException:
            # Interrupted, say: what the worker would still say is no answer to a later task.
            if self._process is not None:
                self._process.terminate()
            self.close()
            raise

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._pid = os.getpid()
        with theirs:
            number = theirs.fileno()
            # All of the path, since a folder that this process does not import from may have
            # modules of the same names: the one that Python starts in, say.
            program = (
                f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}\n"
                f"from shipconf.serving import serve; serve({number})"
            )
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program], pass_fds=[number], stdin=subprocess.DEVNULL
                )
            except OSError as error:
                raise Unreachable(f"no process can be started: {error}") from error

    def forget(self) -> None:
        """Leave the process to the parent that this one was forked from."""
        if self._connection is not None:
            self._connection.close()  # else the worker would outlive the parent
            self._connection = None

    def close(self) -> int | None:
        """End the process; returns its exit code."""
        if self._connection is not None:
            self._connection.close()
        process, self._connection, self._process = self._process, None, None
        if process is None or self._pid != os.getpid():
            return None
        try:
            return process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


@contextmanager
def _telling_of_death() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:  # which may come in the middle of a message
        raise _Died(str(error)) from error


the_worker = Worker()
atexit.register(the_worker.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=the_worker.forget)
