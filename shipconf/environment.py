"""What a bug report needs: versions, settings, the user store, the devices."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from . import __version__, device, settings
from .records import Device

PACKAGES = ("torch", "triton", "filelock", "platformdirs", "rich")


@dataclass(frozen=True)
class Store:
    """The user store. `why` says why there is none, where `path` is None.

    `records` counts its files of records, `aside` those that were moved aside as `.bad`.
    """

    path: Path | None
    why: str = ""
    writable: bool = False
    records: int = 0
    aside: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Environment:
    """The report. `faults` are settings that no one can mean; `no_devices` why none is listed."""

    versions: Mapping[str, str]
    platform: str
    settings: Mapping[str, str]
    faults: tuple[str, ...]
    store: Store
    devices: tuple[Device, ...]
    no_devices: str


def report() -> Environment:
    """Look at everything; only the devices need torch and triton, which are imported for them."""
    versions = {"shipconf": __version__, "python": platform.python_version()}
    versions |= {name: _version(name) for name in PACKAGES}
    devices: tuple[Device, ...] = ()
    why = ""
    try:
        devices = tuple(device.visible())
    except Exception as error:  # a driver may fail in any way, and that is what is reported
        why = f"{type(error).__name__}: {error}".splitlines()[0]
    return Environment(
        versions, platform.platform(), settings.given(), tuple(settings.faults()), _store(),
        devices, why,
    )  # fmt: skip


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _store() -> Store:
    try:
        path = settings.cache_dir()
    except RuntimeError as error:
        return Store(None, str(error))
    files = [file for file in path.rglob("*") if file.is_file()]
    return Store(
        path,
        writable=os.access(_existing(path), os.W_OK | os.X_OK),
        records=sum(file.suffix == ".json" for file in files),
        aside=sum(file.suffix == ".bad" for file in files),
        bytes=sum(file.stat().st_size for file in files),
    )


def _existing(path: Path) -> Path:
    """The path, or the closest folder above it that is there: the one to be written to first."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
