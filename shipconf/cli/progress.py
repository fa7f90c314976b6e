"""How far a tuning is, on stderr: lines of log, and a live bar where a terminal watches."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def shown(points: int) -> Iterator[None]:
    """Show the log of `shipconf`; on a terminal with a bar for the tuning of each point.

    The bar needs rich, which the extra `cli` installs; without it there are the lines.
    """
    logger = logging.getLogger("shipconf")
    level = logger.level
    handler, progress = _handler(points)
    logger.addHandler(handler)
    logger.setLevel(handler.level)
    try:
        with progress:
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class Lines(logging.StreamHandler[Any]):
    """Each message a line: the handler where no terminal watches, and its own progress."""

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None:
        self.flush()


class Bar(logging.Handler):
    """Messages above a bar that moves with what the records tell of `done` and `total`."""

    def __init__(self, progress: Any, points: int) -> None:
        super().__init__(logging.DEBUG)
        self.progress = progress
        self.points = progress.add_task("points", total=points, visible=points > 1)
        self.task: Any = None
        self.key = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Move the bar, or print the message above it."""
        if hasattr(record, "done"):
            self._move(vars(record))
        elif record.levelno >= logging.INFO:
            self.progress.console.print(record.getMessage(), highlight=False, markup=False)

    def _move(self, told: dict[str, Any]) -> None:
        text = f"{told['key']}: {told['doing']}"
        if self.key != told["key"] or self.task is None:
            if self.task is not None:
                self.progress.remove_task(self.task)
                self.progress.advance(self.points)
            self.task, self.key = self.progress.add_task(text, total=told["total"]), told["key"]
        self.progress.update(
            self.task, description=text, completed=told["done"], total=told["total"]
        )


def _handler(points: int) -> tuple[logging.Handler, Any]:
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import Progress
        except ImportError:
            pass
        else:
            # Results on stdout are for whoever reads them, and stay out of the bar's way there.
            progress = Progress(console=Console(stderr=True), transient=True, redirect_stdout=False)
            return Bar(progress, points), progress
    lines = Lines(sys.stderr)
    lines.setLevel(logging.INFO)
    return lines, lines
