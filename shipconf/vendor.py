"""One module that reads records as shipconf does, for packages that cannot depend on shipconf.

It is made of the library's own source: the decorator and all that it reaches, but for tuning and
writing. It needs the standard library, torch and Triton, and Python 3.9 or later.
"""

from __future__ import annotations

import ast
import importlib.resources
from pathlib import Path

from . import _HOME as HOME
from . import __version__, files
from .errors import ShipconfError
from .hoisting import Hoist
from .splicing import sections

FILE = "_shipconf.py"

# What takes the place of the library's own, so that nothing is tuned or written. Linux's user
# store is found without platformdirs there; Triton runs on little else.
INSTEAD = {
    "settings.policy": "reading.policy",
    "settings._user_cache": "settings._linux_cache",
    "flight.Flight.tune": "reading.Flight.tune",
    "kernel.ShippedKernel.tune": "reading.ShippedKernel.tune",
    "resolver.Resolver.note_miss": "reading.Resolver.note_miss",
}

_MARK = "# Written by `shipconf vendor`"
_HEADER = f'''{_MARK}, shipconf {__version__}: do not edit.
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa
# mypy: ignore-errors
"""Reads the configs that shipconf tuned, for kernels that cannot depend on shipconf.

`shipped_autotune` takes here what shipconf's takes, and launches with what is stored: the exact
record, the nearest, else the kernel's `default`, else it raises `OfflineError`. It never tunes and
writes no file. It needs the standard library, torch and Triton, and Python 3.9 or later.
"""
'''


class VendorError(ShipconfError, ValueError):
    """Raised where the module cannot be written. Attribute: `path`."""

    path: str


def source() -> str:
    """The text of the module; the same text for the same version of shipconf."""
    hoist = Hoist(_library(), [(module, name) for name, module in HOME.items()], INSTEAD)
    names = "".join(f'    "{name}",\n' for name in HOME)
    text = (
        f"{_HEADER}\nfrom __future__ import annotations\n\n{_imports(hoist)}\n"
        f'__version__ = "{__version__}"\n'
        f"__all__ = [\n{names}]\n"
    )
    for module, definitions in sections(hoist):
        about = (ast.get_docstring(module.tree) or "").split("\n\n")[0].replace("\n", "\n# ")
        rule = "-" * (90 - len(module.name))
        text += f"\n\n# --- {module.name}.py {rule}\n# {about}\n\n\n{definitions}\n"
    return text


def _imports(hoist: Hoist) -> str:
    plain: list[str] = []
    members: dict[str, list[str]] = {}
    for statement in sorted(hoist.outside.values()):
        if statement.startswith("import "):
            plain.append(statement)
        else:
            origin, _, name = statement.removeprefix("from ").partition(" import ")
            members.setdefault(origin, []).append(name)
    named = [f"from {origin} import {', '.join(names)}" for origin, names in members.items()]
    return "".join(f"{line}\n" for line in [*plain, *named])


def _library() -> dict[str, str]:
    """The source of each of the library's modules, by name."""
    folder = importlib.resources.files(__package__)
    return {
        item.name.removesuffix(".py"): item.read_text(encoding="utf-8")
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.endswith(".py") and not item.name.startswith("__")
    }


def is_current(folder: Path) -> bool:
    """Whether the folder holds the module that this version would write."""
    try:
        return (folder / FILE).read_bytes() == source().encode()
    except OSError:
        return False


def write(folder: Path) -> Path:
    """Write the module to `<folder>/_shipconf.py`, over an earlier one, and return its path.

    Raises `VendorError` where the folder is missing, or a file of that name is not by shipconf.
    """
    path = folder / FILE
    try:
        mine = path.read_bytes().startswith(_MARK.encode())
    except FileNotFoundError:
        mine = True
    except OSError as error:
        raise VendorError(f"cannot read {path}: {error}", path=str(path)) from error
    if not mine:
        raise VendorError(f"{path} is not by shipconf vendor: move it away first", path=str(path))
    try:
        files.replace(path, source().encode())
    except OSError as error:
        raise VendorError(f"cannot write {path}: {error}", path=str(path)) from error
    return path
