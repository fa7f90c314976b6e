"""What the environment decides: the only reader of `os.environ`.

Every function reads its variable when it is called. On the launch path of a known key none is,
but for `policy` where a far record or the default serves. An empty variable counts as unset. A
bad value is a `ValueError` that names the variable and the values allowed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from . import forks


class Policy(IntEnum):
    """What a launch may do on a miss, from the laxest to the strictest."""

    TUNE = 0
    OFFLINE = 1
    STRICT = 2


_NO_HOME = "no home directory for this user: set SHIPCONF_CACHE_DIR to a folder"
_OFFLINE_VALUES = {"0": Policy.TUNE, "1": Policy.OFFLINE, "strict": Policy.STRICT}

# Entered `offline` blocks. The process shares them: autograd launches backward kernels on
# threads of its own, which must obey the block around `loss.backward()` too.
_entered: list[Policy] = []
_entered_lock = forks.lock()


@contextmanager
def offline(strict: bool = False) -> Iterator[None]:
    """Forbid tuning inside the block, on every thread of the process.

    Launches then take exact and near records, far ones with a warning, or the kernel's
    `default`, and raise `OfflineError` when there is none. Nothing is written, not even a
    lock file. With `strict=True`, far records (beyond `max_distance`) do not serve either.
    Blocks win over `SHIPCONF_OFFLINE`; of several entered at once, the strictest holds.

    >>> import shipconf
    >>> with shipconf.offline():
    ...     pass  # serve requests here
    """
    policy = Policy.STRICT if strict else Policy.OFFLINE
    with _entered_lock:
        _entered.append(policy)
    try:
        yield
    finally:
        with _entered_lock:
            _entered.remove(policy)


def policy() -> Policy:
    """The policy in force: that of the `offline` blocks, else `SHIPCONF_OFFLINE` (0, 1, strict)."""
    with _entered_lock:
        if _entered:
            return max(_entered)
    text = os.environ.get("SHIPCONF_OFFLINE") or "0"
    if text not in _OFFLINE_VALUES:
        raise ValueError(f"SHIPCONF_OFFLINE={text!r}: allowed are 0, 1 and strict")
    return _OFFLINE_VALUES[text]


def cache_dir() -> Path:
    """The folder of the user store: `SHIPCONF_CACHE_DIR`, else the platform's user cache.

    On Linux the latter is `$XDG_CACHE_HOME/shipconf` or `~/.cache/shipconf`. Raises
    `RuntimeError` where no home directory can be told (no HOME and no entry for the user id).
    """
    text = os.environ.get("SHIPCONF_CACHE_DIR")
    try:
        if text:
            return Path(text).expanduser().absolute()
        folder = _user_cache()
    except RuntimeError as error:
        raise RuntimeError(_NO_HOME) from error
    if not folder.is_absolute():
        # `~` that nobody could expand: a store below the working directory would surprise.
        raise RuntimeError(_NO_HOME)
    return folder


def machine_dir() -> Path:
    """The folder of this user's locks for things of the machine: `/tmp/shipconf-1000` on Linux."""
    user = os.getuid() if hasattr(os, "getuid") else "locks"
    return Path(tempfile.gettempdir(), f"shipconf-{user}")


def _user_cache() -> Path:
    if sys.platform == "linux":
        return _linux_cache()
    import platformdirs

    return platformdirs.user_cache_path("shipconf")


def _linux_cache() -> Path:
    """The folder that platformdirs names on Linux. Importing that costs a first launch 18 ms."""
    given = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(given) if given.strip() else Path("~/.cache").expanduser()) / "shipconf"


def config_path() -> list[Path]:
    """The folders of `SHIPCONF_CONFIG_PATH`, separated as PATH is (`:` on Linux)."""
    text = os.environ.get("SHIPCONF_CONFIG_PATH") or ""
    return [_path("SHIPCONF_CONFIG_PATH", part) for part in text.split(os.pathsep) if part]


def lock_timeout_s() -> float:
    """How long to wait for another tuner, in seconds: `SHIPCONF_LOCK_TIMEOUT`, else 300."""
    text = os.environ.get("SHIPCONF_LOCK_TIMEOUT") or "300"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"SHIPCONF_LOCK_TIMEOUT={text!r}: allowed are seconds, 0 or more")
    return seconds


def device_name() -> str | None:
    """The name that replaces the driver's name for the device: `SHIPCONF_DEVICE_NAME`."""
    return os.environ.get("SHIPCONF_DEVICE_NAME") or None


def misses_path() -> Path | None:
    """The file that every miss is appended to, one JSON line each: `SHIPCONF_MISSES`."""
    text = os.environ.get("SHIPCONF_MISSES")
    return _path("SHIPCONF_MISSES", text) if text else None


# What decides beside shipconf's own variables, and belongs into a bug report.
_NEIGHBOURS = (
    "TRITON_INTERPRET", "TRITON_CACHE_DIR", "TRITON_PRINT_AUTOTUNING", "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "XDG_CACHE_HOME", "HOME",
)  # fmt: skip


def given() -> dict[str, str]:
    """The variables that are set: all of shipconf's, and those of others that decide with them."""
    own = sorted(name for name in os.environ if name.startswith("SHIPCONF_"))
    return {name: os.environ[name] for name in (*own, *_NEIGHBOURS) if name in os.environ}


def faults() -> Iterator[str]:
    """What is wrong with the variables: bad values, and names that shipconf does not read."""
    readers: dict[str, Callable[[], object]] = {
        "SHIPCONF_OFFLINE": policy, "SHIPCONF_CACHE_DIR": cache_dir,
        "SHIPCONF_CONFIG_PATH": config_path, "SHIPCONF_LOCK_TIMEOUT": lock_timeout_s,
        "SHIPCONF_DEVICE_NAME": device_name, "SHIPCONF_MISSES": misses_path,
    }  # fmt: skip
    for read in readers.values():
        try:
            read()
        except (ValueError, RuntimeError) as error:
            yield str(error)
    for name in given():
        if name.startswith("SHIPCONF_") and name not in readers:
            yield f"{name} is no setting of shipconf; those are: {', '.join(readers)}"


def _path(variable: str, text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(
            f"{variable} has {text!r}: allowed are paths, with ~ only where there is a home"
        ) from error


def use_cache_dir(folder: Path) -> None:
    """Keep the user store in the folder, in this process and those that it starts."""
    os.environ["SHIPCONF_CACHE_DIR"] = str(folder.absolute())


def environment() -> dict[str, str]:
    """All variables, as another process of this user is to see them."""
    return dict(os.environ)


def take_environment(variables: Mapping[str, str]) -> None:
    """Have this process see those variables and no others."""
    os.environ.clear()
    os.environ.update(variables)
