"""Files of other tools, to be put where shipconf's records go."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from .errors import ConfigFileError
from .interop import flat, triton_cache
from .inventory import Fault, faults_of
from .keys import Value
from .records import ConfigFile, Device, parse_json
from .sources import Member, Source


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the files do not say themselves.

    `kernel` is the kernel's name, which flat files never say; of Triton's files only those of a
    function of that name are read, and `called` is what their records call it instead. `nearest`
    has the names of its nearest entries, `more` entries of its key that flat names leave out.
    `device` is whole, where its name is given: of flat files it is for those of that name only.
    `keys`, `tensors` and `triton` are those of `interop.triton_cache.Told`.
    """

    kernel: str | None = None
    called: str | None = None
    nearest: Sequence[str] = (flat.NEAREST,)
    more: Mapping[str, Value] = field(default_factory=dict)
    device: Device | None = None
    keys: Sequence[str] = ()
    tensors: Sequence[str] = ()
    triton: str | None = None


def foreign(source: Source, told: Told) -> tuple[list[tuple[str, ConfigFile]], list[Fault]]:
    """The flat files and Triton's in the source, read, and the faults of those that cannot be.

    What else Triton's cache has, of other kernels too, is left out in silence.
    """
    members = list(source.configs())
    cache = any(member.file_name.endswith(triton_cache.SUFFIX) for member in members)
    found: list[tuple[str, ConfigFile]] = []
    faults = [Fault(path, "", what) for path, what in source.unreadable]
    for member in members:
        try:
            if member.file_name.endswith(triton_cache.SUFFIX):
                if told.kernel is None or triton_cache.is_of(told.kernel, member.file_name):
                    found.append((member.path, _triton(member, told)))
            elif not cache:
                found.append((member.path, _flat(member, told)))
        except (OSError, ConfigFileError) as error:
            faults += faults_of(error, member.path)
    return found, faults


def _flat(member: Member, told: Told) -> ConfigFile:
    stem = member.file_name.removesuffix(".json")
    document = parse_json(member.read(), member.path)
    if isinstance(document, dict) and "schema" in document:
        what = "is a file of shipconf's own: `shipconf merge` and `export` take it"
        raise ConfigFileError(member.path, [("", what)])
    if told.kernel is None:
        raise ConfigFileError(member.path, [("", "names no kernel: name it by --kernel")])
    if len(told.nearest) != 1:
        raise ConfigFileError(member.path, [("", "needs the name of one nearest entry")])
    file = flat.read(stem, document, member.path, kernel=told.kernel, nearest=told.nearest[0],
                     more=told.more)  # fmt: skip
    device = told.device
    if device is None or device.name.replace(" ", "_") != file.device.name.replace(" ", "_"):
        return file
    return dataclasses.replace(file, device=device)


def _triton(member: Member, told: Told) -> ConfigFile:
    if told.device is None:
        raise ConfigFileError(member.path, [("", "names no device: name it by --device")])
    nearest = [name for name in told.nearest if name in told.keys]
    more = triton_cache.Told(
        device=told.device, keys=told.keys, nearest=nearest, tensors=told.tensors,
        kernel=told.called or told.kernel, triton=told.triton,
    )  # fmt: skip
    return triton_cache.read(member.file_name, member.read(), member.path, more, _written(member))


def _written(member: Member) -> str | None:
    """When the file was written, which Triton does once, right after tuning."""
    try:
        seconds = Path(member.path).stat().st_mtime
    except OSError:  # inside an archive
        return None
    when = datetime.fromtimestamp(int(seconds), timezone.utc)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
