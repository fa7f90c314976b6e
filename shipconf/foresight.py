"""What a launch between tuned points takes: the config of a portfolio that should be fastest."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import programs
from .choice import Prediction, Predictor
from .configs import Choice, Knobs, UnfitError
from .errors import warn_once
from .keys import TIE, dtypes_serve
from .stores import Shelf, Tabled

if TYPE_CHECKING:
    from .resolver import Query


@dataclass(frozen=True)
class Foreseen:
    """A choice by predicted time: from which table, how far its nearest point is, and the
    prediction beside that of the next best."""

    choice: Choice
    table: Tabled
    distance: float
    prediction: Prediction
    runner_up: Prediction | None


class _Prepared:
    """A table ready to be asked: its predictor, and its configs as launches take them."""

    def __init__(self, table: Tabled, knobs: Knobs) -> None:
        self.predictor = Predictor(table.portfolio, table.device)
        self.sizes = programs.Sizes(table.portfolio)
        self.gap = ": ".join(next(table.portfolio.gaps(), ()))
        self._table = table
        self._knobs = knobs
        self._choices: dict[frozenset[str], list[Choice | None]] = {}

    def choices(self, passed: frozenset[str]) -> list[Choice | None]:
        """The configs, None for each that a launch which passes these names cannot take."""
        known = self._choices.get(passed)
        if known is None:
            known = self._choices[passed] = [
                self._accepted(config, passed) for config in self._table.portfolio.configs
            ]
        return known

    def _accepted(self, config: Mapping[str, Any], passed: frozenset[str]) -> Choice | None:
        table, name = self._table, self._knobs.name
        try:
            return self._knobs.accept(config, passed, table.device, origin=str(table.path))
        except UnfitError as error:
            warn_once(
                name, (str(table.path), str(error)),
                f"{name}: a config of a portfolio in {table.path} does not serve: {error}",
            )  # fmt: skip
            return None


class Foresight:
    """Chooses by the portfolios of one kernel."""

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self._prepared: weakref.WeakKeyDictionary[Tabled, _Prepared] = weakref.WeakKeyDictionary()

    def best(
        self, query: Query, shelf: Shelf, within: float, is_bad: Callable[[Choice], bool]
    ) -> Foreseen | None:
        """The choice of the table that has the nearest point, at most so many octaves away.

        None where there is no table, or it cannot be trusted: a time is missing or none, or the
        grid cannot be asked for another config than the launch's. That is warned of once.
        """
        for octaves, table in self._tables(query, shelf, within):
            prepared = self._prepare(table)
            if prepared.gap:
                self._distrust(table, prepared.gap)
                continue
            choices = prepared.choices(query.passed)
            try:
                sizes = _sizes(prepared, query, choices)
            except Exception as error:  # whatever the user's function raises
                line = (str(error).splitlines() or [""])[0]
                why = f"the grid fails for one of its configs: {type(error).__name__}: {line}"
                self._distrust(table, why)
                continue

            def serves(
                i: int, choices: list[Choice | None] = choices, octaves: float = octaves
            ) -> bool:
                choice = choices[i]
                return choice is not None and not is_bad(choice) and query.allows(choice, octaves)

            best = prepared.predictor.first(query.key.nearest, sizes, serves)
            choice = choices[best[0].index] if best else None
            if choice is not None:
                runner_up = best[1] if len(best) > 1 else None
                return Foreseen(choice, table, octaves, best[0], runner_up)
        return None

    def _prepare(self, table: Tabled) -> _Prepared:
        prepared = self._prepared.get(table)
        if prepared is None:
            prepared = self._prepared[table] = _Prepared(table, self._knobs)
        return prepared

    def _tables(self, query: Query, shelf: Shelf, within: float) -> Iterator[tuple[float, Tabled]]:
        """The tables that serve the dtypes, nearest point first, else in store order."""
        near = []
        for order, table in enumerate(shelf.tables):
            if dtypes_serve(table.dtypes, query.key.dtypes):
                octaves = self._prepare(table).predictor.distance(query.key.nearest)
                if octaves <= within + TIE:
                    near.append((round(octaves, 9), order, table))
        near.sort(key=lambda entry: entry[:2])
        return ((octaves, table) for octaves, _, table in near)

    def _distrust(self, table: Tabled, why: str) -> None:
        name = self._knobs.name
        warn_once(
            name, ("portfolio", str(table.path), why),
            f"{name}: nothing is predicted from a portfolio in {table.path}, and the nearest "
            f"record is used: {why}",
        )  # fmt: skip


def _sizes(
    table: _Prepared, query: Query, choices: Sequence[Choice | None]
) -> Sequence[int] | None:
    """The size of the launch's grid for each config; those of configs that cannot serve are 1."""
    if query.grid is None:
        return table.sizes.told(query.key.nearest)
    return [
        1 if choice is None else programs.of_grid(query.grid, {**query.named, **choice.flat})
        for choice in choices
    ]
