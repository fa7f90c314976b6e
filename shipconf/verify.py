"""Everything that is wrong with the records of a package, a folder or a wheel, in one report."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import grid, inspection, reach, tabled
from .appraisal import appraise, beyond
from .builds import left_out
from .declared import Declared, declared
from .inventory import Fault, take
from .reach import Placed
from .sources import Archive, Source

if TYPE_CHECKING:
    from .kernel import ShippedKernel
    from .recompile import Compiled
    from .remeasure import Measured


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What to check beside the files themselves.

    `kernel` imports the kernels, and so torch and triton, for knobs and staleness; `compile` and
    `measure` need it. `gaps` says whether a gap in the tuned grid is a fault. `max_loss` is the
    most that a choice between tuned points may lose (0.05: 5 %), where portfolios tell.
    """

    kernel: bool = True
    compile: bool = False
    measure: bool = False
    gaps: bool = True
    max_loss: float | None = None


@dataclass
class Report:
    """The faults, and the notes: what is no fault and good to know."""

    files: int = 0
    records: int = 0
    faults: list[Fault] = field(default_factory=list)
    notes: list[Fault] = field(default_factory=list)
    compiled: list[Compiled] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)


def verify(source: Source, checks: Checks = Checks()) -> Report:
    """Check all that the source ships; each fault is told once, in the order of paths.

    Raises `ShipconfError` where what was asked for cannot be done here: compiling under the
    interpreter, measuring without a device.
    """
    inventory = take(source)
    kernels = declared(source)
    report = Report(
        files=len(inventory.held) + len({fault.path for fault in inventory.faults}),
        records=sum(len(held.file.records) for held in inventory.held),
        faults=list(inventory.faults),
    )
    placed, unreached = reach.place(inventory, kernels)
    report.faults += unreached
    used = {one.kernel for one in placed}
    kernels = [kernel for kernel in kernels if kernel in used or not kernel.adopted]
    for one in placed:
        report.faults += reach.misnamed(one)
    report.faults += reach.doubled(placed)
    report.faults += tabled.broken(inventory)
    for one in placed:
        report.faults += tabled.gaps(one)
    if checks.max_loss is not None:
        appraisals, silent = appraise(placed, source)
        report.faults += beyond(appraisals, checks.max_loss)
        report.notes += silent
    devices = {held.file.device.name for held in inventory.held}
    report.faults += reach.aliases(source.aliases(), devices)
    _tell_of_missing(report, source, kernels)
    if source.kind == "folder" and source.has_code:
        _tell_of_build(report, placed)
    limits: dict[str, float] = {}
    if checks.kernel and kernels:
        limits = _inspect(report, source, placed, kernels, checks)
    gaps = grid.gaps(placed, limits)
    (report.faults if checks.gaps else report.notes).extend(gaps)
    report.faults.sort()
    report.notes.sort()
    return report


def _tell_of_missing(report: Report, source: Source, kernels: Sequence[Declared]) -> None:
    """Kernels that ship nothing. A wheel of which that is true of all was built without its JSON,
    as setuptools and kernel-builder do unless they are told, and hatchling where git ignores it."""
    folders = {posixpath.dirname(member.name) for member in source.configs()}
    bare = [kernel for kernel in kernels if posixpath.normpath(kernel.folder) not in folders]
    lost = isinstance(source, Archive) and len(bare) == len(kernels)
    for kernel in bare:
        path = posixpath.join(str(source.root), kernel.folder)
        if lost:
            what = f"no records of {kernel.name} are in the wheel: does its build take JSON along?"
            report.faults.append(Fault(path, "", what))
        else:
            report.notes.append(Fault(path, "", f"{kernel.name} ships no records"))


def _tell_of_build(report: Report, placed: Sequence[Placed]) -> None:
    """What the project's build would leave out of the wheel, before it is built."""
    for entry in left_out([Path(one.path) for one in placed]):
        if entry.files:
            line = " ".join(entry.line.split())
            what = f"would leave {len(entry.files)} files of records out of the wheel ({entry.why})"
            report.faults.append(Fault(str(entry.config), "", f"{what}: add {line}"))


def _inspect(
    report: Report, source: Source, placed: Sequence[Placed], kernels: Sequence[Declared],
    checks: Checks,
) -> dict[str, float]:  # fmt: skip
    """Hold the records against the imported kernels; returns their limits of distance."""
    with inspection.imported(source, kernels) as (live, failed):
        report.faults += failed
        pairs: list[tuple[Placed, ShippedKernel]] = []
        for one in placed:
            if one.kernel is not None and one.kernel in live:
                kernel = live[one.kernel]
                pairs.append((one, kernel))
                report.faults += inspection.unfit(one, kernel)
                report.faults += inspection.stale(one, kernel)
                report.faults += tabled.unfit(one, kernel)
                report.faults += tabled.stale(one, kernel)
                report.notes += inspection.remarks(one, kernel)
        if checks.compile:
            from .recompile import recompile

            compiled = recompile(pairs)
            report.compiled = compiled.compiled
            report.faults += compiled.faults
            report.notes += compiled.notes
        if checks.measure:
            from .remeasure import remeasure

            measured = remeasure(pairs)
            report.measured = measured.measured
            report.faults += measured.faults
            report.notes += measured.notes
        return {kernel.name: kernel.resolver.max_distance for _, kernel in pairs}
