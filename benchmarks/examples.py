"""The example kernels against torch, their default, and `triton.autotune`, on a GPU.

    python benchmarks/examples.py [--only gemm|gemv] [--shapes 16x4096x4096 …] [--autotune]
                                  [--to DIR] [--no-tune] [--dtype float16]
                                  [--json FILE] [--plot FILE]

For each shape: tune through the kernel's workload into the user store (`--to`, else
SHIPCONF_CACHE_DIR, else a temporary folder), check the result against torch in float32, then
measure all in turn in several rounds. Times are medians; a ratio is the median over the rounds
of the ratios within a round. Exits with 1 where a result is wrong, with 2 without a GPU.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from report import add_output_options, keep, print_versions, require_gpu, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Shape = tuple[int, ...]

WEIGHTS: list[Shape] = [(4096, 4096), (14336, 4096)]  # (N, K)
SHAPES: dict[str, list[Shape]] = {
    "gemm": [(M, *weight) for weight in WEIGHTS for M in (1, 16, 64, 256, 1024, 4096)],
    "gemv": WEIGHTS,
}
SIZES = {"gemm": ("M", "N", "K"), "gemv": ("N", "K")}


@dataclass
class Result:
    """One shape of one example; times in ms, by what was measured."""

    example: str
    shape: dict[str, int]
    source: str
    config: dict[str, Any]
    correct: bool
    relative_error: float
    tuning_s: float | None
    times_ms: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    autotune_config: dict[str, Any] | None = None
    autotune_s: float | None = None


class Case:
    """One launch of one example's kernel."""

    def __init__(self, example: str, shape: Shape, dtype: Any) -> None:
        self.example = example
        self.sizes = dict(zip(SIZES[example], shape, strict=True))
        self.dtype = dtype
        self.module = import_module(f"shipconf_{example}.kernel")
        self.kernel = getattr(self.module, f"{example}_kernel")
        built = self.module.workload(**self.sizes, dtypes=dtype)
        self.grid, self.args = built.grid, built.args
        self.left, self.right, self.out = self.args[:3]

    def __str__(self) -> str:
        return f"{self.example} " + " ".join(f"{name}={n}" for name, n in self.sizes.items())

    def tune(self) -> float | None:
        """Tune into the user store, over what the package ships. Returns seconds."""
        found = self.kernel.resolve(*self.args)
        force = found is not None and found.source == "package" and found.rule == "exact"
        start = time.perf_counter()
        self.kernel.tune(**self.sizes, dtypes=self.dtype, force=force)
        return time.perf_counter() - start

    def ours(self) -> None:
        """Launch through shipconf."""
        self.kernel[self.grid](*self.args)

    def torch(self) -> None:
        """Let torch compute the same product into the same tensor."""
        import torch

        product = torch.mm if self.example == "gemm" else torch.mv
        product(self.left, self.right, out=self.out)

    def default(self) -> None:
        """Launch the conservative default."""
        self.kernel.fn[self.grid](*self.args, **self.module.DEFAULT.all_kwargs())

    def compare(self) -> Any:
        """Launch through shipconf and compare with torch's float32."""
        self.out.zero_()
        self.ours()
        reference = import_module(f"shipconf_{self.example}.reference")
        return reference.compare(self.out, self.left, self.right)

    def autotuned(self) -> Any:
        """The kernel under `triton.autotune`, with the same candidates, all of them compiled."""
        import triton

        named = dict(zip(self.kernel.arg_names, self.args, strict=False))
        fn = self.kernel.fn

        def compile_one(config: Any) -> None:
            with suppress(Exception):  # what does not compile is triton.autotune's to forgive
                fn.warmup(*self.args, grid=(1,), **config.all_kwargs())

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, self.module.prune(self.kernel.configs, named)))
        return triton.autotune(
            configs=self.kernel.configs,
            key=list(self.sizes),
            prune_configs_by={"early_config_prune": self.module.prune},
        )(fn)


def main() -> int:
    """Run what is asked for and return the exit code."""
    options = _options()
    require_gpu()
    import torch

    torch.set_float32_matmul_precision("highest")
    print_versions()
    results: list[Result] = []
    with _user_store(options.to) as folder:
        if options.tune:
            print(f"tuning into {folder}", flush=True)
        for example, shape in _selected(options):
            results.append(run(Case(example, shape, getattr(torch, options.dtype)), options))
            # After each, so that an interrupted run keeps what it measured.
            keep(options, "examples", document(options.dtype, results), finished=False)
    if not results:
        sys.exit("none of the shapes is one of the examples asked for")
    print("\n" + summary(results), flush=True)
    keep(options, "examples", document(options.dtype, results))
    return 0 if all(result.correct for result in results) else 1


def run(case: Case, options: argparse.Namespace) -> Result:
    """Tune, check and measure one case, saying so while it goes."""
    start = time.perf_counter()
    tuning_s = case.tune() if options.tune else None
    comparison = case.compare()
    match = case.kernel.resolve(*case.args)
    result = Result(
        case.example,
        case.sizes,
        source=match.source if match else "none",
        config=dict(match.config) if match else {},
        correct=comparison.correct,
        relative_error=comparison.relative_error,
        tuning_s=tuning_s,
    )
    measured: dict[str, Callable[[], Any]] = {
        "ours": case.ours, "torch": case.torch, "default": case.default,
    }  # fmt: skip
    if options.autotune:
        measured["autotune"] = _autotune(case, result)
    result.times_ms, result.ratios = measure(measured, options.rounds)
    _say(case, result, time.perf_counter() - start)
    return result


def _autotune(case: Case, result: Result) -> Callable[[], Any]:
    """Let `triton.autotune` tune, and note what it chose and how long it took."""
    autotuned = case.autotuned()
    start = time.perf_counter()
    autotuned[case.grid](*case.args)
    result.autotune_s = time.perf_counter() - start
    result.autotune_config = autotuned.best_config.all_kwargs()
    return lambda: autotuned[case.grid](*case.args)


def measure(
    measured: Mapping[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Medians in ms, and each one's time over that of "ours": the median of the rounds' ratios.

    In each round in another order: what runs before one sets the clock that it finds.
    """
    from triton.testing import do_bench

    times: dict[str, list[float]] = {name: [] for name in measured}
    orders = random.Random(0)
    for _ in range(rounds):
        for name in orders.sample(list(measured), len(measured)):
            times[name].append(do_bench(measured[name], warmup=50, rep=40, return_mode="median"))
    ratios = {
        name: median(t / ours for t, ours in zip(values, times["ours"], strict=True))
        for name, values in times.items()
    }
    return {name: median(values) for name, values in times.items()}, ratios


def summary(results: Sequence[Result]) -> str:
    """The Markdown table; ratios are times over ours, so above 1 we are faster."""
    others = [name for name in ("torch", "default", "autotune") if name in results[0].times_ms]
    header = ["shape", "ours, ms", *(f"{name} / ours" for name in others), "source", "tuning, s"]
    rows = []
    for result in results:
        shape = "×".join(str(size) for size in result.shape.values())
        tuning = "" if result.tuning_s is None else f"{result.tuning_s:.1f}"
        rows.append([
            f"{result.example} {shape}" + ("" if result.correct else " WRONG"),
            f"{result.times_ms['ours']:.4f}",
            *(f"{result.ratios[name]:.3f}" for name in others),
            result.source,
            tuning,
        ])  # fmt: skip
    return table(header, rows)


def _say(case: Case, result: Result, seconds: float) -> None:
    times = ", ".join(f"{name} {ms:.4f}" for name, ms in result.times_ms.items())
    verdict = "right" if result.correct else "WRONG"
    print(f"{case}: {times} ms; {verdict}; {seconds:.1f} s", flush=True)
    print(f"    {result.source}: {result.config}", flush=True)
    if result.autotune_config is not None:
        print(f"    autotune in {result.autotune_s:.1f} s: {result.autotune_config}", flush=True)


def document(dtype: str, results: Sequence[Result]) -> dict[str, Any]:
    """The results as JSON has them."""
    return {"dtype": dtype, "shapes": [asdict(result) for result in results]}


def draw(figure: Figure, results: Mapping[str, Any]) -> None:
    """A mark for each ratio, on a line for each shape; to the right of 1 we are faster."""
    import plot

    shapes = results["shapes"]
    names = {"torch": "torch.mm, torch.mv", "default": "the default", "autotune": "triton.autotune"}
    figure.set_size_inches(8, 1.6 + 0.3 * len(shapes))
    axes = figure.subplots()
    marks = zip(names.items(), "osD", (plot.BLUE, plot.GREY, plot.ORANGE), strict=True)
    for (name, label), mark, colour in marks:
        known = [(i, found["ratios"][name]) for i, found in enumerate(shapes)
                 if name in found["ratios"]]  # fmt: skip
        if known:
            axes.plot([ratio for _, ratio in known], [i for i, _ in known], mark, color=colour,
                      label=label, markersize=7, alpha=0.85)  # fmt: skip
    axes.axvline(1, color="black", linewidth=1)
    labels = [f"{found['example']} {'×'.join(map(str, found['shape'].values()))}"
              for found in shapes]  # fmt: skip
    axes.set_yticks(range(len(shapes)), labels)
    axes.set_ylim(len(shapes) - 0.5, -0.5)
    axes.set_xscale("log", base=2)
    plot.plain_numbers(axes)
    axes.set_xlabel("time over ours (logarithmic; right of 1 ours is faster)")
    plot.legend_above(figure, axes)


@contextmanager
def _user_store(to: Path | None) -> Iterator[str]:
    """The user store to tune into: `to`, else SHIPCONF_CACHE_DIR, else a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        if to is not None:
            os.environ["SHIPCONF_CACHE_DIR"] = str(to)
        yield os.environ.setdefault("SHIPCONF_CACHE_DIR", temporary)


def _selected(options: argparse.Namespace) -> Iterator[tuple[str, Shape]]:
    for example, shapes in SHAPES.items():
        if options.only in (None, example):
            asked = [shape for shape in options.shapes if len(shape) == len(SIZES[example])]
            for shape in asked if options.shapes else shapes:
                yield example, shape


def _shape(text: str) -> Shape:
    shape = tuple(map(int, text.split("x")))
    if len(shape) not in (2, 3):
        raise argparse.ArgumentTypeError(f"a shape is MxNxK or NxK, got {text}")
    return shape


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(SHAPES), help="one example")
    parser.add_argument(
        "--shapes", type=_shape, nargs="+", default=[], help="MxNxK for gemm, NxK for gemv"
    )
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--to", type=Path, help="the folder to tune into")
    parser.add_argument(
        "--no-tune", dest="tune", action="store_false", help="measure what a launch finds"
    )
    parser.add_argument("--autotune", action="store_true", help="measure triton.autotune as well")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of measurements (7)")
    add_output_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
