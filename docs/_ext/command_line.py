"""The reference of the command line, made of the argparse parsers when the pages are built.

A page has the line `% commands` where it goes.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from shipconf import cli

MARK = "% commands"


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command of `shipconf`, by its name."""
    commands = argparse.ArgumentParser(prog="shipconf").add_subparsers()
    for module in cli.COMMANDS.values():
        import_module(f"shipconf.cli.{module}").add_to(commands)
    return dict(sorted(commands.choices.items()))


def markdown() -> str:
    """A section for each command: what it does, its usage, its arguments, examples."""
    return "\n".join(line for parser in parsers().values() for line in _section(parser))


def _section(parser: argparse.ArgumentParser) -> Iterator[str]:
    parser.formatter_class = argparse.HelpFormatter
    summary, _, document = (parser.description or "").replace("\n", " ").partition("With --json")
    yield f"## {parser.prog}\n"
    yield f"{_escaped(summary)}\n"
    yield f"```text\n{_usage(parser)}\n```\n"
    for group in parser._action_groups:
        for action in group._group_actions:
            if not isinstance(action, argparse._HelpAction):
                yield f"{_invocation(action)}\n: {_escaped(_help(action))}\n"
    if document:
        yield f"With `--json`{_escaped(document)}\n"
    examples = (parser.epilog or "").removeprefix("examples:\n").partition("\n\nexit codes")[0]
    yield f"```text\n{_dedented(examples)}\n```\n"


def _usage(parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=88)
    return textwrap.dedent(" " * 7 + parser.format_usage().removeprefix("usage: ")).rstrip()


def _invocation(action: argparse.Action) -> str:
    value = action.metavar or (None if action.option_strings else action.dest)
    if action.choices:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    elif value is None and action.nargs != 0:
        value = action.dest.upper()
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{name} {value}`" if value else f"`{name}`"
                     for name in action.option_strings)  # fmt: skip


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


def _dedented(text: str) -> str:
    return "\n".join(line.removeprefix("  ") for line in text.splitlines())


def _escaped(text: str) -> str:
    """Prose of a help text as Markdown: options and variables as code, the rest as it stands."""
    text = re.sub(r"([\\*_\[\]<>{}|#])", r"\\\1", text)
    code = r"(?<![\w`-])(--?[a-z][\w-]*|SHIPCONF\\_(?:[A-Z]+\\_)*[A-Z]+)"
    return re.sub(code, lambda found: f"`{found[0].replace(chr(92), '')}`", text)


def _fill(app: Any, page: str, source: list[str]) -> None:
    if MARK in source[0]:
        source[0] = source[0].replace(MARK, markdown())


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True}
