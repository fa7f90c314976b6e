"""Records into a package's source folder, where its users find them."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import builds, stores
from .declared import load
from .draft import Draft, Written
from .errors import ShipconfError
from .homes import Home, Homes, NoHome, unreached
from .inventory import Fault
from .keys import Key
from .portfolio import Portfolio
from .records import ConfigFile, Record
from .sources import Source
from .union import Conflict, agree, identity, point, same, unite_all, unite_portfolios


@dataclass(frozen=True)
class Decision:
    """What became of a record: added, replaced (what was there), kept (what was there), or the
    same as what was there; and why."""

    path: Path
    at: Mapping[str, int]
    outcome: str
    why: str = ""


@dataclass
class ExportReport:
    """What an export did, or with `dry_run` would do.

    `conflicts` has the points of which the files had two records; `faults` what was left out,
    each file with the reason, and what no lookup finds; `left_out` what the build of the target
    would leave out of the wheel.
    """

    target: Path
    written: list[Written] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    left_out: list[builds.LeftOut] = field(default_factory=list)


def export(
    files: Iterable[tuple[str, ConfigFile]], target: Source, *, on_conflict: str = "keep",
    source_file: str | None = None, dry_run: bool = False, importing: bool = False,
) -> ExportReport:  # fmt: skip
    """Put records into the target, a package's source folder or a folder of `SHIPCONF_CONFIG_PATH`.

    `files` are pairs of what each is known by and its content. A record of a point that the
    target has is treated as `on_conflict` says: `keep` what is there, `replace` it, or take the
    `faster`, if both were measured on one device, Triton version and version of the kernel. After
    writing, everything is looked up again as a launch would; `importing` imports the kernels,
    takes only records of their present version, and lets them look it up. Raises `ShipconfError`
    for a target that is installed or zipped.
    """
    if refusal := target.refusal():
        raise ShipconfError(refusal)
    report = ExportReport(target.root)
    at_home = _at_home(files, Homes(target, source_file), report, importing=importing)
    draft = Draft()
    united = []
    for home, group in _of_one_version(at_home, report):
        together, conflicts = unite_all(group)
        report.conflicts += conflicts
        for file in together:
            united.append((home, file))
            report.decisions += _decide(draft, home, file, on_conflict)
    report.written = draft.preview() if dry_run else draft.write()
    report.faults += draft.faults
    listing = functools.cache(stores.json_names)  # of after the writing
    for home, file in () if dry_run else united:
        kernel = load(target, home.kernel) if importing and home.kernel else None
        there = _as_there(draft, home, file)
        report.faults += unreached(home, there, kernel=kernel, listing=listing)
    if target.has_code:
        report.left_out = builds.left_out([decision.path for decision in report.decisions])
    return report


def _at_home(
    files: Iterable[tuple[str, ConfigFile]], homes: Homes, report: ExportReport, *, importing: bool
) -> list[tuple[Home, list[ConfigFile]]]:
    """The files by the one that they become in their home; those that have none are faults."""
    groups: dict[tuple[Path, str], tuple[Home, list[ConfigFile]]] = {}
    for name, file in files:
        try:
            home = homes.of(file)
            current = _current(home, file, homes.target) if importing else file
        except NoHome as error:
            report.faults.append(Fault(name, "", str(error)))
            continue
        ordered = _for_shipping(home.ordered(current))
        groups.setdefault((home.folder, identity(ordered)), (home, []))[1].append(ordered)
    return list(groups.values())


def _of_one_version(
    at_home: Sequence[tuple[Home, list[ConfigFile]]], report: ExportReport
) -> list[tuple[Home, list[ConfigFile]]]:
    """Those of kernels whose records at home are all of one version; the others are faults."""
    counts: dict[tuple[Path, str], Counter[str]] = {}
    for home, group in at_home:
        found = (record.fingerprint for file in group for record in file.records)
        versions = filter(None, found)
        counts.setdefault((home.folder, group[0].kernel), Counter()).update(versions)
    several = {name: count for name, count in counts.items() if len(count) > 1}
    for (_, kernel), count in several.items():
        which = ", ".join(f"{number} of {name}" for name, number in count.most_common())
        report.faults.append(Fault(kernel, "", (
            f"has records of {len(count)} versions, {which}: choose one by --fingerprint, or the "
            "present one by --import"
        )))  # fmt: skip
    return [(home, group) for home, group in at_home
            if (home.folder, group[0].kernel) not in several]  # fmt: skip


def _current(home: Home, file: ConfigFile, target: Source) -> ConfigFile:
    """The records of the kernel's present version. Raises `NoHome` where there is none."""
    if home.kernel is None:
        return file
    from .fingerprint import fingerprint

    now = fingerprint(load(target, home.kernel).fn)
    kept = tuple(r for r in file.records if r.fingerprint in (None, now))
    if not kept:
        raise NoHome(f"all its records are of another version of the kernel than {now}")
    tables = tuple(table for table in file.portfolios if table.fingerprint in (None, now))
    return dataclasses.replace(file, records=kept, portfolios=tables)


def _for_shipping(file: ConfigFile) -> ConfigFile:
    """Without `supersedes`, which sets a user's record above a shipped one, and without the
    module, which the folder tells."""
    records = tuple(dataclasses.replace(record, supersedes=None) for record in file.records)
    return dataclasses.replace(file, records=records, module=None)


def _decide(draft: Draft, home: Home, file: ConfigFile, policy: str) -> list[Decision]:
    """Plan the records of a file: those of points that are there stay in their file, the others
    join one."""
    decisions = []
    left = {point(record): record for record in file.records}
    for path, held in draft.known(home.folder, file):
        there = {point(record): record for record in held.records}
        here = [left.pop(name) for name in there if name in left]
        for record in here:
            outcome, why = _choice(there[point(record)], record, policy)
            decisions.append(Decision(path, record.at, outcome, why))
        if here:
            change = functools.partial(
                _applied, dataclasses.replace(file, records=tuple(here)), policy
            )
            draft.put(path, change(held), change)
    if left:
        rest = dataclasses.replace(file, records=tuple(left.values()))
        name = stores.file_name(Key(file.key, file.dtypes, {}), file.device)
        path, joined = draft.place(home.folder, rest, name)
        change = functools.partial(_applied, rest, policy)
        draft.put(path, change(joined), change)
        decisions += [Decision(path, record.at, "added") for record in rest.records]
    return decisions


def _applied(file: ConfigFile, policy: str, known: ConfigFile | None) -> ConfigFile:
    """What is there with the records of `file`, each where the policy takes it."""
    if known is None:
        return file
    records = {point(record): record for record in known.records}
    for record in file.records:
        there = records.get(point(record))
        if there is None or _choice(there, record, policy)[0] == "replaced":
            records[point(record)] = record
    kept = dataclasses.replace(known, records=tuple(records.values()))
    if not agree(known, file):
        return kept
    tables = unite_portfolios(_tables(known.portfolios, file.portfolios, policy))
    return dataclasses.replace(kept, portfolios=tables, extra={**file.extra, **known.extra})


def _tables(known: Sequence[Portfolio], new: Sequence[Portfolio], policy: str) -> list[Portfolio]:
    """Of two portfolios of the same versions, where one has all points of the other, the one of
    more points; of the same points the one there where the policy keeps what is there."""
    kept = [
        old for old in known
        if not any(
            _covers(one, old) and (policy != "keep" or not _covers(old, one)) for one in new
        )
    ]  # fmt: skip
    return kept + [one for one in new if not any(_covers(old, one) for old in kept)]


def _covers(one: Portfolio, other: Portfolio) -> bool:
    versions = (one.fingerprint, one.triton) == (other.fingerprint, other.triton)
    points = [row.at for row in one.rows]
    return versions and all(row.at in points for row in other.rows)


def _choice(there: Record, record: Record, policy: str) -> tuple[str, str]:
    if same(there, record):
        return "same", ""
    if policy == "replace":
        return "replaced", ""
    if policy == "keep":
        return "kept", "--on-conflict keep"
    for name, word in (("triton", "Triton version"), ("fingerprint", "version of the kernel")):
        if getattr(there, name) != getattr(record, name) or getattr(record, name) is None:
            return "kept", f"not comparable: not known to be of one {word}"
    times = [(entry.time_ms or {}).get("median") for entry in (there, record)]
    if None in times:
        return "kept", "not comparable: without a time"
    faster = times[1] < times[0]  # type: ignore[operator]  # neither is None
    words = f"{times[1]:.4g} ms against {times[0]:.4g} ms"
    return ("replaced" if faster else "kept"), words


def _as_there(draft: Draft, home: Home, file: ConfigFile) -> ConfigFile:
    """The records of the file's points that should be found in the home now."""
    points = {point(record) for record in file.records}
    held: Sequence[ConfigFile] = [known for _, known in draft.known(home.folder, file)]
    records = tuple(r for known in held for r in known.records if point(r) in points)
    return dataclasses.replace(file, records=records)
