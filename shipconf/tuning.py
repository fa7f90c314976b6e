"""A tuning on purpose, through a kernel's workload: in a worker process where that can be."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import device as devices
from . import settings, worker
from .configs import Choice, from_triton
from .failures import OutOfMemory
from .memory import Remembered
from .records import Record
from .resolver import Query
from .settings import Policy
from .targets import target_of
from .worker import Answer, Task, Unreachable

if TYPE_CHECKING:
    from .kernel import ShippedKernel

log = logging.getLogger("shipconf.tuning")


def tune(kernel: ShippedKernel, dtypes: Any, values: Mapping[str, Any], *, force: bool) -> Record:
    """The record of the very point that the values name, tuned if there is none or by force."""
    query = kernel.query_for(dtypes, None, values)
    if settings.policy() is not Policy.TUNE:
        raise kernel.resolver.offline_error(query, "tuning is forbidden (offline)")
    found = None if force else exact(kernel, query)
    if found is not None:
        kernel.latest = found
        record: Record = found.match.record
        return record
    task = task_of(kernel, dtypes, values, force=force)
    if task is None:
        return here(kernel, dtypes, values, force).record
    try:
        answer = worker.the_worker.tune(task)
    except Unreachable as error:
        log.info("%s is tuned in this process: %s", kernel.name, error)
        return here(kernel, dtypes, values, force).record
    kernel.flight.take(query, answer)
    kernel.take_over(kernel.resolver.near(query))
    return answer.record


def exact(kernel: ShippedKernel, query: Query) -> Remembered | None:
    """The record that is stored for the very point, as a launch finds it."""
    found = kernel.resolver.near(query)
    return found if found is not None and found.match.rule == "exact" else None


def task_of(
    kernel: ShippedKernel, dtypes: Any, values: Mapping[str, Any], *, force: bool = False
) -> Task | None:
    """The task for a worker; None where there is no need of one, or it cannot do it.

    What is interpreted breaks no context. What another process cannot import by name, as in
    `__main__` and in a notebook, only this one can tune.
    """
    build = kernel.registered_workload
    if devices.interpreted(kernel.fn) or worker.inside or build is None:
        return None
    target = target_of(kernel, kernel.base_fn.__module__)
    workload = target_of(build, build.__module__)
    if target is None or workload is None:
        return None
    index = devices.current_index()
    return Task(target, workload, kernel.identity, kernel.declared, dtypes, values, force, index)


def here(kernel: ShippedKernel, dtypes: Any, values: Mapping[str, Any], force: bool) -> Answer:
    """Tune in this process, unless another did it meanwhile."""
    request = kernel.build(dtypes=dtypes, **values)
    try:
        found = kernel.flight.tune(request, force=force, exact=True)
    except OutOfMemory as failure:
        raise failure.__cause__ or failure from None
    kernel.remember(request, found)
    record = found.match.record or Record(
        at=request.query.key.nearest, config=Choice(found.flat).document
    )
    stored = found.match.path is not None
    if found.match.source != "tuned":  # another process did, or there is no choice
        return Answer(record, stored, [], None)
    times_ms = [(from_triton(c).document, list(t)) for c, t in kernel.configs_timings.items()]
    return Answer(record, stored, times_ms, kernel.bench_time)
