"""User code that a strict type checker accepts: `mypy --strict` reads it, pytest runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

import shipconf
from shipconf import (
    ConfigFileError,
    Device,
    Launch,
    LockTimeout,
    Match,
    OfflineError,
    Record,
    ShipconfError,
    ShippedKernel,
    TuningError,
    shipped_autotune,
)


def default(named: Mapping[str, Any]) -> triton.Config:
    return triton.Config({"BLOCK": 32})


@shipped_autotune(
    configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32}, num_warps=8)],
    key=["N", ("rows", lambda named: named["x_ptr"].shape[0])],
    nearest=["M"],
    prune_configs_by={"top_k": 2},
    reset_to_zero=None,
    restore_value=["x_ptr"],
    max_distance=1.5,
    default=default,
    configs_dir=Path("shipped"),
    name="scale",
    check=lambda named: True,
)
@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def scale(x_ptr, N, M, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(x_ptr, tl.load(x_ptr) * 2)


@scale.workload
def workload(N: int, rows: int, M: int, dtypes: torch.dtype) -> Launch:
    return Launch((1,), (torch.zeros(rows, dtype=dtypes), N), {"M": M})


def launch(x: torch.Tensor) -> ShippedKernel:
    scale[(1,)](x, 8, 8)
    kernel: ShippedKernel = scale
    return kernel


def ask(x: torch.Tensor, device: Device) -> tuple[str, float]:
    match: Match | None = scale.resolve(x, 8, 8)
    if match is None:
        match = scale.prepare(x, 8, 8, grid=(1,))
    there: Match | None = scale.resolve_for(dtypes=torch.float16, device=device, N=8, rows=1, M=8)
    block: int = match.config["BLOCK"]
    record: Record | None = match.record
    path: Path | None = match.path
    words: str = scale.explain(x, 8, 8) + scale.explain_for(dtypes=None, N=8, rows=1, M=8)
    return f"{words} {block} {record} {path} {there} {match.source} {match.rule}", match.distance


def tune() -> Record:
    try:
        records: list[Record] = scale.tune(N=8, rows=1, M=[1, 8], dtypes="float16", within=0.05)
        print(records[0].at)
        return scale.tune(N=8, rows=1, M=8, dtypes="float16", force=True)
    except OfflineError as error:
        raise SystemExit(error.command) from error
    except TuningError as error:
        raise SystemExit("\n".join(error.reasons.values())) from error
    except LockTimeout as error:
        raise SystemExit(error.holder) from error
    except ConfigFileError as error:
        raise SystemExit(f"{error.path}: {error.where}") from error
    except ShipconfError as error:
        raise SystemExit(str(error)) from error


def test_blocks_and_launches_are_typed() -> None:
    """What the annotations above promise is what runs."""
    x = torch.ones(1)
    with shipconf.override(scale, {"BLOCK": 16}), shipconf.offline(strict=True):
        assert launch(x) is scale
        words, distance = ask(x, Device("cuda", "NVIDIA H200", "sm_90", 132))
    assert "scale" in words and distance == 0.0
    with shipconf.override(scale, triton.Config({"BLOCK": 16})):
        scale[(1,)](x, 8, 8)
    assert x.tolist() == [4.0]
    assert tune().config["BLOCK"] in (16, 32)
