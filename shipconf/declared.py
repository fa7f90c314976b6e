"""What source files say of their tuned kernels, read from the syntax tree without importing them.

This is how the command line knows which folder a kernel looks in. `load` imports a kernel, for
the commands that are asked to.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from .errors import ShipconfError
from .keys import folder_name
from .sources import Source

if TYPE_CHECKING:
    from .kernel import ShippedKernel

DECORATOR = "shipped_autotune"
_AUTOTUNE = "autotune"  # how decorators end that make what `adopt` takes: Triton's, and others' own
_PARAMETERS = ("configs", "key")  # those that it takes by position too


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A kernel below `shipped_autotune` in a source file, or below another `…autotune` (`adopted`).

    `source_file` is its name in the source. `key` and `nearest` are None where the code computes
    them, or whoever adopts the kernel says; `knobs` are the names that configs in the file set,
    which are no part of a key.
    """

    name: str
    function: str
    source_file: str
    key: tuple[str, ...] | None
    nearest: tuple[str, ...] | None
    knobs: frozenset[str]
    configs_dir: str | None
    adopted: bool = False

    @property
    def stem(self) -> str:
        return PurePosixPath(self.source_file).stem

    @functools.cached_property
    def folder(self) -> str:
        """The folder of the records that ship: `pkg/configs/<stem>/<kernel>`, in the source."""
        own = PurePosixPath("configs", self.stem, folder_name(self.name))
        return str(PurePosixPath(self.source_file).parent / (self.configs_dir or own))

    def mismatch(self, key: Sequence[str], nearest: Sequence[str]) -> str:
        """Why a file with these key and nearest names would not be found, or ""."""
        if self.nearest is not None and set(nearest) != set(self.nearest):
            return f"has nearest {list(nearest)}; the kernel declares {list(self.nearest)}"
        if self.key is not None and (
            set(key) - set(self.key) or set(self.key) - set(key) - self.knobs
        ):
            return f"has key {list(key)}; the kernel declares {list(self.key)}"
        return ""


def declared(source: Source) -> list[Declared]:
    """The kernels that the Python files of a source declare."""
    found: list[Declared] = []
    for name in source.names:
        if name.endswith(".py"):
            try:
                data = source.read(name)
                if _AUTOTUNE.encode() in data:
                    found += _Reader(name).read(ast.parse(data))
            except (OSError, SyntaxError, ValueError, RecursionError):
                continue  # Python will say what is wrong with it when it is imported
    return found


class _Reader:
    """Finds the decorators in one file's tree."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.called = {DECORATOR}
        self.definitions: set[str] = set()
        self.knobs: set[str] = set()

    def read(self, tree: ast.Module) -> Iterator[Declared]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self.called |= {a.asname for a in node.names if a.name == DECORATOR and a.asname}
            elif isinstance(node, ast.Call) and _name_of(node.func) == "Config":
                dicts = [argument for argument in node.args if isinstance(argument, ast.Dict)]
                self.knobs |= {text for knobs in dicts for text in map(_text, knobs.keys) if text}
        yield from self._body(tree, "")
        for node in ast.walk(tree):  # shipped_autotune(…)(kernel)
            if isinstance(node, ast.Call) and self._is_ours(node.func) and node.args:
                function = node.args[0]
                if isinstance(function, ast.Name) and function.id in self.definitions:
                    yield self._declared(node.func, function.id)

    def _body(self, parent: ast.AST, prefix: str) -> Iterator[Declared]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.FunctionDef):
                name = prefix + node.name
                self.definitions.add(node.name)
                for decorator in node.decorator_list:
                    if self._is_ours(decorator):
                        yield self._declared(decorator, name)
                    elif _is_autotune(decorator):
                        yield Declared(
                            name=name, function=name, source_file=self.name, key=None,
                            nearest=None, knobs=frozenset(), configs_dir=None, adopted=True,
                        )  # fmt: skip
                yield from self._body(node, f"{name}.<locals>.")
            elif isinstance(node, ast.ClassDef):
                yield from self._body(node, f"{prefix}{node.name}.")
            else:
                yield from self._body(node, prefix)

    def _is_ours(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and _name_of(node.func) in self.called

    def _declared(self, call: Any, function: str) -> Declared:
        given = dict(zip(_PARAMETERS, call.args))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        return Declared(
            name=_text(given.get("name")) or function,
            function=function,
            source_file=self.name,
            key=_names(given.get("key")),
            nearest=_names(given["nearest"]) if "nearest" in given else (),
            knobs=frozenset(self.knobs),
            configs_dir=_text(given.get("configs_dir")),
        )  # fmt: skip


def _is_autotune(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (_name_of(node.func) or "").endswith(_AUTOTUNE)


def is_module(name: str, module: str) -> bool:
    """Whether a source's file may be that module, as far as one of them knows its parents.

    >>> is_module("ops/gla.py", "fla.ops.gla"), is_module("src/fla/ops/gla.py", "fla.ops.gla")
    (True, True)
    """
    parts = PurePosixPath(name).with_suffix("").parts
    ours = parts[:-1] if parts[-1] == "__init__" else parts
    theirs = tuple(module.split("."))
    count = min(len(ours), len(theirs))
    return count > 0 and ours[-count:] == theirs[-count:]


def _name_of(called: ast.AST) -> str | None:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)


def _text(node: Any) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _names(node: Any) -> tuple[str, ...] | None:
    """The names of a list of entries, each a string or a pair; None if it is no such list."""
    if not isinstance(node, (ast.List, ast.Tuple)):
        return None
    names = [
        _text(entry.elts[0] if isinstance(entry, ast.Tuple) and entry.elts else entry)
        for entry in node.elts
    ]
    return tuple(dict.fromkeys(n for n in names if n)) if all(names) else None


def load(source: Source, kernel: Declared) -> ShippedKernel:
    """Import the kernel's module, as the package it belongs to, and return the kernel.

    Raises `ShipconfError` with what the import raised.
    """
    path = source.root / kernel.source_file
    parts = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(".".join(parts))
    except Exception as error:
        raise ShipconfError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(folder))
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise ShipconfError(f"{'.'.join(parts)} is imported from {module.__file__}, not {path}")
    values = list(vars(module).values())
    if kernel.adopted:
        values = [_adopted(module, kernel.function)]
    for value in values:
        while value is not None:
            if hasattr(value, "resolve_for") and value.name == kernel.name:
                shipped: ShippedKernel = value
                return shipped
            value = getattr(value, "fn", None)  # heuristics above the decorator
    raise ShipconfError(f"{path} has no kernel {kernel.name} once it is imported")


def _adopted(module: Any, function: str) -> Any:
    from .adopting import adopt

    try:
        return adopt(getattr(module, function, None))
    except (TypeError, ValueError):
        return None


def current_fingerprints(source: Source) -> dict[str, set[str | None]]:
    """The fingerprints that the source's kernels have now, by the kernel's name.

    Imports every module that declares one, and so torch and triton. Raises `ShipconfError`, but
    for kernels that are only there to be adopted.
    """
    from .fingerprint import fingerprint

    if not source.root.is_dir():
        raise ShipconfError(f"{source.root} is zipped: its kernels cannot be imported from there")
    found: dict[str, set[str | None]] = {}
    kernels = declared(source)
    for kernel in kernels:
        if "." in kernel.function:  # made by a function, or inside a class: no name to import
            continue
        try:
            found.setdefault(kernel.name, set()).add(fingerprint(load(source, kernel).fn))
        except ShipconfError:
            if not kernel.adopted:
                raise
    if not kernels:
        raise ShipconfError(f"{source.root} has no kernel made by {DECORATOR} to import")
    return found
