"""Pages of documentation as programs: the files that they show, and the commands with their output.

A fenced block is a file where its `:caption:`, or a comment `<!-- file: NAME -->` above it, names
one. A block of `console` holds commands, each after `$ `, and what they print, in which `...`
stands for anything. A command exits with 0, or as a comment `# exits with N` after it says.
`python tests/pages.py PAGE` prints what the commands of a page print now.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOWN_HOME = "/home/you"
_BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n+)?"
    r"^(?P<fence>`{3,})(?P<kind>[^\n]*)\n(?P<body>.*?)^(?P=fence)$",
    re.M | re.S,
)
_CAPTION = re.compile(r"(?P<options>(?::[a-z-]+:[^\n]*\n)*)\n?(?P<text>.*)", re.S)
_SPLIT = "-- the next command follows --"


@dataclass
class Command:
    """A command of a page, and what it is to print."""

    text: str
    expected: str = ""

    @property
    def code(self) -> int:
        found = re.search(r"# exits with (\d+)$", self.text)
        return int(found[1]) if found else 0


@dataclass
class Page:
    """What a page has a reader do, in its order; `fragments` are pieces of Python to read only."""

    steps: list[Command | tuple[str, str]] = field(default_factory=list)
    fragments: list[str] = field(default_factory=list)


def read(path: Path) -> Page:
    """The files, commands and fragments of a page."""
    page = Page()
    for block in _BLOCK.finditer(path.read_text(encoding="utf-8")):
        kind, body, name = block["kind"].strip(), block["body"], block["file"]
        if kind.startswith("{code-block}"):
            kind = kind.removeprefix("{code-block}").strip()
            parts = _CAPTION.fullmatch(body)
            assert parts is not None
            caption = re.search(r":caption: `(\S+)`", parts["options"])
            name, body = caption[1] if caption else None, parts["text"]
        if name is not None:
            page.steps.append((name, body))
        elif kind == "console":
            page.steps += _commands(body)
        elif kind == "python":
            page.fragments.append(body)
    return page


def _commands(body: str) -> list[Command]:
    commands: list[Command] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line.removeprefix("$ ")))
        elif commands[-1].text.endswith("\\"):
            commands[-1].text += f"\n{line}"
        else:
            commands[-1].expected += f"{line}\n"
    return commands


def run(page: Page, home: Path, **variables: str) -> list[str]:
    """Do what the page says, in one shell, below a home of its own; returns what went otherwise."""
    commands = [step for step in page.steps if isinstance(step, Command)]
    done = subprocess.run(
        ["bash", "--norc", "-c", _script(page)], cwd=home, env=_environment(home, variables),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=600,
    )  # fmt: skip
    outputs = done.stdout.replace(str(home), SHOWN_HOME).split(_SPLIT)
    differences = []
    for command, output in zip(commands, outputs):
        printed, _, code = output.rstrip("\n").rpartition("\n")
        if code != f"exit {command.code}" or not _alike(command.expected, printed):
            differences.append(f"$ {command.text}\n{output}\n--- expected:\n{command.expected}")
    return differences if len(outputs) == len(commands) + 1 else [*differences, done.stdout]


def _script(page: Page) -> str:
    lines = []
    for step in page.steps:
        if isinstance(step, Command):
            lines.append(f"{step.text}\nprintf '\\nexit %s\\n%s' $? {shlex.quote(_SPLIT)}")
        else:
            name, text = map(shlex.quote, step)
            lines.append(f"mkdir -p $(dirname {name}); printf %s {text} > {name}")
    return "\n".join(lines)


def _environment(home: Path, variables: dict[str, str]) -> dict[str, str]:
    commands = home / ".commands"
    commands.mkdir()
    for name, module in (("python", ""), ("shipconf", " -m shipconf")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{module} "$@"\n')
        script.chmod(0o755)
    paths = [str(ROOT), *sys.path[1:]] if "PYTHONPATH" in os.environ else []
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([variables.pop("PYTHONPATH", ""), *paths]).strip(os.pathsep),
        "PYTHONUNBUFFERED": "1",  # else what goes to stderr overtakes stdout in a pipe
        "PYTHONDONTWRITEBYTECODE": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # which says: do not isolate, and so ask no index
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "COLUMNS": "200",
        **variables,
    }


def _alike(expected: str, printed: str) -> bool:
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return checker.check_output(expected, f"{printed.strip()}\n" if printed.strip() else "", flags)


def copied(folder: str, home: Path) -> Path:
    """A copy of a folder of this repository, at the same place below the home."""
    target = home / folder
    shutil.copytree(ROOT / folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def main(path: Path) -> None:
    """Print what the commands of a page print now, for whoever writes it."""
    page = read(path)
    for step in page.steps:
        if isinstance(step, Command):
            step.expected = "(to be written)\n"
    with tempfile.TemporaryDirectory() as folder:
        home, variables = Path(folder), {}
        if path.resolve().parent.parent == ROOT / "examples":
            variables["PYTHONPATH"] = str(copied(f"examples/{path.resolve().parent.name}", home))
        print("\n".join(run(page, home, **variables)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
