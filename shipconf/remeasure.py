"""Records measured again on a GPU of their kind: does each still beat the default as it did?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import device as devices
from . import settings, tuner
from .configs import UnfitError
from .errors import ShipconfError
from .failures import OutOfMemory
from .inventory import Fault, speedup
from .journal import Journal
from .keys import one_or_each
from .reach import Placed
from .records import Record

if TYPE_CHECKING:
    from .kernel import ShippedKernel

TOLERANCE = 0.05  # of the recorded speed-up, for what one run's ratio varies


@dataclass(frozen=True)
class Measured:
    """How many times faster than the default a record is now, and was when it was tuned."""

    path: str
    where: str
    ratio: float
    recorded: float


@dataclass
class Outcome:
    """All measured records, the faults, and what could not be measured, with the reason."""

    measured: list[Measured]
    faults: list[Fault]
    notes: list[Fault]


def remeasure(pairs: Sequence[tuple[Placed, ShippedKernel]]) -> Outcome:
    """Measure each record that is of the current device and says what it gained, in turn with
    the kernel's default, through its workload. Nothing is written.

    Raises `ShipconfError` offline, and where there is no device.
    """
    outcome = Outcome([], [], [])
    if settings.policy() is not settings.Policy.TUNE:
        raise ShipconfError("nothing may be measured: SHIPCONF_OFFLINE forbids it")
    for placed, kernel in pairs:
        try:
            current = devices.current(kernel.fn)
        except RuntimeError as error:  # Triton's, where no driver is active
            raise ShipconfError(f"nothing can be measured here: {error}") from error
        if not placed.held.file.device.serves(current):
            what = f"not measured: tuned on {placed.held.file.device}, and this is {current}"
            outcome.notes.append(Fault(placed.path, "", what))
            continue
        for index, record in enumerate(placed.held.file.records):
            _remeasure(outcome, placed, index, record, kernel)
    return outcome


def _remeasure(
    outcome: Outcome, placed: Placed, index: int, record: Record, kernel: ShippedKernel
) -> None:
    where, recorded = placed.where(index), speedup(record)
    if recorded is None:
        what = "not measured: it does not say what it gained"
        outcome.notes.append(Fault(placed.path, where, what))
        return
    try:
        ratio = _ratio(placed, record, kernel)
    except (_Unmeasured, OutOfMemory, UnfitError) as error:
        outcome.notes.append(Fault(placed.path, where, f"not measured: {error}"))
        return
    except Exception as error:  # whatever the kernel or its workload raises is a fault of theirs
        what = f"cannot be measured: {type(error).__name__}: {error}"
        outcome.faults.append(Fault(placed.path, where, what.splitlines()[0]))
        return
    outcome.measured.append(Measured(placed.path, where, ratio, recorded))
    if ratio < recorded * (1 - TOLERANCE):
        what = f"is {ratio:.3f} times as fast as the default; {recorded:.3f} when it was tuned"
        outcome.faults.append(Fault(placed.path, where, what))


class _Unmeasured(Exception):
    """What a measurement needs and does not have."""


def _ratio(placed: Placed, record: Record, kernel: ShippedKernel) -> float:
    """The default's time over the record's, both measured in turn as candidates of a tuning."""
    file, resolver = placed.held.file, kernel.resolver
    if not hasattr(kernel.flight, "plan"):
        raise _Unmeasured(f"{kernel.name} is read by a vendored module, which does not measure")
    if kernel.registered_workload is None:
        raise _Unmeasured(f"{kernel.name} has no workload")
    if file.dtypes is None:
        raise _Unmeasured("the file names no dtypes")
    request = kernel.build(dtypes=one_or_each(file.dtypes), **file.key, **record.at)
    default = resolver.default(request.query)
    if default is None:
        raise _Unmeasured(f"{kernel.name} has no default")
    choice = resolver.knobs.accept(record.config, request.query.passed, request.query.device)
    if choice.identity == default.identity:
        return 1.0
    # A journal without a path forgets, so that nothing is written and nothing resumed.
    plan = kernel.flight.plan(request, Journal(None, request.query.key.nearest))
    with kernel.flight.quiet_gpu(request.query):
        timed = tuner.tune(replace(plan, candidates=[default, choice], default=default))
    for one in (default, choice):
        if one not in timed.timings:
            raise RuntimeError(f"{one}: {timed.left_out.get(str(one), 'it did not run')}")
    return timed.timings[default].median / timed.timings[choice].median
