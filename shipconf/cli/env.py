"""`shipconf env`: what a bug report needs."""

from __future__ import annotations

import argparse
from typing import Any

from ..environment import Environment, report
from ..records import Device
from . import tables
from .arguments import add_command

SHAPE = """It imports torch and triton, to name the devices. With --json: {"versions", "platform",
"settings", "faults", "store": {"path", "why", "writable", "records", "aside", "bytes"}, "devices":
[{"backend", "name", "arch", "multiprocessors", "shared_memory"}], "no_devices"}."""
EXAMPLE = """  shipconf env
  shipconf env --json > env.json"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    add_command(
        commands, "env", run, help="report versions, settings, the user store and the devices",
        more=SHAPE, example=EXAMPLE,
    )  # fmt: skip


def run(chosen: argparse.Namespace) -> int:
    """Print the report; returns the exit code: 1 where a setting cannot be meant so."""
    found = report()
    if chosen.json:
        tables.document(_document(found))
    else:
        tables.table(["what", "is"], [*_rows(found)])
        for fault in found.faults:
            tables.say(fault)
    return 1 if found.faults else 0


def device_document(device: Device) -> dict[str, Any]:
    """A device in JSON: backend, name, arch, multiprocessors, shared_memory."""
    return {name: value for name, value in vars(device).items() if name != "extra"}


def _document(found: Environment) -> dict[str, Any]:
    store = {**vars(found.store), "path": str(found.store.path) if found.store.path else None}
    return {
        "versions": dict(found.versions), "platform": found.platform,
        "settings": dict(found.settings), "faults": list(found.faults), "store": store,
        "devices": list(map(device_document, found.devices)),
        "no_devices": found.no_devices or None,
    }  # fmt: skip


def _rows(found: Environment) -> list[list[str]]:
    store = found.store
    held = (
        f"{store.path}: {store.records} files of records, {store.aside} bad ones moved aside, "
        f"{store.bytes} bytes{'' if store.writable else ', not writable'}"
    )
    rows = [[name, version] for name, version in found.versions.items()]
    rows += [["platform", found.platform]]
    rows += [[name, value] for name, value in found.settings.items()]
    rows += [["user store", held if store.path else f"none: {store.why}"]]
    rows += [[f"device {i}", str(device)] for i, device in enumerate(found.devices)]
    return rows if found.devices else [*rows, ["devices", f"none: {found.no_devices}"]]
