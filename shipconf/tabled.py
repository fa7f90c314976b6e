"""What is wrong with the portfolios of files, which no launch then chooses by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .errors import ConfigFileError
from .inspection import misfit
from .inventory import Fault, Inventory
from .portfolio import from_list
from .reach import Placed

if TYPE_CHECKING:
    from .kernel import ShippedKernel


def broken(inventory: Inventory) -> Iterator[Fault]:
    """The portfolios that cannot be read, each with what is wrong in it."""
    for held in inventory.held:
        if "portfolios" in held.file.extra:
            try:
                from_list(held.file.extra["portfolios"], held.file.nearest)
            except ConfigFileError as error:
                yield from (Fault(held.member.path, where, what) for where, what in error.faults)


def gaps(placed: Placed) -> Iterator[Fault]:
    """The times that nothing can be predicted from."""
    for i, table in enumerate(placed.held.file.portfolios):
        for where, what in table.gaps():
            yield Fault(placed.path, f"portfolios[{i}].{where}", what)


def unfit(placed: Placed, kernel: ShippedKernel) -> Iterator[Fault]:
    """The configs that no launch of the kernel takes, each with the reason."""
    for i, table in enumerate(placed.held.file.portfolios):
        for j, config in enumerate(table.configs):
            if why := misfit(config, placed, kernel):
                yield Fault(placed.path, f"portfolios[{i}].configs[{j}]", why)


def stale(placed: Placed, kernel: ShippedKernel) -> Iterator[Fault]:
    """The portfolios that were measured with another version of the kernel's source."""
    current = kernel.subject.fingerprint
    for i, table in enumerate(placed.held.file.portfolios):
        if table.fingerprint not in (None, current):
            what = f"is stale: {table.fingerprint} was measured, and the kernel is {current} now"
            yield Fault(placed.path, f"portfolios[{i}].fingerprint", what)
