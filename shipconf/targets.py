"""Kernels by name: `module:kernel` or `file.py:kernel`, as people and other processes call them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Target:
    """A name in a module that another process can import; `file` where the module's name alone
    does not lead to it."""

    module: str
    file: str | None
    name: str


def load(target: str) -> Any:
    """The kernel made by `shipped_autotune` that `module:kernel` or `file.py:kernel` names.

    Raises `ValueError`.
    """
    where, colon, name = target.rpartition(":")
    if not colon:
        raise ValueError(f"{target!r} names no kernel: write module:kernel")
    kernel = shipped(getattr(_module(where), name, None))
    if kernel is None:
        raise ValueError(f"{name!r} in {where} is no kernel made by shipped_autotune")
    return kernel


def shipped(value: Any) -> Any:
    """The kernel made by `shipped_autotune` that the value is, below heuristics; or None.

    The value may be anything that a module has. It is not asked, only looked at: a lazy module
    would import, and a mock would answer to every name.
    """
    while value is not None and not hasattr(type(value), "resolve_for"):
        try:
            value = vars(value).get("fn")
        except TypeError:  # it has no attributes of its own
            return None
    return value


def target_of(value: Any, module_name: str) -> Target | None:
    """Where another process finds the value; None where it cannot, as in `__main__`."""
    module = sys.modules.get(module_name)
    file = getattr(module, "__file__", None)
    if module is None or module_name == "__main__" or file is None:
        return None
    names = [name for name, found in list(vars(module).items())
             if found is value or shipped(found) is value]  # fmt: skip
    return Target(module_name, file, names[0]) if names else None


def find(target: Target) -> Any:
    """What the target names. Raises `ImportError` or `AttributeError`."""
    try:
        module = importlib.import_module(target.module)
    except ModuleNotFoundError:
        if target.file is None:
            raise
        module = _from_file(target.module, Path(target.file))
    return getattr(module, target.name)


def _module(where: str) -> ModuleType:
    sys.path.insert(0, "")  # as `python -m` does: the current folder's packages
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise ValueError(f"no such file: {where}")
        return _from_file(where, Path(where))  # no module of that name is in its way
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot import {where}: {error}") from error


def _from_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
