"""What a vendored module has in the place of tuning and writing.

`vendor.INSTEAD` says what is replaced; all else in a vendored module is the library's own.
"""

from __future__ import annotations

from typing import NoReturn

from . import bench, flight, resolver, settings
from .device import interpreted
from .resolver import Query
from .settings import Policy


def policy() -> Policy:
    """The policy in force: offline at least, strict where that is asked for."""
    return max(Policy.OFFLINE, settings.policy())


class Flight(flight.Flight):
    """A flight that never starts: the policy forbids it."""

    def tune(self, *request: object, **options: object) -> NoReturn:
        """Never called, since `policy` allows no tuning."""
        raise AssertionError("a vendored module does not tune")

    def _bench(self) -> bench.Bench:
        """Only tells candidates that differ in launch options alone apart, or not."""
        ignores_options = self.do_bench is None and interpreted(self.kernel.fn)
        return bench.Bench(self.tune, self.tune, "", ignores_options)


class Resolver(resolver.Resolver):
    """A resolver that writes no list of misses."""

    def note_miss(self, query: Query) -> None:
        """Nothing: a vendored module writes no file."""
