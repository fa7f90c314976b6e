"""Small kernels that show which config they ran with, and a benchmark with times from a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from shipconf import ShippedKernel, shipped_autotune

BLOCKS = (16, 32, 64)


@triton.jit
def told(out_ptr, N, M, BLOCK: tl.constexpr):
    """Tells the block it runs with; `N` and `M` are there to be looked up by."""
    tl.store(out_ptr, BLOCK)


@triton.jit
def told_value(out_ptr, V: tl.constexpr, BLOCK: tl.constexpr):
    """As `told`, with a key value of any type."""
    tl.store(out_ptr, BLOCK)


@triton.jit
def told_mode(out_ptr, MODE: tl.constexpr, N, BLOCK: tl.constexpr):
    """As `told`, with a constexpr that is no knob, and an argument after it."""
    tl.store(out_ptr, BLOCK)


@triton.jit
def told_spelt(out_ptr, N, K=64, bias_ptr=None, BLOCK: tl.constexpr = 16):
    """As `told`, with defaults, one of them a knob's."""
    tl.store(out_ptr, BLOCK)


@triton.jit
def told_option(out_ptr, N, BLOCK: tl.constexpr, EVICT: tl.constexpr, EVEN: tl.constexpr):
    """As `told`, with knobs that are no integers."""
    if EVICT == ".cg" and EVEN is None:
        tl.store(out_ptr, BLOCK + 1)
    else:
        tl.store(out_ptr, BLOCK)


@triton.jit
def picky(out_ptr, N, M, BLOCK: tl.constexpr, BAD: tl.constexpr):
    """As `told`, and fails for the block `BAD`, or for every block where that is 0."""
    if BLOCK == BAD or BAD == 0:
        tl.static_assert(False, "this block fails")
    tl.store(out_ptr, BLOCK)


@triton.jit
def accumulated(out_ptr, total_ptr, n, BLOCK: tl.constexpr):
    """Adds each program's block to the total, as split-K kernels do."""
    tl.store(out_ptr, BLOCK)
    tl.atomic_add(total_ptr, BLOCK)


@triton.jit
def in_place(out_ptr, x_ptr, bias_ptr, n, BLOCK: tl.constexpr):
    """`x = x * 3 + 1` on the first `n`: another result with every further run."""
    tl.store(out_ptr, BLOCK)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(x_ptr + offsets, x * 3 + 1, mask=offsets < n)


@triton.jit
def no_tensors(N, BLOCK: tl.constexpr):
    """Nothing to tell it by but the key."""


def configs(blocks: Sequence[int] = BLOCKS, **options: Any) -> list[triton.Config]:
    return [triton.Config({"BLOCK": block}, **options) for block in blocks]


class Trial:
    """A kernel made anew, with no memory of others, as a new process would have it.

    Its benchmark runs each candidate once and gives it the time that `times` has for its block:
    milliseconds, or an exception to raise. Left out, the larger block is the faster one.
    `measured` has the blocks measured so far; `log` is a file to append them to.
    """

    def __init__(
        self, fn: Any = told, *, blocks: Sequence[int] = BLOCKS, key: Sequence[Any] = ("N",),
        nearest: Sequence[Any] = ("M",), times: Mapping[int, Any] | None = None,
        log: Path | None = None, during: Callable[[int], Any] = lambda block: None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.out = torch.zeros(1, dtype=torch.int32)
        self.measured: list[int] = []
        self.times = {} if times is None else times
        self.log = log
        self.during = during
        options.setdefault("do_bench", self.do_bench)
        options.setdefault("configs", configs(blocks))
        self.kernel: ShippedKernel = shipped_autotune(key=key, nearest=nearest, **options)(fn)

    def do_bench(self, fn: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        assert tuple(quantiles) == (0.5, 0.2, 0.8)
        fn()
        block = int(self.out[0])
        self.measured.append(block)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{block}\n")
        self.during(block)
        time = self.times.get(block, 64 / block)
        if isinstance(time, BaseException):
            raise time
        return [time, time, time]

    def launch(self, *args: Any, **kwargs: Any) -> int:
        """The block of a launch on one program; arguments after `out_ptr`."""
        self.out.zero_()
        self.kernel[(1,)](self.out, *args, **kwargs)
        return int(self.out[0])

    def resolve(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel.resolve(self.out, *args, **kwargs)


def blocks_in(log: Path) -> list[int]:
    """The blocks that trials with this log measured, in order."""
    return [int(line) for line in log.read_text().split()] if log.exists() else []
