"""Records into a folder of flat files, so that packages which read that form can be fed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import files as disk
from .draft import Written
from .errors import ConfigFileError, ShipconfError
from .export import Decision, ExportReport
from .homes import Home, unreached
from .interop import flat
from .interop.flat import VERSION
from .inventory import Fault, faults_of
from .records import ConfigFile, flat_fields, parse_json
from .sources import Source


def export_flat(
    files: Iterable[tuple[str, ConfigFile]], target: Source, *, on_conflict: str = "keep",
    dry_run: bool = False, versioned: bool = False,
) -> ExportReport:  # fmt: skip
    """Put records into the target folder as `N=4096,K=4096,device_name=NVIDIA_L4.json`.

    The names are spelled as the files that are there already spell theirs, those of imported
    files as before. The form holds configs and one nearest value; dtypes, arch and times are
    left behind, so files that differ in these alone are faults: choose one. What is there stays
    unless `on_conflict` is `replace`; `faster` cannot be told. `versioned` lets the files say
    `triton_version`. Raises `ShipconfError` for a target that is installed or zipped.
    """
    if refusal := target.refusal():
        raise ShipconfError(refusal)
    report = ExportReport(target.root)
    named: dict[Path, list[tuple[str, ConfigFile]]] = {}
    styles = _styles(target.root)
    for name, file in files:
        try:
            flat.document(file)
            path = target.root / flat.file_name(file, _like(file, styles))
            named.setdefault(path, []).append((name, file))
        except flat.UnfitForFlat as error:
            report.faults.append(Fault(name, "", str(error)))
    for path, several in sorted(named.items()):
        if len(several) > 1:
            what = f"would be {path.name}, as others would: choose by --dtypes or --from"
            report.faults += [Fault(name, "", what) for name, _ in several]
            continue
        file = several[0][1]
        style = _like(file, styles)
        versioned_too = versioned or (style is not None and style.versioned)
        _put(report, path, file, on_conflict, dry_run=dry_run, versioned=versioned_too)
    return report


def _styles(folder: Path) -> dict[frozenset[str], flat.Style]:
    """How the flat files that are there are spelled, by the names of their fields."""
    found: dict[frozenset[str], flat.Style] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = parse_json(path.read_bytes(), path)
        except (OSError, ConfigFileError):
            continue
        if flat.is_flat(path.stem, document):
            style = flat.style_of(path.stem, document)
            found.setdefault(frozenset(style.fields), style)
    return found


def _like(file: ConfigFile, styles: Mapping[frozenset[str], flat.Style]) -> flat.Style | None:
    """The style of a file there that says all of the key, or all but what is not set."""
    names = frozenset([*file.key, "device_name"])
    return styles.get(names) or styles.get(names - flat.unset(file))


def _put(
    report: ExportReport, path: Path, file: ConfigFile, policy: str, *, dry_run: bool,
    versioned: bool,
) -> None:  # fmt: skip
    new = flat.document(file, versioned=versioned)
    try:
        before = path.read_bytes()
        there = parse_json(before, path)
        flat.read(path.stem, there, path, kernel=file.kernel)  # only to know that it is whole
    except FileNotFoundError:
        before, there = None, {}
    except (OSError, ConfigFileError) as error:
        report.faults += faults_of(error, str(path))
        return
    name = file.nearest[0]
    points = [at for at in new if at != VERSION]
    decisions = [_decision(path, {name: int(at)}, at, there, new, policy) for at in points]
    taken = {str(d.at[name]) for d in decisions if d.outcome in ("added", "replaced")}
    merged = _merged(there, new, taken)
    report.decisions += decisions
    if not taken:
        return
    written = Written(path, before, flat.dump(merged))
    try:
        if not dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            disk.replace(path, written.after)
            report.faults += unreached(Home(path.parent), _kept(path, file, merged), flat=True)
    except OSError as error:
        report.faults += faults_of(error, str(path))
        return
    report.written.append(written)


def _decision(
    path: Path, where: Mapping[str, int], at: str, there: Mapping[str, Any],
    new: Mapping[str, Any], policy: str,
) -> Decision:  # fmt: skip
    if at not in there:
        return Decision(path, where, "added")
    if json.dumps(there[at], sort_keys=True) == json.dumps(new[at], sort_keys=True):
        return Decision(path, where, "same")
    if policy == "replace":
        return Decision(path, where, "replaced")
    why = "the flat form has no times" if policy == "faster" else "--on-conflict keep"
    return Decision(path, where, "kept", why)


def _merged(there: Mapping[str, Any], new: Mapping[str, Any], taken: set[str]) -> dict[str, Any]:
    """What is there with the points taken from `new`, ascending.

    It says a Triton version only where that is true of every point.
    """
    points = {at: config for at, config in there.items() if at != VERSION}
    versions = {there.get(VERSION)} if set(points) - taken else set()
    points |= {at: new[at] for at in taken}
    versions |= {new.get(VERSION)} if taken else set()
    said = list(zip([VERSION], versions)) if len(versions) == 1 and None not in versions else []
    return {**dict(said), **{at: points[at] for at in sorted(points, key=int)}}


def _kept(path: Path, file: ConfigFile, flat_document: dict[str, Any]) -> ConfigFile:
    """The records whose config the flat file has, under the key that its name says."""
    name = file.nearest[0]
    said = flat_fields(path.stem) or {}
    key = {entry: value for entry, value in file.key.items() if entry in said}
    records = [r for r in file.records if flat_document.get(str(r.at[name])) == dict(r.config)]
    return dataclasses.replace(file, key=key, records=tuple(records))
