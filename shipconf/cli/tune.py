"""`shipconf tune module:kernel`: tune through the kernel's workload, into the user store."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from ..configs import config_text
from ..errors import ShipconfError
from ..keys import Value, from_json
from ..targets import load

if TYPE_CHECKING:
    from ..kernel import ShippedKernel

EXAMPLE = """example:
  shipconf tune shipconf_gemm.kernel:gemm_kernel -k N=4096 -k K=4096 --at M=1,16,64 --dtypes float16
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = commands.add_parser(
        "tune", help="tune a kernel through its workload, into the user store",
        epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("kernel", help="module:kernel, or file.py:kernel")
    parser.add_argument("-k", "--key", action="append", default=[], metavar="NAME=VALUE",
                        help="a key entry, its value in JSON or as plain text")  # fmt: skip
    parser.add_argument("--at", action="append", default=[], metavar="NAME=VALUE[,VALUE…]",
                        help="values of a nearest entry; each combination is tuned")  # fmt: skip
    parser.add_argument("--dtypes", help="one dtype, or one for each tensor joined by '-'")
    parser.add_argument("--force", action="store_true",
                        help="tune even where a record exists; the new one supersedes the "
                        "package's")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON line for each record")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Tune every combination asked for; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        kernel = load(chosen.kernel)
        key = dict(_pair(text) for text in chosen.key)
        near: dict[str, list[str]] = {}
        for name, _, at in (text.partition("=") for text in chosen.at):
            near.setdefault(name, []).extend(at.split(","))
        points = [dict(zip(near, map(int, point))) for point in itertools.product(*near.values())]
        for point in points:
            _tune(kernel, {**key, **point}, chosen)
    except (ShipconfError, ValueError, TypeError, RuntimeError) as error:
        print(f"shipconf tune: {error}", file=sys.stderr)
        return 2
    return 0


def _tune(kernel: ShippedKernel, values: dict[str, Any], chosen: argparse.Namespace) -> None:
    dtypes = chosen.dtypes
    if dtypes and "-" in dtypes:
        dtypes = dtypes.split("-")
    record = kernel.tune(dtypes=dtypes, force=chosen.force, **values)
    words = " ".join(f"{name}={value}" for name, value in values.items())
    time_ms = record.time_ms["median"] if record.time_ms else None
    if chosen.json:
        line = {"values": {n: str(v) for n, v in values.items()}, "config": dict(record.config),
                "time_ms": time_ms, "default_ms": record.default_ms}  # fmt: skip
        print(json.dumps(line))
    else:
        timing = f"{time_ms:.4g} ms" if time_ms is not None else "not measured: no choice"
        print(f"{words}: {config_text(record.config)}: {timing}")


def _pair(text: str) -> tuple[str, Value]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"-k wants NAME=VALUE, not {text!r}")
    try:
        return name, from_json(json.loads(value))
    except ValueError:
        return name, value
