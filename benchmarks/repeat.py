"""Whether two tunings of one shape choose the same config, on a GPU.

    python benchmarks/repeat.py [--processes 6] [--only gemm|gemv] [--json FILE]

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
from typing import Any

from report import print_versions, require_gpu, table

from examples import SHAPES, SIZES

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
            if options.json:
                options.json.write_text(json.dumps(runs) + "\n", encoding="utf-8")
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


def render(runs: list[Tuned]) -> str:
    """For each shape how many pairs agree, and by how much the choices differ where they do not."""
    rows, same, pairs = [], 0, 0
    for shape in runs[0]:
        chosen = [run[shape]["config"] for run in runs]
        equal = sum(a == b for a, b in itertools.combinations(chosen, 2))
        count = len(runs) * (len(runs) - 1) // 2
        same, pairs = same + equal, pairs + count
        apart = [
            abs(run[shape]["times"][other] / run[shape]["times"][run[shape]["config"]] - 1)
            for run in runs for other in set(chosen) - {run[shape]["config"]}
            if other in run[shape]["times"]
        ]  # fmt: skip
        rows.append([
            shape, f"{equal} of {count}", str(Counter(chosen).most_common(1)[0][1]),
            f"{100 * max(apart):.1f} %" if apart else "",
            f"{sum(run[shape]['seconds'] for run in runs[1:]) / max(1, len(runs) - 1):.2f}",
        ])  # fmt: skip
    rows.append(["all", f"{same} of {pairs} ({100 * same / pairs:.1f} %)", "", "", ""])
    header = ["shape", "pairs that agree", "most often", "choices apart by at most", "s, compiled"]
    return table(header, rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=6, help="6")
    parser.add_argument("--only", choices=sorted(SHAPES))
    parser.add_argument("--json", type=Path, help="write what was found to this file, too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
