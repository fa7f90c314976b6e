"""Changes to folders of config files: gathered first, shown as a diff, then written.

A file of a newer schema, a broken one, and one of another key or device are never written over:
what would go there takes the next free name (`…~2.json`), where lookups read too.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import files, settings
from .errors import ConfigFileError, LockTimeout
from .inventory import Fault
from .records import ConfigFile, dump, parse
from .union import agree, equal, identity

# Makes what is to be written of what the file holds at that moment, None if it does not exist.
Change = Callable[[ConfigFile | None], ConfigFile]


@dataclass(frozen=True)
class Written:
    """A file before and after; `before` is None where there was none."""

    path: Path
    before: bytes | None
    after: bytes

    def diff(self) -> str:
        """The unified diff."""
        old = (self.before or b"").decode("utf-8", "replace").splitlines(keepends=True)
        new = self.after.decode("utf-8", "replace").splitlines(keepends=True)
        old_name = "/dev/null" if self.before is None else str(self.path)
        return "".join(difflib.unified_diff(old, new, old_name, str(self.path)))


@dataclass
class _Listing:
    """The JSON files of a folder: their bytes, and by identity those that could be parsed."""

    data: dict[Path, bytes | None] = field(default_factory=dict)
    files: dict[str, dict[Path, ConfigFile]] = field(default_factory=dict)

    def add(self, path: Path, file: ConfigFile) -> None:
        self.data.setdefault(path, None)
        self.files.setdefault(identity(file), {})[path] = file


@dataclass(frozen=True)
class _Plan:
    """A change to a file, and what it makes of the bytes and the content that were read."""

    change: Change
    data: bytes | None
    held: ConfigFile | None
    after: ConfigFile


class Draft:
    """Changes to config files, none of them written yet.

    `faults` has what went wrong in writing, by file.
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._changes: dict[Path, _Plan] = {}
        self._listings: dict[Path, _Listing] = {}

    def known(self, folder: Path, file: ConfigFile) -> list[tuple[Path, ConfigFile]]:
        """The files in the folder that hold records of the same kernel, device and key."""
        return list(self._listing(folder).files.get(identity(file), {}).items())

    def place(self, folder: Path, file: ConfigFile, stem: str) -> tuple[Path, ConfigFile | None]:
        """Where the records go: the file that they may join, and it; else the first free name from
        the stem, and None."""
        listing = self._listing(folder)
        for path, held in listing.files.get(identity(file), {}).items():
            if agree(held, file):
                return path, held
        numbered = (f"{stem}~{number}.json" for number in itertools.count(2))
        names = itertools.chain([f"{stem}.json"], numbered)
        return next(folder / name for name in names if folder / name not in listing.data), None

    def put(self, path: Path, file: ConfigFile, change: Change) -> None:
        """Let `change` be made to the file at the path, so that it becomes `file`."""
        listing = self._listing(path.parent)
        data, held = listing.data.get(path), listing.files.get(identity(file), {}).get(path)
        if (earlier := self._changes.get(path)) is not None:
            data, held, change = earlier.data, earlier.held, _both(earlier.change, change)
        self._changes[path] = _Plan(change, data, held, file)
        listing.add(path, file)

    def _listing(self, folder: Path) -> _Listing:
        if folder not in self._listings:
            listing = self._listings[folder] = _Listing()
            for path in sorted(folder.glob("*.json")):
                try:
                    listing.data[path] = path.read_bytes()
                    listing.add(path, parse(listing.data[path] or b"", path))
                except (OSError, ConfigFileError):
                    listing.data.setdefault(path, None)  # taken by what stays as it is
        return self._listings[folder]

    def preview(self) -> list[Written]:
        """What `write` would change, as things stand."""
        shown = [self._changed(path) for path in sorted(self._changes)]
        return [written for written in shown if written is not None]

    def write(self) -> list[Written]:
        """Write every change, and return those that changed something.

        Each file is locked, read again, changed and replaced. What goes wrong with one is added
        to `faults`, and the others are written all the same.
        """
        done: list[Written] = []
        locks: dict[Path | None, list[Path]] = {}
        for path in sorted(self._changes):
            locks.setdefault(_lock_path(path), []).append(path)
        for lock, paths in locks.items():
            try:
                name = str(lock or paths[0])
                with files.lock(name, lock, settings.lock_timeout_s()):
                    done += [written for path in paths for written in self._write(path)]
            except LockTimeout as error:
                self.faults += [Fault(str(path), "", f"not written: {error}") for path in paths]
        return done

    def _write(self, path: Path) -> Iterator[Written]:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            written = self._changed(path)
            if written is not None:
                # What a new file holds is still where it came from: export or merge again.
                files.replace(path, written.after, durable=written.before is not None)
                yield written
        except ConfigFileError as error:
            self.faults.append(Fault(str(path), "", f"not written: {error.what}"))
        except OSError as error:
            why = error.strerror or str(error)
            self.faults.append(Fault(str(path), "", f"not written: {why}"))

    def _changed(self, path: Path) -> Written | None:
        """The change to the file as it is now; None where it changes nothing."""
        plan = self._changes[path]
        held, file = plan.held, plan.after
        try:
            before: bytes | None = path.read_bytes()
        except FileNotFoundError:
            before = None
        if before != plan.data:  # another process wrote it since it was read
            held = parse(before, path) if before is not None else None
            file = plan.change(held)
        if held is None:
            return Written(path, before, dump(file))
        if identity(held) != identity(file) or not agree(held, file):
            raise ConfigFileError(path, [("", "another process changed it: run the command again")])
        # A file that says the same in other words, as one written by hand may, stays as it is.
        return None if equal(held, file) else Written(path, before, dump(file))


def _both(first: Change, second: Change) -> Change:
    return lambda known: second(first(known))


def _lock_path(path: Path) -> Path | None:
    """The lock that tuners hold for a file of a user store; one outside the folder for others,
    since a lock beside the records of a package would be shipped with them."""
    if path.parent.parent.name == "v1":
        return path.with_name(f"{path.stem.partition('~')[0]}.json.lock")
    digest = hashlib.sha256(str(path.parent.resolve()).encode()).hexdigest()[:16]
    try:
        return settings.cache_dir() / "locks" / f"{digest}.lock"
    except RuntimeError:
        return None
