"""A lookup in words: what was asked, where shipconf looked, what differs, and what cures it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .configs import config_text
from .errors import ConfigFileError, OfflineError
from .keys import Key, distance, dtypes_serve, dtypes_text, to_json, typed
from .records import ConfigFile, Device, parse
from .stores import ALIASES, Place, Shelf, file_name, places
from .subject import Subject

if TYPE_CHECKING:
    from .resolver import Match

MOST = 5  # closest records, or files, that a message lists


def command(subject: Subject, key: Key) -> str:
    """The one command that fills the gap, where tuning is allowed and the kernel has a workload.

    `shipconf tune` reads the key from the same words.
    """
    return tune_command(subject.target, key)


def tune_command(target: str, key: Key) -> str:
    """The command that tunes the kernel of that name for the key and the nearest values."""
    parts = ["shipconf", "tune", target]
    for name, value in key.values.items():
        parts += ["-k", f"{name}={_word(to_json(value))}"]
    for name, near in key.nearest.items():
        parts += ["--at", f"{name}={near}"]
    if key.dtypes:
        parts += ["--dtypes", dtypes_text(key.dtypes)]
    return shlex.join(parts)


def _word(document: object) -> str:
    """JSON, but for a string that cannot be taken for anything else."""
    if isinstance(document, str):
        try:
            json.loads(document)
        except ValueError:
            return document
    return json.dumps(document)


def wanted_file(subject: Subject, key: Key, device: Device) -> str:
    """The path of the file that a lookup wants first: the package's, else the user store's."""
    name = f"{file_name(key, device)}.json"
    for place in places(subject):
        if place.source in ("package", "user"):
            return str(place.folder / name)
    return name


def shipped_files(subject: Subject) -> list[str]:
    """The names of the JSON files that ship with the kernel."""
    try:
        names = os.listdir(subject.package) if subject.package is not None else []
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(".json") and name != ALIASES)


def miss(subject: Subject, key: Key, device: Device, exists: list[str]) -> str:
    """The warning for a kernel that ships records of which none fits."""
    return f"no shipped record of {subject.name} fits {device} and {key}. " + _cure(
        subject, key, device, exists
    )


def default_used(subject: Subject, key: Key, device: Device) -> str:
    return (
        f"no stored record of {subject.name} fits {device} and {key}; its default config is used. "
        + _cure(subject, key, device, shipped_files(subject))
    )


def _cure(subject: Subject, key: Key, device: Device, exists: list[str]) -> str:
    more = f" and {len(exists) - MOST} more" if len(exists) > MOST else ""
    has = f"; that folder has {', '.join(exists[:MOST])}{more}" if exists else ""
    return (
        f"Looked for {wanted_file(subject, key, device)}{has}. To fill it: {command(subject, key)}"
    )


def offline_error(
    subject: Subject, key: Key, device: Device, shelf: Shelf, why: str
) -> OfflineError:
    looked = [f"{place.source}: {place.folder}" for place in shelf.looked]
    cure = command(subject, key)
    lines = [f"no config for {subject.name} on {device} and {key}, and {why}", "looked in:"]
    lines += [f"  {line}" for line in looked] + _closest_lines(subject, key, device, shelf)
    lines.append(f"run where tuning is allowed: {cure}")
    return OfflineError(
        "\n".join(lines), kernel=subject.name, device=device.name, key=str(key), looked=looked,
        command=cure,
    )  # fmt: skip


def explanation(
    subject: Subject, key: Key, device: Device, shelf: Shelf, match: Match | None, why: str
) -> str:
    """The whole lookup in words."""
    lines = [f"{subject.name} on {device}", f"key: {key}"]
    lines += [f"uses: {_match_line(match)}" if match else f"uses: nothing stored; {why}"]
    if match is not None and match.record is not None:
        lines += _provenance(subject, match)
    if match is not None and match.runner_up is not None:
        second = config_text(match.runner_up.config)
        lines.append(f"  runner-up: {match.runner_up}: {second}")
    lines.append("looked in:")
    for place in shelf.looked:
        count = sum(found.source == place.source and found.path is not None
                    and found.path.parent == place.folder for found in shelf.found)  # fmt: skip
        state = f"{count} records of this key" if count else "nothing for this key"
        lines.append(f"  {place.source}: {place.folder}: {state}")
    lines += [f"  skipped {path.name}: {reason}" for path, reason in shelf.skipped]
    lines += _closest_lines(subject, key, device, shelf)
    if match is None or match.rule != "exact":
        lines.append(f"looked for: {wanted_file(subject, key, device)}")
        lines.append(f"to fill the gap: {command(subject, key)}")
    return "\n".join(lines)


def _match_line(match: Match) -> str:
    near = f", {match.distance:.2f} octaves away" if match.rule == "nearest" else ""
    if match.prediction is not None:
        near = f": {match.prediction}, measured {match.distance:.2f} octaves away"
    at = f" at {dict(match.record.at)}" if match.record is not None and match.record.at else ""
    where = f" ({match.path})" if match.path else ""
    return f"{match.source}, {match.rule}{at}{near}: {config_text(_plain(match))}{where}"


def _plain(match: Match) -> dict[str, object]:
    from .keys import canonical

    return {name: to_json(canonical(value)) for name, value in match.config.items()}


def _provenance(subject: Subject, match: Match) -> Iterator[str]:
    record = match.record
    assert record is not None
    import triton

    if record.fingerprint is None:
        yield "  the record names no fingerprint: whether the kernel changed since is unknown"
    elif record.fingerprint != subject.fingerprint:
        yield "  the kernel has changed since this record was tuned"
    if record.triton not in (None, triton.__version__):
        yield f"  tuned with Triton {record.triton}; this is {triton.__version__}"
    if match.path is not None and "dtypes=" not in match.path.name:
        yield "  the file names no dtypes or architecture: it serves any"


def _closest_lines(subject: Subject, key: Key, device: Device, shelf: Shelf) -> list[str]:
    """The closest records in all places, and which field of each differs from what was asked."""
    ranked = sorted(_all_records(subject, key, device, shelf), key=lambda pair: pair[0])
    lines = [text for _, text in ranked[:MOST]]
    return ["closest records:", *(f"  {line}" for line in lines)] if lines else []


def _all_records(
    subject: Subject, key: Key, device: Device, shelf: Shelf
) -> Iterator[tuple[tuple[int, float], str]]:
    reached = {found.path for found in shelf.found}
    for place, path, file in _readable(subject):
        differ = list(_differences(file, subject, key, device))
        if not differ and path not in reached:
            differ = [f"no lookup builds its name, which should be {file_name(key, device)}"]
        for record in file.records:
            if set(record.at) != set(key.nearest):
                continue
            octaves = distance(key.nearest, record.at)
            at = f"{dict(record.at)} ({octaves:.2f} octaves away)" if key.nearest else ""
            why = "; ".join(differ) or "fits"
            yield (len(differ), octaves), f"{place.source} {at} {why}: {path.name}"


def _json_files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.json"))[:1000]
    except OSError:
        return []


def _differences(file: ConfigFile, subject: Subject, key: Key, device: Device) -> Iterator[str]:
    if file.kernel != subject.name:
        yield f"kernel is {file.kernel}"
    for name, value in key.values.items():
        if name not in file.key:
            yield f"key has no {name}"
        elif typed(file.key[name]) != typed(value):
            yield f"{name} is {json.dumps(to_json(file.key[name]))}"
    for name in file.key.keys() - key.values.keys():
        yield f"key has {name}, which the kernel does not declare"
    if not dtypes_serve(file.dtypes, key.dtypes):
        yield f"dtypes are {dtypes_text(file.dtypes or {})}"
    if not file.device.serves(device):
        yield f"device is {file.device}"


def known_files(subject: Subject) -> Iterator[ConfigFile]:
    """The kernel's files that can be read, whatever the key and the device."""
    return (file for _, _, file in _readable(subject) if file.kernel == subject.name)


def _readable(subject: Subject) -> Iterator[tuple[Place, Path, ConfigFile]]:
    """Every file in the kernel's places that can be read, and where it is."""
    for place in places(subject):
        for path in _json_files(place.folder):
            try:
                file = parse(path.read_bytes(), path)
            except (OSError, ConfigFileError):
                continue
            yield place, path, file
