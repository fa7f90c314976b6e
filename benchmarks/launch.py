"""The host's cost of a launch: the bare kernel, `triton.autotune`, and shipconf.

    python benchmarks/launch.py [--rounds 60] [--batch 200] [--json FILE] [--plot FILE]

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
from typing import TYPE_CHECKING, Any

from report import add_output_options, keep, print_versions, require_gpu, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPE = {"M": 16, "N": 64, "K": 64}

Launcher = Callable[[], Any]


def main() -> None:
    """Measure and print the table."""
    options = _options()
    require_gpu()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHIPCONF_CACHE_DIR"] = folder
        launchers = _launchers()
        results = measure(launchers, rounds=options.rounds, batch=options.batch)
    print_versions()
    print(f"medians of {options.rounds} batches of {options.batch} launches each, in turn\n")
    print(render(results))
    keep(options, "launch", results)


def render(results: Mapping[str, Any]) -> str:
    """The table."""
    costs = results["median_us"]
    bare = costs["bare kernel, config given"]
    rows = [[name, f"{us:.1f}", f"{us / bare:.2f}"] for name, us in costs.items()]
    return table(["launch", "µs", "ratio to bare"], rows)


def draw(figure: Figure, results: Mapping[str, Any]) -> None:
    """A bar for each way to launch."""
    import plot

    figure.set_size_inches(8, 2.4)
    axes = figure.subplots()
    costs = results["median_us"]
    plot.bars(axes, list(costs), {"": list(costs.values())}, "{:.1f}")
    axes.set_xlabel("host time of a launch, µs")


def measure(launchers: Mapping[str, Launcher], *, rounds: int, batch: int) -> dict[str, Any]:
    """Host time of one launch of each, in µs: of each of `rounds` batches, and their median."""
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
    return {
        "rounds": rounds, "batch": batch,
        "median_us": {name: median(values) for name, values in times.items()},
        "batches_us": times,
    }  # fmt: skip


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
    add_output_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
