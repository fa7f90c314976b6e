"""The errors and the warning that shipconf raises.

    ShipconfError
    ├── OfflineError(LookupError)      tuning is forbidden here and nothing stored serves
    ├── TuningError(RuntimeError)      tuning ended without a config that works
    ├── ConfigFileError(ValueError)    a file of records cannot be read
    └── LockTimeout(TimeoutError)      another process held a lock for too long
    ShipconfWarning(UserWarning)       the launch goes on, and something deserves a look

Every message has three parts: what failed, where shipconf looked, and what cures it.
Subjects are attributes, and every error pickles with them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from . import forks


class ShipconfError(Exception):
    """Base of all errors of shipconf."""

    def __init__(self, message: str, **subjects: Any) -> None:
        super().__init__(message)
        self.message = message
        self.__dict__.update(subjects)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception pickles by calling the class with `args`, which would lose the keyword subjects.
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


def _rebuild(cls: type[ShipconfError], message: str, state: dict[str, Any]) -> ShipconfError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class OfflineError(ShipconfError, LookupError):
    """Raised by a launch that may not tune and finds nothing to launch with.

    Attributes: `kernel` (its name), `device`, `key` (as text), `looked` (the places searched)
    and `command` (what to run where tuning is allowed).
    """

    kernel: str
    device: str
    key: str
    looked: Sequence[str]
    command: str

    def __str__(self) -> str:
        return self.message  # LookupError's relatives quote their argument otherwise


class TuningError(ShipconfError, RuntimeError):
    """Raised when tuning ends without a config that works.

    Attributes: `kernel`, `device`, `key` (as text), `reasons`, which maps each candidate (as text)
    to why it was left out, and `fatal`: whether one broke the device's context, so that nothing
    can launch in this process any more.
    """

    kernel: str
    device: str
    key: str
    reasons: Mapping[str, str]
    fatal: bool


class ConfigFileError(ShipconfError, ValueError):
    """Raised for a file of records that breaks the format.

    Attributes: `path`, `where` (such as `records[3].config.num_warps`; empty for the whole
    file), `what`, and `faults`, all (where, what) pairs found in the file.
    """

    path: str
    faults: tuple[tuple[str, str], ...]

    def __init__(self, path: object, faults: Sequence[tuple[str, str]]) -> None:
        lines = [f"{path}: {where + ': ' if where else ''}{what}" for where, what in faults]
        super().__init__("\n".join(lines), path=str(path), faults=tuple(faults))

    @property
    def where(self) -> str:
        return self.faults[0][0]

    @property
    def what(self) -> str:
        return self.faults[0][1]


class LockTimeout(ShipconfError, TimeoutError):
    """Raised when a lock stayed with another process. Attributes: `path`, `holder`, `timeout_s`."""

    path: str
    holder: str
    timeout_s: float


class ShipconfWarning(UserWarning):
    """What shipconf warns with: the launch goes on."""


_warned: set[Hashable] = set()
_warned_lock = forks.lock()


def forget_warnings() -> None:
    """Let every warning be given again: for tests, and for services that start over."""
    with _warned_lock:
        _warned.clear()


def warn_once(subject: Hashable, cause: Hashable, message: str) -> None:
    """Warn with `ShipconfWarning`, once in a process for each subject (a kernel) and cause."""
    with _warned_lock:
        if (subject, cause) in _warned:
            return
        _warned.add((subject, cause))
    warnings.warn(message, ShipconfWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """The stack level of the first frame that is not shipconf's, Triton's or torch's."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    return level


def _is_ours(module: str) -> bool:
    # By its own name too: a vendored copy of this module lies in another package.
    top = module.partition(".")[0]
    return module == __name__ or top in ("shipconf", "triton", "torch", "contextlib")
