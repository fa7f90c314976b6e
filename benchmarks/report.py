"""What the benchmarks share: versions, tables, and the refusal to run without a GPU."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence


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
    device, *others = versions().items()
    print(", ".join([device[1], *(" ".join(item) for item in others)]), flush=True)


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
