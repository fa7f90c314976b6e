"""`shipconf quality`: what a choice between tuned points loses, from what files hold."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import stores
from ..appraisal import Appraisal, appraise, words
from ..declared import declared
from ..inventory import Fault, take
from ..reach import place
from ..sources import open_source
from . import tables
from .arguments import add_command
from .explain import load_kernel

SHAPE = """Each tuned point is hidden in turn, a config is chosen for it from the others, and what
that loses there is told beside what the nearest point's would. It needs no GPU, and files with
portfolios. With --json: {"portfolios": [{"path", "where", "configs", "predicted": {"mean", "p90",
"p95", "worst", "count"}, "nearest": the same, "worst_at", "commands"}], "unknown": [{"path",
"where", "what"}]}; losses are shares, 0.05 for 5 %."""
EXAMPLE = """  shipconf quality shipconf_gemm
  shipconf quality shipconf_gemm.kernel:gemm_kernel     in every place that it looks in
  shipconf quality ./configs --json"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(
        commands, "quality", run, help="tell what a choice between tuned points loses", more=SHAPE,
        example=EXAMPLE,
    )  # fmt: skip
    parser.add_argument("source", metavar="PATH", help="a file, a folder, a wheel, a package by "
                        "its import name, or module:kernel")  # fmt: skip


def run(chosen: argparse.Namespace) -> int:
    """Print the losses of each portfolio; returns the exit code."""
    appraisals: list[Appraisal] = []
    unknown: list[Fault] = []
    faults: list[Fault] = []
    for path, kernel, target in _asked(chosen.source):
        source = open_source(path)
        inventory = take(source)
        faults += inventory.faults
        inventory.held = [h for h in inventory.held if kernel in (None, h.file.kernel)]
        placed, unreached = place(inventory, declared(source))
        faults += unreached
        found, silent = appraise(placed, source, target)
        appraisals += found
        unknown += silent
    if chosen.json:
        tables.document({
            "portfolios": [_document(one) for one in appraisals],
            "unknown": tables.fault_documents(unknown),
        })  # fmt: skip
    else:
        _print(appraisals)
        tables.faults(unknown)
    tables.faults(faults)
    return 1 if faults else 0


def _asked(text: str) -> list[tuple[str, str | None, str | None]]:
    """What to open, whose kernel's files to take there, and what `shipconf tune` calls it."""
    if ":" not in text or Path(text).exists():
        return [(text, None, None)]
    kernel = load_kernel(text)
    folders = [place.folder for place in stores.places(kernel.subject)]
    return [(str(folder), kernel.name, text) for folder in folders if folder.is_dir()]


def _document(one: Appraisal) -> dict[str, Any]:
    return {
        "path": one.path, "where": one.where, "configs": one.configs,
        "predicted": vars(one.predicted), "nearest": vars(one.nearest),
        "worst_at": dict(one.worst.at), "commands": list(one.commands),
    }  # fmt: skip


def _print(appraisals: list[Appraisal]) -> None:
    for one in appraisals:
        rows = [
            [name, *(f"{loss:.1%}" for loss in (of.mean, of.p90, of.p95, of.worst)), at]
            for name, of, at in (
                ("predicted", one.predicted, words(one.worst.at)), ("nearest", one.nearest, ""),
            )
        ]  # fmt: skip
        title = (
            f"{one.path}: {one.where}\n"
            f"{one.configs} configs, {one.predicted.count} points, each hidden in turn"
        )
        tables.table(["choice", "mean", "p90", "p95", "worst", "worst at"], rows, title)
        for command in one.commands:
            print(f"tune next: {command}")
        if not tables.is_terminal():
            print()
