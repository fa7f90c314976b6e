"""What a launch uses, from everything but the process's memory: stores, default, last resorts."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import explain, forks, settings, stores
from .choice import Prediction
from .configs import Choice, Knobs, UnfitError, from_triton
from .errors import OfflineError, warn_once
from .foresight import Foreseen, Foresight
from .keys import TIE, Bound, Key, dtypes_text
from .memory import CAPACITY, Remembered
from .records import Device, Record
from .settings import Policy
from .stores import Found, Shelf
from .subject import Subject

log = logging.getLogger("shipconf.resolver")


@dataclass(frozen=True)
class Match:
    """What a lookup found, and why.

    `config` is flat: knobs and launch options by name. `source` is override, path, package,
    user, tuned (in this process) or default; `rule` exact, predicted, nearest or default;
    `distance` in octaves, where predicted to the nearest measured point. `record` and `path` are
    None where the config comes from no record or file. Where the rule is predicted, `prediction`
    is the time that decided, and `runner_up` that of the next best config, if there is one.
    """

    config: Mapping[str, Any]
    source: str
    rule: str
    distance: float = 0.0
    record: Record | None = None
    path: Path | None = None
    prediction: Prediction | None = None
    runner_up: Prediction | None = None


@dataclass(frozen=True)
class Query:
    """One lookup: its key and device, the names that the launch passes, and the arguments.

    `allows` tells whether a stored choice from a distance may serve these arguments; `grid` is the
    launch's, None where the lookup is for no launch.
    """

    key: Key
    device: Device
    passed: frozenset[str]
    named: Mapping[str, Any]
    allows: Callable[[Choice, float], bool] = lambda choice, distance: True
    grid: Any = None


@dataclass(frozen=True, eq=False)
class Request:
    """One launch, as it was asked for and as it is looked up."""

    query: Query
    bound: Bound
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grid: Any = None
    warmup: bool = False


class Resolver:
    """The stored records of one kernel, its default, and what has failed in this process."""

    def __init__(
        self, subject: Callable[[], Subject], knobs: Knobs, max_distance: float, default: Any
    ) -> None:
        self._subject = subject
        self.knobs = knobs
        self.max_distance = max_distance
        self.default_config = default
        self.foresight = Foresight(knobs)
        self._shelves: dict[Any, Shelf] = {}
        self._bad: set[tuple[Any, ...]] = set()
        self._noted: set[Any] = set()
        self._lock = forks.lock()

    @property
    def subject(self) -> Subject:
        return self._subject()

    # --- the shelves: what the files held when they were read ---------------------------------

    def shelf(self, key: Key, device: Device) -> Shelf:
        """What the stores hold for the key's exact part; read once a process, and kept for the
        last 4,096 keys."""
        name = (key.exact, device)
        shelf = self._shelves.get(name)
        if shelf is None:
            read = stores.read(self.subject, key, device)
            with self._lock:
                while len(self._shelves) >= CAPACITY:
                    del self._shelves[next(iter(self._shelves))]
                shelf = self._shelves.setdefault(name, read)
        return shelf

    def refresh(self, key: Key, device: Device) -> None:
        """Read the files again, and keep the records that only this process knows."""
        with self._lock:
            old = self._shelves.get((key.exact, device), Shelf())
            fresh = stores.read(self.subject, key, device)
            fresh.found += [found for found in old.found if found.path is None]
            self._shelves[key.exact, device] = fresh

    def add(self, key: Key, device: Device, record: Record, path: Path | None) -> None:
        """Put a record that was just tuned on the shelf."""
        assert isinstance(key.dtypes, Mapping)
        shelf = self.shelf(key, device)
        new = Found(record, "user" if path else "tuned", path, key.dtypes)
        with self._lock:
            place = (new.source, record.at, new.dtypes)
            others = [f for f in shelf.found if (f.source, f.record.at, f.dtypes) != place]
            shelf.found = [new, *others]

    # --- the lookup ---------------------------------------------------------------------------

    def near(self, query: Query) -> Remembered | None:
        """The exact record; else what a portfolio predicts to be fastest, unless a record is nearer
        than all its points; else the nearest record. Within `max_distance`, but for a zero-sized
        launch, which takes any."""
        stored = self._stored(query)
        first = next(stored, None)
        if first is None or first[0] > TIE or first[1].outdated:
            foreseen = self._foreseen(query, first)
            if foreseen is not None:
                return foreseen
        for distance, found, choice in itertools.chain([first] if first else [], stored):
            if distance <= self.max_distance or query.key.zero_sized:
                return self._remember(query, distance, found, choice)
        return None

    def _foreseen(
        self, query: Query, stored: tuple[float, Found, Choice] | None
    ) -> Remembered | None:
        shelf = self.shelf(query.key, query.device)
        if not shelf.tables or not query.key.nearest:
            return None
        within = self.max_distance
        if stored is not None and not stored[1].outdated:
            within = min(within, stored[0])
        found = self.foresight.best(query, shelf, within, lambda choice: self.is_bad(query, choice))
        return None if found is None else by_prediction(found)

    def last_resort(
        self, query: Query, policy: Policy, *, quiet: bool = False
    ) -> Remembered | None:
        """Where nothing is tuned: the nearest at any distance unless strict, else the default.

        It is warned of, unless `quiet`: the caller has told already why nothing is tuned.
        """
        if policy < Policy.STRICT:
            for distance, found, choice in self._stored(query):
                if not quiet:
                    self._warn_far(query, distance, found)
                return replace(self._remember(query, distance, found, choice), policy=policy)
        default = self.usable_default(query)
        if default is not None and not quiet:
            warn_once(
                self.subject.name, ("miss", query.device),
                explain.default_used(self.subject, query.key, query.device),
            )  # fmt: skip
        return replace(default, policy=policy) if default else None

    def usable_default(self, query: Query) -> Remembered | None:
        choice = self.default(query)
        if choice is None or self.is_bad(query, choice):
            return None
        return by_default(choice)

    def default(self, query: Query) -> Choice | None:
        """The choice of `default`, which may be a function of the named arguments."""
        config = self.default_config
        if callable(config):
            try:
                config = config(query.named)
            except KeyError:
                if query.named.keys() - {*query.key.values, *query.key.nearest}:
                    raise
                return None  # asked with the key alone, and the function wants more
        return None if config is None else from_triton(config)

    def _stored(self, query: Query) -> Iterator[tuple[float, Found, Choice]]:
        """Stored records that can launch, best first; one warning for each that cannot."""
        name = self.subject.name
        for distance, found in self.shelf(query.key, query.device).ranked(query.key):
            try:
                choice = self.knobs.accept(
                    found.record.config, query.passed, query.device, origin=str(found.path)
                )
            except UnfitError as error:
                warn_once(
                    name, (str(found.path), str(error)),
                    f"{name}: a record in {found.path} is stale and does not serve: {error}",
                )  # fmt: skip
                continue
            if not self.is_bad(query, choice) and query.allows(choice, distance):
                yield distance, found, choice

    def tuned_at(self, query: Query) -> list[list[int]]:
        """The tuned values, for a kernel with one nearest entry, of the records that serve the
        key and device: of those that compete with one another, the outdated ones apart."""
        values: dict[bool, list[int]] = {}
        for _, found, _ in self._stored(query):
            values.setdefault(found.outdated, []).extend(found.record.at.values())
        return list(values.values())

    def incumbent(self, query: Query) -> Choice | None:
        """The choice stored for this very point, which a new tuning would replace."""
        distance, _, choice = next(self._stored(query), (TIE + 1, None, None))
        return choice if distance <= TIE else None

    def _remember(self, query: Query, distance: float, found: Found, choice: Choice) -> Remembered:
        name = self.subject.name
        if found.stale:
            warn_once(
                name, ("stale", str(found.path)),
                f"{name}: the kernel has changed since {found.path} was tuned; its records are "
                "used all the same. Tune it again and ship the result",
            )  # fmt: skip
        if found.borrowed:
            log.info("%s on %s borrows the records of %s", name, query.device.name, found.path)
        exact = distance <= TIE
        match = Match(
            config=dict(choice.flat), source=found.source, rule="exact" if exact else "nearest",
            distance=0.0 if exact else distance, record=found.record, path=found.path,
        )  # fmt: skip
        return Remembered(choice.flat, choice.pre_hook, match)

    def _warn_far(self, query: Query, distance: float, found: Found) -> None:
        if distance > self.max_distance:
            warn_once(
                self.subject.name, ("far", query.device, query.key.exact),
                f"{self.subject.name} on {query.device.name} for {query.key} uses a record tuned "
                f"at {dict(found.record.at)}, {distance:.1f} octaves away (max_distance is "
                f"{self.max_distance:g}): {found.path}",
            )  # fmt: skip

    # --- misses -------------------------------------------------------------------------------

    def note_miss(self, query: Query) -> None:
        """Note the miss in the file of `SHIPCONF_MISSES`, if that is set; once a process."""
        miss = (str(query.key), query.device)
        if settings.misses_path() is not None and miss not in self._noted:
            self._noted.add(miss)
            stores.note_miss(self.subject, query.key, query.device)

    def warn_of_miss(self, query: Query) -> None:
        """Tell, once for a device, that the package has records of which none fits."""
        if exists := explain.shipped_files(self.subject):
            warn_once(
                self.subject.name, ("miss", query.device),
                explain.miss(self.subject, query.key, query.device, exists),
            )  # fmt: skip

    def offline_error(self, query: Query, why: str) -> OfflineError:
        shelf = self.shelf(query.key, query.device)
        return explain.offline_error(self.subject, query.key, query.device, shelf, why)

    # --- configs that failed at launch --------------------------------------------------------

    def mark_bad(self, query: Query, choice: Choice) -> None:
        """Do not use the config for the key and device again in this process."""
        self._bad.add(_bad_name(query, choice))

    def absolve(self, query: Query, choice: Choice) -> None:
        """Take the mark back: nothing else could launch, so the config is not at fault."""
        self._bad.discard(_bad_name(query, choice))

    def is_bad(self, query: Query, choice: Choice) -> bool:
        """Whether the config failed for the key and device in this process."""
        return bool(self._bad) and _bad_name(query, choice) in self._bad  # a name costs 8 µs

    def warn_of_bad(self, query: Query, known: Remembered, error: Exception) -> None:
        """Warn once of a config that failed where another one launched."""
        first = (str(error).splitlines() or [""])[0]
        choice = Choice(known.flat)
        warn_once(
            self.subject.name, ("failed", *_bad_name(query, choice)),
            f"{self.subject.name} on {query.device.name}: the config {choice} of "
            f"{known.match.path} fails and is not used again in this process: "
            f"{type(error).__name__}: {first}",
        )  # fmt: skip


def _bad_name(query: Query, choice: Choice) -> tuple[Any, ...]:
    return query.device, query.key.exact, dtypes_text(query.key.dtypes), choice.identity


def by_prediction(found: Foreseen) -> Remembered:
    """A choice by predicted time."""
    choice = found.choice
    match = Match(
        config=dict(choice.flat), source=found.table.source, rule="predicted",
        distance=found.distance, path=found.table.path, prediction=found.prediction,
        runner_up=found.runner_up,
    )  # fmt: skip
    return Remembered(choice.flat, choice.pre_hook, match)


def by_default(choice: Choice) -> Remembered:
    """A choice that comes from no record."""
    return Remembered(choice.flat, choice.pre_hook, Match(dict(choice.flat), "default", "default"))
