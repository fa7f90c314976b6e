"""`shipconf run -- script.py`: a program whose autotuned kernels get a memory, unchanged."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

from ..errors import ShipconfError
from .arguments import add_command, names

SHAPE = """Every kernel that the program decorates with triton.autotune, or with a subclass of its
Autotuner, looks into the stores before it tunes, and keeps what it found. The exit code is the
program's."""
EXAMPLE = """  shipconf run -- train.py --steps 10
  shipconf run --adopt fla --nearest chunk_fwd_kernel_o=T -- -m benchmarks.layers
  SHIPCONF_OFFLINE=1 shipconf run -- serve.py    with what is stored, and no benchmark"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(
        commands, "run", run, help="run a program, its autotuned kernels with a memory",
        more=SHAPE, example=EXAMPLE, document=False,
    )  # fmt: skip
    parser.add_argument("--adopt", action="append", default=[], metavar="PREFIX",
                        help="only kernels in this package or module")  # fmt: skip
    parser.add_argument("--nearest", action="append", default=[], type=_by_kernel,
                        metavar="KERNEL=NAME[,NAME…]",
                        help="arguments of the kernel in which the nearest will do")  # fmt: skip
    parser.add_argument("--configs-dir", action="append", default=[], type=_by_kernel,
                        metavar="KERNEL=DIR", help="the folder of its records")  # fmt: skip
    parser.add_argument("program", nargs=argparse.REMAINDER,
                        help="-- SCRIPT or -- -m MODULE, and its arguments")  # fmt: skip


def run(chosen: argparse.Namespace) -> int:
    """Run the program; returns its exit code."""
    program = [word for i, word in enumerate(chosen.program) if i or word != "--"]
    if not program or program == ["-m"]:
        raise ShipconfError("name a program: shipconf run -- script.py")
    from ..adopting import Adoption, adopting

    options: dict[str, dict[str, Any]] = {}
    for kernel, text in chosen.nearest:
        options.setdefault(kernel, {})["nearest"] = names(text)
    for kernel, text in chosen.configs_dir:
        options.setdefault(kernel, {})["configs_dir"] = Path(text).absolute()
    with adopting(Adoption(tuple(chosen.adopt), options)):
        return _run(program)


def _run(program: list[str]) -> int:
    """As `python PROGRAM…` would."""
    script, *arguments = program
    try:
        if script == "-m":
            sys.argv = arguments
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            if not Path(script).is_file():
                raise ShipconfError(f"no such file: {script}")
            sys.argv = program
            sys.path.insert(0, str(Path(script).parent.absolute()))
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _by_kernel(text: str) -> tuple[str, str]:
    kernel, equals, value = text.partition("=")
    if not (kernel and equals and value):
        raise argparse.ArgumentTypeError(f"wants KERNEL=…, not {text!r}")
    return kernel, value
