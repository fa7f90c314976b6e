"""What the product should be, and how far from it a correct kernel may be."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Comparison:
    """A result against torch's float32.

    `relative_error` is the largest error over the largest value; `correct` tells whether every
    element is within rounding.
    """

    relative_error: float
    correct: bool


def compare(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Comparison:
    """Compare `out` with a @ b, which torch computes in float32.

    An element may be off by one rounding to `out`'s dtype, and by the float32 rounding of its
    sum: sqrt(K) roundings of the sum of |a| @ |b|, as errors of either sign add up, doubled for
    torch's own. Arguments: `a` (M, K), `b` (K, N) and `out` (M, N), none of them empty.
    """
    a, b = a.float(), b.float()
    exact, magnitude = a @ b, a.abs() @ b.abs()
    kind, single = torch.finfo(out.dtype), torch.finfo(torch.float32)
    roundings = 2 * max(1, a.shape[1]) ** 0.5
    allowed = kind.eps * exact.abs() + roundings * single.eps * magnitude + kind.eps * kind.tiny
    error = (out.float() - exact).abs()
    # `<=` is False for a NaN.
    correct = bool((error <= allowed).all())
    largest = exact.abs().max().clamp(min=single.tiny)
    return Comparison(float(error.max() / largest), correct)
