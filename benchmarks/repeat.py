"""Whether two tunings of one shape choose the same config, on a GPU.

    python benchmarks/repeat.py [--processes 6] [--only gemm|gemv] [--json FILE] [--plot FILE]

Each process tunes the examples' shapes from nothing: no record ships for the device's name that
it is given, and its user store is empty. Pairs of processes are compared, shape by shape; where
two differ, so do the times of their choices, measured by each in its own finals.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import add_output_options, keep, print_versions, require_gpu, table

from examples import SHAPES, SIZES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tuned = dict[str, dict[str, Any]]  # by shape: the config chosen, the times of all, seconds


def main() -> None:
    """Tune in several processes, and print the table."""
    options = _options()
    require_gpu()
    if options.child:
        print(json.dumps(tune_all(options.only)))
        return
    print_versions()
    runs: list[Tuned] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.processes):
            runs.append(_child(options, Path(folder), number))
            keep(options, "repeat", compact(runs), finished=number + 1 == options.processes)
    print(f"\n{render(runs)}")


def _child(options: argparse.Namespace, folder: Path, number: int) -> Tuned:
    environment = {
        **os.environ, "SHIPCONF_CACHE_DIR": str(folder / str(number)),
        "SHIPCONF_DEVICE_NAME": "benchmark",  # for which nothing ships
    }  # fmt: skip
    only = ["--only", options.only] if options.only else []
    done = subprocess.run(
        [sys.executable, __file__, "--child", *only], env=environment, stdout=subprocess.PIPE,
        text=True, check=True,
    )  # fmt: skip
    found: Tuned = json.loads(done.stdout.splitlines()[-1])
    return found


def tune_all(only: str | None) -> Tuned:
    """Tune every shape in this process."""
    import torch

    from shipconf import tuning

    found: Tuned = {}
    for example in [only] if only else list(SHAPES):
        kernel = getattr(import_module(f"shipconf_{example}.kernel"), f"{example}_kernel")
        for shape in SHAPES[example]:
            sizes = dict(zip(SIZES[example], shape, strict=True))
            start = time.perf_counter()
            answer = tuning.here(kernel, torch.float16, sizes, force=False)
            found[f"{example} {'×'.join(map(str, shape))}"] = {
                "config": json.dumps(answer.record.config),
                "times": {json.dumps(config): ms[0] for config, ms in answer.times_ms},
                "seconds": time.perf_counter() - start,
            }
    return found


def compact(runs: list[Tuned]) -> list[Tuned]:
    """The runs with the times of those configs alone that one of them chose."""
    chosen = {shape: {run[shape]["config"] for run in runs} for shape in runs[0]}
    return [
        {
            shape: {
                **tuned,
                "times": {name: ms for name, ms in tuned["times"].items() if name in chosen[shape]},
            }
            for shape, tuned in run.items()
        }
        for run in runs
    ]


def agreeing(chosen: list[str]) -> tuple[int, int]:
    """How many pairs of choices are equal, and of how many."""
    pairs = list(itertools.combinations(chosen, 2))
    return sum(a == b for a, b in pairs), len(pairs)


def apart(runs: list[Tuned], shape: str) -> float:
    """By how much another run's choice was slower or faster at most, in the one that measured."""
    chosen = {run[shape]["config"] for run in runs}
    ratios = [
        abs(run[shape]["times"][other] / run[shape]["times"][run[shape]["config"]] - 1)
        for run in runs for other in chosen if other in run[shape]["times"]
    ]  # fmt: skip
    return max(ratios, default=0.0)


def render(runs: list[Tuned]) -> str:
    """For each shape how many pairs agree, and by how much the choices differ where they do not."""
    rows, same, pairs = [], 0, 0
    for shape in runs[0]:
        chosen = [run[shape]["config"] for run in runs]
        equal, count = agreeing(chosen)
        same, pairs = same + equal, pairs + count
        furthest = apart(runs, shape)
        rows.append([
            shape, f"{equal} of {count}", str(Counter(chosen).most_common(1)[0][1]),
            f"{100 * furthest:.1f} %" if furthest else "",
            f"{sum(run[shape]['seconds'] for run in runs[1:]) / max(1, len(runs) - 1):.2f}",
        ])  # fmt: skip
    share = 100 * same / max(1, pairs)
    rows.append(["all", f"{same} of {pairs} ({share:.1f} %)", "", "", ""])
    header = ["shape", "pairs that agree", "most often", "choices apart by at most", "s, compiled"]
    return table(header, rows)


def draw(figure: Figure, runs: list[Tuned]) -> None:
    """The share of pairs that agree, shape by shape, and how far apart the others' choices are."""
    import plot

    shapes = list(runs[0])
    figure.set_size_inches(8.5, 1 + 0.32 * len(shapes))
    agree, differ = figure.subplots(1, 2, sharey=True)
    counts = [agreeing([run[shape]["config"] for run in runs]) for shape in shapes]
    plot.bars(agree, shapes, {"": [100 * a / max(1, b) for a, b in counts]}, "{:.0f}")
    agree.set_xlabel(f"pairs of {len(runs)} processes that choose alike, %")
    agree.axvline(95, color=plot.GREY, linestyle="--", linewidth=1)
    plot.bars(differ, shapes, {"": [100 * apart(runs, shape) for shape in shapes]}, "{:.1f}")
    differ.set_xlabel("choices apart by at most, %")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=6, help="6")
    parser.add_argument("--only", choices=sorted(SHAPES))
    add_output_options(parser)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
