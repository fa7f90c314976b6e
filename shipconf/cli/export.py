"""`shipconf export`: records of the user store into a package's source folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..export import ExportReport, export
from ..flat_export import export_flat
from ..inventory import take, too_flat
from ..records import ConfigFile
from ..selection import Selection
from ..sources import Folder, Source, open_source
from . import tables
from .arguments import add_command, add_selection, selection

MORE = """The target is the source folder of a package, or of its project; the kernels' decorators
in it say where their records go, and it is not imported. A folder without code gets a folder for
each kernel, as SHIPCONF_CONFIG_PATH has them. After writing, everything is looked up again as a
launch would; what is not found is a finding. Records of the interpreter are exported only where
--device names it. With --json: {"target", "dry_run", "written": [{"path", "new"}], "records":
[{"path", "at", "outcome" (added, replaced, kept or same), "why"}], "faults", "left_out_of_wheel":
[{"config", "why", "line", "files"}]}."""
EXAMPLE = """  shipconf export ./shipconf_gemm --dry-run
  shipconf export . --kernel gemm_kernel --device "NVIDIA H200" --rigor full --on-conflict faster
  shipconf export ./kernels/configs --format flat --from merged/"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(commands, "export", run, more=MORE, example=EXAMPLE,
                         help="export records into a package's source folder")  # fmt: skip
    parser.add_argument("target", help="the source folder of a package, or a folder of configs")
    parser.add_argument("--from", dest="sources", action="append", metavar="SOURCE",
                        help="a folder, package or wheel to take records from, instead of the "
                        "user store; may be given again")  # fmt: skip
    parser.add_argument("--format", choices=("records", "flat"), default="records",
                        help="flat: N=…,device_name=….json files, as other packages read them, "
                        "right in the target")  # fmt: skip
    parser.add_argument("--triton-version", action="store_true",
                        help="let flat files say triton_version, for new readers")  # fmt: skip
    add_placing(parser)
    parser.add_argument("--import", dest="importing", action="store_true",
                        help="import the target's kernels, and so torch and triton: only records "
                        "of their present version, looked up again by themselves")  # fmt: skip
    add_selection(parser)


def add_placing(parser: argparse.ArgumentParser) -> None:
    """`--on-conflict`, `--source-file` and `--dry-run`."""
    parser.add_argument("--on-conflict", choices=("keep", "replace", "faster"), default="keep",
                        help="where the target has a record of the point: keep it (default), "
                        "replace it, or take the faster of two that were measured on one device "
                        "and Triton version")  # fmt: skip
    parser.add_argument("--source-file", metavar="NAME",
                        help="the source file of the kernel, where several have its name or none "
                        "declares it")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true",
                        help="write nothing; show the diff, file by file")  # fmt: skip


def run(chosen: argparse.Namespace) -> int:
    """Export, and tell what was written; returns the exit code."""
    target = open_target(chosen.target, new=chosen.format == "flat")
    wanted = selection(chosen)
    files: list[tuple[str, ConfigFile]] = []
    faults = []
    for source in map(open_source, chosen.sources or [None]):
        inventory = take(source)
        faults += inventory.faults
        for held in inventory.held:
            file = wanted.of(held.file)
            if file is not None and held.flat:
                faults.append(too_flat(held))
            elif file is not None:
                files.append((held.member.path, file))
    files = _without_interpreter(files, wanted)
    if chosen.importing:
        tables.say(f"importing the kernels of {target.root}")
    if chosen.format == "flat":
        report = export_flat(files, target, on_conflict=chosen.on_conflict,
                             dry_run=chosen.dry_run, versioned=chosen.triton_version)  # fmt: skip
    else:
        report = export(files, target, on_conflict=chosen.on_conflict, dry_run=chosen.dry_run,
                        source_file=chosen.source_file, importing=chosen.importing)  # fmt: skip
    report.faults[:0] = faults
    return finish(chosen, report)


def open_target(name: str, *, new: bool) -> Source:
    """What is written into; with `new`, a folder that need not exist yet."""
    path = Path(name).expanduser()
    if new and not path.exists():
        return Folder("folder", path)
    return open_source(path if path.exists() else name)


def _without_interpreter(
    files: list[tuple[str, ConfigFile]], wanted: Selection
) -> list[tuple[str, ConfigFile]]:
    def asked(file: ConfigFile) -> bool:
        return file.device.backend != "interpreter" or file.device.name in wanted.devices

    kept = [(path, file) for path, file in files if asked(file)]
    if len(kept) < len(files):
        tables.say(f"{len(files) - len(kept)} files of the interpreter are left out: "
                   "--device interpreter exports them")  # fmt: skip
    return kept


def finish(chosen: argparse.Namespace, report: ExportReport) -> int:
    """Print what an export or an import did; returns the exit code."""
    if chosen.json:
        tables.document(_document(report, dry_run=chosen.dry_run))
        return 1 if report.faults else 0
    tables.written(report.written, dry_run=chosen.dry_run)
    counts = dict.fromkeys(("added", "replaced", "kept", "same"), 0)
    for decision in report.decisions:
        counts[decision.outcome] += 1
        if decision.outcome == "kept":
            tables.say(f"{decision.path}: {dict(decision.at)}: kept what is there: {decision.why}")
    for conflict in report.conflicts:
        tables.say(f"{dict(conflict.at)}: two records were given; took the one {conflict.why}")
    words = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    tables.say(f"{'would be ' if chosen.dry_run and words else ''}{words or 'no records'}")
    for entry in report.left_out:
        tables.say(f"warning: {entry}")
    tables.faults(report.faults)
    return 1 if report.faults else 0


def _document(report: ExportReport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "target": str(report.target),
        "dry_run": dry_run,
        "written": tables.written_documents(report.written),
        "records": [
            {"path": str(d.path), "at": dict(d.at), "outcome": d.outcome, "why": d.why}
            for d in report.decisions
        ],
        "faults": tables.fault_documents(report.faults),
        "left_out_of_wheel": [
            {"config": str(e.config), "why": e.why, "line": e.line, "files": list(e.files)}
            for e in report.left_out
        ],
    }  # fmt: skip
