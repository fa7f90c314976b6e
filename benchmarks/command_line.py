"""How long the commands that only read or move JSON take, as processes, on 1,000 records.

    python benchmarks/command_line.py

Each figure is the median of seven runs in turn, Python's own start included, with bytecode
cached as in an installed package.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 7
SOURCE = Path(__file__).parents[1] / "examples" / "gemm" / "shipconf_gemm"
NAME = "N={},K=4096,dtypes=float16,device_name=NVIDIA_H200,arch=sm_90,mp=132.json"


def package(root: Path, files: int) -> Path:
    """A package like the example, with 1,000 records in so many files."""
    folder = root / "configs" / "kernel" / "gemm_kernel"
    folder.mkdir(parents=True)
    shutil.copy(SOURCE / "kernel.py", root)
    shipped = json.loads(next(SOURCE.rglob("N=4096*.json")).read_text())
    records = shipped["records"]
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


def main() -> None:
    print("| command | " + " | ".join(f"{n} files" for n in (10, 100, 1000)) + " |")
    print("|---|---|---|---|")
    table: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for files in (10, 100, 1000):
            full = package(Path(folder) / f"full{files}", files)
            empty = package(Path(folder) / f"empty{files}", files)
            commands: dict[str, list[str | Path]] = {
                "python -c pass": ["-c", "pass"],
                "list": ["-m", "shipconf", "list", full],
                "list --json": ["-m", "shipconf", "list", full, "--json"],
                "show": ["-m", "shipconf", "show", full],
                "show --json": ["-m", "shipconf", "show", full, "--json"],
                "merge --dry-run": [
                    "-m", "shipconf", "merge", full, "--to", empty / "new", "--dry-run",
                ],
                "merge": ["-m", "shipconf", "merge", full, "--to", empty / "new"],
                "export --dry-run": [
                    "-m", "shipconf", "export", empty, "--from", full, "--dry-run",
                ],
                "export": ["-m", "shipconf", "export", empty, "--from", full],
            }  # fmt: skip
            times: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(RUNS):
                for name, words in commands.items():
                    shutil.rmtree(empty / "new", ignore_errors=True)
                    shutil.rmtree(empty / "configs", ignore_errors=True)
                    times[name].append(seconds(*words, bytecode=Path(folder) / "bytecode"))
            for name, taken in times.items():
                table.setdefault(name, []).append(f"{statistics.median(taken):.2f} s")
    for name, cells in table.items():
        print(f"| `{name}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
