"""Which files of a package its kernels' lookups reach, and which of these serve for nothing."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .declared import Declared
from .errors import ConfigFileError
from .inventory import Fault, Held, Inventory, faults_of
from .keys import Key, dtypes_text, key_text, to_json
from .records import flat_fields, parse_json
from .sources import Member
from .stores import file_name, may_hold


@dataclass(frozen=True)
class Placed:
    """A file in the folder of a kernel that looks there; None where no code tells who does."""

    held: Held
    kernel: Declared | None

    @property
    def path(self) -> str:
        return self.held.member.path

    @property
    def key(self) -> Key:
        """The file's own key, with its entries in the order that names are built in."""
        file = self.held.file
        declared = (self.kernel.key if self.kernel else None) or tuple(file.key)
        names = [name for name in declared if name in file.key]
        return Key({name: file.key[name] for name in names}, file.dtypes, {})

    def where(self, index: int) -> str:
        """The place of a record in the file: `records[3]`, or `64` in one of the flat form."""
        if self.held.flat:
            return str(next(iter(self.held.file.records[index].at.values()), index))
        return f"records[{index}]"


def place(inventory: Inventory, kernels: Sequence[Declared]) -> tuple[list[Placed], list[Fault]]:
    """Put each file to the kernel that finds it, and tell of those that no lookup finds."""
    placed: list[Placed] = []
    faults: list[Fault] = []
    for held in inventory.held:
        found = _placed(held, kernels, inventory.source.has_code)
        why = found if isinstance(found, str) else _unreached(found)
        if why:
            faults.append(Fault(held.member.path, "", why))
        elif isinstance(found, Placed):
            placed.append(found)
    return placed, faults


def _placed(held: Held, kernels: Sequence[Declared], has_code: bool) -> Placed | str:
    folder = posixpath.dirname(held.member.name)
    here = [kernel for kernel in kernels if posixpath.normpath(kernel.folder) == folder]
    if not here:
        return "no kernel looks in this folder" if has_code else Placed(held, None)
    file = held.file
    named = [k for k in here if held.flat or k.name == file.kernel]
    if not named:
        return f"holds records of kernel {file.kernel}, and {here[0].name} looks here"
    if held.flat and all(kernel.configs_dir is None for kernel in named):
        return "the flat form is read only in a folder that the kernel names as configs_dir"
    why = ""
    for kernel in named:
        # What the one nearest entry is called, the flat form does not say.
        nearest = kernel.nearest if held.flat and kernel.nearest is not None else file.nearest
        why = kernel.mismatch(tuple(file.key), nearest)
        if not why:
            return Placed(held, kernel)
    return why


def _unreached(placed: Placed) -> str:
    """Why no lookup of the file's own key and device opens it, or ""."""
    file, name = placed.held.file, placed.held.member.file_name
    flat = placed.held.flat
    key = placed.key
    start = key_text(key.values.items())
    if may_hold(name, key, start, [file.device.name], flat=flat):
        return ""
    if flat:
        return "its name is not just the key and the device"
    return f"no lookup builds its name, which should be {file_name(key, file.device)}.json"


def misnamed(placed: Placed) -> Iterator[Fault]:
    """The fields of a file's name that say something else than its content, which decides."""
    file = placed.held.file
    if placed.held.flat:
        return
    stem = placed.held.member.file_name.removesuffix(".json").partition("~")[0]
    wanted = file_name(placed.key, file.device)
    if stem == wanted or len(wanted) >= 200:
        return
    said, holds = flat_fields(stem) or {}, flat_fields(wanted) or {}
    for name, where in (("dtypes", "dtypes"), ("arch", "device.arch"),
                        ("mp", "device.multiprocessors")):  # fmt: skip
        if name in said and holds.get(name) not in (None, "", "0", said[name]):
            yield Fault(
                placed.path, where, f"is {holds[name]}, and the file's name says {said[name]}"
            )


def doubled(placed: Sequence[Placed]) -> Iterator[Fault]:
    """Records for one kernel, device, key, dtypes and point, of which only the first serves."""
    seen: dict[tuple[str, ...], str] = {}
    for one in placed:
        file = one.held.file
        key = {name: to_json(value) for name, value in one.key.values.items()}
        for index, record in enumerate(file.records):
            name = (
                posixpath.dirname(one.held.member.name), file.kernel, repr(file.device),
                json.dumps(key), dtypes_text(file.dtypes), json.dumps(dict(record.at)),
            )  # fmt: skip
            first = seen.setdefault(name, one.path)
            if first != one.path:
                yield Fault(one.path, one.where(index), f"is in {first} too, which serves first")


def aliases(members: Iterator[Member], devices: set[str]) -> Iterator[Fault]:
    """What is wrong with the files of device aliases; `devices` are those that have records."""
    for member in members:
        try:
            document = parse_json(member.read(), member.path)
        except (OSError, ConfigFileError) as error:
            yield from faults_of(error, member.path)
            continue
        if not isinstance(document, dict):
            yield Fault(member.path, "", "must map device names to device names")
            continue
        for name, other in document.items():
            if not isinstance(other, str):
                yield Fault(member.path, name, "must be the name of a device")
            elif other not in devices:
                yield Fault(member.path, name, f"borrows from {other}, which has no records")
