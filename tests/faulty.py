"""Every way in which a config file can be broken, as files in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packages import document, record


def _changed(**fields: Any) -> bytes:
    return json.dumps({**document([record(8)]), **fields}).encode()


def _config(**knobs: Any) -> bytes:
    good = record(8)
    return _changed(records=[{**good, "config": {**good["config"], **knobs}}])


GOOD = _changed()
# What the file holds, where the fault is, and a word of what is said of it.
FAULTS: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "", "not strict JSON"),
    "truncated": (GOOD[:-20], "", "not strict JSON"),
    "two documents": (GOOD + GOOD, "", "not strict JSON"),
    "a mark in front": (b"\xef\xbb\xbf" + GOOD, "", "not strict JSON"),
    "no UTF-8": (GOOD.replace(b"told", b"t\xffld"), "", "not UTF-8"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "", "not UTF-8"),
    "a comma too many": (GOOD[:-1] + b",}", "", "not strict JSON"),
    "NaN": (_changed(x=float("nan")), "", "not strict JSON"),
    "a number out of range": (GOOD[:-1] + b', "x": 1e999}', "", "out of range"),
    "a doubled name": (GOOD[:-1] + b', "kernel": "b"}', "", "doubled"),
    "nested too deeply": (b"[" * 100_000, "", "not strict JSON|nested too deeply"),
    "a list": (b"[]", "", "must be an object"),
    "null": (b"null", "", "must be an object"),
    "no schema": (_changed(schema=None), "schema", "is missing"),
    "a newer schema": (_changed(schema=2), "schema", "newer"),
    "a string of warps": (_config(num_warps="4"), "records[0].config.num_warps", "power of two"),
    "three warps": (_config(num_warps=3), "records[0].config.num_warps", "power of two"),
    "a list as knob": (_config(BLOCK=[1]), "records[0].config.BLOCK", "single value"),
    "no device name": (_changed(device={}), "device.name", "is missing"),
    "a point twice": (_changed(records=[record(8), record(9)]), "records[1].at", "doubled"),
    "a point without M": (_changed(records=[record(8, None)]), "records[0].at", "integer for each"),
    "a key that is a list": (_changed(key={"N": [1]}), "key.N", "cannot be"),
}  # fmt: skip


def fill(folder: Path, many: int = 1) -> dict[Path, bytes]:
    """Write each fault `many` times; returns what was written."""
    written = {}
    for number in range(many):
        for name, (data, _, _) in FAULTS.items():
            path = folder / f"{name.replace(' ', '_')}_{number}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            written[path] = data
    return written
