"""How long the commands that only read or move JSON take, as processes, on 1,000 records.

    python benchmarks/command_line.py [--runs 7] [--json FILE] [--plot FILE]

Each figure is the median of runs in turn, Python's own start included, with bytecode cached as in
an installed package.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import add_output_options, keep, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = (10, 100, 1000)
SOURCE = Path(__file__).parents[1] / "examples" / "gemm" / "shipconf_gemm"
NAME = "N={},K=4096,dtypes=float16,device_name=NVIDIA_H200,arch=sm_90,mp=132.json"


def package(root: Path, files: int) -> Path:
    """A package like the example, with 1,000 records in so many files."""
    folder = root / "configs" / "kernel" / "gemm_kernel"
    folder.mkdir(parents=True)
    shutil.copy(SOURCE / "kernel.py", root)
    shipped = json.loads(next(SOURCE.rglob("N=4096*.json")).read_text())
    records = shipped["records"]
    del shipped["portfolios"]  # which is as long as 14 records, and would be in each file
    for i in range(files):
        at = [{**records[j % len(records)], "at": {"M": j + 1}} for j in range(1000 // files)]
        content = {**shipped, "key": {**shipped["key"], "N": i}, "records": at}
        (folder / NAME.format(i)).write_text(json.dumps(content))
    return root


def seconds(*words: str | Path, bytecode: Path) -> float:
    """The wall time of one command."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *map(str, words)], check=True, capture_output=True, env=environment
    )
    return time.perf_counter() - start


def commands(full: Path, empty: Path) -> dict[str, list[str | Path]]:
    """By name, each with the arguments of Python; they read `full`, and write below `empty`."""
    merging: list[str | Path] = ["-m", "shipconf", "merge", full, "--to", empty / "new"]
    exporting: list[str | Path] = ["-m", "shipconf", "export", empty, "--from", full]
    return {
        "python -c pass": ["-c", "pass"],
        "list": ["-m", "shipconf", "list", full],
        "list --json": ["-m", "shipconf", "list", full, "--json"],
        "show": ["-m", "shipconf", "show", full],
        "show --json": ["-m", "shipconf", "show", full, "--json"],
        "merge --dry-run": [*merging, "--dry-run"],
        "merge": merging,
        "export --dry-run": [*exporting, "--dry-run"],
        "export": exporting,
    }


def measure(runs: int) -> dict[str, Any]:
    """Seconds of each command for each number of files: of each run, in turn, and the median."""
    each: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for files in FILES:
            full = package(Path(folder) / f"full{files}", files)
            empty = package(Path(folder) / f"empty{files}", files)
            times: dict[str, list[float]] = {name: [] for name in commands(full, empty)}
            for _ in range(runs):
                for name, words in commands(full, empty).items():
                    shutil.rmtree(empty / "new", ignore_errors=True)
                    shutil.rmtree(empty / "configs", ignore_errors=True)
                    times[name].append(seconds(*words, bytecode=Path(folder) / "bytecode"))
            for name, taken in times.items():
                each.setdefault(name, []).append(taken)
    medians = {name: [statistics.median(taken) for taken in of] for name, of in each.items()}
    return {"files": list(FILES), "median_s": medians, "each_s": each}


def render(results: Mapping[str, Any]) -> str:
    """The table: a row for each command."""
    rows = [
        [f"`{name}`", *(f"{taken:.2f} s" for taken in medians)]
        for name, medians in results["median_s"].items()
    ]
    return table(["command", *(f"{files} files" for files in results["files"])], rows)


def draw(figure: Figure, results: Mapping[str, Any]) -> None:
    """Bars for each command, one for each number of files."""
    import plot

    medians = results["median_s"]
    series = {
        f"{files} files": [taken[i] for taken in medians.values()]
        for i, files in enumerate(results["files"])
    }
    figure.set_size_inches(8, 1.2 + 0.6 * len(medians))
    axes = figure.subplots()
    plot.bars(axes, list(medians), series, "{:.2f}")
    axes.axvline(0.3, color=plot.GREY, linestyle="--", linewidth=1)
    axes.set_xlabel("seconds of a process, Python's start included (dashed: the aim)")
    plot.legend_above(figure, axes)


def main() -> None:
    options = _options()
    results = measure(options.runs)
    print(render(results))
    keep(options, "command_line", results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=7, help="processes of each command (7)")
    add_output_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
