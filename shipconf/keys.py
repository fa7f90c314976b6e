"""What a launch is looked up by: binding arguments, typed values, their text, distance.

One function, `Binder.key`, builds the key for reading, writing, tuning and export alike.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

TIE = 1e-9  # octaves: log2 of one ratio and of its inverse may differ by rounding
RESERVED = ("dtypes", "device_name", "arch", "mp")

# Triton's names of the dtypes that torch calls differently.
_TRITON_DTYPES = {
    "int1": "bool",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5": "float8_e5m2",
    "fp8e5b16": "float8_e5m2fnuz",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
}


@dataclass(frozen=True)
class Dtype:
    """A dtype of torch or Triton, by torch's name for it: `float16`."""

    name: str


@dataclass(frozen=True)
class Opaque:
    """A key value with no text of its own, such as a JIT function: known in this process only."""

    value: Any


# Union, since `|` with a string (a type that refers to itself) fails on Python 3.10.
Value = Union[None, bool, int, float, str, Dtype, Opaque, tuple["Value", ...]]
Dtypes = Mapping[str, Any]  # tensor argument → dtype name, "none", or a list of these for a tuple
# What a caller without tensors may say instead: one dtype for all, or one for each, in order.
AskedDtypes = Union[Dtypes, str, tuple[str, ...], None]


def dtype_name(dtype: Any) -> str:
    """Torch's name of a dtype of torch or Triton, or of a string that names one.

    >>> dtype_name("fp16"), dtype_name("torch.float16")
    ('float16', 'float16')
    """
    name = str(dtype).removeprefix("torch.").removeprefix("tl.")
    return _TRITON_DTYPES.get(name, name)


def _is_dtype(value: Any) -> bool:
    return type(value).__name__ == "dtype" and type(value).__module__.split(".")[0] in (
        "torch",
        "triton",
    )


def canonical(value: Any) -> Value:
    """The typed value that a key holds for an argument.

    Integers of NumPy and torch become `int`, `tl.constexpr` its content, dtypes `Dtype`;
    NaN, infinities and all that JSON cannot say become `Opaque`.
    """
    if value is None or isinstance(value, (bool, str)):
        return _text_or_opaque(value)
    if type(value).__name__ == "constexpr" and hasattr(value, "value"):
        return canonical(value.value)
    if isinstance(value, Dtype):
        return value
    if _is_dtype(value):
        return Dtype(dtype_name(value))
    if isinstance(value, tuple):
        return tuple(canonical(item) for item in value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else Opaque(repr(float(value)))
    numpy_scalar = hasattr(value, "item") and getattr(value, "shape", None) == ()
    if numpy_scalar and not hasattr(value, "data_ptr"):
        plain = value.item()  # stays what it is where Python has no type for it
        return Opaque(value) if type(plain) is type(value) else canonical(plain)
    try:
        return operator.index(value)
    except TypeError:
        return Opaque(value)


def _text_or_opaque(value: bool | str | None) -> Value:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate has no UTF-8
            return Opaque(value)
        return str.__str__(value)  # of an enum the value, not its name
    return value


def storable(value: Value) -> bool:
    """Whether a file can hold the value."""
    if isinstance(value, tuple):
        return all(map(storable, value))
    return not isinstance(value, Opaque)


def typed(value: Value) -> tuple[Any, ...]:
    """The value with its type, so that `1`, `True` and `1.0` differ where Python says equal."""
    if isinstance(value, tuple):
        return ("tuple", *map(typed, value))
    content = value.value if isinstance(value, Opaque) else value
    try:
        hash(content)
    except TypeError:
        content = repr(content)
    if isinstance(content, float) and content != content:  # NaN equals nothing
        content = "nan"
    return (type(value).__name__, content)


def to_json(value: Value) -> Any:
    """The JSON form of a value: a dtype is `{"dtype": …}`, a tuple `{"tuple": […]}`."""
    if isinstance(value, Dtype):
        return {"dtype": value.name}
    if isinstance(value, tuple):
        return {"tuple": [to_json(item) for item in value]}
    if isinstance(value, Opaque):
        return {"opaque": _opaque_name(value.value)}
    return value


def _opaque_name(value: Any) -> str:
    """A JIT function by its module and qualified name, another object as Python shows it."""
    function = getattr(value, "fn", value)
    if inspect.isfunction(function):
        return f"function {function.__module__}:{function.__qualname__}"
    return f"{type(value).__name__} {value!r}"


def from_json(document: Any) -> Value:
    """The inverse of `to_json`. Raises `ValueError` for a form that no key value has."""
    if isinstance(document, dict):
        if list(document) == ["dtype"] and isinstance(document["dtype"], str):
            return Dtype(document["dtype"])
        if list(document) == ["tuple"] and isinstance(document["tuple"], list):
            return tuple(map(from_json, document["tuple"]))
    elif not isinstance(document, list):
        value: Value = document
        return value
    raise ValueError(f'a key value cannot be {json.dumps(document)}; a tuple is {{"tuple": […]}}')


def escape(text: str, keep: str = "") -> str:
    """Text as a part of a file name, one-to-one: a space is `_`, other bytes are `%XX`.

    Letters, digits, `.`, `-` and the characters of `keep` stand for themselves.

    >>> escape("AMD Instinct MI50/MI60")
    'AMD_Instinct_MI50%2FMI60'
    """
    plain = re.compile(f"[A-Za-z0-9.{re.escape(keep)}-]")
    return "".join(
        char if plain.fullmatch(char)
        else "_" if char == " " and "_" not in keep
        else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in text
    )  # fmt: skip


def key_text(values: Iterable[tuple[str, Value]]) -> str:
    """The exact part of a key as it stands in file names: `N=4096,K=4096`."""
    return ",".join(
        f"{name}={escape(json.dumps(to_json(value), ensure_ascii=False))}" for name, value in values
    )


def dtypes_text(dtypes: AskedDtypes) -> str:
    """The dtypes as they stand in file names: one name when all agree, else joined by `-`."""
    names: list[str] = []
    if isinstance(dtypes, str):
        names = [dtypes]
    elif dtypes is not None:
        for entry in dtypes.values() if isinstance(dtypes, Mapping) else dtypes:
            names += [entry] if isinstance(entry, str) else entry
    if len(set(names)) == 1 and "none" not in names:
        names = names[:1]
    return "-".join(escape(name, keep="_") for name in names)


def one_or_each(dtypes: Dtypes) -> str | tuple[str, ...] | None:
    """What `dtypes=` of `resolve_for` asks for the same with: one name where all agree.

    >>> one_or_each({"a_ptr": "float16", "b_ptr": "float16"}), one_or_each({"a_ptr": "none"})
    ('float16', ('none',))
    """
    names: list[str] = []
    for entry in dtypes.values():
        names += [entry] if isinstance(entry, str) else entry
    if len(set(names)) == 1 and names[0] != "none":
        return names[0]
    return tuple(names) or None


def cut(text: str, limit: int = 200) -> str:
    """The text, or where it is longer than `limit` bytes, its beginning and a hash of it all."""
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[: limit - 17]}-{digest}"


def folder_name(name: str) -> str:
    """A kernel's name as the name of a folder.

    >>> folder_name("Attention.<locals>.forward"), folder_name("..")
    ('Attention.%3Clocals%3E.forward', '%2E%2E')
    """
    if name in (".", ".."):  # the two names that lead elsewhere
        return name.replace(".", "%2E")
    return cut(escape(name, keep="_"))


def distance(asked: Mapping[str, int], tuned: Mapping[str, int]) -> float:
    """Σ |log2(asked / tuned)| in octaves; values below 1 count as 1."""
    return sum(
        abs(math.log2(max(1, asked[name])) - math.log2(max(1, tuned[name]))) for name in asked
    )


@dataclass(frozen=True, eq=False)
class Key:
    """What a lookup asks for: exact values, tensor dtypes, and the values to be near to."""

    values: Mapping[str, Value]
    dtypes: AskedDtypes
    nearest: Mapping[str, int]

    def __str__(self) -> str:
        parts = [f"{name}={json.dumps(to_json(v))}" for name, v in self.values.items()]
        if self.dtypes:
            parts.append(f"dtypes={dtypes_text(self.dtypes)}")
        parts += [f"{name}={value}" for name, value in self.nearest.items()]
        return ", ".join(parts) or "(no key)"

    @property
    def storable(self) -> bool:
        return all(map(storable, self.values.values()))

    @property
    def exact(self) -> tuple[Any, ...]:
        """The exact values in a hashable form that keeps types apart."""
        return tuple((name, typed(value)) for name, value in self.values.items())

    @property
    def zero_sized(self) -> bool:
        return any(value < 1 for value in self.nearest.values())


def dtypes_serve(stored: Dtypes | None, asked: AskedDtypes) -> bool:
    """Whether a file tuned for the `stored` dtypes serves the `asked` ones; None serves any."""
    if stored is None:
        return True
    if isinstance(asked, Mapping):
        return dict(stored) == dict(asked)
    if asked is None:
        return not stored
    if isinstance(asked, str):
        return bool(stored) and all(entry == asked for entry in stored.values())
    return list(asked) == list(stored.values())


def asked_dtypes(dtypes: Any) -> AskedDtypes:
    """What `dtypes=` of `resolve_for` asks for, by torch's names."""
    if dtypes is None:
        return None
    if isinstance(dtypes, (list, tuple)):
        return tuple("none" if dtype is None else dtype_name(dtype) for dtype in dtypes)
    return dtype_name(dtypes)


@dataclass(frozen=True, eq=False)
class Bound:
    """The arguments of one launch.

    `named` has those passed or defaulted, by name (the knobs are absent unless the kernel gives
    them defaults); `passed` the names that the launch itself gave; `options` its launch options.
    """

    named: dict[str, Any]
    passed: frozenset[str]
    options: dict[str, Any]


Entry = Union[str, tuple[str, Callable[[Mapping[str, Any]], Any]]]


class Binder:
    """Binds the arguments of one kernel's launches, by name, and reads the key off them.

    `key` and `nearest` hold names of arguments or pairs (name, function of the named
    arguments); `knobs` are the names that configs set. Raises `ValueError` for a name that is
    no argument, for a pair's name that is not an identifier, and for the names that files
    reserve.
    """

    def __init__(
        self, signature: inspect.Signature, key: Sequence[Entry], nearest: Sequence[Entry],
        knobs: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.signature = signature
        self.defaults = {
            name: parameter.default
            for name, parameter in signature.parameters.items()
            if parameter.default is not parameter.empty
        }
        # As in Triton, a key entry that the configs set is ignored: it is no input.
        self.key_entries = {
            name: entry
            for name, entry in _entries("key", key, signature).items()
            if entry is not None or name not in knobs
        }
        self.nearest_entries = _entries("nearest", nearest, signature)
        if both := set(self.key_entries) & set(self.nearest_entries):
            raise ValueError(f"both in key and in nearest: {', '.join(sorted(both))}")
        self.tensors = [
            name
            for name, parameter in signature.parameters.items()
            if "constexpr" not in str(parameter.annotation)
        ]

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """Bind a launch's arguments; raises `TypeError` as a call of the kernel would."""
        parameters = self.signature.parameters
        options = {name: value for name, value in kwargs.items() if name not in parameters}
        bound = self.signature.bind_partial(
            *args, **{name: value for name, value in kwargs.items() if name in parameters}
        )
        passed = frozenset(bound.arguments) | frozenset(options)
        bound.apply_defaults()
        return Bound(dict(bound.arguments), passed, options)

    def key(self, named: Mapping[str, Any]) -> Key:
        """The key of a launch with these named arguments.

        Raises `TypeError` where an entry is missing, or a `nearest` value is no integer.
        """
        entries = {**self.key_entries, **self.nearest_entries}
        values = {name: _read(name, entry, named) for name, entry in entries.items()}
        return self.key_of_values(values, self.dtypes(named))

    def key_of_values(self, values: Mapping[str, Any], dtypes: AskedDtypes) -> Key:
        """The key from the values of its entries. Raises `TypeError` for a `nearest` value that is
        no integer."""
        nearest: dict[str, int] = {}
        for name in self.nearest_entries:
            value = canonical(values[name])
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"nearest value {name} must be an integer, not {value!r}")
            nearest[name] = value
        return Key({name: canonical(values[name]) for name in self.key_entries}, dtypes, nearest)

    def dtypes(self, named: Mapping[str, Any]) -> Dtypes:
        """The dtype of each argument that is a tensor, `none` for each that is None."""
        found = {name: dtype_mark(named[name]) for name in self.tensors if name in named}
        return {name: mark for name, mark in found.items() if mark is not None}


def dtype_mark(value: Any) -> str | list[str] | None:
    """The dtype's name of a tensor or a tensor descriptor, "none" for None, None for the rest.

    A tuple that holds a tensor gives a list of its members' marks, those of tuples inside too.
    """
    if value is None:
        return "none"
    base = getattr(value, "base", None)
    if not hasattr(value, "data_ptr") and hasattr(base, "data_ptr"):
        value = base  # a tensor descriptor
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return dtype_name(value.dtype)
    if isinstance(value, tuple):
        names: list[str] = []
        for mark in map(dtype_mark, value):
            names += mark if isinstance(mark, list) else [mark] if mark else []
        return names if any(name != "none" for name in names) else None
    return None


def _entries(
    what: str, entries: Sequence[Entry], signature: inspect.Signature
) -> dict[str, Callable[[Mapping[str, Any]], Any] | None]:
    if isinstance(entries, str):
        raise ValueError(f"{what} is a list of argument names, not the string {entries!r}")
    found: dict[str, Callable[[Mapping[str, Any]], Any] | None] = {}
    for entry in dict.fromkeys(entries):  # a repeat says nothing new, as in Triton
        name, function = (entry, None) if isinstance(entry, str) else entry
        if function is None and name not in signature.parameters:
            raise ValueError(
                f"{what} names {name!r}, which is no argument of the kernel; its arguments are: "
                f"{', '.join(signature.parameters)}"
            )
        if not name.isidentifier() or not name.isascii() or name in RESERVED or name in found:
            raise ValueError(
                f"{what} cannot hold the name {name!r}: it must be an ASCII identifier, given "
                f"once, and none of {', '.join(RESERVED)}, which file names use"
            )
        found[name] = function
    return found


def _read(
    name: str, function: Callable[[Mapping[str, Any]], Any] | None, named: Mapping[str, Any]
) -> Any:
    if function is not None:
        return function(named)
    if name not in named:
        raise TypeError(f"the launch does not pass {name!r}, which the kernel's key needs")
    return named[name]
