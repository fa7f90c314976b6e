"""The GEMV kernel, its candidates, and `gemv`, which launches it."""

# ruff: noqa: N803, N806
# M, N and K are what everyone calls the sizes of a product.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# Triton compiles the kernel's body, which is no Python that a type checker could follow.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl

from shipconf import Launch, shipped_autotune

DTYPES = (torch.float16, torch.bfloat16)

KIB = 1024
# Reading w is all the work. A tile of less does not pay for its loop; one of more leaves too few
# programs for a large GPU. Of a thread's share, 32 bytes are two loads at full width, 128 bytes
# fill 64 registers with sums; over all stages, less than 128 bytes does not hide the latency.
TILE_BYTES = range(4 * KIB, 16 * KIB + 1)
THREAD_BYTES = range(32, 128 + 1)
THREAD_PIPELINE_BYTES = range(128, 256 + 1)


# Small enough for every GPU that Triton supports, and right for every shape.
DEFAULT = triton.Config({"BLOCK_N": 16, "BLOCK_K": 128}, num_warps=4, num_stages=2)


def candidates() -> Iterator[triton.Config]:
    """Yield the configs worth measuring, from one long row at a time to many short ones."""
    tiles = product((1, 2, 4, 8, 16, 32, 64), (64, 128, 256, 512, 1024, 2048))
    for (block_n, block_k), num_warps, num_stages in product(tiles, (1, 2, 4, 8), (1, 2, 3, 4)):
        tile_bytes = block_n * block_k * 2
        thread_bytes = tile_bytes // (32 * num_warps)
        if (
            tile_bytes in TILE_BYTES
            and thread_bytes in THREAD_BYTES
            and thread_bytes * num_stages in THREAD_PIPELINE_BYTES
        ):
            tile = {"BLOCK_N": block_n, "BLOCK_K": block_k}
            yield triton.Config(tile, num_warps=num_warps, num_stages=num_stages)


def prune(
    configs: list[triton.Config], arguments: Mapping[str, Any], **more: Any
) -> list[triton.Config]:
    """Drop tiles that reach more than twice over the matrix (16 rows of 256 always stay)."""
    sizes = {**arguments, **more}
    most = {"BLOCK_N": _reach(sizes["N"], least=16), "BLOCK_K": _reach(sizes["K"], least=256)}
    kept = [c for c in configs if all(c.kwargs[knob] <= most[knob] for knob in most)]
    return kept or configs


def _reach(size: int, *, least: int) -> int:
    """Twice the power of two at or above `size`, at least `least`."""
    return max(least, 2 << (size - 1).bit_length())


@shipped_autotune(
    configs=list(candidates()),
    key=["N", "K"],
    prune_configs_by={"early_config_prune": prune},
    default=DEFAULT,
)
@triton.jit
def gemv_kernel(
    w_ptr,
    x_ptr,
    out_ptr,
    N,
    K,
    stride_wn,
    stride_wk,
    stride_x,
    stride_out,
    WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    num_stages: tl.constexpr,
):
    """Compute BLOCK_N elements of out = w @ x, for w (N, K), x (K,) and out (N,).

    Sums in float32, in a tile of partial sums that is added up once, at the end. Triton leaves
    a loop without a dot product alone unless the loop itself names its stages: hence the
    launch option `num_stages` is a parameter here. WIDE: an offset may reach 2**31.
    """
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    step = BLOCK_K
    if WIDE:
        rows, steps = rows.to(tl.int64), steps.to(tl.int64)
        step = tl.full((), BLOCK_K, tl.int64)
    w_ptrs = w_ptr + rows[:, None] * stride_wn + steps[None, :] * stride_wk
    x_ptrs = x_ptr + steps * stride_x

    partial = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for k in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=num_stages):
        inside = steps < K - k * BLOCK_K
        w = tl.load(w_ptrs, mask=(rows[:, None] < N) & inside[None, :], other=0.0)
        x = tl.load(x_ptrs, mask=inside, other=0.0)
        partial += w.to(tl.float32) * x.to(tl.float32)[None, :]
        w_ptrs += step * stride_wk
        x_ptrs += step * stride_x

    total = tl.sum(partial, axis=1).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + rows * stride_out, total, mask=rows < N)


def grid(meta: Mapping[str, Any]) -> tuple[int]:
    """One program for each BLOCK_N rows. (`triton.cdiv` costs 2 µs on every launch.)"""
    block_n = meta["BLOCK_N"]
    return ((meta["N"] + block_n - 1) // block_n,)


def arguments(w: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> tuple[Any, ...]:
    """The positional arguments of `gemv_kernel` for out = w @ x, all but the config's."""
    N, K = w.shape
    (wn, wk), (x_stride,), (out_stride,) = w.stride(), x.stride(), out.stride()
    wide = max(N * wn + K * wk, K * x_stride, N * out_stride) >= 2**31
    return (w, x, out, N, K, wn, wk, x_stride, out_stride, wide)


def gemv(w: torch.Tensor, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply a matrix by a vector, with sums in float32; no gradients.

    Arguments: `w` (N, K) and `x` (K,), both float16 or both bfloat16, of any strides, on one
    device; `out` (N,), of the same dtype and device and any stride, is written and returned (a
    new, contiguous one when left out). It must not share memory with `w` or `x`. Sizes may be
    0: where K is, the result is zeros.

    Raises `ValueError` for other ranks, shapes, dtypes and devices, naming what it got.

    >>> import torch
    >>> from shipconf_gemv import gemv
    >>> gemv(torch.randn(32, 64).half().cuda(), torch.randn(64).half().cuda()).shape
    torch.Size([32])
    """
    _refuse_wrong_inputs(w, x)
    N, K = w.shape
    if out is None:
        out = w.new_empty((N,))
    else:
        _refuse_wrong_out(w, out)
    if N == 0:
        return out
    if K == 0:
        return out.zero_()
    gemv_kernel[grid](*arguments(w, x, out))
    return out


def _refuse_wrong_inputs(w: torch.Tensor, x: torch.Tensor) -> None:
    if w.dim() != 2 or x.dim() != 1 or w.shape[1] != x.shape[0]:
        shapes = f"{tuple(w.shape)} and {tuple(x.shape)}"
        raise ValueError(f"gemv takes w of shape (N, K) and x of shape (K,), got {shapes}")
    if w.dtype not in DTYPES or w.dtype != x.dtype:
        raise ValueError(
            f"gemv takes w and x both float16 or both bfloat16, got {w.dtype} and {x.dtype}"
        )
    if w.device != x.device:
        raise ValueError(f"gemv takes w and x on one device, got {w.device} and {x.device}")


def _refuse_wrong_out(w: torch.Tensor, out: torch.Tensor) -> None:
    shape = (w.shape[0],)
    if out.shape != shape:
        raise ValueError(f"gemv needs out of shape {shape}, got {tuple(out.shape)}")
    if out.dtype != w.dtype:
        raise ValueError(f"gemv needs out of dtype {w.dtype}, like w and x, got {out.dtype}")
    if out.device != w.device:
        raise ValueError(f"gemv needs out on {w.device}, like w and x, got {out.device}")


@gemv_kernel.workload
def workload(N: int, K: int, dtypes: torch.dtype) -> Launch:
    """Build a launch of random row-major input, for `shipconf tune` and `gemv_kernel.tune`.

    On the current accelerator, or on the CPU, for Triton's interpreter, where there is none.
    """
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    w = torch.randn((N, K), device=device, dtype=dtypes)
    x = torch.randn((K,), device=device, dtype=dtypes)
    out = torch.empty((N,), device=device, dtype=dtypes)
    return Launch(grid, arguments(w, x, out), {})
