"""A tuning to do, and what it found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from .bench import Bench, Call, Timing
from .configs import Choice
from .gpu_bench import GpuBench
from .hooks import Hooks
from .journal import Journal
from .placement import Arguments
from .records import Device


@dataclass(frozen=True, eq=False)
class Plan:
    """A tuning to do. `launch(choice, arguments, warmup)` runs the kernel.

    `candidates` are in order of preference among equals: the default and the incumbent first,
    then `configs` as declared, and last what serves now from another point. `default` is the one
    that speed-ups are told against. `assured` are finalists whatever their first launches say:
    the default, the incumbent and what serves now, which the winner replaces.
    """

    kernel: str
    key: str
    device: Device
    candidates: Sequence[Choice]
    default: Choice | None
    launch: Callable[[Choice, Arguments, bool], Any]
    arguments: Arguments
    jit: Any
    hooks: Hooks
    bench: Bench | GpuBench
    journal: Journal
    assured: Sequence[Choice] = ()

    def call(self, choice: Choice, arguments: Arguments | None = None) -> Call:
        """One measured call of a candidate, with the hooks around it: on the user's arguments,
        or on a copy of them."""
        given = arguments or self.arguments
        named = {**given.named, **choice.flat}

        def around() -> AbstractContextManager[None]:
            if choice.pre_hook is not None:
                choice.pre_hook(named)
            return self.hooks.around(named)

        return Call(functools.partial(self.launch, choice, given, False), around, named)

    def compile(self, choice: Choice) -> Any:
        """The compiled kernel of a candidate."""
        if choice.pre_hook is not None:  # it may set what is compiled: a descriptor's block, say
            choice.pre_hook({**self.arguments.named, **choice.flat})
        return self.launch(choice, self.arguments, True)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a tuning found: the winner, all timings, and why other candidates have none.

    `seconds` is the whole, `compile_s` that part of it in which candidates were compiled.
    """

    winner: Choice
    timings: dict[Choice, Timing]
    left_out: dict[str, str]
    default_ms: float | None
    seconds: float
    compile_s: float
    compiled: Any
