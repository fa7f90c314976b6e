"""What a worker does: it answers tasks with tunings, and sends what it logs to its parent."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from . import crosstab, settings, tuning, worker
from .errors import TuningError
from .placement import release
from .targets import find, shipped
from .worker import IDLE_S, Task, Unreachable


class _Forward(logging.Handler):
    """Sends log records to the parent, which has the handlers."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        super().__init__()
        self.connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        plain = {**record.__dict__, "msg": record.getMessage(), "args": None, "exc_info": None}
        self.connection.send(plain)


def serve(number: int) -> None:
    """Answer tasks from the connection with this file descriptor."""
    worker.inside = True
    connection: Connection[Any, Any] = Connection(number)
    forward = _Forward(connection)
    logger = logging.getLogger("shipconf")
    logger.addHandler(forward)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and says so:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the journal tells of it
    with suppress(OSError):
        os.dup2(2, 1)  # what a compiler prints is talk, not the parent's result
    with suppress(EOFError, OSError):  # the parent is gone
        while connection.poll(IDLE_S) and _serve_one(connection, forward):
            gc.collect()  # an error's frames, which may hold tensors, are in cycles
            release()


def _serve_one(connection: Connection[Any, Any], forward: logging.Handler) -> bool:
    """Answer a task; returns whether this process can do another."""
    message = connection.recv_bytes()
    try:
        task = pickle.loads(message)
    except Exception as error:
        answer: Any = Unreachable(f"the task cannot be read: {error!r}")
    else:
        answer = _answer(task)
    forward.acquire()
    try:
        connection.send(_portable(answer))
    finally:
        forward.release()
    return not (isinstance(answer, TuningError) and answer.fatal)


def _answer(task: Task) -> Any:
    settings.take_environment(task.environment)
    try:
        if task.folder is not None:
            os.chdir(task.folder)
        find(task.workload)  # registers it, where it has a module of its own
        kernel = shipped(find(task.kernel))
    except Exception as error:
        return Unreachable(f"{task.kernel.module}: {error!r}")
    if kernel is None or (kernel.identity, kernel.declared) != (task.identity, task.declared):
        return Unreachable(f"{task.kernel.module}:{task.kernel.name} is another kernel there")
    try:
        if task.device is not None:
            import torch

            torch.cuda.set_device(task.device)
        if task.points:
            series = crosstab.Series(kernel, task.dtypes, task.values, task.points)
            return crosstab.here(series, task.within)
        return tuning.here(kernel, task.dtypes, task.values, task.force)
    except Exception as error:
        return error


def _portable(answer: Any) -> Any:
    """The answer, or what a process can send in the place of an exception that it cannot."""
    try:
        pickle.loads(pickle.dumps(answer))
    except Exception:
        return RuntimeError(f"{type(answer).__name__}: {answer}")
    return answer
