"""The command line: arguments in, tables out, and exit codes.

0 done, 1 findings, 2 usage or input, 130 interrupted. Results go to stdout, talk to stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from ..errors import ShipconfError

COMMANDS = {
    "list": "listing", "show": "show", "export": "export", "import": "import_", "merge": "merge",
    "tune": "tune", "run": "run", "vendor": "vendor", "misses": "misses", "env": "env",
    "explain": "explain", "clear": "clear", "quality": "quality", "verify": "verify",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `shipconf`; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="shipconf", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    # The one that is named alone: the others take longer to import than a short one to run.
    for name in [name for name in given[:1] if name in COMMANDS] or COMMANDS:
        import_module(f".{COMMANDS[name]}", __name__).add_to(commands)
    chosen = parser.parse_args(given)
    try:
        code: int = chosen.run(chosen)
        return code
    except (ShipconfError, OSError, ValueError) as error:  # the last of a bad setting
        if isinstance(error, BrokenPipeError):  # the reader of stdout has seen enough
            sys.stdout = None  # Python would flush it at its end
            return 0
        print(f"shipconf: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
