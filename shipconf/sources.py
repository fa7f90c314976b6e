"""Where the command line reads config files from: a package, a folder, a wheel, the user store.

A source lists what it holds and reads it; nothing is imported and nothing is parsed. Only the
standard library is used.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import zipfile
import zipimport
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath

from . import settings
from .errors import ShipconfError

ALIASES = "aliases.json"
# Folders that hold copies of a project's files, or none of them.
_SKIPPED = re.compile(r"\..*|__pycache__|node_modules|.*\.(egg|dist)-info")
_BUILT = ("build", "dist", "venv")
# A file name that says it holds records: of either form, or cut because it was too long.
_NAMED = re.compile(r"device_name=|-[0-9a-f]{16}(~\d+)?\.json$")


class SourceError(ShipconfError, ValueError):
    """Raised for a name under which no config files can be looked for. Attribute: `asked`."""

    asked: str


@dataclass(frozen=True)
class Member:
    """A file that may hold records.

    `name` is its path inside the source, with `/`; `path` what people know it by.
    """

    source: Source
    name: str

    @property
    def path(self) -> str:
        """The real path; inside a wheel, the wheel's path and the name: `x.whl/pkg/….json`."""
        return str(self.source.root / self.name)

    @property
    def file_name(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The name of the folder it lies in: a kernel's name, or its identity in a user store."""
        return PurePosixPath(self.source.root.as_posix(), self.name).parent.name

    @property
    def stem(self) -> str | None:
        """The stem of the kernel's source file, where it lies in `configs/<stem>/<kernel>/`."""
        parts = self.name.split("/")
        return parts[-3] if len(parts) > 3 and parts[-4] == "configs" else None

    @property
    def module(self) -> str | None:
        """The name in the source of the kernel's source file, whether it exists or not."""
        parts = self.name.split("/")
        return "/".join([*parts[:-4], f"{parts[-3]}.py"]) if self.stem is not None else None

    def read(self) -> bytes:
        """The content. Raises `OSError`."""
        return self.source.read(self.name)


class Source(ABC):
    """Files that can be listed and read.

    `kind` is package, folder, wheel or user; `root` the folder, or the archive; `inside` what
    the names of the files that count begin with. `unreadable` has the folders that could not
    be listed, each with the reason, once `names` was read.
    """

    def __init__(self, kind: str, root: Path, inside: str = "") -> None:
        self.kind = kind
        self.root = root
        self.inside = inside
        self.unreadable: list[tuple[str, str]] = []

    @functools.cached_property
    def names(self) -> list[str]:
        """The files, each by its path below `root`, sorted. Copies in `build/` are left out."""
        return sorted(name for name in self._walk() if name.startswith(self.inside))

    @functools.cached_property
    def has_code(self) -> bool:
        """Whether it holds Python files, so that not every JSON file in it is one of records."""
        return any(name.endswith(".py") for name in self.names)

    def configs(self) -> Iterator[Member]:
        """The files that should hold records.

        In a folder without code that is every JSON file. Beside code it is those below a folder
        `configs`, and those elsewhere whose name says so, as a `configs_dir` holds them.
        """
        for name in self.names:
            if not name.endswith(".json") or name.rpartition("/")[2] == ALIASES:
                continue
            inside = "/configs/" in f"/{name}" or _NAMED.search(name.rpartition("/")[2])
            if inside or not self.has_code or self.kind == "user":
                yield Member(self, name)

    def aliases(self) -> Iterator[Member]:
        """The files of device aliases."""
        return (Member(self, n) for n in self.names if n.rpartition("/")[2] == ALIASES)

    @abstractmethod
    def refusal(self) -> str:
        """Why nothing may be written into it, or ""."""

    @abstractmethod
    def _walk(self) -> Iterator[str]: ...

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of the file of that name. Raises `OSError`."""


class Folder(Source):
    """A folder on disk."""

    def _walk(self) -> Iterator[str]:
        for folder, folders, names in os.walk(self.root, onerror=self._note):
            at_root = Path(folder) == self.root
            folders[:] = [
                name for name in folders
                if not _SKIPPED.fullmatch(name) and not (at_root and name in _BUILT)
            ]  # fmt: skip
            base = "" if at_root else Path(folder).relative_to(self.root).as_posix() + "/"
            yield from (base + name for name in names)

    def _note(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # an empty user store has no folder
            self.unreadable.append((str(error.filename), str(error.strerror or error)))

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def refusal(self) -> str:
        folder = self.root.resolve()
        for above in folder.parents:
            top = folder.relative_to(above).parts[0]
            for record in above.glob("*.dist-info/RECORD"):
                lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
                if any(line.startswith(f"{top}/") for line in lines):
                    name = record.parent.name.removesuffix(".dist-info")
                    return f"{self.root} is installed, by {name}: name its source folder instead"
        if any(part in ("site-packages", "dist-packages") for part in folder.parts):
            return f"{self.root} is where packages are installed: name a source folder instead"
        return ""


class Archive(Source):
    """A wheel, or another zip that Python imports from."""

    def __init__(self, kind: str, root: Path, inside: str = "") -> None:
        super().__init__(kind, root, inside)
        try:
            self._archive = zipfile.ZipFile(root)
        except (OSError, zipfile.BadZipFile) as error:
            raise SourceError(f"cannot open {root}: {error}", asked=str(root)) from error

    def _walk(self) -> Iterator[str]:
        return (name for name in self._archive.namelist() if not name.endswith("/"))

    def refusal(self) -> str:
        return f"{self.root} is zipped: name the source folder instead"

    def read(self, name: str) -> bytes:
        try:
            return self._archive.read(name)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            # A wrong checksum, a compression that Python lacks, an encrypted member.
            raise OSError(f"{self.root}/{name}: {error}") from error


def open_source(asked: str | Path | None = None) -> Source:
    """The source of that name: an existing folder or wheel, else a package by import name.

    None is the user store (`SHIPCONF_CACHE_DIR`, else `~/.cache/shipconf` on Linux), which may
    be empty. A package is found without being imported; the path of one JSON file is a folder
    of that file alone. Raises `SourceError`.

    >>> open_source("shipconf").kind
    'package'
    """
    if asked is None:
        try:
            return Folder("user", settings.cache_dir() / "v1")
        except RuntimeError as error:
            raise SourceError(str(error), asked="user store") from error
    path = Path(asked)
    if path.is_dir():
        return Folder("folder", path)
    if path.is_file() and path.suffix == ".json":
        return Folder("folder", path.parent, path.name)
    if path.is_file():
        return Archive("wheel", path)
    return _package(str(asked))


def _package(name: str) -> Source:
    spec = _find(name) if all(part.isidentifier() for part in name.split(".")) else None
    if spec is None:
        raise SourceError(
            f"no folder, wheel or importable package is called {name}{_meant(name)}", asked=name
        )
    folders = list(spec.submodule_search_locations or [])
    if len(folders) > 1:
        raise SourceError(
            f"package {name} is spread over several folders, name one of them: "
            f"{', '.join(folders)}", asked=name,
        )  # fmt: skip
    origin = Path(folders[0] if folders else spec.origin or "")
    # A module that is no package has its records in a folder beside it.
    root, inside = (origin, "") if folders else (origin.parent, f"configs/{origin.stem}/")
    if isinstance(spec.loader, zipimport.zipimporter):
        archive = Path(spec.loader.archive)
        below = root.relative_to(archive).as_posix()
        return Archive("package", archive, f"{below}/{inside}".removeprefix("./"))
    if not (folders or spec.has_location):
        raise SourceError(f"{name} has no folder: it is built into Python", asked=name)
    return Folder("package", root, inside)


def _find(name: str) -> ModuleSpec | None:
    """The spec of a module, without importing the packages above it as `find_spec` would."""
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # imported already, without a spec
        return None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec


def _meant(name: str) -> str:
    """What to write where the name is that of a distribution: `shipconf_example_gemm`."""
    from importlib import metadata  # 30 ms, for an error's sake

    try:
        files = metadata.files(name) or []
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    tops = sorted({file.parts[0] for file in files if len(file.parts) == 2 and file.name ==
                   "__init__.py"})  # fmt: skip
    return f": the distribution of that name has {', '.join(tops)}" if tops else ""
