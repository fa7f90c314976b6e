"""The places that hold records, and the order in which they serve.

Three kinds of place: the folders of `SHIPCONF_CONFIG_PATH` ("path"), the folder that ships
with the kernel ("package"), and the user store ("user"), the only one written to. A file's
name finds it; what is inside decides whether it serves.
"""

from __future__ import annotations

import bisect
import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import files, settings
from .errors import ConfigFileError, warn_once
from .keys import (
    TIE,
    Dtypes,
    Key,
    cut,
    distance,
    dtypes_serve,
    dtypes_text,
    escape,
    folder_name,
    key_text,
    to_json,
    typed,
)
from .portfolio import Portfolio
from .records import (
    ConfigFile,
    Device,
    NewerSchema,
    Record,
    dump,
    flat_fields,
    flat_text,
    from_document,
    from_flat,
    parse_json,
)
from .subject import Subject

ALIASES = "aliases.json"
UNCUT = 183  # so much of a name that `cut` shortens is as it was


@dataclass(frozen=True)
class Place:
    """A folder of one kernel's records. `root` may hold aliases for several kernels."""

    source: str
    folder: Path
    root: Path
    flat: bool = False


@dataclass(frozen=True)
class Found:
    """A stored record that serves a key and device. `dtypes` None serves any."""

    record: Record
    source: str
    path: Path | None
    dtypes: Dtypes | None
    stale: bool = False
    borrowed: bool = False

    @property
    def outdated(self) -> bool:
        """Whether every current record serves before it: a stale one that ships."""
        return self.stale and self.source == "package"

    @property
    def rank(self) -> tuple[int, bool, bool, bool]:
        """Its place in store order: lower serves first. A borrowed package record comes after
        the user's own, a record that names no dtypes after one of its place that does."""
        if self.source == "path":
            place = 0
        elif self.source == "package":
            place = 4 if self.borrowed else 2
        else:
            place = 1 if self.record.supersedes else 3
        return place, self.stale, self.borrowed, self.dtypes is None


@dataclass(frozen=True, eq=False)
class Tabled:
    """A portfolio that serves a key and device. `dtypes` None serves any."""

    portfolio: Portfolio
    device: Device
    source: str
    path: Path
    dtypes: Dtypes | None


@dataclass
class Shelf:
    """All that the stores hold for one exact key and device, whatever the dtypes.

    `tables` are in store order, of the kernel's present version alone. `looked` has the folders
    searched, `skipped` the files of a fitting name that do not serve, each with the reason.
    """

    found: list[Found] = field(default_factory=list)
    tables: list[Tabled] = field(default_factory=list)
    looked: list[Place] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)

    def ranked(self, key: Key) -> list[tuple[float, Found]]:
        """The records that serve the key's dtypes with their distance, best first.

        Exact ones come first, in store order. Then the closest; of equally close ones those with
        the larger tuned values, then in store order. Stale records of a package come after all
        others, in the same order.
        """
        served = [
            (distance(key.nearest, found.record.at), found)
            for found in self.found
            if dtypes_serve(found.dtypes, key.dtypes)
        ]
        current = [pair for pair in served if not pair[1].outdated]
        outdated = [pair for pair in served if pair[1].outdated]
        return _ordered(current, key) + _ordered(outdated, key)


def _ordered(pairs: list[tuple[float, Found]], key: Key) -> list[tuple[float, Found]]:
    def larger(found: Found) -> list[int]:
        return [-found.record.at[name] for name in key.nearest]

    left = sorted(pairs, key=lambda pair: pair[0])
    ordered: list[tuple[float, Found]] = []
    while left:
        closest = left[0][0]
        tied = [pair for pair in left if pair[0] - closest <= TIE]
        if closest <= TIE:  # several can be exact in one store: values below 1 count as 1
            tied.sort(key=lambda pair: (pair[1].rank, larger(pair[1])))
        else:
            tied.sort(key=lambda pair: (larger(pair[1]), pair[1].rank))
        ordered += tied
        left = left[len(tied) :]
    return ordered


def file_name(key: Key, device: Device) -> str:
    """The name, without `.json`, of the file for a key and device.

    For example `N=4096,K=4096,dtypes=float16,device_name=NVIDIA_L4,arch=sm_89,mp=58`.
    """
    dtypes = f"dtypes={dtypes_text(key.dtypes)}" if key.dtypes else ""
    parts = [key_text(key.values.items()), dtypes]
    parts += [
        f"device_name={escape(device.name)}",
        f"arch={escape(device.arch, keep='_')}",
        f"mp={device.multiprocessors}",
    ]
    return cut(",".join(part for part in parts if part))


def places(subject: Subject) -> Iterator[Place]:
    """Where records of the kernel may lie, in the order of lookup."""
    kernel = folder_name(subject.name)
    for folder in settings.config_path():
        yield Place("path", folder / kernel, folder)
        yield Place("path", folder / subject.stem / kernel, folder)
    if subject.package is not None:
        yield package_place(subject.package, own=subject.own_folder)
    try:
        yield Place("user", user_folder(subject), user_folder(subject))
    except RuntimeError as error:
        warn_once("user store", "no home", f"shipconf keeps records in memory only: {error}")


def package_place(folder: Path, *, own: bool) -> Place:
    """The place of the records that ship; in a folder of the kernel's `own`, of either form."""
    return Place("package", folder, folder if own else folder.parent.parent, flat=own)


def user_folder(subject: Subject) -> Path:
    """`<user store>/v1/<identity>`. Raises `RuntimeError` where there is no home directory."""
    return settings.cache_dir() / "v1" / subject.identity


def json_names(folder: Path) -> list[str]:
    """The names of the folder's JSON files, sorted."""
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            warn_once(str(folder), "unreadable", f"shipconf cannot read {folder}: {error}")
        return []


def read(subject: Subject, key: Key, device: Device) -> Shelf:
    """Read every file that may hold records for the key's exact part and the device."""
    shelf = Shelf()
    if key.storable:
        for place in places(subject):
            read_place(shelf, place, subject, key, device)
    return shelf


def read_place(
    shelf: Shelf, place: Place, subject: Subject, key: Key, device: Device,
    listing: Callable[[Path], list[str]] = json_names,
) -> None:  # fmt: skip
    """Put what one place holds on the shelf; `listing` may be a `json_names` that remembers."""
    start = key_text(key.values.items())  # once: a folder may have a thousand files
    shelf.looked.append(place)
    names = listing(place.folder)
    alias = _aliases(place).get(device.name)
    devices = [device.name] if alias is None else [device.name, alias]
    for name in names if place.flat else _beginning(names, start[:UNCUT]):
        if may_hold(name, key, start, devices, flat=place.flat):
            _read_file(shelf, place, place.folder / name, subject, key, device, alias)


def _beginning(names: Sequence[str], start: str) -> Iterator[str]:
    """Those of the sorted names that begin so, without a look at the others."""
    for i in range(bisect.bisect_left(names, start), len(names)):
        if not names[i].startswith(start):
            break
        yield names[i]


def _aliases(place: Place) -> dict[str, str]:
    """The author's aliases: those in the kernel's folder over those in the root of `configs`."""
    if place.source == "user":
        return {}
    found: dict[str, str] = {}
    for path in dict.fromkeys([place.root / ALIASES, place.folder / ALIASES]):
        try:
            document = parse_json(path.read_bytes(), path)
            if not isinstance(document, dict) or not all(
                isinstance(name, str) for name in document.values()
            ):
                raise ConfigFileError(path, [("", "must map device names to device names")])
            found.update(document)
        except OSError:
            continue  # most folders have none; the listing warns of one that cannot be read
        except ConfigFileError as error:
            warn_once(str(path), "bad", f"shipconf ignores the aliases: {error}")
    return found


def may_hold(name: str, key: Key, start: str, devices: Sequence[str], *, flat: bool) -> bool:
    """Whether a file of that name can be for the key and one of the devices' names, so that a
    lookup opens it. `start` is how the names of the key's files begin; `flat` says that the flat
    form is read there too."""
    if flat and _flat_fits(name.removesuffix(".json"), key, devices):
        return True
    stem = name.removesuffix(".json").partition("~")[0]
    if len(stem) >= 200:  # cut: only its beginning can tell
        return stem[:UNCUT].startswith(start[:UNCUT])
    if not stem.startswith(start):
        return False
    fields = stem.removeprefix(start).strip(",").split(",")
    if not fields[0].startswith(("dtypes=", "device_name=")):
        return False
    return any(f"device_name={escape(device_name)}" in fields for device_name in devices)


def _flat_fits(stem: str, key: Key, devices: Sequence[str]) -> bool:
    fields = flat_fields(stem)
    if fields is None or set(fields) != {*key.values, "device_name"}:
        return False
    return fields["device_name"] in [name.replace(" ", "_") for name in devices] and all(
        fields[name] == flat_text(value) for name, value in key.values.items()
    )


def _load(path: Path) -> Any:
    """The JSON of a file. Raises `ConfigFileError`, or `OSError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        data = path.read_bytes()  # a network handle of a file that was just replaced
    return parse_json(data, path)


def _read_file(
    shelf: Shelf, place: Place, path: Path, subject: Subject, key: Key, device: Device,
    alias: str | None,
) -> None:  # fmt: skip
    try:
        document = _load(path)
        if place.flat and isinstance(document, dict) and "schema" not in document:
            borrowed = not _flat_fits(path.stem, key, [device.name])
            if borrowed and (alias is None or not _flat_fits(path.stem, key, [alias])):
                shelf.skipped.append((path, "its name is not just the key and the device"))
                return
            for record in from_flat(document, path, subject.nearest_names):
                shelf.found.append(Found(record, place.source, path, None, borrowed=borrowed))
            return
        file = from_document(document, path)
    except FileNotFoundError:
        return  # replaced or moved aside since the listing
    except (OSError, ConfigFileError) as error:
        shelf.skipped.append((path, str(error)))
        warn_once(str(path), "bad", f"shipconf takes no records from a bad file: {error}")
        return
    if why := mismatch(file, subject, key):
        shelf.skipped.append((path, why))
        return
    own = file.device.serves(device)
    if not own and (alias is None or not file.device.serves(device, alias=alias)):
        shelf.skipped.append((path, f"tuned on {file.device}"))
        return
    for record in file.records:
        stale = record.fingerprint not in (None, subject.fingerprint)
        dtypes = file.dtypes
        shelf.found.append(Found(record, place.source, path, dtypes, stale, borrowed=not own))
    if "portfolios" in file.extra:
        what = "a malformed portfolio, which `shipconf verify` tells of: the records serve alone"
        warn_once(str(path), "portfolios", f"{path} has {what}")
    for portfolio in file.portfolios if own else ():  # times of another device tell nothing here
        if portfolio.fingerprint in (None, subject.fingerprint):
            tabled = Tabled(portfolio, device, place.source, path, file.dtypes)
            shelf.tables.append(tabled)


def mismatch(file: ConfigFile, subject: Subject, key: Key) -> str:
    """Why the file is not for the kernel and the key's exact part, or ""."""
    if file.kernel != subject.name:
        return f"holds records of kernel {file.kernel}"
    if set(file.key) != set(subject.key_names) or set(file.nearest) != set(subject.nearest_names):
        return (
            f"has key {list(file.key)} and nearest {list(file.nearest)}; the kernel declares "
            f"{list(subject.key_names)} and {list(subject.nearest_names)}"
        )
    differ = [n for n, v in key.values.items() if typed(file.key[n]) != typed(v)]
    return "holds another " + ", ".join(differ) if differ else ""


def lock_path(subject: Subject, key: Key, device: Device) -> Path:
    """The lock of the kernel, key and device: beside the record file, `….json.lock`."""
    return user_folder(subject) / f"{file_name(key, device)}.json.lock"


def journal_path(subject: Subject, key: Key, device: Device) -> Path:
    """The journal of the tunings of the kernel, key and device."""
    return lock_path(subject, key, device).with_suffix("").with_suffix(".journal")


def put(subject: Subject, key: Key, device: Device, record: Record) -> Path:
    """Keep the record in the user store and return its file; call with the lock held.

    It takes the place of another of its point. Raises `OSError`.
    """
    return _change(subject, key, device, lambda file: file.merged(record))


def put_portfolio(subject: Subject, key: Key, device: Device, portfolio: Portfolio) -> Path:
    """Keep the portfolio in the user store and return its file; call with the lock held.

    It takes the place of others of its fingerprint and Triton version. Raises `OSError`.
    """
    return _change(subject, key, device, lambda file: file.tabled(portfolio))


def _change(
    subject: Subject, key: Key, device: Device, change: Callable[[ConfigFile], ConfigFile]
) -> Path:
    """Write the changed file of the key and device to the user store, and return its path.

    What the file holds already is read again and kept. A bad file is moved aside as `.bad`; a
    file of another key or device, or of a newer schema, is left, and the next free name
    (`…~2.json`) taken.
    """
    assert isinstance(key.dtypes, dict)
    folder = user_folder(subject)
    folder.mkdir(parents=True, exist_ok=True)
    empty = ConfigFile(
        kernel=subject.name, device=device, key=dict(key.values), dtypes=dict(key.dtypes),
        nearest=subject.nearest_names, records=(), module=subject.module,
    )  # fmt: skip
    stem = file_name(key, device)
    number = 1
    while True:
        path = folder / f"{stem}{f'~{number}' if number > 1 else ''}.json"
        known = _known(path, empty, subject, key)
        if known is not None:
            files.replace(path, dump(change(known)))
            return path
        number += 1


def _known(path: Path, empty: ConfigFile, subject: Subject, key: Key) -> ConfigFile | None:
    """The file at the path to merge into, or None if another's; `empty` if there is none."""
    try:
        file = from_document(_load(path), path)
    except FileNotFoundError:
        return empty
    except NewerSchema:
        return None
    except ConfigFileError as error:
        warn_once(str(path), "bad", f"shipconf moves a bad file aside as .bad: {error}")
        with suppress(FileNotFoundError):
            os.replace(path, path.with_name(path.name + ".bad"))
        return empty
    same = not mismatch(file, subject, key) and (file.device, file.dtypes) == (
        empty.device, empty.dtypes,
    )  # fmt: skip
    return file if same else None


def note_miss(subject: Subject, key: Key, device: Device) -> None:
    """Append the miss to the file of `SHIPCONF_MISSES`, if that is set."""
    path = settings.misses_path()
    if path is None:
        return
    line = {
        "kernel": subject.name,
        "target": subject.target,
        "key": {name: to_json(value) for name, value in key.values.items()},
        "nearest": dict(key.nearest),
        "dtypes": dict(key.dtypes) if isinstance(key.dtypes, dict) else key.dtypes,
        "device": device.name,
    }
    try:
        files.append(path, json.dumps(line))
    except OSError as error:
        warn_once("SHIPCONF_MISSES", str(path), f"shipconf cannot note misses: {error}")
