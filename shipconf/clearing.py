"""Removing records from the user store, while other processes may use it.

A file is rewritten or removed under the lock of its key, as a tuner writes it. Lock files stay:
deleting one would let two processes lock two files of one name.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import files, settings
from .errors import ConfigFileError, LockTimeout
from .inventory import tuned_at
from .keys import folder_name
from .records import ConfigFile, NewerSchema, Record, dump, parse

WAIT_S = 5.0  # for whoever holds a key's lock: a tuner may hold it for minutes


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to remove; what is left empty asks for everything.

    `kernel` is a kernel's name as its files hold it, `older_than_s` an age in seconds. `current`
    maps kernels to the fingerprints they have now: of those kernels only stale records go.
    """

    kernel: str = ""
    older_than_s: float | None = None
    current: Mapping[str, Collection[str | None]] | None = None

    def takes(self, file: ConfigFile, record: Record, written_s: float) -> bool:
        """Whether a record goes. `written_s` is when its file was, for one that has no date."""
        if self.kernel and file.kernel != self.kernel:
            return False
        if self.current is not None:
            known = self.current.get(file.kernel)
            if known is None or record.fingerprint in {None, *known}:
                return False
        when = tuned_at(record)
        return self._is_old(when.timestamp() if when else written_s)

    def takes_rest(self, path: Path, written_s: float) -> bool:
        """Whether a file without records goes: a journal, or a bad file moved aside."""
        name = path.parent.name.rpartition("-")[0]
        if self.current is not None or (self.kernel and name != folder_name(self.kernel)):
            return False
        return self._is_old(written_s)

    def _is_old(self, when_s: float) -> bool:
        return self.older_than_s is None or time.time() - when_s >= self.older_than_s


@dataclass(frozen=True)
class Removal:
    """What goes of one file: `records` of them, of which `left` stay. `kernel` is their kernel,
    or the folder's name for a file without records."""

    path: Path
    kernel: str
    records: int
    left: int


@dataclass
class Plan:
    """What a clearing would do. `kept` are files that are left as they are, each with why."""

    removals: list[Removal] = field(default_factory=list)
    kept: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(removal.records for removal in self.removals)


def plan(wanted: Wanted) -> Plan:
    """Look at the user store, and write nothing. Raises `RuntimeError` where there is no home."""
    made = Plan()
    for path in _files(settings.cache_dir() / "v1"):
        try:
            removal, _ = _look(path, wanted)
        except FileNotFoundError:
            continue  # gone since the listing
        except (OSError, NewerSchema) as error:
            made.kept.append((path, str(error)))
            continue
        if removal is not None:
            made.removals.append(removal)
    return made


def _files(store: Path) -> Iterator[Path]:
    """The files of the store that hold something: no locks, no temporary files."""
    for path in sorted(store.glob("*/*")):
        if path.suffix in (".json", ".bad", ".journal") and not path.name.startswith("."):
            yield path


def _look(path: Path, wanted: Wanted) -> tuple[Removal | None, ConfigFile | None]:
    """What goes of a file, and what stays in it, if anything does."""
    written_s = path.stat().st_mtime
    folder = path.parent.name
    whole = Removal(path, folder, 0, 0) if wanted.takes_rest(path, written_s) else None
    if path.suffix != ".json":
        return whole, None
    try:
        file = parse(path.read_bytes(), path)
    except NewerSchema:  # a newer shipconf's: it alone knows what it loses
        raise
    except ConfigFileError:
        return whole, None
    left = tuple(r for r in file.records if not wanted.takes(file, r, written_s))
    gone = len(file.records) - len(left)
    if not gone and file.records:
        return None, file
    rest = dataclasses.replace(file, records=left) if left else None
    return Removal(path, file.kernel, gone, len(left)), rest


def clear(made: Plan, wanted: Wanted, done: Callable[[Removal], None] = lambda _: None) -> Plan:
    """Carry a plan out, and return what was done: each file is read again under its lock.

    A file whose lock is held for longer than 5 s, or cannot be had, is kept.
    """
    outcome = Plan(kept=list(made.kept))
    wait_s = min(WAIT_S, settings.lock_timeout_s())
    for planned in made.removals:
        lock = _lock_of(planned.path)
        try:
            with files.lock(str(lock), lock, wait_s) as why:
                if why:
                    outcome.kept.append((planned.path, f"its lock cannot be had: {why}"))
                    continue
                removal, rest = _look(planned.path, wanted)
                if removal is None:
                    continue  # tuned anew since it was planned
                if rest is not None:
                    files.replace(planned.path, dump(rest))
                else:
                    planned.path.unlink()
        except LockTimeout:
            outcome.kept.append((planned.path, "it is in use: another process tunes its key"))
        except FileNotFoundError:
            continue  # another process removed it
        except (OSError, NewerSchema) as error:
            outcome.kept.append((planned.path, str(error)))
        else:
            outcome.removals.append(removal)
            done(removal)
    return outcome


def _lock_of(path: Path) -> Path:
    """The lock of the key: `<name>.json.lock`, for `<name>.json`, `<name>~2.json` and the rest."""
    stem = path.name
    for suffix in (".bad", ".json", ".journal"):
        stem = stem.removesuffix(suffix)
    return path.with_name(f"{stem.partition('~')[0]}.json.lock")
