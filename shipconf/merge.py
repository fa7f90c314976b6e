"""Several folders or cache trees into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .draft import Change, Draft, Written
from .inventory import Fault, take, too_flat
from .records import ConfigFile
from .sources import Member, Source
from .union import Conflict, identity, unite, unite_all


@dataclass
class MergeReport:
    """What a merge did, or with `dry_run` would do.

    `conflicts` has, by the file written to, the points that had two different records.
    """

    read: int = 0
    written: list[Written] = field(default_factory=list)
    conflicts: list[tuple[Path, Conflict]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def merge(sources: Sequence[Source], to: Path, *, dry_run: bool = False) -> MergeReport:
    """Merge all records of the sources into the folder `to`, which may be one of them.

    Files lie below it as in their source. Those of one kernel, device, key, dtypes and nearest
    names become one; of two records of one point the one stays that `union` says. Files of a
    newer schema, of the flat form and broken ones stay where they are and are reported.
    """
    report = MergeReport()
    groups: dict[tuple[PurePosixPath, str], list[tuple[str, ConfigFile]]] = {}
    for source in sources:
        inventory = take(source)
        report.faults += inventory.faults
        report.read += len(inventory.held)
        for held in inventory.held:
            if held.flat:
                report.faults.append(too_flat(held))
                continue
            place = (_folder(held.member), identity(held.file))
            groups.setdefault(place, []).append((_stem(held.member), held.file))
    draft = Draft()
    for (folder, _), group in sorted(groups.items(), key=lambda item: item[0]):
        stem = min(stem for stem, _ in group)
        target = to / folder
        united, conflicts = unite_all([file for _, file in group])
        for file in united:
            path, there = draft.place(target, file, stem)
            joined, more = unite(there, file) if there is not None else (file, [])
            draft.put(path, joined, _joining(file))
            report.conflicts += [(path, conflict) for conflict in [*conflicts, *more]]
            conflicts = []
    report.written = draft.preview() if dry_run else draft.write()
    report.faults += draft.faults
    return report


def _joining(file: ConfigFile) -> Change:
    return lambda known: file if known is None else unite(known, file)[0]


def _folder(member: Member) -> PurePosixPath:
    """Where a file goes below the target; the trees of a user store keep their `v1`."""
    folder = PurePosixPath(member.name).parent
    return PurePosixPath("v1") / folder if member.source.root.name == "v1" else folder


def _stem(member: Member) -> str:
    return member.file_name.removesuffix(".json").partition("~")[0]
