"""What a build leaves out of the wheel: foretold, and held against the wheels themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from projects import HATCHLING, SETUPTOOLS, project

from shipconf.builds import left_out
from shipconf.globs import ignored, matches
from shipconf.sources import open_source

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is of Python 3.11")

DATA = "\n[tool.setuptools.package-data]\n"
CASES = {
    "hatchling": (HATCHLING, "", {}, "", True),
    "hatchling, ignored by git": (HATCHLING, "", {".gitignore": "*.json\n"}, "", False),
    "hatchling, folder ignored": (HATCHLING, "", {".gitignore": "/tiles/configs/\n"}, "", False),
    "hatchling, ignored but an artifact": (
        HATCHLING, 'artifacts = ["tiles/configs/**/*.json"]', {".gitignore": "*.json\n"}, "", True,
    ),
    "hatchling, ignored and taken back": (
        HATCHLING, "", {".gitignore": "*.json\n!configs/**/*.json\n"}, "", False,
    ),
    "hatchling, git not asked": (
        HATCHLING, "ignore-vcs = true", {".gitignore": "*.json\n"}, "", True,
    ),
    "hatchling, excluded": (HATCHLING, 'exclude = ["*.json"]', {}, "", False),
    "hatchling, src": (HATCHLING, "", {".gitignore": "configs\n"}, "src/", False),
    "setuptools": (SETUPTOOLS, "", {}, "", False),
    "setuptools, src": (SETUPTOOLS, "", {}, "src/", False),
    "setuptools, told": (SETUPTOOLS, DATA + 'tiles = ["configs/**/*.json"]', {}, "", True),
    "setuptools, told in src": (
        SETUPTOOLS, DATA + 'tiles = ["configs/**/*.json"]', {}, "src/", True,
    ),
    "setuptools, told too little": (SETUPTOOLS, DATA + 'tiles = ["configs/*.json"]', {}, "", False),
    "setuptools, told of all packages": (SETUPTOOLS, DATA + '"*" = ["*.json"]', {}, "", True),
    "setuptools, told and untold": (
        SETUPTOOLS, DATA + '"*" = ["*.json"]\n[tool.setuptools.exclude-package-data]\n'
        '"*" = ["*.json"]', {}, "", False,
    ),
    "setuptools, by a manifest": (
        SETUPTOOLS, "", {"MANIFEST.in": "recursive-include tiles *.json\n"}, "", True,
    ),
    "setuptools, by a manifest that takes it back": (
        SETUPTOOLS, "", {"MANIFEST.in": "graft tiles\nglobal-exclude *.json\n"}, "", False,
    ),
    "setuptools, a manifest not asked": (
        SETUPTOOLS, "\n[tool.setuptools]\ninclude-package-data = false\n",
        {"MANIFEST.in": "graft tiles\n"}, "", False,
    ),
}  # fmt: skip


def built(root: Path) -> Path:
    """The wheel, made by the project's back end without pip, which takes a second less."""
    backend = "hatchling.build" if "hatchling" in (root / "pyproject.toml").read_text() else (
        "setuptools.build_meta"
    )  # fmt: skip
    subprocess.run(
        [sys.executable, "-c", f"import {backend} as b\nb.build_wheel('dist')"], cwd=root,
        check=True, capture_output=True,
    )  # fmt: skip
    (path,) = (root / "dist").glob("*.whl")
    return path


@pytest.mark.parametrize("name", CASES)
def test_what_is_foretold_is_what_the_wheel_has(tmp_path, name):
    build, more, extra, src, shipped = CASES[name]
    package = project(tmp_path, build, src=src, more=more)
    for file_name, text in extra.items():
        (tmp_path / file_name).write_text(text)
    (tmp_path / "dist").mkdir()
    files = list(package.rglob("*.json"))
    foretold = left_out(files)
    assert bool(list(open_source(built(tmp_path)).configs())) == shipped
    assert [entry.files for entry in foretold] == (
        [] if shipped else [(files[0].relative_to(tmp_path).as_posix(),)]
    )


@pytest.mark.parametrize("src", ["", "src/"])
@pytest.mark.parametrize("build", [HATCHLING, SETUPTOOLS], ids=["hatchling", "setuptools"])
def test_the_line_to_add_cures_it(tmp_path, build, src):
    package = project(tmp_path, build, src=src)
    (tmp_path / ".gitignore").write_text("*.json\n")
    (tmp_path / "dist").mkdir()
    (entry,) = left_out(list(package.rglob("*.json"))) or [None]
    path = tmp_path / "pyproject.toml"
    line = entry.line
    if build is HATCHLING:  # the table is there already
        line = line.partition("\n")[2]
    path.write_text(f"{path.read_text()}\n{line}\n")
    assert left_out(list(package.rglob("*.json"))) == []
    assert list(open_source(built(tmp_path)).configs()) != []
    assert str(entry).startswith(f"{path}: 1 config files would not be in the wheel: ")


def test_kernel_builder_needs_to_be_told_of_json(tmp_path):
    package = project(tmp_path)
    (tmp_path / "pyproject.toml").unlink()
    build = tmp_path / "build.toml"
    files = list(package.rglob("*.json"))
    for section in ("torch", "torch-noarch", "tvm-ffi"):
        build.write_text(f'[general]\nname = "tiles"\n[{section}]\nsrc = []\n')
        (entry,) = left_out(files)
        assert entry.config == build and len(entry.files) == 1
        assert entry.line == f'[{section}]\npyext = ["json", "py", "pyi"]'
        build.write_text(f'[general]\nname = "tiles"\n{entry.line}\n')
        assert left_out(files) == []
    build.write_text('[torch]\npyext = ["py", "cu"]\n')
    assert [entry.line for entry in left_out(files)] == ['[torch]\npyext = ["json", "py", "cu"]']


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[build-system]\nbuild-backend = "maturin"\n'),
        ("setup.py", "from setuptools import setup\nsetup()\n"),
    ],
)
def test_what_cannot_be_known_is_said(tmp_path, name, text):
    package = project(tmp_path)
    (tmp_path / "pyproject.toml").unlink()
    (tmp_path / name).write_text(text)
    (entry,) = left_out(list(package.rglob("*.json")))
    assert entry.files == () and "shipconf verify" in str(entry)


def test_files_of_no_project_are_nobodys(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    assert left_out([tmp_path / "a.json"]) == []


def test_setup_cfg_is_read(tmp_path):
    package = project(tmp_path)
    (tmp_path / "pyproject.toml").unlink()
    (tmp_path / "setup.cfg").write_text("[options]\npackages = tiles\n")
    files = list(package.rglob("*.json"))
    assert len(left_out(files)) == 1
    with (tmp_path / "setup.cfg").open("a") as cfg:
        cfg.write("[options.package_data]\ntiles = *.py, configs/*/*/*.json\n")
    assert left_out(files) == []


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.json", "a/b.json", True), ("/*.json", "a/b.json", False), ("cfg", "a/cfg/b", True),
        ("configs/", "configs", False), ("a/*/c", "a/b/c/d.json", True), ("a/**/c", "a/c", True),
        ("a/**", "a/b/c", True), ("[!a].json", "b.json", True), ("a?.json", "a/.json", False),
        ("a.json", "axjson", False),
    ],
)  # fmt: skip
def test_patterns_mean_what_git_means(pattern, path, fits):
    assert ignored([pattern], path) == fits
    assert not ignored([pattern, f"!{pattern}"], path)


def test_a_glob_of_setuptools_stays_in_its_folder():
    assert matches("configs/**/*.json", "configs/a.json") and not matches("*.json", "a/b.json")
