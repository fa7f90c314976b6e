"""Launches that torch traces into a graph: `torch.compile`, `torch.export`, `triton_op`.

The graph holds one config, which is settled here while it is traced: nothing is tuned then, and
nothing of this runs with the compiled code. Key entries become constants of the graph. A nearest
value is only compared with the bounds between stored ones, so that a graph serves their range.

`launch` is code that Dynamo reads: plain loops over tuples. Dynamo calls `ranges` and `launcher`
as they are and takes what they return for constant.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Union

from . import device as devices
from .configs import Choice, to_triton
from .errors import warn_once
from .keys import Binder, dtype_name
from .lookup import Lookup, Override
from .memory import Remembered
from .resolver import Query

# Union, since Python 3.9, where the vendored module runs, has no `int | None`.
Last = Union[int, None]  # None is without end
# The last value of a range, the value in it to look up by, and the parts of it that are a miss.
Range = tuple[Last, int, tuple[tuple[int, Last], ...]]
# Device number of a tensor, the names that the launch passes, and the tensors' dtypes.
Circumstances = tuple[Union[int, None], tuple[str, ...], tuple[tuple[str, Any], ...]]


class Tracer:
    """Puts launches of one kernel into the graphs that torch traces."""

    def __init__(
        self, fn: Any, binder: Binder, lookup: Lookup, check: Callable[[frozenset[str]], None],
        overrides: Sequence[Override],
    ) -> None:  # fmt: skip
        self.fn = fn
        self.names = tuple(fn.arg_names)
        self.defaults = dict(binder.defaults)
        self.key = tuple(binder.key_entries.items())
        self.nearest = tuple(binder.nearest_entries.items())
        self.tensors = tuple(binder.tensors)
        self.binder = binder
        self.lookup = lookup
        self.check = check
        self.overrides = overrides
        self._launchers: dict[Any, Any] = {}

    def launch(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grid: Any,
        override: str | None,
    ) -> Any:
        """Put the launch into the graph that is traced, with the override of that name, if any."""
        from torch.compiler import is_dynamo_compiling

        passed = {**dict(zip(self.names, args)), **kwargs}
        named = {**self.defaults, **passed}
        marks = tuple([(name, _mark(named[name])) for name in self.tensors if name in named])
        here: Circumstances = (_device_index(named), tuple(passed), marks)
        values = [_settled(_read(entry, named)) for entry in self.key]
        near = [_read(entry, named) for entry in self.nearest]
        if override is not None:
            near = [1 for _ in near]  # no lookup: one graph for all values
        elif len(near) == 1:
            near = [_representative(self.ranges(here, *values), near[0])]
        else:
            near = [operator.index(value) for value in near]
        launcher = self.launcher(here, override, tuple(near), *values)
        if not is_dynamo_compiling():
            from torch.library import wrap_triton

            launcher = wrap_triton(launcher)
        return launcher.run(*args, grid=grid, **kwargs)

    def ranges(self, here: Circumstances, *values: Any) -> tuple[Range, ...]:
        """The ranges of the nearest value that one config serves each, in order."""
        ((name, _),) = self.nearest
        query = self._query(here, (1,), values)
        resolver = self.lookup.resolver
        starts = sorted({0, 1, *_starts(resolver.tuned_at(query), resolver.max_distance)})
        found: list[tuple[str, list[tuple[int, int | None, bool]]]] = []
        for first, following in zip(starts, [*starts[1:], None]):
            at = replace(query, key=replace(query.key, nearest={name: first}))
            known, stored = self.lookup.without_arguments(at)
            identity = "" if known is None else Choice(known.flat).identity
            last = None if following is None else following - 1
            if not found or found[-1][0] != identity or first == 1:  # zero has rules of its own
                found.append((identity, []))
            found[-1][1].append((first, last, stored))
        return tuple(_range(parts) for _, parts in found)

    def launcher(
        self, here: Circumstances, override: str | None, near: tuple[int, ...], *values: Any
    ) -> Any:
        """The kernel with the config, in the one form that torch puts into graphs.

        Raises `OfflineError` where there is none, and `ValueError` as a launch does.
        """
        query = self._query(here, near, values)
        if override is not None:
            (entered,) = [entry for entry in self.overrides if entry.name == override]
            known = self.lookup.overridden(query, entered)
        else:
            known = self.lookup.traced(query)
        self._warn_of_dropped(known)
        identity = Choice(known.flat).identity, known.pre_hook
        if identity not in self._launchers:
            import triton

            config = to_triton(known.flat, known.pre_hook)
            self._launchers[identity] = triton.autotune(configs=[config], key=[])(self.fn)
        return self._launchers[identity]

    # What torch.compiler.assume_constant_result does, which imports Dynamo: seconds.
    ranges._dynamo_marked_constant = True  # type: ignore[attr-defined]
    launcher._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _query(self, here: Circumstances, near: Sequence[int], values: Sequence[Any]) -> Query:
        index, passed, marks = here
        self.check(frozenset(passed))
        named = {name: value for (name, _), value in zip(self.key, values)}
        named.update({name: value for (name, _), value in zip(self.nearest, near)})
        dtypes = {name: _dtypes(mark) for name, mark in marks if mark}
        key = self.binder.key_of_values(named, dtypes)
        return Query(key, devices.current(self.fn, index), frozenset(passed), named)

    def _warn_of_dropped(self, known: Remembered) -> None:
        dropped = [
            f"{name}={known.flat[name]}"
            for name, default in (("num_ctas", 1), ("maxnreg", None))
            if known.flat.get(name, default) != default
        ]
        if dropped:
            kernel = self.lookup.resolver.subject.name
            warn_once(
                kernel, ("dropped", *dropped),
                f"{kernel}: Inductor compiles without {', '.join(dropped)}, which the config "
                "sets; its compiled launch may be slower than an eager one",
            )  # fmt: skip


def _read(entry: tuple[str, Any], named: Mapping[str, Any]) -> Any:
    name, function = entry
    return named[name] if function is None else function(named)


def _settled(value: Any) -> Any:
    """The value, the graph's own from now on where it was symbolic."""
    import torch

    if isinstance(value, tuple):
        return tuple([_settled(item) for item in value])
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return operator.index(value)  # int() leaves it symbolic
    return value


def _mark(value: Any) -> Any:
    """A tensor's dtype, "none" for None, a tuple of these for a tuple, "" for all else."""
    import torch

    if value is None:
        return "none"
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, tuple):
        marks = tuple([_mark(item) for item in value])
        return marks if any(mark not in ("", "none") for mark in marks) else ""
    return ""


def _dtypes(mark: Any) -> str | list[str]:
    if not isinstance(mark, tuple):
        return dtype_name(mark)
    names: list[str] = []
    for entry in mark:
        inner = _dtypes(entry) if entry else []
        names += [inner] if isinstance(inner, str) else inner
    return names


def _device_index(named: Mapping[str, Any]) -> int | None:
    """The number of the device that compiled code launches on: that of the tensors."""
    import torch

    for value in named.values():
        if isinstance(value, torch.Tensor):
            index: int | None = value.device.index
            return index
    return None


def _representative(ranges: Sequence[Range], value: Any) -> int:
    """The value to look up by in the place of one that may be symbolic.

    It is compared with the ends of ranges only. What is a miss counts as one where that is known
    without another comparison, which would cost a graph.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    _, use, gaps = ranges[-1]
    for last, inside, parts in ranges[:-1]:
        if value <= last:
            use, gaps = inside, parts
            break
    for first, last in gaps:
        if statically_known_true(value >= first) and (
            last is None or statically_known_true(value <= last)
        ):
            return first
    return use


def _range(parts: Sequence[tuple[int, int | None, bool]]) -> Range:
    stored = [first for first, _, is_stored in parts if is_stored]
    misses = tuple((first, last) for first, last, is_stored in parts if not is_stored)
    return parts[-1][1], (stored or [parts[0][0]])[0], misses


def _starts(tuned: Iterable[Iterable[int]], max_distance: float) -> Iterator[int]:
    """Where another record may become the nearest, and where one comes into reach or leaves it.

    `tuned` has the tuned values of the records that compete with one another. Bounds are off by
    one at most, so both sides are given.
    """
    for values in tuned:
        ordered = sorted({max(1, value) for value in values})
        bounds = []
        for low, value in zip([1, *ordered], ordered):
            bounds += [value, math.isqrt(low * value)]
            bounds += [int(value * 2.0**-max_distance), int(value * 2.0**max_distance)]
        for bound in bounds:
            yield from (max(1, bound), bound + 1)
