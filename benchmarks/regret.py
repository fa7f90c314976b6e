"""What a launch really loses at sizes that were not tuned: by each way to choose, on a GPU.

    python benchmarks/regret.py [--cases gemm:4096x4096:float16 …] [--points 20] [--budget-s 220]
                                [--json FILE] [--plot FILE]

Each case is a process of its own. It tunes a kernel at octaves of one size, into an empty user
store, which ends with a portfolio. Then, at sizes between the octaves, it measures every candidate:
all with a few launches, and those in turn which are fastest, or which are stored and come close.
The best of all is what a choice is compared with: that of the nearest record (what a launch took
before there was a portfolio), that of a launch with the portfolio, the best of the stored configs,
and the kernel's default. The L2 cache is cold for each launch, and nothing ships for the name that
the device is given. Where the time is up, sizes and cases at the end are left out, and said to be.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import add_output_options, keep, print_versions, require_gpu, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shipconf import ShippedKernel
    from shipconf.configs import Choice
    from shipconf.plan import Plan
    from shipconf.resolver import Request

OCTAVES = [2**i for i in range(14)]
ROWS = [3, 6, 17, 24, 33, 48, 77, 100, 160, 200, 257, 384, 500, 640, 1000, 1537, 1792, 2049, 3000,
        5000]  # fmt: skip
# As hidden sizes of models are, and a few that are not.
DEPTHS = [160, 200, 333, 400, 768, 896, 1001, 1280, 1536, 2560, 2880, 3072, 3584, 5003, 5120, 7168,
          11008, 13824, 14336, 28672]  # fmt: skip

# Each kernel and dtype first, for where the time is short.
CASES = [
    "gemm:4096x4096:float16", "gemv:4096:float16", "softmax:4096:float16",
    "gemm:4096x4096:bfloat16", "gemm:14336x4096:float16", "gemm:14336x4096:bfloat16",
]  # fmt: skip

LEAST_S = 40.0  # no case is begun with less left
SPARE_S = 3.0  # of which none are measured any more, so that the process ends in time
BEST = 8  # of the first measurements, which err by 4 %, are measured in turn
BEST_LONG = 4  # the same of long launches, which take 0.2 s each

RULES = {
    "nearest": "the nearest record", "predicted": "shipconf, with the portfolio",
    "stored": "the best of the stored configs", "default": "the default",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kernel, with the sizes in its key, and where along the other one it is tuned and tried."""

    module: str
    kernel: str
    key: tuple[str, ...]
    along: str
    tuned: Sequence[int]
    between: Sequence[int]


KINDS = {
    "gemm": Kind("shipconf_gemm.kernel", "gemm_kernel", ("N", "K"), "M", OCTAVES, ROWS),
    "gemv": Kind("shipconf_gemv.kernel", "gemv_kernel", ("N",), "K",
                 [2**i for i in range(7, 16)], DEPTHS),
    "softmax": Kind("softmax", "softmax_kernel", ("N",), "M", OCTAVES, ROWS),
}  # fmt: skip

Found = dict[str, Any]

# --- in the parent ----------------------------------------------------------------------------


def main() -> None:
    """Measure case after case, and print a table of each."""
    options = _options()
    require_gpu()
    if options.child:
        measure(Case(options.child), options.points, options.child_file, options.until)
        return
    print_versions()
    ends = time.time() + options.budget_s
    results: list[Found] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in options.cases:
            left_s = ends - time.time()
            if left_s < LEAST_S:
                print(f"\n{case} is left out: of {options.budget_s:g} s, {left_s:.0f} are left")
                continue
            found = _child(case, options.points, Path(folder), ends)
            if found.get("points"):
                results.append(found)
                print(f"\n{render_points(found)}\n\n{render([found])}", flush=True)
                keep(options, "regret", results, finished=False)
    if not results:
        sys.exit("nothing could be measured")
    print(f"\n{render(results)}", flush=True)
    keep(options, "regret", results)


def _child(case: str, points: int, folder: Path, ends: float) -> Found:
    """What a process of its own finds; as much as it wrote, where it fails or takes too long."""
    started = time.time()
    file = folder / f"{case.replace(':', ' ')}.json"
    environment = {
        **os.environ, "SHIPCONF_CACHE_DIR": f"{folder}/shipconf",
        "TRITON_CACHE_DIR": f"{folder}/triton",  # one for all: cases of a dtype share kernels
        "SHIPCONF_DEVICE_NAME": "benchmark",  # for which nothing ships
    }  # fmt: skip
    command = [sys.executable, __file__, "--child", case, "--child-file", str(file),
               "--points", str(points), "--until", str(ends - SPARE_S)]  # fmt: skip
    try:
        subprocess.run(command, env=environment, check=True, timeout=max(1.0, ends - started))
    except subprocess.TimeoutExpired:
        print(f"\n{case} is ended: the time is up", flush=True)
    except subprocess.CalledProcessError as error:
        print(f"\n{case} failed: exit code {error.returncode}", flush=True)
    if not file.exists():
        return {}
    found: Found = json.loads(file.read_text(encoding="utf-8"))
    found["seconds"]["all"] = time.time() - started
    said = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found["seconds"].items())
    print(f"\n{case}: seconds: {said}", flush=True)
    return found


def losses(found: Mapping[str, Any], rule: str) -> list[tuple[float, int]]:
    """What the rule loses, with the size, wherever its config runs."""
    return [
        (point["chosen"][rule]["loss"], point["at"])
        for point in found["points"]
        if point["chosen"][rule]["loss"] is not None
    ]


def render(results: Sequence[Mapping[str, Any]]) -> str:
    """Four figures of the loss for each case and rule, and where it is worst."""
    from shipconf.quality import summary

    rows = []
    for found in results:
        for rule, name in RULES.items():
            of = losses(found, rule)
            if not of:
                continue
            every = [loss for loss, _ in of]
            four = summary(every)
            figures = (four.mean, statistics.median_low(every), four.p90, four.p95, four.worst)
            rows.append([
                f"{found['case']}: {name}", str(len(of)),
                *(f"{100 * figure:.1f} %" for figure in figures),
                f"{found['along']}={max(of)[1]}",
            ])  # fmt: skip
    header = ["case: choice", "points", "mean", "p50", "p90", "p95", "worst", "at"]
    return table(header, rows)


def render_points(found: Mapping[str, Any]) -> str:
    """The best time at each size, and what each rule loses there."""
    rows = []
    for point in sorted(found["points"], key=lambda point: point["at"]):
        lost = [point["chosen"][rule]["loss"] for rule in RULES]
        cells = ["" if loss is None else f"{100 * loss:.1f} %" for loss in lost]
        rows.append([str(point["at"]), f"{point['best_ms']:.4f}", *cells, point["rule"]])
    header = [found["along"], "best, ms", *RULES, "the launch's rule"]
    text = f"{found['case']}: {found['stored']} configs stored, {found['kept']} in the portfolio"
    return f"{text}; of {found['candidates']} candidates\n\n{table(header, rows)}"


def draw(figure: Figure, results: Sequence[Mapping[str, Any]]) -> None:
    """A panel for each case: the loss at each size by the nearest record, and by the portfolio."""
    import plot

    columns = min(2, len(results))
    lines = -(-len(results) // columns)
    figure.set_size_inches(8.6, 2.5 * lines + 0.9)  # as wide as the legend
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    looks = {"nearest": ("X", plot.ORANGE, 7), "predicted": ("o", plot.BLUE, 7),
             "stored": ("_", "black", 10)}  # fmt: skip
    for axes, found in zip(grid, results, strict=False):
        for rule, (mark, colour, size) in looks.items():
            of = losses(found, rule)
            axes.plot([at for _, at in of], [100 * loss for loss, _ in of], mark, color=colour,
                      markersize=size, label=RULES[rule], alpha=0.85, clip_on=False)  # fmt: skip
        plot.sizes_axis(axes, f"{found['along']}, which was not tuned")
        axes.set_title(found["case"].replace(":", " "))
        axes.set_ylim(0, max(5.0, axes.get_ylim()[1]))
        axes.set_ylabel("loss, %")
    for axes in grid[len(results) :]:
        axes.set_visible(False)
    plot.legend_above(figure, grid[0])


# --- in a child -------------------------------------------------------------------------------


class Case:
    """A kernel to be tuned along one of its sizes: `gemm:4096x4096:float16`."""

    def __init__(self, text: str) -> None:
        import torch

        name, shape, dtype = text.split(":")
        self.text = text
        self.kind = KINDS[name]
        self.sizes = dict(zip(self.kind.key, map(int, shape.split("x")), strict=True))
        self.dtype = getattr(torch, dtype)
        self.kernel = own_kernel(self.kind)

    def tune(self, *, within: float | None) -> Any:
        """Tune wherever there is no record yet; with `within` keep a portfolio, too."""
        values: dict[str, Any] = {**self.sizes, self.kind.along: list(self.kind.tuned)}
        return self.kernel.tune(dtypes=self.dtype, within=within, **values)

    def request(self, at: int) -> Request:
        values = {**self.sizes, self.kind.along: at}
        return self.kernel.build(dtypes=self.dtype, **values)

    def chosen(self, request: Request) -> tuple[str, str | None]:
        """The rule by which a launch finds its config, and the config's identity."""
        from shipconf.configs import Choice

        match = self.kernel.resolve(*request.args, **request.kwargs, grid=request.grid)
        return (
            ("none", None) if match is None else (match.rule, Choice(dict(match.config)).identity)
        )

    def portfolio(self, request: Request) -> int:
        """How many configs are in the portfolio of this dtype; 0 where there is none."""
        from shipconf.keys import dtypes_serve

        key = request.query.key
        return sum(
            len(tabled.portfolio.configs)
            for tabled in self.kernel.resolver.shelf(key, request.query.device).tables
            if dtypes_serve(tabled.dtypes, key.dtypes)
        )


def own_kernel(kind: Kind) -> ShippedKernel:
    """The example's kernel and candidates, looked up by the case's sizes.

    It is no attribute of a module, so that it is tuned in this process, which then has compiled
    most of what the search needs.
    """
    from shipconf import shipped_autotune

    module = import_module(kind.module)
    example = getattr(module, kind.kernel)
    kernel = shipped_autotune(
        configs=example.configs, key=list(kind.key), nearest=[kind.along],
        prune_configs_by=example.flight.prune, default=module.DEFAULT,
    )(example.fn)  # fmt: skip
    kernel.workload(module.workload)
    return kernel


def measure(case: Case, count: int, file: Path, until: float) -> None:
    """Tune, and search at one size after the other, until the time is up; written after each."""
    clock = _Clock()
    with _Compiling() as compiling:
        records = case.tune(within=None)
    clock.lap("tuning")
    clock.seconds["of it compiling"] = compiling.seconds
    points = spread(case.kind.between)[:count]
    nearest = {at: case.chosen(case.request(at))[1] for at in points}
    case.tune(within=0.03)
    clock.lap("portfolio")
    search = Search(case.kernel)
    stored = {_identity(record.config) for record in records}
    found: Found = {
        "case": case.text, "along": case.kind.along, "tuned": list(case.kind.tuned),
        "stored": len(stored),
        "kept": case.portfolio(case.request(points[0])), "candidates": 0,
        "seconds": clock.seconds, "points": [],
    }  # fmt: skip
    longest_s = 0.0
    for at in points:
        if time.time() + longest_s > until:
            print(f"{case.text}: the time is up, before {len(points) - len(found['points'])} sizes")
            break
        started = time.time()
        try:
            point = _point(case, search, at, nearest[at], stored)
        except Exception as error:  # whose size is left out
            print(f"{case.text}: nothing at {case.kind.along}={at}: {error!r}", flush=True)
            continue
        found["points"].append(point)
        found["candidates"] = max(found["candidates"], point["candidates"])
        longest_s = max(longest_s, time.time() - started)
        clock.lap("searching")
        clock.seconds["of it compiling, too"] = search.compile_s
        file.write_text(json.dumps(found), encoding="utf-8")


def _point(case: Case, search: Search, at: int, nearest: str | None, stored: set[str]) -> Found:
    """The best time at a size, and what each rule takes there."""
    request = case.request(at)
    rule, predicted = case.chosen(request)
    default = case.kernel.resolver.default(request.query)
    plan = search.plan(request)
    times = search.times(plan, {*stored, nearest, predicted})
    best_ms = min(times.values())
    usable = [name for name in stored if name in times]
    chosen = {
        "nearest": nearest, "predicted": predicted,
        "stored": min(usable, key=lambda name: times[name]) if usable else None,
        "default": None if default is None else default.identity,
    }  # fmt: skip
    return {
        "at": at, "rule": rule, "candidates": len(plan.candidates), "best_ms": best_ms,
        "best": _told(min(times, key=lambda name: times[name])),
        "chosen": {
            name: {
                "loss": times[config] / best_ms - 1 if config in times else None,
                "config": None if config is None else _told(config),
            }
            for name, config in chosen.items()
        },
    }  # fmt: skip


class Search:
    """Measures all candidates of launches of one kernel, as shipconf's tuner measures."""

    def __init__(self, kernel: ShippedKernel) -> None:
        self.kernel = kernel
        self.compile_s = 0.0
        self._bench: Any = None  # one for all sizes: the GPU is warmed up once
        self._failed: set[str] = set()

    def plan(self, request: Request) -> Plan:
        """The launch's candidates, and how they are measured."""
        from shipconf.journal import Journal

        plan = self.kernel.flight.plan(request, Journal(None, {}))
        self._bench = self._bench or plan.bench
        return replace(plan, bench=self._bench)

    def times(self, plan: Plan, stored: set[str | None]) -> dict[str, float]:
        """Median ms of each candidate that runs, by its identity.

        Those of the fastest, and of the stored ones that take less than 1.5 times as long as the
        best, are of launches in turn; the others' are of a few launches alone.
        """
        from shipconf.gpu_bench import HOPELESS, LONG_MS

        first = self._first(plan)
        if not first:
            raise RuntimeError(f"no candidate runs for {plan.key}")
        best_ms = min(first.values())
        ordered = sorted(first, key=lambda choice: first[choice])
        fastest = ordered[: BEST_LONG if best_ms >= LONG_MS else BEST]
        close = [
            choice for choice in ordered
            if choice.identity in stored and first[choice] <= HOPELESS * best_ms
        ]  # fmt: skip
        field = list(dict.fromkeys([*fastest, *close]))
        in_turn = self._in_turn(plan, field, best_ms)
        # Times of a few launches are not sure enough to be the best.
        least_ms = min(in_turn.values())
        others = {
            choice.identity: max(ms, least_ms)
            for choice, ms in first.items()
            if choice not in field
        }
        return {**in_turn, **others}

    def _first(self, plan: Plan) -> dict[Choice, float]:
        """A few launches of each candidate that compiles."""
        from shipconf.compiling import compile_all

        started = time.monotonic()
        compiled = compile_all(plan.candidates, plan.compile, plan.jit, plan.device)
        ready = {choice for choice, why in compiled if why is None}
        self.compile_s += time.monotonic() - started
        times: dict[Choice, float] = {}
        for choice in plan.candidates:
            if choice not in ready:
                continue
            try:
                best_ms = min(times.values(), default=float("inf"))
                times[choice] = self._bench.first(plan.call(choice), best_ms).median
            except Exception as error:  # out of resources, say: no rule can choose it
                if choice.identity not in self._failed:
                    print(f"{plan.key}: {choice} is left out: {error!r}", file=sys.stderr)
                self._failed.add(choice.identity)
        return times

    def _in_turn(self, plan: Plan, field: Sequence[Choice], best_ms: float) -> dict[str, float]:
        from shipconf.finals import Comparison
        from shipconf.placement import copies, release

        bench = self._bench
        finals = bench.finals(field, best_ms, Comparison)
        placements = [plan.arguments, *copies(plan.arguments)]
        calls = {choice: [plan.call(choice, given) for given in placements] for choice in field}
        try:
            bench.open_finals(calls, best_ms)
            while not bench.enough(finals):
                finals.add(bench.round(finals.live, finals.rounds))
        finally:
            bench.close()
        del calls, placements
        release()
        return {choice.identity: statistics.median(times) for choice, times in finals.times.items()}


def spread(points: Sequence[int]) -> list[int]:
    """The points in an order of which each beginning is spread over all of them.

    >>> spread([1, 2, 3, 4, 5, 6, 7, 8])
    [1, 5, 3, 7, 2, 6, 4, 8]
    """
    bits = max(1, (len(points) - 1).bit_length())
    return [points[i] for i in sorted(range(len(points)), key=lambda i: f"{i:0{bits}b}"[::-1])]


def _told(identity: str) -> str:
    """A config in one line: `BLOCK_M=64, num_warps=4`."""
    from shipconf.configs import config_text

    return config_text(json.loads(identity))


def _identity(config: Mapping[str, Any]) -> str:
    from shipconf.configs import Choice

    return Choice(dict(config)).identity


class _Clock:
    """Seconds of one part after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


class _Compiling(logging.Handler):
    """The seconds that tunings of this process spend compiling, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self._logger = logging.getLogger("shipconf.tuner")
        self._level = self._logger.level

    def __enter__(self) -> _Compiling:
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("tuned "):
            self.seconds += record.args[4]  # type: ignore[index,operator]


def _case(text: str) -> str:
    name, _, rest = text.partition(":")
    shape, _, dtype = rest.partition(":")
    sizes = shape.split("x")
    kind = KINDS.get(name)
    if kind is None or len(sizes) != len(kind.key) or not all(map(str.isdigit, sizes)) or (
        dtype not in ("float16", "bfloat16")
    ):  # fmt: skip
        raise argparse.ArgumentTypeError(f"a case is one like {CASES[0]}, got {text}")
    return text


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", nargs="+", type=_case, default=CASES, help=" ".join(CASES))
    parser.add_argument("--points", type=int, default=20, help="sizes to search at, of 20")
    parser.add_argument("--budget-s", type=float, default=220.0, help="seconds for all (220)")
    add_output_options(parser)
    parser.add_argument("--child", type=_case, help=argparse.SUPPRESS)
    parser.add_argument("--child-file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=float("inf"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
