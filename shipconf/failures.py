"""What a failed measurement means: a reason to leave a candidate out, or the end of a tuning."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("shipconf.tuner")


class OutOfMemory(Exception):
    """The device has no memory left to tune with; its cause is the device's own error."""


class WrongResult(Exception):
    """A candidate's output is wrong, says the author's `check`."""


def reason(error: Exception) -> str:
    """One line for a candidate's failure; text only, since a traceback keeps tensors alive."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if type(error).__name__.startswith("Compil") and lines else " ".join(lines)
    name = "" if isinstance(error, WrongResult) else f"{type(error).__name__}: "
    return f"{name}{text}"[:300]


def out_of_memory(error: BaseException) -> bool:
    """Whether the device (not a block of it) ran out of memory."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error).lower()


def context_is_broken(error: BaseException) -> bool:
    """Whether the error left the GPU's context unusable: every later call then fails too."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception as later:
        log.error("the device's context is broken: %s (after %s)", later, error)
        return True
    return False
