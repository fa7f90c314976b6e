"""The order of a launch's lookup: stored, tuned now, last resort, error."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from . import device as devices
from . import settings
from .configs import Choice, UnfitError
from .errors import TuningError, warn_once
from .failures import OutOfMemory
from .flight import Flight
from .memory import Remembered
from .resolver import Match, Query, Request, Resolver, by_default
from .settings import Policy

_numbers = itertools.count()


class Override:
    """A config that a block forces, with a name that no other block has: Dynamo guards on it."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.name = f"override {next(_numbers)}"


class Lookup:
    """Finds what a launch of one kernel uses, where the process's memory does not know it."""

    def __init__(self, resolver: Resolver, flight: Flight) -> None:
        self.resolver = resolver
        self.flight = flight

    def find(self, request: Request, error: Exception | None) -> Remembered | list[Choice]:
        """What to launch with; every candidate for a warmup that finds nothing.

        `error` is the first failure of a stored config in this launch. After one the default
        comes before tuning, and the error is raised where nothing else is left. Raises
        `OfflineError`, `TuningError`, and the device's error when it runs out of memory.
        """
        query = request.query
        found = self.resolver.near(query) or self.sole(request)
        if found is None and error is not None:
            found = self.resolver.usable_default(query)
        if found is not None:
            return found
        self.resolver.note_miss(query)
        policy = settings.policy()
        why = self._why_not_tune(request, policy)
        if not why and not request.warmup:
            self.resolver.warn_of_miss(query)
            return self._tune(request, policy, error)
        if why:
            fallback = self.resolver.last_resort(query, policy, quiet=devices.capturing())
            if fallback is not None:
                return fallback
        if error is not None:
            raise error
        if request.warmup:
            return self.flight.candidates(request)
        if never_tuned_for(query):
            return by_default(self.resolver.knobs.live[0])
        raise self.resolver.offline_error(query, why)

    def _tune(self, request: Request, policy: Policy, error: Exception | None) -> Remembered:
        try:
            return self.flight.tune(request)
        except (TuningError, OutOfMemory) as failure:
            broken = isinstance(failure, TuningError) and failure.fatal
            fallback = None if broken else self.resolver.last_resort(request.query, policy)
            if fallback is None:
                if error is not None and not broken:
                    raise error from failure
                cause = failure.__cause__ if isinstance(failure, OutOfMemory) else None
                raise cause or failure from None
            self.flight.warn_of_failure(failure)
            if isinstance(failure, OutOfMemory):
                return replace(fallback, until=0.0)  # for this launch: there may be memory later
            return fallback

    def _why_not_tune(self, request: Request, policy: Policy) -> str:
        if policy is not Policy.TUNE:
            return f"tuning is forbidden (offline{', strict' if policy is Policy.STRICT else ''})"
        if devices.capturing():
            return self.flight.capture_warning(request)
        if never_tuned_for(request.query) and not request.warmup:
            return "a mock launch or one of size zero is not tuned for"
        return ""

    def without_tuning(
        self, query: Query, sole: Callable[[], Remembered | None]
    ) -> Remembered | None:
        """What a launch would use, or None where it would tune or fail.

        `sole` finds the only candidate, if there is only one.
        """
        found = self.resolver.near(query) or sole()
        if found is not None:
            return found
        policy = settings.policy()
        if policy is not Policy.TUNE or devices.capturing() or never_tuned_for(query):
            found = self.resolver.last_resort(query, policy)
        if found is None and never_tuned_for(query):
            found = by_default(self.resolver.knobs.live[0])
        return found

    def untuned(
        self, query: Query, sole: Callable[[], Remembered | None]
    ) -> tuple[Remembered | None, bool]:
        """What serves where nothing may be tuned, without a warning, and whether a launch that
        may tune would use it too. `sole` finds the only candidate, if there is only one."""
        found = self.resolver.near(query) or sole()
        if found is not None:
            return found, True
        found = self.resolver.last_resort(query, settings.policy(), quiet=True)
        if found is None and query.key.zero_sized:
            found = by_default(self.resolver.knobs.live[0])
        return found, False

    def traced(self, query: Query, sole: Callable[[], Remembered | None]) -> Remembered:
        """What a launch uses that is traced into a graph, where nothing can be tuned.

        A miss takes the nearest or the default with one warning, and raises `OfflineError` where
        there is neither.
        """
        found, stored = self.untuned(query, sole)
        if stored and found is not None:
            return found
        self.resolver.note_miss(query)
        name = self.resolver.subject.name
        cure = f"Launch it once, or call {name}.prepare(…, grid=…), before it is compiled"
        if found is None:
            why = f"nothing can be tuned while torch traces a graph. {cure}"
            raise self.resolver.offline_error(query, why)
        warn_once(
            name, ("traced", query.device, query.key.exact),
            f"{name}: no record near {query.key} while torch traces a graph, where nothing can be "
            f"tuned; the graph uses {Choice(found.flat)}. {cure}",
        )  # fmt: skip
        return found

    def sole(self, request: Request) -> Remembered | None:
        """The only candidate, where pruning leaves no choice: there is nothing to measure."""
        candidates = self.flight.candidates(request)
        usable = [c for c in candidates if not self.resolver.is_bad(request.query, c)]
        return by_default(usable[0]) if len(candidates) == 1 and usable else None

    def sole_declared(self) -> Remembered | None:
        """The only declared config, for a lookup that has no arguments to prune by."""
        live = self.resolver.knobs.live
        alone = len(live) == 1 and self.resolver.default_config is None
        return by_default(live[0]) if alone else None

    def overridden(self, query: Query, override: Override) -> Remembered:
        """The config of an `override` block. Raises `ValueError` where it does not fit."""
        choice = override.choice
        try:
            accepted = self.resolver.knobs.accept(choice.document, query.passed, query.device)
        except UnfitError as error:
            raise ValueError(f"override of {self.resolver.subject.name}: {error}") from error
        hook = choice.pre_hook or accepted.pre_hook
        return Remembered(accepted.flat, hook, Match(dict(accepted.flat), "override", "exact"))


def never_tuned_for(query: Query) -> bool:
    """Whether a launch has nothing to measure: a size of zero, or tensors without data."""
    return query.key.zero_sized or is_mock(query.named)


def is_mock(named: Mapping[str, Any]) -> bool:
    """Whether an argument stands for a tensor and has no data: mock and fake tensors."""
    fake_module = sys.modules.get("torch._subclasses.fake_tensor")
    fake = getattr(fake_module, "FakeTensor", ())
    return any(
        type(value).__name__ == "MockTensor" or isinstance(value, fake) for value in named.values()
    )


def is_traced(values: Iterable[Any]) -> bool:
    """Whether torch traces a graph with these arguments, or only asks for shapes, as it does for
    a `triton_op`: tensors are fake then."""
    modules = (("fake_tensor", "FakeTensor"), ("functional_tensor", "FunctionalTensor"))
    kinds = tuple(
        getattr(sys.modules.get(f"torch._subclasses.{module}"), name, ())
        for module, name in modules
    )
    return any(isinstance(value, kinds) for value in values)


def config_failed(error: Exception, known: Remembered) -> bool:
    """Whether a stored config is to blame: too big for the device, or it does not compile."""
    if known.match.source in ("override", "default"):
        return False
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import InterpreterError, OutOfResources, PTXASError

    if isinstance(error, (OutOfResources, PTXASError, CompilationError, InterpreterError)):
        return True
    return isinstance(error, RuntimeError) and "PassManager" in str(error)
