"""Ranges of a nearest value that one config serves each, for graphs that serve many values."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Union

# Union, since Python 3.9, where the vendored module runs, has no `int | None`.
Last = Union[int, None]  # None is without end
# The last value of a range, the value in it to look up by (None where a function of it computes
# the default), and the parts of the range that are a miss.
Range = tuple[Last, Union[int, None], tuple[tuple[int, Last], ...]]


def starts(tuned: Iterable[Iterable[int]], max_distance: float) -> Iterator[int]:
    """Where another record may become the nearest, and where one comes into reach or leaves it.

    `tuned` has the tuned values of the records that compete with one another. Bounds are off by
    one at most, so both sides are given.
    """
    for values in tuned:
        ordered = sorted({max(1, value) for value in values})
        bounds = []
        for low, value in zip([1, *ordered], ordered):
            bounds += [value, math.isqrt(low * value)]
            bounds += [int(value * 2.0**-max_distance), int(value * 2.0**max_distance)]
        for bound in bounds:
            yield from (max(1, bound), bound + 1)


def range_of(parts: Sequence[tuple[int, int | None, bool]], *, computed: bool) -> Range:
    stored = [first for first, _, is_stored in parts if is_stored]
    misses = tuple((first, last) for first, last, is_stored in parts if not is_stored)
    use = (stored or [parts[0][0]])[0]
    return parts[-1][1], None if computed else use, misses


def representative(ranges: Sequence[Range], value: Any) -> int:
    """The value to look up by in the place of one that may be symbolic.

    It is compared with the ends of ranges only. What is a miss counts as one where that is known
    without another comparison, which would cost a graph.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    _, use, gaps = ranges[-1]
    for last, inside, parts in ranges[:-1]:
        if value <= last:
            use, gaps = inside, parts
            break
    if use is None:
        return operator.index(value)
    for first, last in gaps:
        if statically_known_true(value >= first) and (
            last is None or statically_known_true(value <= last)
        ):
            return first
    return use
