"""Every winner measured at every tuned point, and the few of them that serve all: a portfolio.

Each tuning measured its own point alone. What its winner takes at the points of the others is what
a choice between tuned points needs, so all are measured at all of them, in turn.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import programs, quality, stores, tuner, tuning
from .configs import Choice, UnfitError, config_text
from .cover import covering
from .errors import TuningError
from .journal import Journal
from .keys import Key, dtypes_serve
from .plan import Plan
from .portfolio import Portfolio, Row, usable
from .provenance import resources_of, triton_version
from .resolver import Query, Request
from .worker import Crossed

if TYPE_CHECKING:
    from .kernel import ShippedKernel

log = logging.getLogger("shipconf.crosstab")

PURPOSE = "portfolio"  # of its events in the journal
Point = tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class Series:
    """Points of one key of a kernel: `given` are the values of the key entries."""

    kernel: ShippedKernel
    dtypes: Any
    given: Mapping[str, Any]
    points: Sequence[Mapping[str, int]]

    def query(self, at: Mapping[str, int] | None = None) -> Query:
        """The lookup of a point, the first if none is named."""
        values = {**self.given, **(self.points[0] if at is None else at)}
        return self.kernel.query_for(self.dtypes, None, values)

    def request(self, at: Mapping[str, int]) -> Request:
        """The launch that the kernel's workload builds for a point."""
        return self.kernel.build(dtypes=self.dtypes, **self.given, **at)


@dataclass(frozen=True)
class Winners:
    """Tuned points of one key, each with the candidates that failed there, as text; the configs
    that won at one of them; and the portfolios that are stored of them."""

    points: Mapping[Point, frozenset[str]]
    configs: Sequence[Mapping[str, Any]]
    tables: Sequence[Portfolio]

    @property
    def complete(self) -> bool:
        """Whether one of the portfolios has all the points."""
        return any(
            {_point(row.at) for row in table.rows} >= self.points.keys() for table in self.tables
        )


def winners(series: Series) -> Winners:
    """The winners at the points of the series and in portfolios, wherever these lie, and at those
    that the user store has for the same key and versions."""
    kernel, query, version = series.kernel, series.query(), triton_version()
    shelf = kernel.resolver.shelf(query.key, query.device)
    records = [
        found.record for found in shelf.found
        if found.source == "user" and not found.stale and found.record.triton == version
        and dtypes_serve(found.dtypes, query.key.dtypes)
    ]  # fmt: skip
    for at in series.points:
        exact = tuning.exact(kernel, series.query(at))
        if exact is not None:
            records.append(exact.match.record)
    tables = [
        tabled.portfolio for tabled in shelf.tables
        if tabled.portfolio.triton == version and dtypes_serve(tabled.dtypes, query.key.dtypes)
    ]  # fmt: skip
    points = {_point(row.at): frozenset[str]() for table in tables for row in table.rows}
    points.update({_point(record.at): frozenset(record.left_out or {}) for record in records})
    configs = [record.config for record in records]
    configs += [config for table in tables for config in table.configs]
    distinct = {json.dumps(config, sort_keys=True): config for config in configs}
    return Winners(
        {point: points[point] for point in sorted(points) if min(dict(point).values()) > 0},
        [distinct[text] for text in sorted(distinct)], tables,
    )  # fmt: skip


def _point(at: Mapping[str, int]) -> Point:
    return tuple(sorted(at.items()))


def here(series: Series, within: float) -> Crossed | None:
    """Measure all winners at all tuned points in this process, and keep the portfolio.

    None where none is kept, as the log tells. Raises `OSError` where it cannot be written,
    `LockTimeout`, and `TuningError` where a config broke the device's context.
    """
    kernel = series.kernel
    built = series.request(series.points[0]).query
    query = Query(built.key, built.device, frozenset(), {})  # without the tensors
    del built
    with kernel.flight.alone(query) as journal_path:
        if journal_path is None:
            log.info("%s has no file to keep a portfolio in", kernel.name)
            return None
        kernel.resolver.refresh(query.key, query.device)
        cross = _Cross(series, winners(series), journal_path)
        with kernel.flight.quiet_gpu(query):
            table = cross.table()
        kept, path = covering(table, within=within), None
        if len(kept.rows) > 1:
            path = stores.put_portfolio(kernel.subject, query.key, query.device, kept)
        cross.forget()
    what = f"{kernel.name} for {Key(query.key.values, query.key.dtypes, {})}"
    if path is None:
        log.warning("%s has no portfolio: fewer than two points could be measured", what)
        return None
    crossed = Crossed(
        str(path), len(table.configs), len(table.rows), len(kept.configs), _loss(table, kept)
    )
    log.info("%s: %s", what, crossed)
    return crossed


class _Cross:
    """The measuring of winners at points; `path` is that of the journal."""

    def __init__(self, series: Series, known: Winners, path: Path) -> None:
        self.series = series
        self.kernel = series.kernel
        self.known = known
        self.path = path
        self.resources: list[dict[str, int]] = [{} for _ in known.configs]

    def table(self) -> Portfolio:
        """All winners at all points where one of them runs; one that does not run at a point has no
        time and 0 programs there.

        A point whose launch cannot be built or measured is left out, as the log tells.
        """
        rows = []
        for point, failed in self.known.points.items():
            try:
                row = self._row(dict(point), failed)
            except Exception as error:
                if isinstance(error, TuningError) and error.fatal:
                    raise
                log.warning("%s is not measured at %s: %s", self.kernel.name, dict(point), error)
                continue
            if any(map(usable, row.time_ms)):
                rows.append(row)
        return Portfolio(
            configs=tuple(self.known.configs), resources=tuple(self.resources), rows=tuple(rows),
            fingerprint=self.kernel.subject.fingerprint, triton=triton_version(),
        )  # fmt: skip

    def _row(self, at: Mapping[str, int], failed: frozenset[str]) -> Row:
        request = self.series.request(at)
        choices = {
            i: choice
            for i, config in enumerate(self.known.configs)
            if config_text(config) not in failed
            and (choice := self._choice(request, config)) is not None
        }
        plan = self.kernel.flight.plan(request, self._journal(at))
        plan = replace(plan, candidates=list(choices.values()), default=None, assured=())
        timings = tuner.compare(plan)
        times_ms: list[float | None] = [None] * len(self.known.configs)
        sizes = [0] * len(times_ms)
        for i, choice in choices.items():
            time_ms = round(timings[choice].median, 6) if choice in timings else None
            if usable(time_ms):
                times_ms[i] = time_ms
                named = {**request.query.named, **choice.flat}
                sizes[i] = programs.of_grid(request.grid, named)
                self._note_resources(i, plan, choice)
        return Row(at=at, time_ms=tuple(times_ms), programs=tuple(sizes))

    def _choice(self, request: Request, config: Mapping[str, Any]) -> Choice | None:
        """The config as the launch takes it, None where it must not run there."""
        query = request.query
        try:
            choice = self.kernel.resolver.knobs.accept(config, query.passed, query.device)
        except UnfitError:
            return None
        return choice if query.allows(choice, float("inf")) else None

    def _note_resources(self, i: int, plan: Plan, choice: Choice) -> None:
        """The most that the config takes at any point, where it is compiled for several kinds."""
        if plan.device.backend == "interpreter":
            return
        compiled, known = plan.compile(choice), self.resources[i]
        found = {**resources_of(compiled), "warps": compiled.metadata.num_warps}
        known.update({name: max(value, known.get(name, 0)) for name, value in found.items()})

    def _journal(self, at: Mapping[str, int]) -> Journal:
        return Journal(self.path, at, triton_version(), PURPOSE)

    def forget(self) -> None:
        """Forget what was measured: it is written, or of no use."""
        for point in self.known.points:
            self._journal(dict(point)).close()


def _loss(table: Portfolio, kept: Portfolio) -> float:
    """The most that the best of those kept loses at a point against the best of all."""
    losses = [
        quality.oracle(row, best_ms=every.time_ms[quality.fastest(every.time_ms)])
        for row, every in zip(kept.rows, table.rows, strict=True)
    ]
    return max(loss.loss for loss in losses if loss is not None)
