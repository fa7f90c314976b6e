"""Locks that a forked child finds free.

A lock that another thread held at the fork would stay locked in the child for good, since that
thread does not exist there.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> Any:
    """A `threading.Lock` that is free in every child that this process forks."""
    return _registered(threading.Lock())


def reentrant_lock() -> Any:
    """The same of a `threading.RLock`."""
    return _registered(threading.RLock())


def _registered(made: Any) -> Any:
    _locks.add(made)
    return made


def _free_all() -> None:
    for made in _locks:
        made._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
