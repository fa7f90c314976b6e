"""A tuning over several points of one key: each in turn, then their winners at all of them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import crosstab, tuning, worker
from . import device as devices
from .crosstab import Series
from .records import Record
from .worker import Crossed, Unreachable

if TYPE_CHECKING:
    from .kernel import ShippedKernel

log = logging.getLogger("shipconf.sweep")


def tune(
    kernel: ShippedKernel, dtypes: Any, values: Mapping[str, Any], *, force: bool,
    within: float | None,
) -> list[Record]:  # fmt: skip
    """The record of each point that the values name, and a portfolio of them within the loss.

    Where the portfolio fails, a warning in the log says why; the records are kept all the same.
    """
    names = kernel.subject.nearest_names
    given = {name: value for name, value in values.items() if name not in names}
    points = list(each({name: values[name] for name in names if name in values}))
    if not points:
        raise ValueError(f"{kernel.name} is to be tuned at no point: a list of values is empty")
    series = Series(kernel, dtypes, given, points)
    records, anew = [], False
    for at in points:
        known = tuning.exact(kernel, series.query(at))
        records.append(tuning.tune(kernel, dtypes, {**given, **at}, force=force))
        anew = anew or known is None or known.match.record != records[-1]
    if within is not None:
        try:
            cross(series, within=within, anew=anew)
        except Exception as error:
            log.warning("%s has no new portfolio: %s", kernel.name, error)
    return records


def each(near: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The points of nearest values: each is one value or a list of them."""
    several = [value if is_several(value) else [value] for value in near.values()]
    return (dict(zip(near, combination)) for combination in itertools.product(*several))


def is_several(value: Any) -> bool:
    """Whether a nearest value is a list of them."""
    return isinstance(value, (list, range))


def cross(series: Series, *, within: float, anew: bool) -> Crossed | None:
    """Measure the winners of the series, and of what is stored beside it, at all of the points.

    `anew` says that one of them was just tuned. None where there is nothing to measure: see
    `is_due`. Raises what the measuring raises; the records are kept all the same.
    """
    if not is_due(series, anew=anew):
        return None
    kernel, query = series.kernel, series.query()
    task = tuning.task_of(kernel, series.dtypes, series.given)
    try:
        if task is None:
            return crosstab.here(series, within)
        return worker.the_worker.cross(replace(task, points=series.points, within=within))
    except Unreachable as error:
        log.info("%s is measured in this process: %s", kernel.name, error)
        return crosstab.here(series, within)
    finally:
        kernel.resolver.refresh(query.key, query.device)
        kernel.take_over(None)


def is_due(series: Series, *, anew: bool, planned: bool = False) -> bool:
    """Whether a portfolio is to be measured: one is asked for by several points, or there already;
    it lacks a point, or one was just tuned; and there are two winners to choose between, which
    nobody can tell of what is only `planned`.

    Under the interpreter only where the author's `do_bench` measures: its own clock says nothing
    of a GPU.
    """
    kernel, query = series.kernel, series.query()
    measured = kernel.flight.do_bench is not None or not devices.interpreted(kernel.fn)
    if not (measured and query.key.nearest and query.key.storable):
        return False
    known = crosstab.winners(series)
    asked = len(series.points) > 1 or bool(known.tables)
    lacking = anew or not known.complete
    return asked and lacking and (planned or len(known.configs) > 1)
