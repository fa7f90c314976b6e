"""Patterns of file names, as `.gitignore`, hatchling and setuptools write them."""

from __future__ import annotations

import re
from collections.abc import Iterable


def matches(pattern: str, path: str) -> bool:
    """Whether a glob is for exactly that path: `*` stays in a folder, `**/` is any number of them.

    >>> matches("configs/**/*.json", "configs/tile/told/a.json"), matches("*.json", "a/b.json")
    (True, False)
    """
    return re.fullmatch(_expression(pattern), path) is not None


def ignored(patterns: Iterable[str], path: str) -> bool:
    """Whether the patterns of a `.gitignore` select the path: the last that matches decides."""
    selected = False
    for line in patterns:
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        negated = pattern.startswith("!")
        if _selects(pattern.removeprefix("!"), path):
            selected = not negated
    return selected


def _selects(pattern: str, path: str) -> bool:
    # With a slash before its end a pattern counts from the top; without, it is for any folder.
    anywhere = "" if "/" in pattern.rstrip("/") else "(?:.*/)?"
    below = "/.*" if pattern.endswith("/") else "(?:/.*)?"
    return re.fullmatch(anywhere + _expression(pattern.strip("/")) + below, path) is not None


def _expression(pattern: str) -> str:
    parts = re.split(r"(\*\*/|/\*\*$|\*|\?|\[[^\]]*\])", pattern)
    special = {"**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        special[part] if part in special
        else part.replace("[!", "[^") if part.startswith("[") and part.endswith("]")
        else re.escape(part)
        for part in parts
    )  # fmt: skip
