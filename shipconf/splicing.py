"""The text of one module made of several: each definition as it is written, under its new name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .hoisting import Hoist, HoistingError, Module
from .scopes import FUNCTIONS, global_names

_HEADING = re.compile(rb" *# --- ")
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, order=True)
class _Edit:
    """New text for columns of a line, in bytes as the syntax tree counts them."""

    line: int
    start: int
    end: int
    text: bytes


def sections(hoist: Hoist) -> Iterator[tuple[Module, str]]:
    """The text of what is reached in each module, in an order in which all of it runs."""
    for module in _ordered(hoist):
        reached = [module.defined[name] for home, name in hoist.defined if home == module.name]
        if reached:
            kept = [n for n in module.tree.body if n in reached or n in module.effects]
            parts = [(node, _text(hoist, module, node)) for node in kept]
            yield module, _joined(module, parts, between_functions=3)


def _ordered(hoist: Hoist) -> list[Module]:
    ordered: dict[str, Module] = {}

    def put(module: Module) -> None:
        if module.name not in ordered:
            for other in sorted(module.needs & hoist.modules.keys()):
                put(hoist.modules[other])
            ordered[module.name] = module

    for module in hoist.modules.values():
        put(module)
    return list(ordered.values())


def _text(hoist: Hoist, module: Module, node: ast.stmt) -> str:
    if not isinstance(node, ast.ClassDef):
        return _renamed(hoist, module, node, *_span(module, node))
    kept = {method: home for home, method in hoist.methods((module.name, node.name))}
    parts = []
    for part in node.body:
        home, written = module, part
        if isinstance(part, FUNCTIONS):
            home, written = hoist.in_place_of(module, f"{node.name}.{part.name}", part)
            if written not in kept:
                continue
        parts.append((part, _renamed(hoist, home, written, *_span(home, written))))
    first, _ = _span(module, node)
    head = _renamed(hoist, module, node, first, _span(module, node.body[0])[0] - 1)
    return f"{head}\n{_joined(module, parts, between_functions=2)}"


def _joined(module: Module, parts: Sequence[tuple[ast.stmt, str]], between_functions: int) -> str:
    """The texts, as far apart as they are in the module, and functions by that many newlines."""
    text, before = "", None
    for node, part in parts:
        if before is not None:
            large = isinstance(before, (*FUNCTIONS, ast.ClassDef)) or isinstance(
                node, (*FUNCTIONS, ast.ClassDef)
            )
            adjacent = _span(module, node)[0] == (before.end_lineno or 0) + 1
            text += "\n" * (between_functions if large else 1 if adjacent else 2)
        text, before = text + part, node
    return text


def _span(module: Module, node: ast.stmt) -> tuple[int, int]:
    """The first and last line, with the decorators and the comment right above."""
    lines = _lines(module)
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    while lines[first - 2].lstrip().startswith(b"#") and not _HEADING.match(lines[first - 2]):
        first -= 1
    return first, node.end_lineno or node.lineno


def _lines(module: Module) -> list[bytes]:
    return module.source.encode().split(b"\n")


def _renamed(hoist: Hoist, module: Module, node: ast.stmt, first: int, last: int) -> str:
    """The lines of a statement with the new names in them, and no relative import."""
    every = _lines(module)
    lines = {number: every[number - 1] for number in range(first, last + 1)}
    for edit in sorted(set(_edits(hoist, module, node)), reverse=True):
        if edit.line in lines:
            line = lines[edit.line]
            lines[edit.line] = line[: edit.start] + edit.text + line[edit.end :]
    for part in _all(node, ast.ImportFrom):
        for number in range(part.lineno, (part.end_lineno or 0) + 1) if part.level else ():
            lines.pop(number, None)
    return b"\n".join(lines.values()).decode()


def _edits(hoist: Hoist, module: Module, node: ast.stmt) -> Iterator[_Edit]:
    formatted = {id(inner): outer for outer in _all(node, ast.JoinedStr)
                 for inner in ast.walk(outer)}  # fmt: skip
    for name, attribute in global_names(node):
        address = hoist.meant(module, name, attribute)
        new = hoist.defined.get(address) if address is not None else None
        if new is None:
            continue  # a name from outside, or in a method that is left out
        whole = attribute if attribute is not None and name.id in module.modules else name
        old = ast.unparse(whole)
        if id(name) in formatted:
            yield from _in_string(module, formatted[id(name)], old, new)
        elif old != new:
            yield _Edit(whole.lineno, whole.col_offset, whole.end_col_offset or 0, new.encode())
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node in module.tree.body:
        start = _lines(module)[node.lineno - 1].index(node.name.encode(), len("def"))
        new = hoist.defined[module.name, node.name]
        yield _Edit(node.lineno, start, start + len(node.name.encode()), new.encode())
    yield from _without_kw_only(node)


def _in_string(module: Module, node: ast.JoinedStr, old: str, new: str) -> Iterator[_Edit]:
    """The edits inside an f-string, where Python before 3.12 counts no columns."""
    if old == new:
        return
    for number in range(node.lineno, (node.end_lineno or 0) + 1):
        line = _lines(module)[number - 1]
        for field in re.finditer(rb"\{[^{}]*\}", line.replace(b"{{", b"  ")):
            for found in re.finditer(rb"(?<![\w.])%s(?!\w)" % re.escape(old.encode()), field[0]):
                start = field.start() + found.start()
                yield _Edit(number, start, start + len(found[0]), new.encode())


def _without_kw_only(node: ast.stmt) -> Iterator[_Edit]:
    """Python 3.9 has no keyword-only dataclasses; without, they take the same keywords."""
    for call in _all(node, ast.Call):
        for keyword in call.keywords:
            if keyword.arg == "kw_only":
                before = [end for end in _ends(call) if end < (keyword.lineno, keyword.col_offset)]
                line, start = max(before)
                if line != keyword.end_lineno:
                    raise HoistingError("kw_only must stand in the line of what is before it")
                yield _Edit(line, start, keyword.end_col_offset or 0, b"")


def _ends(call: ast.Call) -> Iterator[tuple[int, int]]:
    for part in [call.func, *call.args, *(keyword.value for keyword in call.keywords)]:
        yield part.end_lineno or 0, part.end_col_offset or 0


def _all(node: ast.AST, kind: type[Node]) -> Iterator[Node]:
    return (part for part in ast.walk(node) if isinstance(part, kind))
