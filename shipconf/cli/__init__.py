"""The command line: arguments in, tables out, and exit codes.

0 done, 1 findings, 2 usage or input, 130 interrupted. Results go to stdout, talk to stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..errors import ShipconfError
from . import (
    clear,
    env,
    explain,
    export,
    import_,
    listing,
    merge,
    misses,
    quality,
    run,
    show,
    tune,
    vendor,
    verify,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `shipconf`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="shipconf", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (
        listing,
        show,
        export,
        import_,
        merge,
        tune,
        run,
        vendor,
        misses,
        env,
        explain,
        clear,
        quality,
        verify,
    ):
        command.add_to(commands)
    chosen = parser.parse_args(arguments)
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
