"""Records and the files that hold them: strict parse, exact dump, and the flat form.

A file's faults are collected, each with its address in the document, and reported at once.
Only the standard library is used, so that tools can read files without torch or Triton.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import portfolio
from .errors import ConfigFileError
from .keys import Dtype, Value, from_json, to_json
from .portfolio import Portfolio

SCHEMA = 1
DEEPEST = 100  # levels of nesting
# The launch options of `triton.Config`, in the order a record holds them.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")


@dataclass(frozen=True)
class Device:
    """The device of a launch, or the one that a file was tuned on.

    `backend` is cuda, hip, xpu or interpreter; `name` is the driver's; `arch` such as sm_90 or
    gfx942; `multiprocessors` a count; `shared_memory` the bytes a block may opt in to. In a
    file's device, what is empty or 0 agrees with anything. `extra` holds fields of newer versions.
    """

    backend: str = ""
    name: str = ""
    arch: str = ""
    multiprocessors: int = 0
    shared_memory: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def serves(self, device: Device, *, alias: str | None = None) -> bool:
        """Whether what was tuned on this device serves the other one.

        Names must be equal, never alike: H20 is not H200. With `alias`, the name that the
        author lets `device` borrow from, only name, backend and arch count.
        """
        agree = _agree(self.backend, device.backend) and _agree(self.arch, device.arch)
        if alias is not None:
            return agree and self.name == alias
        same = _agree(self.multiprocessors, device.multiprocessors)
        return agree and same and self.name == device.name

    def __str__(self) -> str:
        parts = [self.backend, self.arch]
        if self.multiprocessors:
            parts.append(f"{self.multiprocessors} multiprocessors")
        details = ", ".join(part for part in parts if part)
        return f"{self.name} ({details})" if details else self.name


def _agree(stored: Any, actual: Any) -> bool:
    return not stored or stored == actual


@dataclass(frozen=True, kw_only=True)
class Record:
    """One tuned config with its provenance.

    `at` has the `nearest` values it was tuned at, `config` the knobs and launch options.
    `time_ms` and `default_ms` are medians in milliseconds; `left_out` maps candidates to why they
    were not measured; `rigor` is quick, full or verified; `resources` are bytes of shared memory,
    registers a thread and spilled registers; `signature` is enough to compile the launch again.
    `extra` holds fields of newer versions, which are kept and not understood.
    """

    at: Mapping[str, int]
    config: Mapping[str, Any]
    time_ms: Mapping[str, float] | None = None
    default_ms: float | None = None
    candidates: int | None = None
    left_out: Mapping[str, str] | None = None
    rigor: str | None = None
    resources: Mapping[str, int] | None = None
    signature: Mapping[str, Any] | None = None
    fingerprint: str | None = None
    triton: str | None = None
    torch: str | None = None
    tuned_at: str | None = None
    supersedes: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A file of records: one kernel, one device, one exact key. `dtypes` None serves any.

    `module` is where the kernel was found when it was tuned; records that ship have none.
    `portfolios` are tables of a few configs, each measured at every one of its points. Where one
    of them is malformed, all stay as they are in `extra`, and the records serve.
    """

    kernel: str
    device: Device
    key: Mapping[str, Value]
    nearest: tuple[str, ...]
    records: tuple[Record, ...]
    dtypes: Mapping[str, Any] | None = None
    portfolios: tuple[Portfolio, ...] = ()
    module: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def merged(self, record: Record) -> ConfigFile:
        """The file with the record in the place of what it held for the same `at`."""
        others = [known for known in self.records if dict(known.at) != dict(record.at)]
        return dataclasses.replace(self, records=(*others, record))

    def tabled(self, portfolio: Portfolio) -> ConfigFile:
        """The file with the portfolio in the place of what it held for the same versions of the
        kernel and Triton, and of malformed ones."""
        versions = (portfolio.fingerprint, portfolio.triton)
        others = [one for one in self.portfolios if (one.fingerprint, one.triton) != versions]
        extra = {name: value for name, value in self.extra.items() if name != "portfolios"}
        return dataclasses.replace(self, portfolios=(*others, portfolio), extra=extra)


class NewerSchema(ConfigFileError):
    """A file of a schema that this version does not know; it is left as it is."""


# --- reading ---------------------------------------------------------------------------------


def parse_json(data: bytes, path: object, *, infinite: bool = False) -> Any:
    """Strict JSON: UTF-8 without a mark, no doubled names, no NaN or Infinity, not too deep.

    With `infinite`, NaN and Infinity are read, which Python writes. Raises `ConfigFileError`.
    """
    try:
        document = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_doubles,
            parse_constant=float if infinite else _no_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise ConfigFileError(path, [("", f"not UTF-8: {error.reason}")]) from error
    except RecursionError as error:
        raise ConfigFileError(path, [("", "nested too deeply")]) from error
    except ValueError as error:
        raise ConfigFileError(path, [("", f"not strict JSON: {error}")]) from error
    if _deeper_than(DEEPEST, document):
        raise ConfigFileError(path, [("", "nested too deeply")])
    return document


def _deeper_than(limit: int, document: Any) -> bool:
    # What is just shallow enough to be read could be too deep to be written again.
    level: list[Any] = [[document]]
    for _ in range(limit + 1):
        level = [
            part
            for whole in level
            for part in (whole.values() if isinstance(whole, dict) else whole)
            if isinstance(part, (dict, list))
        ]
        if not level:
            return False
    return True


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"doubled name {next(n for n in names if names.count(n) > 1)!r}")
    return document


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number


class _Reader:
    """Collects the faults of one document while its parts are read."""

    def __init__(self) -> None:
        self.faults: list[tuple[str, str]] = []

    def get(
        self, document: Mapping[str, Any], name: str, kind: type, where: str, default: Any = None
    ) -> Any:
        """The value at `name` if it is of that kind; a fault, and the default, if not."""
        address = f"{where}.{name}" if where else name
        if name not in document:
            return default
        value = document[name]
        number = kind is float and isinstance(value, int)
        wrong_bool = isinstance(value, bool) and kind is not bool
        if (isinstance(value, kind) or number) and not wrong_bool:
            return value
        self.fault(address, f"must be {_KINDS[kind]}, not {json.dumps(value)[:60]}")
        return default

    def require(self, document: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
        if name not in document:
            self.fault(f"{where}.{name}" if where else name, "is missing")
            return kind()
        return self.get(document, name, kind, where, kind())

    def fault(self, where: str, what: str) -> None:
        self.faults.append((where, what))


_KINDS = {
    dict: "an object", list: "a list", str: "a string", int: "an integer", float: "a number",
    bool: "true or false",
}  # fmt: skip


def parse(data: bytes, path: object = "<records>") -> ConfigFile:
    """Read the bytes of a file of records.

    Raises `ConfigFileError` with every fault found, or `NewerSchema`.
    """
    return from_document(parse_json(data, path), path)


def from_document(document: Any, path: object) -> ConfigFile:
    """The file that parsed JSON describes; raises as `parse` does."""
    if not isinstance(document, dict):
        raise ConfigFileError(path, [("", "the top level must be an object")])
    schema = document.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise NewerSchema(path, [("schema", f"{schema} is newer than {SCHEMA}, the newest known")])
    reader = _Reader()
    if type(schema) is not int or schema < 1:
        reader.fault("schema", "is missing" if schema is None else f"must be {SCHEMA}")
    file = _read_file(reader, document)
    if reader.faults:
        raise ConfigFileError(path, reader.faults)
    return file


def _read_file(reader: _Reader, document: dict[str, Any]) -> ConfigFile:
    known = ["schema", "kernel", "module", "device", "key", "dtypes", "nearest", "records"]
    nearest = tuple(reader.require(document, "nearest", list, ""))
    if not all(isinstance(name, str) for name in nearest) or len(set(nearest)) < len(nearest):
        reader.fault("nearest", "must be a list of different names")
        nearest = ()
    records = tuple(
        _read_record(reader, entry, nearest, f"records[{i}]")
        for i, entry in enumerate(reader.require(document, "records", list, ""))
    )
    seen = set()
    for i, record in enumerate(records):
        point = json.dumps(record.at, sort_keys=True)
        if point in seen:
            reader.fault(f"records[{i}].at", "is doubled: one record for each point")
        seen.add(point)
    portfolios = _read_portfolios(document, nearest)
    if portfolios is not None:
        known.append("portfolios")
    return ConfigFile(
        kernel=reader.require(document, "kernel", str, ""),
        device=_read_device(reader, reader.require(document, "device", dict, "")),
        key=_read_key(reader, reader.require(document, "key", dict, "")),
        dtypes=_read_dtypes(reader, document),
        nearest=nearest,
        records=records,
        portfolios=portfolios or (),
        module=reader.get(document, "module", str, ""),
        extra={name: value for name, value in document.items() if name not in known},
    )


def _read_portfolios(
    document: dict[str, Any], nearest: tuple[str, ...]
) -> tuple[Portfolio, ...] | None:
    """The portfolios, None where one is malformed: it must not cost a launch its records."""
    try:
        return portfolio.from_list(document.get("portfolios", []), nearest)
    except ConfigFileError:
        return None


_DEVICE_FIELDS = ("backend", "name", "arch", "multiprocessors", "shared_memory")


def _read_device(reader: _Reader, document: dict[str, Any]) -> Device:
    return Device(
        backend=reader.get(document, "backend", str, "device", ""),
        name=reader.require(document, "name", str, "device"),
        arch=reader.get(document, "arch", str, "device", ""),
        multiprocessors=reader.get(document, "multiprocessors", int, "device", 0),
        shared_memory=reader.get(document, "shared_memory", int, "device", 0),
        extra={name: value for name, value in document.items() if name not in _DEVICE_FIELDS},
    )


def _read_key(reader: _Reader, document: dict[str, Any]) -> dict[str, Value]:
    key: dict[str, Value] = {}
    for name, value in document.items():
        try:
            key[name] = from_json(value)
        except ValueError as error:
            reader.fault(f"key.{name}", str(error))
    return key


def _read_dtypes(reader: _Reader, document: dict[str, Any]) -> dict[str, Any] | None:
    dtypes: dict[str, Any] | None = reader.get(document, "dtypes", dict, "")
    for name, entry in (dtypes or {}).items():
        members = entry if isinstance(entry, list) else [entry]
        if not members or not all(isinstance(member, str) for member in members):
            reader.fault(f"dtypes.{name}", "must be a dtype's name, or a list of them")
    return dtypes


_RECORD_FIELDS = {
    "time_ms": dict, "default_ms": float, "candidates": int, "left_out": dict, "rigor": str,
    "resources": dict, "signature": dict, "fingerprint": str, "triton": str, "torch": str,
    "tuned_at": str, "supersedes": bool,
}  # fmt: skip


def _read_record(reader: _Reader, document: Any, nearest: tuple[str, ...], where: str) -> Record:
    if not isinstance(document, dict):
        reader.fault(where, "must be an object")
        return Record(at={}, config={})
    at = reader.require(document, "at", dict, where)
    if "at" in document and (
        set(at) != set(nearest) or not all(type(value) is int for value in at.values())
    ):
        reader.fault(f"{where}.at", f"must have one integer for each of {list(nearest)}")
    config = reader.require(document, "config", dict, where)
    for name, what in option_faults(config):
        reader.fault(f"{where}.config.{name}", what)
    fields = {n: reader.get(document, n, kind, where) for n, kind in _RECORD_FIELDS.items()}
    for name, entry in (fields["time_ms"] or {}).items():
        if isinstance(entry, bool) or not isinstance(entry, (int, float)) or entry < 0:
            reader.fault(f"{where}.time_ms.{name}", "must be milliseconds, 0 or more")
    known = {"at", "config", *_RECORD_FIELDS}
    extra = {name: value for name, value in document.items() if name not in known}
    return Record(at=at, config=config, extra=extra, **fields)


# What `to_json` makes of knobs that JSON has no type for; only a live config can tell the last.
_FORMS = (["dtype"], ["tuple"], ["opaque"])
_ALLOWED: dict[str, tuple[str, set[int | None]]] = {
    "num_warps": ("a power of two from 1 to 32", {1, 2, 4, 8, 16, 32}),
    "num_stages": ("an integer from 0 to 64", set(range(65))),
    "num_ctas": ("a power of two from 1 to 16", {1, 2, 4, 8, 16}),
    "maxnreg": ("null or an integer from 1 to 255", {None, *range(1, 256)}),
}


def option_faults(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What is wrong with the launch options and the forms of the knobs, by name.

    `num_warps` is a power of two from 1 to 32, `num_stages` 0 or more, `num_ctas` a power of two
    from 1 to 16 (the limits of CUDA's blocks and clusters), `maxnreg` null or 1 to 255.
    """
    for name, value in config.items():
        if isinstance(value, list) or (isinstance(value, dict) and list(value) not in _FORMS):
            yield name, "must be a single value"
        elif name in _ALLOWED:
            words, values = _ALLOWED[name]
            if type(value) not in (int, type(None)) or value not in values:
                yield name, f"must be {words}, not {json.dumps(value)}"


# --- writing ---------------------------------------------------------------------------------


def dump(file: ConfigFile) -> bytes:
    """The exact bytes of a file: sorted records, a field a line, one trailing newline."""
    lines = [
        f'"schema": {SCHEMA}',
        f'"kernel": {_json(file.kernel)}',
        *([] if file.module is None else [f'"module": {_json(file.module)}']),
        f'"device": {_json(device_document(file.device))}',
        f'"key": {_json({name: to_json(value) for name, value in file.key.items()})}',
    ]
    if file.dtypes is not None:
        lines.append(f'"dtypes": {_json(file.dtypes)}')
    lines.append(f'"nearest": {_json(list(file.nearest))}')
    lines += [f"{_json(name)}: {_json(value)}" for name, value in file.extra.items()]
    records = ",\n".join(_record_text(record, file.nearest) for record in in_order(file))
    lines.append(f'"records": [\n{records}\n  ]' if records else '"records": []')
    if file.portfolios:
        tables = ",\n".join(_portfolio_text(table, file.nearest) for table in file.portfolios)
        lines.append(f'"portfolios": [\n{tables}\n  ]')
    return ("{\n  " + ",\n  ".join(lines) + "\n}\n").encode()


def in_order(file: ConfigFile) -> list[Record]:
    """The records by their `at`, ascending."""
    return sorted(file.records, key=lambda record: [record.at[n] for n in file.nearest])


def device_document(device: Device) -> dict[str, Any]:
    """A device as a file has it."""
    fields = {name: getattr(device, name) for name in _DEVICE_FIELDS}
    given = {name: value for name, value in fields.items() if value != "" or name == "name"}
    return {**given, **device.extra}


def record_document(record: Record, nearest: tuple[str, ...]) -> dict[str, Any]:
    """A record as its file has it: fields in their order, those that are not given left out."""
    fields = {name: getattr(record, name) for name in _RECORD_FIELDS}
    return {
        "at": {name: record.at[name] for name in nearest},
        "config": dict(record.config),
        **{name: value for name, value in fields.items() if value is not None},
        **record.extra,
    }


def _record_text(record: Record, nearest: tuple[str, ...]) -> str:
    lines = []
    for name, value in record_document(record, nearest).items():
        if name == "left_out" and value:  # a candidate a line, for the reader of a diff
            entries = [f"        {_json(c)}: {_json(why)}" for c, why in value.items()]
            lines.append('"left_out": {\n' + ",\n".join(entries) + "\n      }")
        else:
            lines.append(f"{_json(name)}: {_json(value)}")
    return "    {\n      " + ",\n      ".join(lines) + "\n    }"


def _portfolio_text(table: Portfolio, nearest: tuple[str, ...]) -> str:
    lines = []
    for name, value in portfolio.document(table, nearest).items():
        if name in ("configs", "resources", "rows") and value:
            entries = ",\n".join(f"        {_json(entry)}" for entry in value)
            lines.append(f'"{name}": [\n{entries}\n      ]')
        else:
            lines.append(f"{_json(name)}: {_json(value)}")
    return "    {\n      " + ",\n      ".join(lines) + "\n    }"


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_has_surrogate = re.compile("[\ud800-\udfff]").search


def _json(value: Any) -> str:
    text = _encode(value)
    if _has_surrogate(text):  # a lone surrogate has no UTF-8
        return json.dumps(value, allow_nan=False)
    return text


# --- the flat form ---------------------------------------------------------------------------


def from_flat(document: Any, path: object, nearest: tuple[str, ...]) -> tuple[Record, ...]:
    """The records of the flat form: `{"1": {…knobs…}, …}`, keyed by the one `nearest` value.

    Numbers at the top are values of `nearest`; `triton_version` is provenance. Raises
    `ConfigFileError` with every fault.
    """
    if not isinstance(document, dict):
        raise ConfigFileError(path, [("", "the top level must be an object")])
    reader = _Reader()
    version = reader.get(document, "triton_version", str, "")
    if len(nearest) != 1:
        reader.fault("", "the flat form serves kernels with exactly one nearest entry")
    records = []
    for name, config in document.items():
        if name == "triton_version":
            continue
        if not re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name) or not isinstance(config, dict):
            reader.fault(name, "must be an integer that names an object of knobs")
            continue
        for knob, what in option_faults(config):
            reader.fault(f"{name}.{knob}", what)
        records.append(Record(at={nearest[0]: int(name)} if nearest else {}, config=config,
                              triton=version))  # fmt: skip
    if reader.faults:
        raise ConfigFileError(path, reader.faults)
    return tuple(records)


def flat_fields(stem: str) -> dict[str, str] | None:
    """The fields of a flat file's name, split at commas outside brackets; None if it has none.

    >>> flat_fields("E=8,N=1,device_name=NVIDIA_L4,block_shape=[128, 128]")["block_shape"]
    '[128,128]'
    """
    parts = re.split(r",(?![^\[(]*[\])])", stem)
    fields = dict(part.partition("=")[::2] for part in parts)
    if len(fields) < len(parts) or not all("=" in part for part in parts):
        return None
    return {name: re.sub(r",\s+", ",", value) for name, value in fields.items()}


def flat_text(value: Value) -> str:
    """How packages of the flat form write a key's value in a file name.

    >>> flat_text((128, 128)), flat_text(Dtype("float16")), flat_text(True)
    ('[128,128]', 'float16', 'True')
    """
    if isinstance(value, tuple):
        return "[" + ",".join(map(flat_text, value)) + "]"
    return value.name if isinstance(value, Dtype) else str(value)
