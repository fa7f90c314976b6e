"""A tuning over several points of one key: each in turn, then their winners at all of them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import crosstab, tuning, worker
from . import device as devices
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
    records, anew = [], False
    for at in points:
        query = kernel.query_for(dtypes, None, {**given, **at})
        known = tuning.exact(kernel, query)
        records.append(tuning.tune(kernel, dtypes, {**given, **at}, force=force))
        anew = anew or known is None or known.match.record != records[-1]
    if within is not None:
        try:
            cross(kernel, dtypes, given, points, within=within, anew=anew)
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


def cross(
    kernel: ShippedKernel, dtypes: Any, given: Mapping[str, Any],
    points: Sequence[Mapping[str, int]], *, within: float, anew: bool,
) -> Crossed | None:  # fmt: skip
    """Measure the winners of these points, and of those stored beside them, at all of the points.

    `anew` says that one of them was just tuned. None where there is nothing to measure: see
    `is_due`. Raises what the measuring raises; the records are kept all the same.
    """
    if not is_due(kernel, dtypes, given, points, anew=anew):
        return None
    task = tuning.task_of(kernel, dtypes, given)
    try:
        if task is None:
            return crosstab.here(kernel, dtypes, given, points, within)
        return worker.the_worker.cross(replace(task, points=points, within=within))
    except Unreachable as error:
        log.info("%s is measured in this process: %s", kernel.name, error)
        return crosstab.here(kernel, dtypes, given, points, within)
    finally:
        query = kernel.query_for(dtypes, None, {**given, **points[0]})
        kernel.resolver.refresh(query.key, query.device)
        kernel.take_over(None)


def is_due(
    kernel: ShippedKernel, dtypes: Any, given: Mapping[str, Any],
    points: Sequence[Mapping[str, int]], *, anew: bool, planned: bool = False,
) -> bool:  # fmt: skip
    """Whether a portfolio is to be measured: one is asked for by several points, or there already;
    it lacks a point, or one was just tuned; and there are two winners to choose between, which
    nobody can tell of what is only `planned`.

    Under the interpreter only where the author's `do_bench` measures: its own clock says nothing
    of a GPU.
    """
    query = kernel.query_for(dtypes, None, {**given, **points[0]})
    measured = kernel.flight.do_bench is not None or not devices.interpreted(kernel.fn)
    if not (measured and query.key.nearest and query.key.storable):
        return False
    known = crosstab.winners(kernel, dtypes, given, points)
    asked = len(points) > 1 or bool(known.tables)
    lacking = anew or not known.complete
    return asked and lacking and (planned or len(known.configs) > 1)
