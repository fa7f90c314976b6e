"""Whether the build of a project would leave its config files out of the wheel.

Read from `pyproject.toml`, `setup.cfg`, `MANIFEST.in`, `.gitignore` and kernel-builder's
`build.toml`; nothing is built. What this cannot know, such as a `setup.py`, is said; only the
built wheel is certain.
"""

from __future__ import annotations

import configparser
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from .globs import ignored, matches

_UNSURE = "check the built wheel with `shipconf verify`"


@dataclass(frozen=True)
class LeftOut:
    """Files that a build would leave out of the wheel.

    `config` is the file to change and `line` what to add to it; `files` are below the project's
    folder. Where nothing can be said, `files` is empty and `line` says what to do.
    """

    config: Path
    why: str
    line: str
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = f"{len(self.files)} config files would not be in the wheel" if self.files else ""
        return ": ".join(part for part in (str(self.config), what, self.why) if part) + (
            f"; add\n{self.line}" if self.files else f"; {self.line}"
        )


def left_out(files: Sequence[Path]) -> list[LeftOut]:
    """What the builds of the projects around these files would leave out."""
    by_folder: dict[Path, list[Path]] = {}
    for path in map(Path.absolute, dict.fromkeys(files)):
        by_folder.setdefault(path.parent, []).append(path)
    by_project: dict[Path, list[Path]] = {}
    for folder, paths in by_folder.items():
        project = _project(folder)
        if project is not None:
            by_project.setdefault(project, []).extend(paths)
    found = [_of_project(root, paths) for root, paths in by_project.items()]
    return [entry for entry in found if entry is not None]


_PROJECT_FILES = ("pyproject.toml", "build.toml", "setup.cfg", "setup.py")


def _project(folder: Path) -> Path | None:
    """The folder of the project that a folder belongs to."""
    for above in (folder, *folder.parents):
        if any((above / name).is_file() for name in _PROJECT_FILES):
            return above
    return None


def _of_project(root: Path, paths: Sequence[Path]) -> LeftOut | None:
    names = [path.relative_to(root).as_posix() for path in paths]
    if sys.version_info < (3, 11) and any(root.glob("*.toml")):
        why = "the build was not looked at, which needs Python 3.11"
        return LeftOut(root / "pyproject.toml", why, _UNSURE)
    if (root / "build.toml").is_file():
        return _kernel_builder(root, names)
    project = _toml(root / "pyproject.toml")
    backend = project.get("build-system", {}).get("build-backend", "setuptools.build_meta")
    if backend.startswith("hatchling"):
        return _hatchling(root, project, names)
    if backend.startswith("setuptools"):
        return _setuptools(root, project, names)
    return LeftOut(root / "pyproject.toml", f"what {backend} takes is not known here", _UNSURE)


def _toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib

        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}  # the build itself says what is wrong
    return {}


def _kernel_builder(root: Path, names: Sequence[str]) -> LeftOut | None:
    build = _toml(root / "build.toml")
    section = next(
        (name for name in ("torch", "torch-noarch", "tvm-ffi") if name in build), "torch"
    )
    taken = build.get(section, {}).get("pyext", ["py", "pyi"])
    if "json" in taken:
        return None
    endings = ", ".join(f'"{ending}"' for ending in ["json", *taken])
    line = f"[{section}]\npyext = [{endings}]"
    return LeftOut(root / "build.toml", f"pyext of [{section}] has no json", line, tuple(names))


def _hatchling(root: Path, project: Mapping[str, Any], names: Sequence[str]) -> LeftOut | None:
    build = project.get("tool", {}).get("hatch", {}).get("build", {})
    wheel = build.get("targets", {}).get("wheel", {})

    def option(name: str, default: Any = ()) -> Any:
        return wheel.get(name, build.get(name, default))

    vcs = [] if option("ignore-vcs", False) else _gitignore(root)
    tops = [*option("packages"), *option("only-include")]
    missing = [
        name for name in names
        if not any(name == source or name.startswith(f"{source.rstrip('/')}/")
                   for source in option("force-include", {}))
        and not ignored(option("artifacts"), name)
        and (
            ignored([*vcs, *option("exclude")], name)
            or (tops and not any(name.startswith(f"{top.strip('/')}/") for top in tops))
            or (option("include") and not ignored(option("include"), name))
        )
    ]  # fmt: skip
    if not missing:
        return None
    line = "[tool.hatch.build.targets.wheel]\nartifacts = [" + ", ".join(
        f'"{pattern}"' for pattern in _patterns(root, missing)
    )  # fmt: skip
    why = "git ignores them" if any(ignored(vcs, name) for name in missing) else (
        "hatchling is told to leave them out"
    )  # fmt: skip
    return LeftOut(root / "pyproject.toml", why, line + "]", tuple(missing))


def _gitignore(root: Path) -> list[str]:
    """The patterns of the nearest `.gitignore` in the repository, as hatchling looks for it."""
    for folder in (root, *root.parents):
        path = folder / ".gitignore"
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace").splitlines()
        if (folder / ".git").exists():
            break
    return []


def _patterns(root: Path, names: Sequence[str]) -> list[str]:
    """One pattern for each `configs` folder, or folder of files, in the project."""
    folders = set()
    for name in names:
        parts = PurePosixPath(name).parent.parts
        depth = parts.index("configs") + 1 if "configs" in parts else len(parts)
        folders.add("/".join(parts[:depth]))
    return [f"{folder}/**/*.json" for folder in sorted(folders)]


# --- setuptools ------------------------------------------------------------------------------


def _setuptools(root: Path, project: Mapping[str, Any], names: Sequence[str]) -> LeftOut | None:
    options = project.get("tool", {}).get("setuptools", {})
    config = configparser.ConfigParser()
    config.read(root / "setup.cfg", encoding="utf-8")
    data = {**_cfg_data(config, "package_data"), **options.get("package-data", {})}
    excluded = {**_cfg_data(config, "exclude_package_data"),
                **options.get("exclude-package-data", {})}  # fmt: skip
    declared = "project" in project or options
    everything = options.get("include-package-data", bool(declared)) or config.getboolean(
        "options", "include_package_data", fallback=False
    )
    requires = " ".join(project.get("build-system", {}).get("requires", []))
    if everything and "setuptools" in requires and ("scm" in requires or "-git" in requires):
        return None  # what git tracks
    missing = [
        name for name in names
        if _in_data(root, name, excluded, options)
        or not (_in_data(root, name, data, options)
                or (everything and _in_manifest(root / "MANIFEST.in", name)))
    ]  # fmt: skip
    if not missing:
        return None
    if not declared and (root / "setup.py").is_file() and not config.has_section("options"):
        return LeftOut(root / "setup.py", "what it takes shows only when it runs", _UNSURE)
    lines = ["[tool.setuptools.package-data]"]
    for package, folders in sorted(_by_package(root, missing).items()):
        lines.append(f'"{package}" = [{", ".join(sorted(folders))}]')
    why = "setuptools takes only the data files it is told to"
    return LeftOut(root / "pyproject.toml", why, "\n".join(lines), tuple(missing))


def _cfg_data(config: configparser.ConfigParser, name: str) -> dict[str, list[str]]:
    section = f"options.{name}"
    items = config.items(section) if config.has_section(section) else []
    return {package: value.replace(",", "\n").split() for package, value in items}


def _top(root: Path, name: str) -> PurePosixPath:
    """The folder above the outermost package of a file: `.` or `src`."""
    parts = PurePosixPath(name).parent.parts
    for i in range(len(parts)):
        if (root.joinpath(*parts[: i + 1]) / "__init__.py").is_file():
            return PurePosixPath(*parts[:i])
    return PurePosixPath(*parts[:1]) if parts[:1] == ("src",) else PurePosixPath()


def _in_data(
    root: Path, name: str, data: Mapping[str, Sequence[str]], options: Mapping[str, Any]
) -> bool:
    """Whether patterns of package data, by package, select the file."""
    top = _top(root, name)
    inside = PurePosixPath(name).relative_to(top).parts
    packages = options.get("packages", {})
    find = packages.get("find", {}) if isinstance(packages, dict) else {}
    for depth in range(1, len(inside)):
        package = ".".join(inside[:depth])
        regular = (root.joinpath(top, *inside[:depth]) / "__init__.py").is_file()
        listed = package in packages if isinstance(packages, list) else (
            regular or find.get("namespaces", True)
        )  # fmt: skip
        patterns = [*data.get("*", ()), *data.get("", ()), *data.get(package, ())]
        rest = "/".join(inside[depth:])
        if listed and any(matches(pattern, rest) for pattern in patterns):
            return True
    return False


def _by_package(root: Path, names: Sequence[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for pattern in _patterns(root, names):
        top = _top(root, pattern)
        parts = PurePosixPath(pattern).relative_to(top).parts
        depth = max(
            (d for d in range(1, len(parts))
             if (root.joinpath(top, *parts[:d]) / "__init__.py").is_file()), default=1,
        )  # fmt: skip
        found.setdefault(".".join(parts[:depth]), set()).add(f'"{"/".join(parts[depth:])}"')
    return found


def _in_manifest(path: Path, name: str) -> bool:
    """Whether `MANIFEST.in` takes the file: the last of its commands that is for it decides."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    taken = False
    for line in lines:
        command, *words = line.split() or [""]
        folder, patterns = (words[:1] or [""])[0].rstrip("/"), words[1:]
        below = name.startswith(f"{folder}/")
        last = name.rpartition("/")[2]
        hit = {
            "graft": below, "prune": below,
            "recursive": below and any(matches(p, last) for p in patterns),
            "global": any(matches(p, last) for p in words),
            "include": any(matches(p, name) for p in words),
            "exclude": any(matches(p, name) for p in words),
        }.get(command.partition("-")[0], False)  # fmt: skip
        if hit:
            taken = command in ("graft", "recursive-include", "global-include", "include")
    return taken
