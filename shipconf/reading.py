"""What a vendored module has in the place of tuning and writing.

`vendor.INSTEAD` says what is replaced; all else in a vendored module is the library's own.
"""

from __future__ import annotations

from typing import Any, NoReturn

from . import flight, kernel, resolver, settings
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


class Resolver(resolver.Resolver):
    """A resolver that writes no list of misses."""

    def note_miss(self, query: Query) -> None:
        """Nothing: a vendored module writes no file."""


class ShippedKernel(kernel.ShippedKernel):
    """A kernel that is not tuned on purpose either."""

    def tune(
        self, *, dtypes: Any, force: bool = False, within: float | None = None, **values: Any
    ) -> NoReturn:
        """Raise `OfflineError`: a vendored module never tunes."""
        first = {n: v[0] if isinstance(v, list) and v else v for n, v in values.items()}
        query = self.query_for(dtypes, None, first)
        raise self.resolver.offline_error(query, "a vendored module never tunes")
