"""Functions run in forked processes, which start with torch and triton imported already."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from typing import Any

CONTEXT = multiprocessing.get_context("fork")
NOBODY = 65534


class Child:
    """`function(*args)` in a forked process; with `user`, as that user id (root may do that)."""

    def __init__(self, function: Any, *args: Any, user: int | None = None) -> None:
        self.receiver, sender = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=_run, args=(sender, function, args, user))
        self.process.start()
        sender.close()
        self.pid = self.process.pid

    def result(self, timeout_s: float = 60) -> Any:
        """What the function returned. An exception in it fails here, with its traceback."""
        if not self.receiver.poll(timeout_s):
            self.kill()
            raise TimeoutError(f"the child did not end within {timeout_s} s")
        outcome, value = self.receiver.recv()
        self.process.join()
        if outcome == "raised":
            raise AssertionError(f"the child raised:\n{value}")
        return value

    def kill(self) -> None:
        """As the kernel's out-of-memory killer would: no handler, no cleanup."""
        self.process.kill()
        self.process.join()


def _run(sender: Any, function: Any, args: tuple[Any, ...], user: int | None) -> None:
    try:
        if user is not None and os.getuid() == 0:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        sender.send(("returned", function(*args)))
    except BaseException:
        sender.send(("raised", traceback.format_exc()))


def event() -> Any:
    """An event that forked children share."""
    return CONTEXT.Event()
