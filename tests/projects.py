"""Projects of kernel packages on disk, and the wheels that real build back ends make of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from packages import TOLD, record, write

HATCHLING = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "1"
[tool.hatch.build.targets.wheel]
packages = ["{src}{name}"]
"""
SETUPTOOLS = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "1"
[tool.setuptools.packages.find]
where = ["{src}."]
include = ["{name}*"]
"""


def project(
    root: Path, build: str = HATCHLING, *, name: str = "tiles", src: str = "", more: str = ""
) -> Path:
    """A project of one package that ships one record; returns the package's folder.

    `src` is `src/` for that layout, `more` what follows in `pyproject.toml`.
    """
    package = root / f"{src}{name}"
    package.mkdir(parents=True)
    (root / "pyproject.toml").write_text(build.format(name=name, src=src) + more)
    (package / "__init__.py").write_text("raise ImportError('importing me is a fault')\n")
    (package / "tile.py").write_text(TOLD)
    write(package / "configs" / "tile" / "told", record(32))
    return package


def wheel(root: Path) -> Path:
    """The wheel of the project, built by its own back end, without the network."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index",
         "--quiet", "--disable-pip-version-check", "--wheel-dir", root / "dist", root],
        check=True, capture_output=True,
    )  # fmt: skip
    (built,) = (root / "dist").glob("*.whl")
    return built
