"""Where in a package, or in a plain folder, a kernel's records go; and reading them there again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import stores
from .declared import Declared, declared, is_module
from .inventory import Fault
from .keys import Key, folder_name
from .records import ConfigFile, Record
from .sources import Source
from .subject import Subject
from .union import point

if TYPE_CHECKING:
    from .kernel import ShippedKernel


class NoHome(ValueError):
    """A target that has no place for a kernel's records, with the reason."""


@dataclass(frozen=True)
class Home:
    """The folder of one kernel's records in a target, and what is known of the kernel there."""

    folder: Path
    kernel: Declared | None = None

    def ordered(self, file: ConfigFile) -> ConfigFile:
        """The file with its key in the declared order, which file names follow."""
        names = (self.kernel.key if self.kernel is not None else None) or ()
        order = [name for name in names if name in file.key]
        order += [name for name in file.key if name not in order]
        key = {name: file.key[name] for name in order}
        return ConfigFile(**{**file.__dict__, "key": key})


class Homes:
    """The homes of kernels in a target, which is a package's source or a plain folder.

    The module that a file of records names chooses among kernels of one name, and `source_file`
    (by its name or its end, `tile.py`) before it; the chosen one is the home, too, of a kernel
    that no decorator declares.
    """

    def __init__(self, target: Source, source_file: str | None = None) -> None:
        self.target = target
        self.source_file = source_file
        self.declared = declared(target) if target.has_code else []

    def of(self, file: ConfigFile) -> Home:
        """The home of the records of a file. Raises `NoHome`."""
        if not self.target.has_code:
            return Home(self.target.root / folder_name(file.kernel))
        named = [kernel for kernel in self.declared if kernel.name == file.kernel]
        chosen = [kernel for kernel in named if self._is_chosen(kernel.source_file, file)]
        if chosen or self.source_file is not None:
            named = chosen
        if not named:
            return self._undeclared(file)
        why = [kernel.mismatch(tuple(file.key), file.nearest) for kernel in named]
        fitting = [kernel for kernel, reason in zip(named, why) if not reason]
        if not fitting:
            raise NoHome(f"no lookup would find it: it {why[0]}, in {named[0].source_file}")
        if len(fitting) > 1:
            files = ", ".join(kernel.source_file for kernel in fitting)
            raise NoHome(f"{files} declare a kernel {file.kernel}: choose by --source-file")
        return Home(self.target.root / fitting[0].folder, fitting[0])

    def _undeclared(self, file: ConfigFile) -> Home:
        chosen = [
            name for name in self.target.names
            if name.endswith(".py") and self._is_chosen(name, file)
        ]  # fmt: skip
        if len(chosen) == 1:
            path = self.target.root / chosen[0]
            return Home(path.parent / "configs" / path.stem / folder_name(file.kernel))
        if chosen:
            what = self.source_file or file.module
            raise NoHome(f"{', '.join(chosen)} are called {what}: name one by --source-file")
        raise NoHome(
            f"{self.target.root} declares no kernel {file.kernel} by shipped_autotune"
            + (f" in {self.source_file}" if self.source_file else "")
            + ": name its source file by --source-file"
        )

    def _is_chosen(self, name: str, file: ConfigFile) -> bool:
        wanted = self.source_file
        if wanted is not None:
            return name == wanted or name.endswith(f"/{wanted}")
        return file.module is not None and is_module(name, file.module)


def unreached(
    home: Home, file: ConfigFile, *, flat: bool = False, kernel: ShippedKernel | None = None,
    listing: Callable[[Path], list[str]] = stores.json_names,
) -> Iterator[Fault]:  # fmt: skip
    """The records that a launch would not find in their home, after they were written there.

    They are looked up as a launch does, in the home alone; with `kernel`, by the kernel itself.
    `listing` is as in `stores.read_place`.
    """
    # A record serves whatever its fingerprint is; here only the way to it counts.
    subject = Subject(
        name=file.kernel, target="", stem="", package=None, own_folder=False, identity="",
        key_names=tuple(file.key), nearest_names=file.nearest, fingerprint=None,
    )  # fmt: skip
    own = flat or (home.kernel is not None and home.kernel.configs_dir is not None)
    place = stores.package_place(home.folder, own=own)
    key = Key(file.key, file.dtypes, {})
    shelf = stores.Shelf()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # broken files beside it are told by the inventory
        stores.read_place(shelf, place, subject, key, file.device, listing)
        by_point: dict[Any, list[stores.Found]] = {}
        for found in shelf.found:
            by_point.setdefault(point(found.record), []).append(found)
        for record in file.records:
            there = stores.Shelf(found=by_point.get(point(record), []))
            ranked = there.ranked(Key(file.key, file.dtypes, record.at))
            if not any(_serves(found.record, record, flat=flat) for _, found in ranked):
                yield Fault(str(home.folder), str(dict(record.at)), _missed(shelf.skipped))
            elif kernel is not None and (why := _refused(kernel, file, record)):
                yield Fault(str(home.folder), str(dict(record.at)), why)


def _serves(found: Record, record: Record, *, flat: bool) -> bool:
    return dict(found.config) == dict(record.config) if flat else found == record


def _missed(skipped: Sequence[tuple[Path, str]]) -> str:
    reasons = "; ".join(f"{path.name}: {why}" for path, why in skipped[:3])
    return f"a lookup does not find it{': ' if reasons else ''}{reasons}"


def _refused(kernel: ShippedKernel, file: ConfigFile, record: Record) -> str:
    """Why the kernel itself would not launch with the record from its package, or ""."""
    dtypes = list((file.dtypes or {}).values())
    if any(not isinstance(entry, str) for entry in dtypes):
        return ""  # members of tuples cannot be asked for without tensors
    values: Mapping[str, Any] = {**file.key, **record.at}
    match = kernel.resolve_for(dtypes=dtypes or None, device=file.device, **values)
    if match is not None and match.rule == "exact" and match.record is not None:
        return ""
    instead = "it would tune" if match is None else f"{match.source}, {match.rule}: {match.path}"
    return f"the kernel itself does not take it; instead: {instead}"
