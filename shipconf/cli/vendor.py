"""`shipconf vendor DIR`: a module for kernels that cannot depend on shipconf."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import __version__
from . import tables
from .arguments import add_command

SHAPE = """It imports the standard library, torch and Triton, takes what shipconf's decorator takes,
and never tunes. With --json: {"path", "version", "current"}."""
EXAMPLE = """  shipconf vendor torch-ext/my_kernels
      writes torch-ext/my_kernels/_shipconf.py, and the kernels there say
      from ._shipconf import shipped_autotune
  shipconf vendor torch-ext/my_kernels --check
      exits with 1 where that file is not what this version of shipconf writes"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(
        commands, "vendor", run, help="write a module that reads records, for kernels that cannot "
        "depend on shipconf", more=SHAPE, example=EXAMPLE,
    )  # fmt: skip
    parser.add_argument("folder", type=Path, metavar="DIR", help="the package's folder")
    parser.add_argument("--check", action="store_true", help="write nothing; compare")


def run(chosen: argparse.Namespace) -> int:
    """Write or compare the module; returns the exit code."""
    from .. import vendor

    path = chosen.folder / vendor.FILE
    if chosen.check:
        current = vendor.is_current(chosen.folder)
        words = f"{path} is {'' if current else 'not '}what shipconf {__version__} writes"
    else:
        vendor.write(chosen.folder)
        current, words = True, f"wrote {path}"
    if chosen.json:
        tables.document({"path": str(path), "version": __version__, "current": current})
    else:
        print(words)
    return 0 if current else 1
