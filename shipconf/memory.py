"""The process's memory of one kernel: what each shape launches with.

A hit costs one generated function and one dict lookup. The function reads the key entries
with their types, and of the other arguments only what tells dtypes apart: `x.dtype` where a
tensor was seen, `x.__class__` where a plain value was. An argument that turns out to be both
(an optional tensor) is read by the slower `dtype_mark` from then on.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import forks
from .keys import Binder, dtype_mark, typed

CAPACITY = 4096  # shapes


class _Missing:
    def __repr__(self) -> str:
        return "<not passed>"


_MISSING = _Missing()


def _not_started(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("only what the memory holds can start a launch")


@dataclass(frozen=True)
class Remembered:
    """What a launch needs: the knobs, the config's own hook, and the match they came from.

    `policy` is None where the match serves under every policy, else the only one it serves, and
    that until the time `until` (of `time.monotonic`).
    `start` launches the kernel with the knobs, after the hook.
    """

    flat: dict[str, Any]
    pre_hook: Callable[[dict[str, Any]], Any] | None
    match: Any
    policy: int | None = None
    start: Callable[..., Any] = _not_started
    until: float = math.inf

    def serves(self, policy: int) -> bool:
        """Whether it may be launched with under the policy, now."""
        return self.policy is None or (
            self.policy == policy and (self.until == math.inf or time.monotonic() < self.until)
        )


@dataclass(frozen=True)
class Memory:
    """Maps the arguments of launches to `Remembered`; never changes how it reads them.

    `learn` returns another, empty memory where arguments need reading in another way, so a
    launch that holds this one is not disturbed.
    """

    binder: Binder
    device: Callable[[], Any] | None
    kinds: Mapping[str, str] = field(default_factory=dict)
    launches: dict[Any, Remembered] = field(default_factory=dict)
    key: Callable[..., Any] = field(init=False)
    positional: Callable[..., Any] = field(init=False)  # the same without launch options: faster
    _lock: Any = field(default_factory=forks.lock)

    def __post_init__(self) -> None:
        key, positional = _generate(self.binder, self.kinds, self.device)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "positional", positional)

    def learn(self, named: Mapping[str, Any]) -> Memory:
        """The memory that can tell a launch with these arguments from all it holds."""
        kinds = dict(self.kinds)
        for name in _names(self.binder):
            if name in named:
                seen = _kind(named[name])
                kinds[name] = seen if kinds.get(name, seen) == seen else "mixed"
        return self if kinds == self.kinds else Memory(self.binder, self.device, kinds)

    def remember(self, key: Any, launch: Remembered) -> None:
        with self._lock:
            while len(self.launches) >= CAPACITY:
                del self.launches[next(iter(self.launches))]
            self.launches[key] = launch


def _names(binder: Binder) -> list[str]:
    entries = {**binder.key_entries, **binder.nearest_entries}
    return list(dict.fromkeys([*binder.tensors, *(n for n, fn in entries.items() if fn is None)]))


def _kind(value: Any) -> str:
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return "tensor"
    if isinstance(value, tuple) or hasattr(value, "base"):
        return "mixed"
    try:
        hash(value)
    except TypeError:
        return "mixed"
    return "mixed" if isinstance(value, float) and value != value else "plain"


def _mark(value: Any) -> Any:
    mark = dtype_mark(value)
    return tuple(mark) if isinstance(mark, list) else mark


def _present(**named: Any) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not _MISSING}


def _generate(
    binder: Binder, kinds: Mapping[str, str], device: Callable[[], Any] | None
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function from a launch's arguments to a hashable key, for arguments of these kinds; and
    one that takes no launch options, without the dict for them."""
    scope: dict[str, Any] = {"_typed": typed, "_mark": _mark, "_present": _present}
    parts = []
    if device is not None:
        scope["_device"] = device
        parts.append("_device()")
    entries = {**binder.key_entries, **binder.nearest_entries}
    everything = ", ".join(f"{name}={name}" for name in binder.signature.parameters)
    for i, (name, function) in enumerate(entries.items()):
        if function is not None:
            scope[f"_read{i}"] = function
            parts.append(f"_typed(_read{i}(_present({everything})))")
        elif kinds.get(name) == "mixed":
            parts.append(f"_typed({name})")
        else:
            parts.append(f"{name}, {name}.__class__")
    form = {"tensor": "{0}.dtype", "mixed": "_mark({0})"}
    for name in binder.tensors:
        if entries.get(name, _MISSING) is not None:  # a key entry has its class in the key already
            parts.append(form.get(kinds.get(name, ""), "{0}.__class__").format(name))
    # A graph is traced with fake tensors. All tensors of a launch are fake then, or none is.
    parts += [f"{name}.__class__" for name in binder.tensors if kinds.get(name) == "tensor"][:1]
    body = "".join(f"{part}, " for part in parts)
    parameters = _parameters(binder.signature, scope)
    for name, options in (("_key", ["**_options"]), ("_positional", [])):
        exec(f"def {name}({', '.join([*parameters, *options])}):\n    return ({body})\n", scope)
    return scope["_key"], scope["_positional"]


def _parameters(signature: inspect.Signature, scope: dict[str, Any]) -> list[str]:
    """The parameters of the kernel, each with its default, or "not passed" as the default."""
    parts = []
    keyword_only = False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            parts.append(f"*{name}")
            keyword_only = True
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        empty = parameter.default is parameter.empty
        scope[f"_default_{name}"] = _MISSING if empty else parameter.default
        parts.append(f"{name}=_default_{name}")
    return parts
