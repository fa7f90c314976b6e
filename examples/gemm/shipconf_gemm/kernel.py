"""The GEMM kernel, its candidates, and `gemm`, which launches it."""

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

# Triton's interpreter keeps a bfloat16 as its 16 bits, and its dot product takes them for integers.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

KIB = 1024
# Bytes of both inputs' tiles in one stage: less does not pay for its barrier, more leaves no
# room for a pipeline. Bytes of all stages: less does not hide the latency of memory, and an SM
# of the largest GPUs has 227 KiB.
STAGE_BYTES = range(16 * KIB, 48 * KIB + 1)
PIPELINE_BYTES = range(64 * KIB, 227 * KIB + 1)

# Small enough for every GPU that Triton supports, and right for every shape.
DEFAULT = triton.Config(
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8}, num_warps=4, num_stages=2
)


def _warps_fit(block_m: int, block_n: int, num_warps: int) -> bool:
    """Whether a thread's share of the float32 output tile is neither idle nor spilled."""
    accumulators = block_m * block_n // (32 * num_warps)
    return (64 if num_warps == 8 else 4) <= accumulators <= 128


def candidates() -> Iterator[triton.Config]:
    """Yield the configs worth measuring, from tiles for one row to tiles for thousands."""
    tiles = product((16, 32, 64, 128, 256), (32, 64, 128, 256), (32, 64, 128, 256))
    for (block_m, block_n, block_k), num_warps, num_stages in product(tiles, (4, 8), (2, 3, 4, 5)):
        stage_bytes = (block_m + block_n) * block_k * 2
        if (
            _warps_fit(block_m, block_n, num_warps)
            and stage_bytes in STAGE_BYTES
            and stage_bytes * num_stages in PIPELINE_BYTES
            and block_m <= 2 * block_n
            and block_n <= 8 * block_m
        ):
            tile = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8}
            yield triton.Config(tile, num_warps=num_warps, num_stages=num_stages)


def prune(
    configs: list[triton.Config], arguments: Mapping[str, Any], **more: Any
) -> list[triton.Config]:
    """Drop tiles that reach more than twice over the problem.

    Tiles of 64 rows, 64 columns and 128 steps always stay: the matrix instructions of a Hopper
    GPU take 64 rows, even where the problem has one.
    """
    sizes = {**arguments, **more}
    most = {
        "BLOCK_M": _reach(sizes["M"], least=64),
        "BLOCK_N": _reach(sizes["N"], least=64),
        "BLOCK_K": _reach(sizes["K"], least=128),
    }
    kept = [c for c in configs if all(c.kwargs[knob] <= most[knob] for knob in most)]
    return kept or configs


def _reach(size: int, *, least: int) -> int:
    """Twice the power of two at or above `size`, at least `least`."""
    return max(least, 2 << (size - 1).bit_length())


@shipped_autotune(
    configs=list(candidates()),
    key=["N", "K"],
    nearest=["M"],
    prune_configs_by={"early_config_prune": prune},
    default=DEFAULT,
)
@triton.jit
def gemm_kernel(
    a_ptr,
    b_ptr,
    out_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_om,
    stride_on,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Compute one BLOCK_M x BLOCK_N tile of out = a @ b, for a (M, K), b (K, N), out (M, N).

    Sums in float32. Programs go through GROUP_M rows of tiles at a time, so that those which
    run together share their tiles of a and b in the L2 cache. WIDE: an offset may reach 2**31.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    programs_in_group = GROUP_M * tiles_n
    first_m = program // programs_in_group * GROUP_M
    group_m = min(tiles_m - first_m, GROUP_M)
    tile_m = first_m + program % programs_in_group % group_m
    tile_n = program % programs_in_group // group_m

    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    step = BLOCK_K
    if WIDE:
        rows, columns, steps = rows.to(tl.int64), columns.to(tl.int64), steps.to(tl.int64)
        step = tl.full((), BLOCK_K, tl.int64)
    a_ptrs = a_ptr + rows[:, None] * stride_am + steps[None, :] * stride_ak
    # Columns past the edge wrap around and are not stored, so b needs a mask along K alone. Rows
    # do not: there are few where M is small, and reading one 16 times costs more than a mask.
    b_ptrs = b_ptr + steps[:, None] * stride_bk + (columns % N)[None, :] * stride_bn

    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (steps[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=steps[:, None] < left, other=0.0)
        if INTERPRETED:
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        total = tl.dot(a, b, total)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk

    out_ptrs = out_ptr + rows[:, None] * stride_om + columns[None, :] * stride_on
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=inside)


def grid(meta: Mapping[str, Any]) -> tuple[int]:
    """One program for each tile of the output. (`triton.cdiv` costs 2 µs on every launch.)"""
    block_m, block_n = meta["BLOCK_M"], meta["BLOCK_N"]
    return ((meta["M"] + block_m - 1) // block_m * ((meta["N"] + block_n - 1) // block_n),)


def arguments(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> tuple[Any, ...]:
    """The positional arguments of `gemm_kernel` for out = a @ b, all but the config's."""
    M, K = a.shape
    N = b.shape[1]
    (am, ak), (bk, bn), (om, on) = a.stride(), b.stride(), out.stride()
    wide = max(M * am + K * ak, K * bk + N * bn, M * om + N * on) >= 2**31
    return (a, b, out, M, N, K, am, ak, bk, bn, om, on, wide)


def gemm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply two matrices, with sums in float32; no gradients.

    Arguments: `a` (M, K) and `b` (K, N), both float16 or both bfloat16, of any strides, on one
    device; `out` (M, N), of the same dtype and device and any strides, is written and returned
    (a new, contiguous one when left out). It must not share memory with `a` or `b`. Sizes may
    be 0: where K is, the result is zeros.

    Raises `ValueError` for other ranks, shapes, dtypes and devices, naming what it got.

    >>> import torch
    >>> from shipconf_gemm import gemm
    >>> gemm(torch.randn(8, 64).half().cuda(), torch.randn(64, 32).half().cuda()).shape
    torch.Size([8, 32])
    """
    _refuse_wrong_inputs(a, b)
    M, K = a.shape
    N = b.shape[1]
    if out is None:
        out = a.new_empty((M, N))
    else:
        _refuse_wrong_out(a, b, out)
    if M == 0 or N == 0:
        return out
    if K == 0:
        return out.zero_()
    gemm_kernel[grid](*arguments(a, b, out))
    return out


def _refuse_wrong_inputs(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"gemm takes a of shape (M, K) and b of shape (K, N), got {shapes}")
    if a.dtype not in DTYPES or a.dtype != b.dtype:
        raise ValueError(
            f"gemm takes a and b both float16 or both bfloat16, got {a.dtype} and {b.dtype}"
        )
    if a.device != b.device:
        raise ValueError(f"gemm takes a and b on one device, got {a.device} and {b.device}")


def _refuse_wrong_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    shape = (a.shape[0], b.shape[1])
    if out.shape != shape:
        raise ValueError(f"gemm needs out of shape {shape}, got {tuple(out.shape)}")
    if out.dtype != a.dtype:
        raise ValueError(f"gemm needs out of dtype {a.dtype}, like a and b, got {out.dtype}")
    if out.device != a.device:
        raise ValueError(f"gemm needs out on {a.device}, like a and b, got {out.device}")


@gemm_kernel.workload
def workload(M: int, N: int, K: int, dtypes: torch.dtype) -> Launch:
    """Build a launch of random row-major matrices, for `shipconf tune` and `gemm_kernel.tune`.

    On the current accelerator, or on the CPU, for Triton's interpreter, where there is none.
    """
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    a = torch.randn((M, K), device=device, dtype=dtypes)
    b = torch.randn((K, N), device=device, dtype=dtypes)
    out = torch.empty((M, N), device=device, dtype=dtypes)
    return Launch(grid, arguments(a, b, out), {})
