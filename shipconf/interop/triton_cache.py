"""What Triton itself keeps of a tuning: `<kernel>.autotune.json` in its cache.

A file holds `{"key": [values…, dtypes…], "configs_timings": [[{config}, [ms, ms, ms]], …]}`, as
`triton.runtime.autotuner.Autotuner.check_disk_cache` writes it from Triton 3.3 on. It names
neither the device nor the Triton version nor the arguments, so these must be told.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..configs import config_text
from ..errors import ConfigFileError
from ..keys import RESERVED, Value, dtype_name
from ..records import OPTIONS, ConfigFile, Device, Record, option_faults, parse_json

SUFFIX = ".autotune.json"
_QUANTILES = ("median", "p20", "p80")  # those that Triton asks its do_bench for, in order


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a file of Triton's does not say.

    `keys` are the names in the kernel's `key=`, in order; `nearest` those among them whose value
    a record stands `at`; `tensors` the arguments with a dtype, in the order of the launch.
    """

    device: Device
    keys: Sequence[str]
    nearest: Sequence[str] = ()
    tensors: Sequence[str] = ()
    kernel: str | None = None
    triton: str | None = None


def is_of(kernel: str, file_name: str) -> bool:
    """Whether a file is of the kernel, by the function's name, which Triton cuts.

    >>> is_of("Layer.inner", "inner.autotune.json")
    True
    """
    return file_name == kernel.rpartition(".")[2][:150] + SUFFIX


def read(file_name: str, data: bytes, path: object, told: Told, tuned_at: str | None) -> ConfigFile:
    """The fastest config of a tuning, as a file of one record. Raises `ConfigFileError`."""
    document = parse_json(data, path, infinite=True)  # candidates that failed took Infinity
    if not isinstance(document, dict) or not isinstance(document.get("key"), list):
        raise ConfigFileError(path, [("key", "must be a list: this is no file of Triton's tuner")])
    values, dtypes = _key(document["key"], told, path)
    timings = list(_timings(document.get("configs_timings"), path))
    best, time_ms = min(timings, key=lambda entry: entry[1], default=({}, [math.inf]))
    if not math.isfinite(time_ms[0]):
        raise ConfigFileError(path, [("configs_timings", "no candidate ran")])
    if faults := [(f"configs_timings: {name}", what) for name, what in option_faults(best)]:
        raise ConfigFileError(path, faults)
    failed = [config_text(config) for config, times in timings if not math.isfinite(times[0])]
    record = Record(
        at={name: _integer(name, values, path) for name in told.nearest},
        config=best,
        time_ms=dict(zip(_QUANTILES, time_ms)),
        candidates=len(timings),
        left_out=dict.fromkeys(failed, "did not run in Triton's tuning"),
        triton=told.triton,
        tuned_at=tuned_at,
    )
    return ConfigFile(
        kernel=told.kernel or file_name.removesuffix(SUFFIX),
        device=told.device,
        key={name: value for name, value in values.items() if name not in told.nearest},
        dtypes=dtypes,
        nearest=tuple(told.nearest),
        records=(record,),
    )


def _key(
    entries: Sequence[Any], told: Told, path: object
) -> tuple[dict[str, Value], dict[str, Any]]:
    """The values by name, and the dtypes by argument: Triton puts the latter last."""
    wanted = len(told.keys) + len(told.tensors)
    if len(entries) != wanted:
        what = (
            f"has {len(entries)} entries, {json.dumps(entries)}: name as many, the values by "
            f"--keys ({len(told.keys)} now) and the dtypes by --tensors ({len(told.tensors)} now)"
        )
        raise ConfigFileError(path, [("key", what)])
    if bad := [name for name in (*told.keys, *told.nearest) if name in RESERVED]:
        raise ConfigFileError(path, [("key", f"cannot have the name {bad[0]}")])
    values = {name: _value(entry) for name, entry in zip(told.keys, entries)}
    dtypes = {}
    for i, name in enumerate(told.tensors, start=len(told.keys)):
        if not isinstance(entries[i], str):
            raise ConfigFileError(path, [(f"key[{i}]", f"is no dtype, which {name} needs")])
        dtypes[name] = dtype_name(entries[i])
    return values, dtypes


def _value(entry: Any) -> Value:
    return tuple(map(_value, entry)) if isinstance(entry, list) else entry


def _integer(name: str, values: Mapping[str, Value], path: object) -> int:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigFileError(path, [("key", f"nearest {name} must be an integer, not {value!r}")])
    return value


def _timings(entries: Any, path: object) -> Iterator[tuple[dict[str, Any], list[float]]]:
    """Each candidate's flat config and its times in milliseconds."""
    if not isinstance(entries, list):
        raise ConfigFileError(path, [("configs_timings", "must be a list")])
    for i, entry in enumerate(entries):
        config, times = entry if isinstance(entry, list) and len(entry) == 2 else ({}, [])
        times = [times] if isinstance(times, (int, float)) else times
        knobs = config.get("kwargs") if isinstance(config, dict) else None
        if not isinstance(knobs, dict) or not isinstance(times, list) or not _are_numbers(times):
            raise ConfigFileError(
                path, [(f"configs_timings[{i}]", "must be a config with kwargs, and its times")]
            )
        options = {name: config.get(name) for name in OPTIONS}
        more = {n: v for n, v in config.items() if n not in ("kwargs", "pre_hook", *OPTIONS)}
        given = {n: v for n, v in (options | more).items() if v is not None}
        yield {**knobs, **given}, [math.inf if t != t else float(t) for t in times]


def _are_numbers(times: Sequence[Any]) -> bool:
    return bool(times) and all(isinstance(t, (int, float)) for t in times)
