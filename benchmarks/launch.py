"""The host's cost of a launch: the bare kernel, `triton.autotune`, and shipconf.

    python benchmarks/launch.py [--rounds 60] [--batch 200]

All three launch the example's GEMM on a small problem, asynchronously, so that the GPU is never
the limit, in turn within one run: batches of launches, with a synchronisation after each. Keys
are warm: nothing is compiled, tuned or read while the clock runs. Exits with 2 without a GPU.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from report import print_versions, require_gpu, table

SHAPE = {"M": 16, "N": 64, "K": 64}

Launcher = Callable[[], Any]


def main() -> None:
    """Measure and print the table."""
    options = _options()
    require_gpu()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHIPCONF_CACHE_DIR"] = folder
        launchers = _launchers()
        costs = measure(launchers, rounds=options.rounds, batch=options.batch)
    print_versions()
    print(f"medians of {options.rounds} batches of {options.batch} launches each, in turn\n")
    bare = costs["bare kernel, config given"]
    rows = [[name, f"{us:.1f}", f"{us / bare:.2f}"] for name, us in costs.items()]
    print(table(["launch", "µs", "ratio to bare"], rows))


def measure(launchers: Mapping[str, Launcher], *, rounds: int, batch: int) -> dict[str, float]:
    """Host time of one launch of each, in µs: the median over `rounds` of `batch` launches."""
    for launch in launchers.values():
        _batch_us(launch, batch)
    times: dict[str, list[float]] = {name: [] for name in launchers}
    gc.disable()
    try:
        for _ in range(rounds):
            for name, launch in launchers.items():
                times[name].append(_batch_us(launch, batch))
    finally:
        gc.enable()
    return {name: median(values) for name, values in times.items()}


def _batch_us(launch: Launcher, batch: int) -> float:
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(batch):
        launch()
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return seconds / batch * 1e6


def _launchers() -> dict[str, Launcher]:
    """The three ways to launch the same kernel with the same arguments."""
    import torch
    import triton
    from shipconf_gemm.kernel import DEFAULT, gemm_kernel, workload

    built = workload(**SHAPE, dtypes=torch.float16)
    grid, args = built.grid, built.args
    config: Mapping[str, Any] = gemm_kernel.prepare(*args, grid=grid).config
    fn = gemm_kernel.fn
    # With one config only, triton.autotune builds no key at all.
    autotuned = triton.autotune(
        configs=[next(iter(gemm_kernel.configs)), DEFAULT], key=["M", "N", "K"]
    )(fn)
    return {
        "bare kernel, config given": lambda: fn[grid](*args, **config),
        "triton.autotune, warm key": lambda: autotuned[grid](*args),
        "shipconf, warm key": lambda: gemm_kernel[grid](*args),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60, help="batches of each (60)")
    parser.add_argument("--batch", type=int, default=200, help="launches in a batch (200)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
