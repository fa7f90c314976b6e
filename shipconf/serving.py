"""What a worker does: it answers tasks with tunings, and sends what it logs to its parent."""

from __future__ import annotations

import logging
import pickle
from multiprocessing.connection import Connection
from typing import Any

from . import settings, tuning, worker
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
    try:
        while connection.poll(IDLE_S):
            answer = _answer(connection.recv())
            forward.acquire()
            try:
                connection.send(_portable(answer))
            finally:
                forward.release()
            if isinstance(answer, TuningError) and answer.fatal:
                return
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return  # the parent is gone, or both were interrupted


def _answer(task: Task) -> Any:
    settings.take_environment(task.environment)
    try:
        find(task.workload)  # registers it, where it has a module of its own
        kernel = shipped(find(task.kernel))
    except Exception as error:
        return Unreachable(f"{task.kernel.module}: {error!r}")
    if kernel is None or kernel.identity != task.identity:
        return Unreachable(f"{task.kernel.module}:{task.kernel.name} is another kernel there")
    try:
        if task.device is not None:
            import torch

            torch.cuda.set_device(task.device)
        answer = tuning.here(kernel, task.dtypes, task.values, task.force)
        release()  # an idle worker holds no tensors
    except Exception as error:
        return error
    return answer


def _portable(answer: Any) -> Any:
    """The answer, or what a process can send in the place of an exception that it cannot."""
    try:
        pickle.loads(pickle.dumps(answer))
    except Exception:
        return RuntimeError(f"{type(answer).__name__}: {answer}")
    return answer
