"""The first launch of a fresh process, by where its config comes from; and the cost of importing.

    python benchmarks/cold_start.py [--m 1024 --n 4096 --k 4096] [--rounds 7] [--no-autotune]
                                    [--json FILE] [--plot FILE]

Each measurement is a process of its own, in turn over several rounds: the time from just before
the first launch to its synchronisation, with tensors allocated, Triton's driver loaded, and
everything compiled before (Triton's compile cache is TRITON_CACHE_DIR, else a temporary one that
is warmed first). Loading what Triton needs varies by far more than shipconf takes, so the time
spent outside Triton's own launch is told as well: the whole of what shipconf adds.
`triton.autotune` tunes once: in the first process of those that cache its results. Without a GPU
only the cost of importing is measured, and the exit code is 2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from report import add_output_options, keep, print_versions, require_gpu, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS = {
    "source": "config written in the source",
    "package": "shipconf, records in the package",
    "user": "shipconf, user store",
    "autotune": "triton.autotune (tunes)",
    "autotune-cached": "triton.autotune(cache_results=True), warm",
}

IMPORTS = {
    "import triton": "import triton",
    "then import shipconf": "import shipconf",
    "then shipconf.shipped_autotune": "import shipconf; shipconf.shipped_autotune",
}

# --- in the parent ----------------------------------------------------------------------------


@dataclass
class Times:
    """Milliseconds of one way to launch, and where shipconf's config came from.

    `outside_ms` is that part of `ms` in which Triton's `JITFunction.run` did not run, nor the GPU.
    """

    ms: list[float] = field(default_factory=list)
    outside_ms: list[float] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)

    def document(self) -> dict[str, Any]:
        """Medians, and what they are of."""
        return {
            "ms": median(self.ms),
            "outside_ms": median(self.outside_ms) if self.outside_ms else None,
            "runs": len(self.ms), "sources": sorted(self.sources),
            "each_ms": self.ms, "each_outside_ms": self.outside_ms,
        }  # fmt: skip


def main() -> None:
    """Measure and print both tables."""
    options = _options()
    if options.child:
        print(json.dumps(first_launch(options)))
        return
    print_versions()
    imports_ms = measure_imports()
    rows = [[name, f"{ms:.1f}"] for name, ms in imports_ms.items()]
    print("\n" + table(["import", "ms"], rows) + "\n", flush=True)
    require_gpu()
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder), imports_ms)


def measure(options: argparse.Namespace, folder: Path, imports_ms: Mapping[str, float]) -> None:
    """Tune, which compiles everything; then measure in turn.

    The table is printed after each round, so that an interrupted run keeps what it measured.
    """
    print("tuning once …", flush=True)
    config = _child(options, "tune", folder)["config"]
    times = {way: Times() for way in WAYS}
    if options.autotune:
        times["autotune"].ms.append(_child(options, "autotune", folder)["ms"])
    else:
        del times["autotune"], times["autotune-cached"]
    for index in range(options.rounds):
        print(f"\nround {index + 1} of {options.rounds}", flush=True)
        for way in times:
            if way == "autotune":
                continue
            result = _child(options, way, folder, config)
            times[way].ms.append(result["ms"])
            times[way].outside_ms.append(result["outside_ms"])
            times[way].sources.add(result.get("source", ""))
        results = {
            "shape": {name.upper(): getattr(options, name) for name in ("m", "n", "k")},
            "imports_ms": imports_ms,
            "ways": {way: found.document() for way, found in times.items()},
        }
        print(render(results), flush=True)
        keep(options, "cold_start", results, finished=index + 1 == options.rounds)


def _child(
    options: argparse.Namespace, way: str, folder: Path, config: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What `first_launch` returns for `way` in a fresh process."""
    shape = [f"--{name}={getattr(options, name)}" for name in ("m", "n", "k")]
    command = [sys.executable, __file__, "--child", way, "--config", json.dumps(config), *shape]
    dropped = ("SHIPCONF_", "TRITON_CACHE_AUTOTUNING", "TRITON_PRINT_AUTOTUNING")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    store = "user" if way in ("tune", "user") else "empty"
    added = {
        "SHIPCONF_CACHE_DIR": str(folder / store),
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", str(folder / "triton")),
        # A package without the records must not tune here: it is measured with what it has.
        "SHIPCONF_OFFLINE": "1" if way == "package" else "0",
    }
    result = subprocess.run(
        command, env={**kept, **added}, stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def render(results: Mapping[str, Any]) -> str:
    """The table of first launches."""
    shape = " ".join(f"{name}={size}" for name, size in results["shape"].items())
    text = f"\nfirst launch of a process, gemm {shape} float16\n\n"
    ways = results["ways"]
    rows = []
    for way, found in ways.items():
        more = found["ms"] - ways["source"]["ms"]
        outside = "" if found["outside_ms"] is None else f"{found['outside_ms']:.2f}"
        rows.append([WAYS[way], f"{found['ms']:.1f}", f"{more:+.1f}", outside, str(found["runs"])])
    header = ["the config comes from", "ms", "more than (a)", "outside Triton's launch, ms", "runs"]
    text += table(header, _lettered(rows))
    for way in ("package", "user"):
        others = set(ways[way]["sources"]) - {way}
        if others:
            found_in = ", ".join(sorted(others))
            text += f"\n\nNOT as named: “{WAYS[way]}” found its config here: {found_in}"
    return text


def _lettered(rows: list[list[str]]) -> list[list[str]]:
    return [[f"({'abcde'[index]}) {row[0]}", *row[1:]] for index, row in enumerate(rows)]


def measure_imports() -> dict[str, float]:
    """Milliseconds of each import after the one above it: medians of 10 processes."""
    program = "import json, time; times = []\n"
    for statement in IMPORTS.values():
        program += f"start = time.perf_counter()\n{statement}\n"
        program += "times.append(time.perf_counter() - start)\n"
    program += "print(json.dumps(times))"
    runs = []
    for _ in range(10):
        result = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
        )
        runs.append(json.loads(result.stdout))
    medians = [median(column) * 1e3 for column in zip(*runs, strict=True)]
    return dict(zip(IMPORTS, medians, strict=True))


def draw(figure: Figure, results: Mapping[str, Any]) -> None:
    """The whole first launch beside what shipconf adds to it; not the one that tunes."""
    import plot

    ways = {way: found for way, found in results["ways"].items() if way != "autotune"}
    figure.set_size_inches(8.5, 0.9 + 0.5 * len(ways))
    whole, outside = figure.subplots(1, 2, sharey=True)
    names = [WAYS[way].replace(", ", ",\n") for way in ways]
    for axes, figure_of, text, label in (
        (whole, "ms", "{:.0f}", "a process's first launch, ms"),
        (outside, "outside_ms", "{:.2f}", "of it outside Triton's launch, ms"),
    ):
        plot.bars(axes, names, {"": [found[figure_of] for found in ways.values()]}, text)
        axes.set_xlabel(label)


# --- in a child -------------------------------------------------------------------------------


def first_launch(options: argparse.Namespace) -> dict[str, Any]:
    """Launch once in the way asked for: {"ms": …, "source": …}, or {"config": …} for `tune`."""
    import torch
    import triton
    from shipconf_gemm.kernel import gemm_kernel, workload

    sizes = {"M": options.m, "N": options.n, "K": options.k}
    if options.child == "tune":
        # By force: also where the package ships records, the user store is to have one.
        record = gemm_kernel.tune(**sizes, dtypes=torch.float16, force=True)
        return {"config": dict(record.config)}
    built = workload(**sizes, dtypes=torch.float16)
    launch = _way(options.child, json.loads(options.config))
    inside = _clock_triton(gemm_kernel.fn)
    # Loaded by whoever asks first, which is Triton's launch in some ways and not in others.
    triton.runtime.driver.active.get_current_device()
    torch.cuda.synchronize()
    start = time.perf_counter()
    launch(built.grid, built.args)
    launched = time.perf_counter()
    torch.cuda.synchronize()
    end = time.perf_counter()
    result: dict[str, Any] = {
        "ms": (end - start) * 1e3,
        "outside_ms": (launched - start - sum(inside)) * 1e3,
    }
    if options.child in ("package", "user"):
        match = gemm_kernel.resolve(*built.args)
        result["source"] = match.source if match else "nothing"
    return result


def _clock_triton(fn: Any) -> list[float]:
    """The seconds of each of the kernel's launches, as far as Triton itself does them."""
    seconds: list[float] = []
    run = fn.run

    def clocked(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return run(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - start)

    fn.run = clocked
    return seconds


def _way(way: str, config: dict[str, Any]) -> Callable[[Any, Any], Any]:
    import triton
    from shipconf_gemm.kernel import gemm_kernel, prune

    fn = gemm_kernel.fn
    if way == "source":
        return lambda grid, args: fn[grid](*args, **config)
    if way in ("package", "user"):
        return lambda grid, args: gemm_kernel[grid](*args)
    autotuned = triton.autotune(
        configs=gemm_kernel.configs,
        key=["M", "N", "K"],
        prune_configs_by={"early_config_prune": prune},
        cache_results=True,
    )(fn)
    return lambda grid, args: autotuned[grid](*args)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, size in {"m": 1024, "n": 4096, "k": 4096}.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=str(size))
    parser.add_argument("--rounds", type=int, default=7, help="processes of each way (7)")
    parser.add_argument("--autotune", action=argparse.BooleanOptionalAction, default=True,
                        help="measure triton.autotune too (yes)")  # fmt: skip
    add_output_options(parser)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--config", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
