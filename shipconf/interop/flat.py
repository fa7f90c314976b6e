"""The flat form of Hugging Face kernels, vLLM and SGLang: file names and contents, both ways.

A file `E=8,N=1024,device_name=NVIDIA_L4,block_shape=[128,128].json` holds
`{"1": {…knobs…}, "64": {…}}`, with or without a `"triton_version"`. Its names differ between
packages in the order of fields and in a space after a comma, and each package builds just one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigFileError
from ..keys import Value
from ..records import ConfigFile, Device, flat_fields, flat_text, from_flat

NEAREST = "M"  # what the numbers in the files of all three are
# The entries that vLLM and SGLang put behind the device.
_BEHIND_DEVICE = ("dtype", "block_shape", "per_channel_quant")
VERSION = "triton_version"  # the one name at the top that is no point
ORIGIN = "imported_from"  # the field of a file that keeps its flat name


class UnfitForFlat(ValueError):
    """What the flat form cannot hold, with the reason."""


@dataclass(frozen=True)
class Style:
    """How a package spells its files: the order of fields, a space after a comma inside
    brackets, and whether the files say `triton_version`."""

    fields: tuple[str, ...]
    spaced: bool = False
    versioned: bool = False


def is_flat(stem: str, document: Any) -> bool:
    """Whether a file of that name and content is of the flat form, faults or not."""
    if not isinstance(document, dict) or "schema" in document:
        return False
    return "device_name" in (flat_fields(stem) or {})


def style_of(stem: str, document: Mapping[str, Any]) -> Style:
    """The style of a flat file."""
    fields = tuple(flat_fields(stem) or {})
    return Style(fields, spaced=", " in stem, versioned=VERSION in document)


def flat_value(text: str) -> Value:
    """The value that `flat_text` writes so; what reads as nothing else is a string.

    >>> flat_value("128"), flat_value("[128,128]"), flat_value("fp8_w8a8"), flat_value("True")
    (128, (128, 128), 'fp8_w8a8', True)
    """
    value: Value = text
    if text in ("None", "True", "False"):
        value = {"None": None, "True": True, "False": False}[text]
    elif text.startswith("[") and text.endswith("]"):
        value = tuple(map(flat_value, re.split(r",(?![^\[]*\])", text[1:-1]))) if text[1:-1] else ()
    elif re.fullmatch(r"-?\d{1,18}", text):
        value = int(text)
    elif re.fullmatch(r"-?\d+\.\d+(e[+-]\d+)?", text):
        value = float(text)
    return value if flat_text(value) == text else text


def read(
    stem: str, document: Any, path: object, *, kernel: str, nearest: str = NEAREST,
    device_name: str | None = None, more: Mapping[str, Value] | None = None,
) -> ConfigFile:  # fmt: skip
    """The records of a flat file.

    The name gives the key, `more` the entries that it leaves out. Underscores of the device
    become spaces unless `device_name` tells the driver's name. No arch and no dtypes are known,
    so the records serve any. Raises `ConfigFileError`.
    """
    fields = flat_fields(stem)
    if fields is None or "device_name" not in fields:
        raise ConfigFileError(path, [("", "its name has no device_name: it is no flat file")])
    name = device_name or fields["device_name"].replace("_", " ")
    key = {n: flat_value(text) for n, text in fields.items() if n != "device_name"}
    return ConfigFile(
        kernel=kernel, device=Device(name=name), key={**(more or {}), **key}, nearest=(nearest,),
        records=from_flat(document, path, (nearest,)), extra={ORIGIN: f"{stem}.json"},
    )  # fmt: skip


def file_name(file: ConfigFile, style: Style | None = None) -> str:
    """The flat name, with `.json`; in its origin's style, else in `style`, else in vLLM's.

    Entries that the origin's name left out, and those that vLLM and SGLang say only where they
    are set, are left out. Raises `UnfitForFlat` where no name says the key.
    """
    fields = {n: flat_text(value) for n, value in file.key.items()}
    fields["device_name"] = file.device.name.replace(" ", "_")
    style = _style(file, style)
    stem = ",".join(f"{name}={fields[name]}" for name in style.fields)
    if flat_fields(stem) != {name: fields[name] for name in style.fields} or re.search(
        r"[/\\\x00-\x1f]", stem
    ):
        raise UnfitForFlat(f"no file name of the flat form can say {stem}")
    if style.spaced:
        stem = re.sub(r",(?=[^\[]*\])", ", ", stem)
    if len(stem.encode()) > 250:
        raise UnfitForFlat(f"the file name would be too long: {stem}")
    return f"{stem}.json"


def _style(file: ConfigFile, style: Style | None) -> Style:
    names = {*file.key, "device_name"}
    origin = _origin(file)
    if origin is not None and names >= set(origin.fields):
        return origin
    said = names - (unset(file) & set(_BEHIND_DEVICE))
    if style is not None and set(style.fields) in (said, names):
        return style
    behind = [name for name in _BEHIND_DEVICE if name in said]
    ahead = [name for name in file.key if name in said and name not in behind]
    return Style((*ahead, "device_name", *behind))


def unset(file: ConfigFile) -> set[str]:
    """The entries of the key that packages leave out of their names."""
    return {name for name, value in file.key.items() if value is None or value is False}


def _origin(file: ConfigFile) -> Style | None:
    name = file.extra.get(ORIGIN)
    if not isinstance(name, str):
        return None
    return style_of(name.removesuffix(".json"), {})


def document(file: ConfigFile, *, versioned: bool = False) -> dict[str, Any]:
    """What the flat file holds: the config of each point, ascending.

    `triton_version` is said where the file was imported with one, or with `versioned`, and all
    records agree: readers of before 2025 take it for a point. Raises `UnfitForFlat` for a file
    with not just one nearest entry.
    """
    if len(file.nearest) != 1:
        raise UnfitForFlat(f"it has {len(file.nearest)} nearest entries, and the flat form one")
    versions = {record.triton for record in file.records}
    flat: dict[str, Any] = {}
    if (versioned or ORIGIN in file.extra) and len(versions) == 1 and None not in versions:
        flat[VERSION] = versions.pop()
    for record in sorted(file.records, key=lambda record: record.at[file.nearest[0]]):
        flat[str(record.at[file.nearest[0]])] = dict(record.config)
    return flat


def dump(flat: Mapping[str, Any]) -> bytes:
    """The bytes, as the packages themselves write them: indented by four."""
    return (json.dumps(flat, indent=4) + "\n").encode()
