"""The fingerprint of a kernel's source: equal as long as tuned configs stay good.

A hash over the syntax tree of the kernel, of the JIT functions outside Triton that it calls,
and over the names of the globals it uses, with a value only where the source assigns a
literal. Comments, blank lines, formatting, decorators, docstrings, line numbers and the
versions of Python and Triton do not show.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

VERSION = "1"
# The start of a top-level import or assignment: `X = …`, `X: int = …`, `A, B = …`.
_ASSIGNING = re.compile(
    r"from\s|(?!(?:else|try|finally)\b)[^\W\d]\w*(\s*,\s*\w+)*\s*(=(?!=)|:\s*\S)"
)
# Fields that differ between Python versions, or say nothing about what the code does.
_SKIPPED = {"ctx", "kind", "type_comment", "type_params", "decorator_list"}


def fingerprint(kernel: Any) -> str | None:
    """`1:` and 16 hex digits for a kernel, or its Python function; None where it has no source."""
    try:
        parts = list(_describe(kernel, {plain_function(kernel)}))
    except (OSError, TypeError, SyntaxError):
        return None
    return f"{VERSION}:{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}"


def _describe(kernel: Any, seen: set[FunctionType]) -> Iterator[str]:
    function = plain_function(kernel)
    definition = _definition(_source(kernel))
    yield "".join(_walk(definition, []))
    yield f"noinline={_noinline(definition)}"
    definition.decorator_list = []  # nor do the names in them count
    scope = _scope(function)
    for path in _free_names(definition):
        value = _resolve(path, scope)
        called = _jit_function(value)
        if called is not None:
            if called not in seen and not str(called.__module__).startswith("triton."):
                seen.add(called)
                yield f"calls {'.'.join(path)}"
                yield from _describe(value, seen)
        elif path[0] in scope and not isinstance(value, ModuleType):
            yield from _global(function, path, scope)


def _global(function: FunctionType, path: tuple[str, ...], scope: dict[str, Any]) -> Iterator[str]:
    """A global that the function reads, by itself or as a constant of a module."""
    filename = function.__code__.co_filename
    package = function.__globals__.get("__package__") or ""
    if len(path) > 1:
        module = _resolve(path[:-1], scope)
        if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] == "triton":
            return
        filename, package = getattr(module, "__file__", None) or "", _package(module)
    yield f"global {'.'.join(path)}={_literal(filename, package, path[-1])}"


def _source(kernel: Any) -> str:
    """The source of a kernel's function. A `JITFunction` has it at hand, which saves 2 ms."""
    while not inspect.isfunction(kernel):
        if lines := getattr(kernel, "raw_src", None):
            return "".join(lines)
        kernel = kernel.fn
    return inspect.getsource(kernel)


def _definition(source: str) -> ast.FunctionDef:
    definition = ast.parse(textwrap.dedent(source)).body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError("a kernel is defined by a def statement")
    body = definition.body
    if ast.get_docstring(definition, clean=False) is not None:
        definition.body = body[1:]
    return definition


def _walk(node: ast.AST, parts: list[str]) -> list[str]:
    """Node types and non-empty fields: `ast.dump` differs between Python versions.

    Appends to a list, since nested generators cost 1 ms of a process's first launch.
    """
    parts.append(f"({type(node).__name__}")
    for name in node._fields:
        value = getattr(node, name, None)
        if name in _SKIPPED or value is None or value == []:
            continue
        parts.append(f" {name}=")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                _walk(item, parts)
            else:
                parts.append(f"{type(item).__name__}:{item!r},")
    parts.append(")")
    return parts


def _noinline(definition: ast.FunctionDef) -> str:
    # Read from the source, since the interpreter's functions do not keep the argument.
    for decorator in definition.decorator_list:
        for keyword in getattr(decorator, "keywords", []):
            if keyword.arg == "noinline":
                return ast.unparse(keyword.value)
    return "None"


def _free_names(definition: ast.FunctionDef) -> list[tuple[str, ...]]:
    """Names and dotted names that the function reads and does not bind, sorted."""
    bound: set[str] = set()
    read: set[tuple[str, ...]] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            read.add(_dotted(node))
    return sorted(path for path in read if path and path[0] not in bound)


def _dotted(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return (*base, node.attr) if base else ()
    return ()


def _scope(function: FunctionType) -> dict[str, Any]:
    closure = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    return {**function.__globals__, **closure}


def _resolve(path: tuple[str, ...], scope: dict[str, Any]) -> Any:
    value = scope.get(path[0])
    for name in path[1:]:
        if not isinstance(value, ModuleType):
            return None
        value = getattr(value, name, None)
    return value


def _jit_function(value: Any) -> FunctionType | None:
    """The Python function of a `JITFunction`, an interpreted one, or a constexpr function."""
    function = getattr(value, "fn", None)
    if isinstance(function, FunctionType) and type(value).__module__.startswith("triton."):
        return function
    return None


def _literal(filename: str, package: str, name: str) -> str:
    """The literal that a source file assigns to the name, as text, or "" for other names."""
    for _ in range(8):  # follows `from … import name`, and ends on an import cycle
        assigned = _assignments(filename, package, _stamp(filename)).get(name, "")
        if isinstance(assigned, str):
            return assigned
        module_name, name = assigned
        module = sys.modules.get(module_name)
        filename, package = getattr(module, "__file__", None) or "", _package(module)
    return ""


def _package(module: Any) -> str:
    return getattr(module, "__package__", None) or ""


def _stamp(filename: str) -> tuple[int, int]:
    """Changes with the file, so that a reloaded module's constants are read again."""
    try:
        status = os.stat(filename)  # noqa: PTH116
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _assigning(lines: list[str]) -> Iterator[str]:
    """The lines of top-level imports and assignments: parsing all of a module costs 2 ms and up."""
    wanted = False
    for line in lines:
        if line[0] not in " \t\r\n\f#)]}":
            wanted = _ASSIGNING.match(line) is not None
        if wanted:
            yield line


@functools.cache
def _assignments(
    filename: str, package: str, stamp: tuple[int, int]
) -> dict[str, str | tuple[str, str]]:
    """The top-level names of a source file: a literal's text, or where it is imported from.

    `stamp` is here for the cache, which is to forget a file that has changed.
    """
    linecache.checkcache(filename)
    lines = linecache.getlines(filename)
    try:
        tree = ast.parse("".join(_assigning(lines)))
    except SyntaxError:  # something only looked like an assignment
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            return {}
    found: dict[str, str | tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            origin = _origin(package, node)
            found.update({a.asname or a.name: (origin, a.name) for a in node.names})
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                found.update(_literals(target, node.value))
    return found


def _literals(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(target, ast.Name):
        yield target.id, _literal_text(value)
    elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for part, part_value in zip(target.elts, value.elts):
            yield from _literals(part, part_value)


def _origin(package: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _literal_text(value: ast.expr) -> str:
    if isinstance(value, ast.Call) and _dotted(value.func)[-1:] == ("constexpr",) and value.args:
        value = value.args[0]
    try:
        return repr(ast.literal_eval(value))
    except (ValueError, TypeError, SyntaxError):
        return ""


def plain_function(kernel: Any) -> FunctionType:
    """The Python function under all of Triton's wrappers."""
    while not inspect.isfunction(kernel):
        kernel = kernel.fn
    function: FunctionType = kernel
    return function
