"""Arguments that several commands take, and how their words are read."""

from __future__ import annotations

import argparse
import json
import math
import re
import textwrap
from typing import Any

from ..keys import Value, from_json
from ..selection import RIGORS, Selection

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def add_command(commands: Any, name: str, run: Any, *, help: str, more: str = "", example: str,
                document: bool = True) -> argparse.ArgumentParser:  # fmt: skip
    """A command of `shipconf`, with an example and the exit codes below its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help,
        description=textwrap.fill(f"{help[0].upper()}{help[1:]}. {more}".strip(), 96),
        epilog=f"examples:\n{example.rstrip()}\n\n"
               "exit codes: 0 done, 1 findings, 2 usage or input, 130 interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    if document:
        parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)
    return parser


def add_selection(parser: argparse.ArgumentParser) -> None:
    """`--kernel`, `--device`, `-k`, `--newer-than`, `--older-than` and `--rigor`."""
    group = parser.add_argument_group("which records")
    group.add_argument("--kernel", action="append", default=[], metavar="NAME",
                       help="of this kernel; may be given again")  # fmt: skip
    group.add_argument("--device", action="append", default=[], metavar="NAME",
                       help="of the device with this whole name; may be given again")  # fmt: skip
    group.add_argument("-k", "--key", action="append", default=[], type=pair,
                       metavar="NAME=VALUE", help="with this value of a key entry")  # fmt: skip
    group.add_argument("--dtypes", metavar="TEXT",
                       help="of these dtypes, as file names say them: float16")  # fmt: skip
    group.add_argument("--fingerprint", metavar="TEXT", help="of this version of the kernel")
    group.add_argument("--newer-than", type=age_s, metavar="AGE",
                       help="tuned in the last 90s, 30m, 12h, 7d or 2w")  # fmt: skip
    group.add_argument("--older-than", type=age_s, metavar="AGE", help="tuned before that")
    group.add_argument("--rigor", choices=RIGORS, help="measured with this rigor or more")


def selection(chosen: argparse.Namespace) -> Selection:
    """What the arguments of `add_selection` select."""
    return Selection(
        kernels=tuple(chosen.kernel), devices=tuple(chosen.device), key=dict(chosen.key),
        dtypes=chosen.dtypes, fingerprint=chosen.fingerprint, newer_than_s=chosen.newer_than,
        older_than_s=chosen.older_than, rigor=chosen.rigor,
    )  # fmt: skip


def pair(text: str) -> tuple[str, Value]:
    """`NAME=VALUE`, the value in JSON (`{"dtype": "float16"}` too) or as plain text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"wants NAME=VALUE, not {text!r}")
    try:
        return name, from_json(json.loads(value))
    except ValueError:
        return name, value


def age_s(text: str) -> float:
    """Seconds of an age such as `7d`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"wants an age such as 90s, 30m, 12h, 7d, not {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def share(text: str) -> float:
    """The number of `5%`, or of 0.05, which says the same: 0 or more."""
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"wants a share such as 5% or 0.05, not {text!r}")
    return number


def names(text: str) -> list[str]:
    """Names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
