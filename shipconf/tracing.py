"""Launches that torch traces into a graph: `torch.compile`, `torch.export`, `triton_op`.

The graph holds one config, which is settled here while it is traced: nothing is tuned then, and
nothing of this runs with the compiled code. Key entries become constants of the graph. A nearest
value is only compared with the bounds between stored ones, so that a graph serves their range.

`launch` is code that Dynamo reads: plain loops over tuples. Dynamo calls `ranges` and `launcher`
as they are and takes what they return for constant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Union

from . import device as devices
from .configs import Choice, to_triton
from .errors import warn_once
from .keys import Binder, Bound, dtype_name
from .lookup import Lookup, Override
from .memory import Remembered
from .ranges import Range, range_of, representative, starts
from .resolver import Query, Request

# Device number of a tensor, the names that the launch passes, the tensors' dtypes, and what
# pruning is to see of positional and keyword arguments. (Union: see `ranges`.)
Circumstances = tuple[
    Union[int, None], tuple[str, ...], tuple[tuple[str, Any], ...], tuple[Any, ...]
]


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
        self.pruned = bool(lookup.flight.prune)  # by functions of any argument, so all are settled
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
        seen: tuple[Any, ...] = ()
        if self.pruned:
            keywords = tuple([(name, _described(value)) for name, value in kwargs.items()])
            seen = (tuple([_described(value) for value in args]), keywords)
        here: Circumstances = (_device_index(named), tuple(passed), marks, seen)
        values = [_settled(_read(entry, named)) for entry in self.key]
        near = [_read(entry, named) for entry in self.nearest]
        if override is not None:
            near = [1 for _ in near]  # no lookup: one graph for all values
        elif len(near) == 1 and not self.pruned:
            near = [representative(self.ranges(here, *values), near[0])]
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
        query = self._request(here, (1,), values).query
        resolver = self.lookup.resolver
        firsts = sorted({0, 1, *starts(resolver.tuned_at(query), resolver.max_distance)})
        found: list[tuple[str, list[tuple[int, int | None, bool]]]] = []
        for first, following in zip(firsts, [*firsts[1:], None]):
            at = replace(query, key=replace(query.key, nearest={name: first}))
            known, stored = self.lookup.untuned(at, self.lookup.sole_declared)
            identity = self._identity(known)
            last = None if following is None else following - 1
            if not found or found[-1][0] != identity or first == 1:  # zero has rules of its own
                found.append((identity, []))
            found[-1][1].append((first, last, stored))
        return tuple(range_of(parts, computed=not identity) for identity, parts in found)

    def _identity(self, known: Remembered | None) -> str:
        """What the neighbours of one range have in common; "" where each value has its own."""
        if known is None:
            return "nothing"
        computed = callable(self.lookup.resolver.default_config)
        return "" if computed and known.match.source == "default" else Choice(known.flat).identity

    def launcher(
        self, here: Circumstances, override: str | None, near: tuple[int, ...], *values: Any
    ) -> Any:
        """The kernel with the config, in the one form that torch puts into graphs.

        Raises `OfflineError` where there is none, and `ValueError` as a launch does.
        """
        request = self._request(here, near, values)
        query = request.query
        if override is not None:
            (entered,) = [entry for entry in self.overrides if entry.name == override]
            known = self.lookup.overridden(query, entered)
        else:
            sole = self.lookup.sole_declared
            known = self.lookup.traced(
                query, (lambda: self.lookup.sole(request)) if self.pruned else sole
            )
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

    def _request(self, here: Circumstances, near: Sequence[int], values: Sequence[Any]) -> Request:
        """The launch as it is looked up; its arguments are what pruning may see, if anything."""
        index, passed, marks, seen = here
        self.check(frozenset(passed))
        named = {name: value for (name, _), value in zip(self.key, values)}
        named.update({name: value for (name, _), value in zip(self.nearest, near)})
        dtypes = {name: _dtypes(mark) for name, mark in marks if mark}
        key = self.binder.key_of_values(named, dtypes)
        positional, keywords = seen or ((), ())
        args = tuple(map(_stand_in, positional))
        kwargs = {name: _stand_in(value) for name, value in keywords}
        named.update({**dict(zip(self.names, args)), **kwargs})
        query = Query(
            key, devices.current(self.fn, index), frozenset(passed), named,
            lambda choice, distance: not seen
            or self.lookup.flight.allows(request, choice, distance),
        )  # fmt: skip
        request = Request(query, Bound(named, query.passed, {}), args, kwargs)  # for `allows`
        return request

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


def _described(value: Any) -> Any:
    """What a constant can say of an argument."""
    import torch

    if isinstance(value, torch.Tensor):
        return ("a tensor", value.dtype, tuple([operator.index(size) for size in value.shape]))
    return _settled(value)


def _stand_in(described: Any) -> Any:
    """An argument that was described; a tensor without data in the place of one."""
    if isinstance(described, tuple) and described[:1] == ("a tensor",):
        import torch

        _, dtype, shape = described
        return torch.empty(shape, dtype=dtype, device="meta")
    return described


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
