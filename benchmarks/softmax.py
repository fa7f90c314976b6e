"""A fused softmax over rows, with the candidates that a tuning of it would have."""

# ruff: noqa: N803
# M and N are what everyone calls the sizes of a matrix.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# Triton compiles the kernel's body, which is no Python that a type checker could follow.

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl

from shipconf import Launch, shipped_autotune


@triton.jit
def nothing(out_ptr):
    """The least that Triton can compile: what it sets up once is set up then."""
    tl.store(out_ptr, 0)


DEFAULT = triton.Config({"ROWS": 1}, num_warps=4, num_stages=2)


def candidates() -> list[triton.Config]:
    """1 to 8 rows for a program, 1 to 16 warps, 1 to 3 stages: 60 of them."""
    knobs = product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 3))
    return [triton.Config({"ROWS": r}, num_warps=w, num_stages=s) for r, w, s in knobs]


@shipped_autotune(configs=candidates(), key=["N"], nearest=["M"], default=DEFAULT)
@triton.jit
def softmax_kernel(out_ptr, x_ptr, M, N, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    """out = softmax(x) along rows of x (M, N), contiguous; BLOCK_N is a power of two from N up."""
    columns = tl.arange(0, BLOCK_N)
    for row in tl.range(tl.program_id(0) * ROWS, min(M, (tl.program_id(0) + 1) * ROWS)):
        x = tl.load(x_ptr + row * N + columns, mask=columns < N, other=float("-inf"))
        exponentials = tl.exp(x.to(tl.float32) - tl.max(x, axis=0))
        softmax = exponentials / tl.sum(exponentials, axis=0)
        tl.store(out_ptr + row * N + columns, softmax, mask=columns < N)


def grid(named: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(named["M"], named["ROWS"]),)


@softmax_kernel.workload
def workload(M: int, N: int, dtypes: Any) -> Launch:
    """A softmax of random numbers, on the CPU, for Triton's interpreter, where there is no GPU."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    x = torch.randn(M, N, device=device, dtype=dtypes)
    return Launch(grid, (torch.empty_like(x), x, M, N, triton.next_power_of_2(N)))
