"""Files that many processes share: atomic replacement, and locks.

The only user of filelock. A lock is a file beside what it guards, and is never deleted:
deleting it would let two processes lock two files of one name.
"""

from __future__ import annotations

import inspect
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import LockTimeout

log = logging.getLogger("shipconf.files")

SAY_AFTER_S = 5.0  # a wait longer than this is logged
POLL_S = 0.05


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put the bytes at the path so that every reader sees the old file or the new one, whole.

    Without `durable`, a power cut may leave the file empty: for what can be made again. Raises
    `OSError`; the old file is then still there.
    """
    # Same folder, since a rename is atomic within one file system only; pid and thread in the
    # name, since two writers of one temporary file would mix their bytes.
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())  # else a power cut can leave the new name with no content
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def append(path: Path, line: str) -> None:
    """Append one line in one write, so that lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def this_process() -> str:
    """Who holds a lock, for the log of those who wait: `pid 4711 on host`."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


class _Unavailable(Exception):
    """No lock can be had here: a read-only folder, or a file system without locks."""


@contextmanager
def lock(
    name: str, path: Path | None, timeout_s: float, holder: Callable[[], str] = lambda: ""
) -> Iterator[str]:
    """Hold the lock `name` among this process's threads, and that at the path among processes.

    Yields "" when both are held, and why the latter cannot be had where it cannot: a read-only
    folder, a file system without locks, or no path. Waits up to `timeout_s` seconds, and logs
    whom it waits for (`holder()`) after 5. The lock of a killed process is free at once. Raises
    `LockTimeout`, at once where this very thread holds the lock: waiting would never end.
    """
    timeout_s = min(timeout_s, threading.TIMEOUT_MAX)
    deadline = time.monotonic() + timeout_s
    if name in _mine():
        raise _timeout(name, f"this thread, {this_process()}", 0)
    inside = _thread_lock(name, os.getpid())
    if not inside.acquire(timeout=min(SAY_AFTER_S, timeout_s)):
        log.warning("waiting for another thread of %s, which holds %s", this_process(), name)
        if not inside.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise _timeout(name, this_process(), timeout_s)
    try:
        _mine().add(name)
        held = None
        why = "no folder to put a lock in"
        if path is not None:
            try:
                held, why = _acquire(path, deadline, timeout_s, holder), ""
            except _Unavailable as error:
                why = str(error)
        try:
            yield why
        finally:
            if held is not None:
                with suppress(OSError):  # the file system that gave it may be gone
                    held.release()
    finally:
        _mine().discard(name)
        inside.release()


def held_by_this_thread(name: str) -> bool:
    """Whether the calling thread is inside `lock(name, …)`."""
    return name in _mine()


_threads = threading.local()


def _mine() -> set[str]:
    names: set[str] = _threads.__dict__.setdefault("names", set())
    return names


def _timeout(name: object, holder: str, timeout_s: float) -> LockTimeout:
    return LockTimeout(
        f"{name} was held by {holder or 'another process'} for {timeout_s:g} s",
        path=str(name), holder=holder, timeout_s=timeout_s,
    )  # fmt: skip


def _acquire(path: Path, deadline: float, timeout_s: float, holder: Callable[[], str]) -> Any:
    import filelock

    say_at = time.monotonic() + SAY_AFTER_S
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file_lock = filelock.FileLock(path, **_options())
        while True:
            try:
                step = max(0.0, min(deadline, say_at) - time.monotonic())
                file_lock.acquire(timeout=step, poll_interval=POLL_S)
                return file_lock
            except filelock.Timeout:
                _check_flock(path)
                if time.monotonic() >= deadline:
                    raise _timeout(path, holder(), timeout_s) from None
            log.warning("waiting for %s, which holds %s", holder() or "another process", path)
            say_at = deadline
    except LockTimeout:  # a TimeoutError, and so an OSError too
        raise
    except (OSError, NotImplementedError) as error:
        raise _Unavailable(f"{path}: {error}") from error


def _check_flock(path: Path) -> None:
    """Raise the error of a file system without locks: filelock 3 takes it for another holder."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    with path.open("rb") as file, suppress(BlockingIOError, PermissionError):  # it is held
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _options() -> dict[str, Any]:
    """Arguments of FileLock that not all supported versions know."""
    import filelock

    # A soft lock is a marker file, which a killed holder leaves behind for good.
    known = inspect.signature(filelock.FileLock.__init__).parameters
    return {"fallback_to_soft": False} if "fallback_to_soft" in known else {}


_thread_locks: dict[tuple[str, int], threading.Lock] = {}


def _thread_lock(path: str, pid: int) -> threading.Lock:
    # The pid: a lock that another thread held at a fork would stay locked in the child.
    return _thread_locks.setdefault((path, pid), threading.Lock())
