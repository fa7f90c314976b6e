"""The house: imports point one way, and each liberty has one owner. All from the syntax tree."""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shipconf

PACKAGE = Path(shipconf.__file__).parent

# From the bottom up. A module imports modules of lower layers only; function-level imports count.
# `cli` and `interop` are packages: their own modules may import one another.
LAYERS = [
    {"forks"},
    {"errors", "fingerprint", "keys", "scopes", "settings", "targets"},
    {"portfolio"},
    {"files", "globs", "hoisting", "memory", "records", "sources", "subject", "workload"}
    | {"children", "hooks", "failures", "finals", "placement", "ranges"},
    {
        "compiling",
        "cover",
        "device",
        "journal",
        "misses",
        "occupancy",
        "programs",
        "splicing",
        "stores",
        "worker",
    },
    {"bench", "choice", "configs", "environment", "vendor"},
    {"quality"},
    {"sampler"},
    {"explain", "foresight", "gpu_bench"},
    {"plan"},
    {"tuner"},
    {"resolver", "provenance"},
    {"flight"},
    {"lookup", "tuning"},
    {"crosstab"},
    {"sweep"},
    {"tracing"},
    {"kernel", "serving", "points"},
    {"reading", "adopting"},
    {"interop"},
    {"inventory"},
    {"selection", "declared", "clearing"},
    {"union"},
    {"draft"},
    {"builds", "homes", "imports", "merge"},
    {"export"},
    {"flat_export"},
    {"reach"},
    {"appraisal", "grid", "inspection"},
    {"recompile", "remeasure", "tabled"},
    {"verify"},
    {"cli"},
    {"__main__"},
]
# The modules that may import torch and triton when they are imported themselves.
TOP_LEVEL_TORCH = {"kernel"}

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING:`, which never run."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        for child in node.orelse:
            yield from walk(child)
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from walk(child)


def imports(name: str, path: Path, nodes: Iterator[ast.AST]) -> set[str]:
    """The dotted names that a module imports, shipconf's own with `shipconf.` in front."""
    package = ["shipconf", *name.split(".")]
    if path.name != "__init__.py":
        package.pop()
    if name == "__init__":
        package = ["shipconf"]
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                is_module = inner.removeprefix("shipconf.") in MODULES
                found.add(inner if origin.startswith("shipconf") and is_module else origin)
    return found


def own_imports(name: str) -> set[str]:
    """The modules of shipconf that a module imports anywhere."""
    found = imports(name, MODULES[name], walk(tree(MODULES[name])))
    return {dotted.removeprefix("shipconf.") for dotted in found if dotted.startswith("shipconf.")}


def layer(name: str) -> int:
    top = name.partition(".")[0]
    return next((i for i, names in enumerate(LAYERS) if top in names), -1)


IMPORTING = [name for name in MODULES if name != "__init__"]


def test_every_module_has_a_layer():
    """A new module is put into `LAYERS` by whoever adds it."""
    assert [name for name in IMPORTING if layer(name) < 0] == []


@pytest.mark.parametrize("name", IMPORTING)
def test_imports_point_down(name):
    """cli → package, kernel → tuner, stores → … → records, keys → settings, errors."""
    top = name.partition(".")[0]
    wrong = [
        other for other in own_imports(name)
        if layer(other) >= layer(name) and other.partition(".")[0] != top
    ]  # fmt: skip
    assert wrong == []


def test_the_walk_sees_imports():
    """The tests above would pass on a walk that finds nothing."""
    assert {"keys", "records", "files", "settings", "subject"} <= own_imports("stores")
    assert "keys" in own_imports("explain")  # inside a function
    assert "resolver" not in own_imports("explain")  # for types only
    edges = sum(len(own_imports(name)) for name in IMPORTING)
    assert edges > 60


def test_no_import_goes_in_a_circle():
    graph = {name: own_imports(name) for name in IMPORTING}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_the_package_itself_imports_no_module():
    """`import shipconf` is free: public names load when they are first used."""
    assert own_imports("__init__") == set()
    assert imports("__init__", MODULES["__init__"], walk(tree(MODULES["__init__"]))) == {
        "__future__", "typing", "importlib",
    }  # fmt: skip


def users_of(*tops: str) -> set[str]:
    """The modules that import one of the packages, anywhere in them."""
    return {
        name
        for name, path in MODULES.items()
        if {dotted.partition(".")[0] for dotted in imports(name, path, walk(tree(path)))}
        & set(tops)
    }


def test_torch_and_triton_are_imported_where_they_are_used():
    """Not at the top of what the command line needs; the kernel is a Triton kernel by itself."""
    at_top = {
        name
        for name, path in MODULES.items()
        if {dotted.partition(".")[0] for dotted in _top_imports(name, path)} & {"torch", "triton"}
    }
    assert at_top <= TOP_LEVEL_TORCH
    assert "device" in users_of("triton") and "device" not in at_top


def _top_imports(name: str, path: Path) -> set[str]:
    """What importing the module imports: everything outside functions."""

    def outside(node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        yield node
        for child in ast.iter_child_nodes(node):
            yield from outside(child)

    return imports(name, path, outside(tree(path)))


@pytest.mark.parametrize(
    "name",
    [
        *("keys", "records", "errors", "settings", "fingerprint", "memory", "sources"),
        *("portfolio", "occupancy", "choice", "cover", "quality"),
    ],
)
def test_the_lowest_modules_need_the_standard_library_only(name):
    outside = {
        dotted.partition(".")[0]
        for dotted in imports(name, MODULES[name], walk(tree(MODULES[name])))
    } - {"shipconf", *sys.stdlib_module_names}
    assert outside == ({"platformdirs"} if name == "settings" else set())


def test_only_files_uses_filelock():
    assert users_of("filelock", "fcntl") == {"files"}


def test_only_the_settings_read_the_environment():
    readers = set()
    for name, path in MODULES.items():
        for node in walk(tree(path)):
            attribute = isinstance(node, ast.Attribute) and node.attr in (
                "environ", "environb", "getenv", "putenv",
            )  # fmt: skip
            imported = isinstance(node, ast.ImportFrom) and node.module == "os" and any(
                alias.name in ("environ", "getenv") for alias in node.names
            )  # fmt: skip
            if attribute or imported:
                readers.add(name)
    assert readers == {"settings"}


def test_only_the_command_line_prints():
    printers = set()
    for name, path in MODULES.items():
        for node in walk(tree(path)):
            if isinstance(node, ast.Name) and node.id == "print":
                printers.add(name.partition(".")[0])
    assert printers == {"cli"}


def test_every_module_says_what_it_is_for():
    for name, path in MODULES.items():
        assert ast.get_docstring(tree(path)), name
