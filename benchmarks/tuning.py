"""How long a tuning takes and how good its choice is, against `triton.autotune`, on a GPU.

    python benchmarks/tuning.py [--cases gemm:1024x4096x4096 gemv:4096x4096 softmax:4096x4096]
                                [--no-quality] [--json FILE] [--plot FILE]

Each case is tuned by both over the same candidates, from nothing: in fresh processes, one after
the other, with an empty compile cache (what Triton compiles once for any kernel is compiled
before). Then once more with everything compiled, in the same process. Records that ship with an
example are out of the way. The quality of a choice is its time over that of the best that Triton's
do_bench finds in its full length over all candidates, in turn at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from statistics import median
from typing import TYPE_CHECKING, Any

from report import add_output_options, keep, print_versions, require_gpu, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KERNELS = {
    "gemm": ("shipconf_gemm.kernel", "gemm_kernel", ("M", "N", "K")),
    "gemv": ("shipconf_gemv.kernel", "gemv_kernel", ("N", "K")),
    "softmax": ("softmax", "softmax_kernel", ("M", "N")),
}
CASES = ["gemm:1024x4096x4096", "gemv:4096x4096", "softmax:4096x4096"]

Config = dict[str, Any]


@dataclass
class Result:
    """One case; seconds, and for each choice its time over the best's."""

    case: str
    candidates: int
    autotune_cold_s: float
    shipconf_cold_s: float
    compile_s: float
    autotune_warm_s: float
    shipconf_warm_s: float
    shipconf_over_best: float | None
    autotune_over_best: float | None


# --- in the parent ----------------------------------------------------------------------------


def main() -> None:
    """Measure and print the table, after each case what there is so far."""
    options = _options()
    require_gpu()
    if options.child:
        print(json.dumps(CHILDREN[options.child](Case(options.cases[0]), options.choices)))
        return
    print_versions()
    results = []
    for case in options.cases:
        results.append(measure(case, quality=options.quality))
        print(f"\n{render(results)}", flush=True)
        found = [asdict(result) for result in results]
        keep(options, "tuning", found, finished=case == options.cases[-1])


def measure(case: str, *, quality: bool) -> Result:
    """Tune the case in both ways, in fresh processes."""
    theirs = _child("autotune", case)
    ours = _child("shipconf", case)
    over_best = (
        _child("quality", case, [ours["config"], theirs["config"]]) if quality else [None] * 2
    )
    return Result(
        case, ours["candidates"], theirs["cold_s"], ours["cold_s"], ours["compile_s"],
        theirs["warm_s"], ours["warm_s"], *over_best,
    )  # fmt: skip


def _child(way: str, case: str, choices: Sequence[Config] = ()) -> Any:
    """What a fresh process with empty caches finds."""
    command = [sys.executable, __file__, "--child", way, "--cases", case,
               "--choices", json.dumps(choices)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "SHIPCONF_CACHE_DIR": f"{folder}/shipconf", "TRITON_CACHE_DIR": f"{folder}/triton",
            "SHIPCONF_DEVICE_NAME": "benchmark",  # for which nothing ships
        }  # fmt: skip
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return json.loads(done.stdout.splitlines()[-1])


def render(results: Sequence[Result]) -> str:
    """The table, with medians over the cases below where there are several."""
    header = ["case", "candidates", "triton.autotune, cold s", "shipconf, cold s", "ratio",
              "of ours compiling", "triton.autotune, compiled s", "shipconf, compiled s", "ratio",
              "our choice / best", "its choice / best"]  # fmt: skip
    rows = [
        [r.case, str(r.candidates), f"{r.autotune_cold_s:.1f}", f"{r.shipconf_cold_s:.2f}",
         f"{r.autotune_cold_s / r.shipconf_cold_s:.1f}", f"{r.compile_s:.2f}",
         f"{r.autotune_warm_s:.1f}", f"{r.shipconf_warm_s:.2f}",
         f"{r.autotune_warm_s / r.shipconf_warm_s:.1f}",
         *("" if q is None else f"{q:.3f}" for q in (r.shipconf_over_best, r.autotune_over_best))]
        for r in results
    ]  # fmt: skip
    return table(header, rows)


def draw(figure: Figure, results: Sequence[Mapping[str, Any]]) -> None:
    """Seconds from nothing and with everything compiled; where it is known, the choices."""
    import plot

    panels = [("from nothing, s", "{}_cold_s", "{:.1f}"),
              ("all compiled, s", "{}_warm_s", "{:.2f}")]  # fmt: skip
    if all(found["shipconf_over_best"] is not None for found in results):
        panels.append(("choice / best, from 0.98", "{}_over_best", "{:.3f}"))
    figure.set_size_inches(9 if len(panels) > 2 else 8, 1.3 + 0.85 * len(results))
    names = [found["case"].replace(":", "\n") for found in results]
    row = figure.subplots(1, len(panels), sharey=True)
    for axes, (label, name, text) in zip(row, panels, strict=True):
        series = {
            way: [found[name.format(key)] for found in results]
            for way, key in (("shipconf", "shipconf"), ("triton.autotune", "autotune"))
        }
        plot.bars(axes, names, series, text)
        axes.set_xlabel(label)
        if "over" in name:
            axes.set_xlim(0.98, max(max(values) for values in series.values()) + 0.02)
    plot.legend_above(figure, row[0])


# --- in a child -------------------------------------------------------------------------------


class Case:
    """A launch of one kernel, with Triton ready for any kernel."""

    def __init__(self, text: str) -> None:
        import softmax
        import torch

        name, _, shape = text.partition(":")
        module_name, kernel_name, sizes = KERNELS[name]
        self.module = import_module(module_name)
        self.kernel = getattr(self.module, kernel_name)
        self.sizes = dict(zip(sizes, map(int, shape.split("x")), strict=True))
        self.dtype = torch.float16
        built = self.module.workload(**self.sizes, dtypes=self.dtype)
        self.grid, self.args = built.grid, built.args

        softmax.nothing[(1,)](torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()

    def candidates(self) -> list[Config]:
        """All that a tuning measures, the default among them."""
        request = self.kernel.build(dtypes=self.dtype, **self.sizes)
        return [choice.flat for choice in self.kernel.flight.candidates(request)]

    def launch(self, config: Config) -> None:
        self.kernel.fn[self.grid](*self.args, **config)


def _autotune(case: Case, _: Sequence[Config]) -> dict[str, Any]:
    """Seconds from nothing and with everything compiled, and the choice."""
    import torch
    import triton

    configs = []
    for flat in case.candidates():
        options = {n: flat[n] for n in ("num_warps", "num_stages", "num_ctas") if n in flat}
        configs.append(
            triton.Config({n: v for n, v in flat.items() if n not in options}, **options)
        )
    found = {}
    for name in ("cold_s", "warm_s"):
        tuned = triton.autotune(configs=configs, key=list(case.sizes))(case.kernel.fn)
        start = time.perf_counter()
        tuned[case.grid](*case.args)
        torch.cuda.synchronize()
        found[name] = time.perf_counter() - start
    return {**found, "config": tuned.best_config.all_kwargs()}


def _shipconf(case: Case, _: Sequence[Config]) -> dict[str, Any]:
    import logging

    from shipconf import tuning

    compiling = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.msg.startswith("tuned "):
                compiling.append(record.args[4])  # type: ignore[index]

    logger = logging.getLogger("shipconf.tuner")
    logger.setLevel(logging.INFO)
    logger.addHandler(Listener())
    found: dict[str, Any] = {}
    for name in ("cold_s", "warm_s"):
        start = time.perf_counter()
        # Anew each time: a record of this very point would be the incumbent of the second one.
        os.environ["SHIPCONF_DEVICE_NAME"] = f"benchmark {name}"
        answer = tuning.here(case.kernel, case.dtype, case.sizes, force=False)
        found[name] = time.perf_counter() - start
    return {
        **found, "compile_s": compiling[0], "config": dict(answer.record.config),
        "candidates": answer.record.candidates,
    }  # fmt: skip


def _quality(case: Case, choices: Sequence[Config]) -> list[float]:
    """For each choice its time over the best's, measured in turn in 9 rounds."""
    from concurrent.futures import ThreadPoolExecutor

    from triton.testing import do_bench

    candidates = case.candidates()
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # else compiling takes a minute
        list(pool.map(lambda c: _compiles(case, c), candidates))
    times = []
    for config in candidates:
        try:
            times.append((do_bench(lambda c=config: case.launch(c), return_mode="median"), config))
        except Exception:
            continue  # out of resources: neither of the two can choose it
    best = [config for _, config in sorted(times, key=lambda pair: pair[0])[:5]]
    contestants = [*choices, *best]
    rounds = [
        [do_bench(lambda c=c: case.launch(c), warmup=5, rep=30, return_mode="median")
         for c in contestants]
        for _ in range(9)
    ]  # fmt: skip
    relative = [[time / min(times) for time in times] for times in rounds]
    medians = [median(column) for column in zip(*relative, strict=True)]
    return [medians[index] / min(medians) for index in range(len(choices))]


def _compiles(case: Case, config: Config) -> None:
    try:
        case.kernel.fn.warmup(*case.args, grid=case.grid, **config)
    except Exception:
        return  # do_bench meets it again


CHILDREN = {"autotune": _autotune, "shipconf": _shipconf, "quality": _quality}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", nargs="+", default=CASES, help=" ".join(CASES))
    parser.add_argument("--quality", action=argparse.BooleanOptionalAction, default=True,
                        help="measure all candidates in full length, too (yes)")  # fmt: skip
    add_output_options(parser)
    parser.add_argument("--child", choices=["autotune", "shipconf", "quality"],
                        help=argparse.SUPPRESS)  # fmt: skip
    parser.add_argument("--choices", type=json.loads, default=[], help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
