"""What the benchmarks share: versions, tables, files of figures, and the refusal without a GPU."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OUTPUT = ("--json", "--plot", "--commit")  # which say nothing of what was measured


def require_gpu() -> None:
    """Exit with 2, and say why, where there is no CUDA or ROCm GPU."""
    import torch

    if not torch.cuda.is_available():
        print("this benchmark needs a GPU, and torch sees none here", file=sys.stderr)
        sys.exit(2)


def versions() -> dict[str, str]:
    """The device and the versions that a measurement holds for."""
    import torch
    import triton

    import shipconf

    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "shipconf": shipconf.__version__,
    }


def print_versions() -> None:
    """One line: `NVIDIA H200, python 3.12.3, torch 2.11.0, triton 3.6.0, shipconf 0.1.0`."""
    print(versions_line(versions()), flush=True)


def versions_line(found: Mapping[str, str]) -> str:
    """What `print_versions` prints, of a file of figures too."""
    names = ("python", "torch", "triton", "shipconf")
    return ", ".join([found["device"], *(f"{name} {found[name]}" for name in names)])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded to be read as it is; columns after the first flush right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *others]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *map(line, rows)])


# --- files of figures -------------------------------------------------------------------------


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """`--json`, `--plot` and `--commit`, which `keep` obeys."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--plot", type=_picture, metavar="FILE",
                        help="draw them, as .svg or .png (needs matplotlib)")  # fmt: skip
    parser.add_argument("--commit", metavar="HASH", default=None,
                        help="what is measured, where that is no git checkout")  # fmt: skip


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".svg", ".png"):
        raise argparse.ArgumentTypeError(f"a picture is a .svg or a .png, got {text}")
    return path


def keep(
    options: argparse.Namespace, benchmark: str, results: Any, *, finished: bool = True,
    device: str | None = None,
) -> None:  # fmt: skip
    """Write the results to the file of `--json`, and once finished draw them to that of `--plot`.

    The file says what they hold for: device (the one here, if none is named), versions, date,
    commit, and the command.
    """
    if not (options.json or options.plot):
        return
    found = {
        "benchmark": benchmark,
        **versions(),
        **({"device": device} if device else {}),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": options.commit or commit(),
        "command": command(benchmark, sys.argv[1:]),
        "results": results,
    }
    if options.json:
        write(options.json, found)
    if options.plot and finished:
        import plot

        plot.draw(found, options.plot)


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a file of figures; a list of numbers is a line."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\n([^][{}]*?)\n *]", _in_one_line, text)
    path.write_text(text + "\n", encoding="utf-8")


def _in_one_line(found: re.Match[str]) -> str:
    items = re.sub(r"\n *", " ", found[1]).strip()
    return f"[{items}]"


def command(benchmark: str, arguments: Sequence[str]) -> str:
    """How the script was called, without what says where its results go.

    >>> command("launch", ["--rounds", "9", "--json", "a.json", "--plot=a.svg"])
    'python benchmarks/launch.py --rounds 9'
    """
    words = ["python", f"benchmarks/{benchmark}.py"]
    left = iter(arguments)
    for word in left:
        if word in OUTPUT:
            next(left, None)
        elif word.partition("=")[0] not in OUTPUT:
            words.append(word)
    return shlex.join(words)


def commit() -> str | None:
    """The commit that is checked out, `1a2b3c4+changes` where files differ; None outside git."""
    folder = Path(__file__).parent
    try:
        head = _git(folder, "rev-parse", "--short=7", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+changes" if changed else head


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True,
                          check=True)  # fmt: skip
    return done.stdout.strip()
