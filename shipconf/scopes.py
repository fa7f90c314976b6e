"""Which names of a piece of source mean what its module defines, and which are local."""

from __future__ import annotations

import ast
from collections.abc import Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef, *_COMPREHENSIONS)


def global_names(node: ast.AST) -> Iterator[tuple[ast.Name, ast.Attribute | None]]:
    """The names in a statement at the top of a module, or in a method, that no scope in it binds.

    Each comes with the attribute taken of it, if there is one. Relative imports bind nothing:
    whoever asks has put what they import at the top.
    """
    yield from _walk(node, [], None)


def _walk(
    node: ast.AST, scopes: list[tuple[set[str], bool]], attribute: ast.Attribute | None
) -> Iterator[tuple[ast.Name, ast.Attribute | None]]:
    if isinstance(node, ast.Name):
        if not _is_local(node.id, scopes):
            yield node, attribute
    elif isinstance(node, _SCOPES):
        inside, outside = _parts(node)
        for part in outside:
            yield from _walk(part, scopes, None)
        scope = (_bound(node), isinstance(node, ast.ClassDef))
        for part in inside:
            yield from _walk(part, [*scopes, scope], None)
    else:
        for part in ast.iter_child_nodes(node):
            yield from _walk(part, scopes, node if isinstance(node, ast.Attribute) else None)


def _is_local(name: str, scopes: list[tuple[set[str], bool]]) -> bool:
    # The names of a class are seen in its body, and not in its methods.
    visible = [bound for bound, of_class in scopes[:-1] if not of_class]
    return any(name in bound for bound in [*visible, *(bound for bound, _ in scopes[-1:])])


def _parts(node: ast.AST) -> tuple[list[ast.AST], list[ast.AST]]:
    """What is evaluated inside the scope of a node, and what around it."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        inside: list[ast.AST] = list(node.body)
    elif isinstance(node, ast.Lambda):
        inside = [node.body]
    else:
        inside = list(ast.iter_child_nodes(node))
    return inside, [part for part in ast.iter_child_nodes(node) if part not in inside]


def _bound(node: ast.AST) -> set[str]:
    """The names that the scope of a node binds."""
    arguments = getattr(node, "args", None)
    every = ast.walk(arguments) if isinstance(arguments, ast.arguments) else ()
    bound = {part.arg for part in every if isinstance(part, ast.arg)}
    shared: set[str] = set()
    for part in _own(node):
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            bound.add(part.id)
        elif isinstance(part, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler)):
            bound |= {part.name} if part.name else set()
        elif isinstance(part, ast.Import) or (isinstance(part, ast.ImportFrom) and not part.level):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in part.names}
        elif isinstance(part, (ast.Global, ast.Nonlocal)):
            shared.update(part.names)
    return bound - shared


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without what is inside the scopes in it."""
    for part in _parts(node)[0]:
        yield from _shallow(part)


def _shallow(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, _SCOPES):
        return
    for part in ast.iter_child_nodes(node):
        yield from _shallow(part)
