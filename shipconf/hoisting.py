"""Several modules made into one: what is reached from some names, and what it is called there.

Names change only where they would clash: those that two modules define, and functions that are
called through their module (`stores.read` becomes `stores_read`). Methods that nothing names
are left out, but for those of the classes asked for.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from .scopes import FUNCTIONS, global_names

Address = tuple[str, str]  # a module's name, and a name that it defines at its top


class HoistingError(ValueError):
    """A module that cannot be made part of another as it is written."""


@dataclass(eq=False)
class Module:
    """A module's source, and what the names at its top stand for.

    `imported` maps a name to the definition of another module, `modules` to another module,
    `outside` to the statement that imports it from elsewhere. `effects` are statements that
    define nothing and run when the module is imported; `needs` the modules that run before it.
    """

    name: str
    source: str
    tree: ast.Module = field(init=False)
    defined: dict[str, ast.stmt] = field(default_factory=dict)
    imported: dict[str, Address] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    outside: dict[str, str] = field(default_factory=dict)
    effects: list[ast.stmt] = field(default_factory=list)
    needs: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.source)
        for node in self.tree.body[1:]:  # after the docstring
            self._take(node)
        for part in ast.walk(self.tree):
            if isinstance(part, ast.ImportFrom) and part.level:
                self._import(part, runs_before=part in self.tree.body)

    def _take(self, node: ast.stmt) -> None:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            self.defined[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if not isinstance(target, ast.Name):
                    raise HoistingError(f"{self.name}:{node.lineno} assigns to no plain name")
                self.defined[target.id] = node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                self.outside[bound] = ast.unparse(ast.Import([alias]))
        elif isinstance(node, ast.ImportFrom):
            for alias in [] if node.level else node.names:
                statement = ast.unparse(ast.ImportFrom(node.module, [alias], 0))
                self.outside[alias.asname or alias.name] = statement
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            self.effects.append(node)

    def _import(self, node: ast.ImportFrom, *, runs_before: bool) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if node.module:
                self.imported[name] = (node.module, alias.name)
            else:
                self.modules[name] = alias.name
            if runs_before:
                self.needs.add(node.module or alias.name)


class Hoist:
    """The definitions that are reached from `roots`, over all of `modules` (name to source).

    `instead` maps definitions and methods (`flight.Flight.tune`) to those that take their place.
    `defined` has the address of each definition with its new name, `outside` the imports. Raises
    `HoistingError` for what cannot be moved faithfully.
    """

    def __init__(
        self, modules: Mapping[str, str], roots: Collection[Address], instead: Mapping[str, str]
    ) -> None:
        self.modules = {name: Module(name, source) for name, source in modules.items()}
        self.roots = frozenset(roots)
        self.instead = instead
        self.outside: dict[str, str] = {}
        self._reached: dict[Address, None] = {}
        self._qualified: set[Address] = set()  # called through their module
        self._attributes: set[str] = set()
        self._scanned: set[ast.AST] = set()
        for address in roots:
            self._reach(address)
        while sum(self._scan(*found) for a in list(self._reached) for found in self.methods(a)):
            pass  # each round may name methods of classes that were scanned before
        self.defined = self._named()

    def methods(self, address: Address) -> Iterator[tuple[Module, ast.stmt]]:
        """The methods of a class that are kept, each with the module that it is written in."""
        home = self.modules[address[0]]
        node = home.defined[address[1]]
        for method in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(method, FUNCTIONS) and self._keeps(address, method.name):
                yield self.in_place_of(home, f"{address[1]}.{method.name}", method)

    def in_place_of(self, home: Module, name: str, method: ast.stmt) -> tuple[Module, ast.stmt]:
        """What `instead` has for a method, with its module, or the method as it is."""
        if f"{home.name}.{name}" not in self.instead:
            return home, method
        module, owner, other = self.instead[f"{home.name}.{name}"].split(".")
        node = self.modules[module].defined[owner]
        assert isinstance(node, ast.ClassDef)
        found = [p for p in node.body if isinstance(p, FUNCTIONS) and p.name == other]
        return self.modules[module], found[0]

    def meant(self, module: Module, name: ast.Name, attribute: ast.Attribute | None) -> (
        Address | None
    ):  # fmt: skip
        """The definition that a name in a module, or an attribute of it, stands for, if any."""
        if attribute is not None and name.id in module.modules:
            address = (module.modules[name.id], attribute.attr)
        elif name.id in module.defined:
            address = (module.name, name.id)
        elif name.id in module.imported:
            address = module.imported[name.id]
        else:
            return None
        other, _, new = self.instead.get(".".join(address), "").partition(".")
        replaces = other != "" and (other != module.name or other == address[0])
        return (other, new) if replaces else address  # what replaces may call what it replaces

    # --- what is reached ----------------------------------------------------------------------

    def _reach(self, address: Address) -> None:
        if address in self._reached:
            return
        module = self.modules[address[0]]
        if address[1] not in module.defined:
            raise HoistingError(f"{address[0]} defines no {address[1]}")
        self._reached[address] = None
        node = module.defined[address[1]]
        whole: list[ast.AST] = [node]
        if isinstance(node, ast.ClassDef):
            own = [part for part in node.body if not isinstance(part, FUNCTIONS)]
            whole = [*node.bases, *node.keywords, *node.decorator_list, *own]
        for part in [*whole, *module.effects]:
            self._scan(module, part)

    def _scan(self, module: Module, node: ast.AST) -> bool:
        """Reach what the node names; False where that was done before."""
        if node in self._scanned:
            return False
        self._scanned.add(node)
        for name, attribute in global_names(node):
            address = self.meant(module, name, attribute)
            if address is not None:
                if name.id in module.modules:
                    self._qualified.add(address)
                self._reach(address)
            elif name.id in module.outside:
                statement = module.outside[name.id]
                if self.outside.setdefault(name.id, statement) != statement:
                    raise HoistingError(f"{name.id} is {statement} in {module.name} alone")
        self._attributes |= {p.attr for p in ast.walk(node) if isinstance(p, ast.Attribute)}
        return True

    def _keeps(self, address: Address, method: str) -> bool:
        asked = address in self.roots and not method.startswith("_")
        return asked or method in self._attributes or method.startswith("__")

    # --- what it is called --------------------------------------------------------------------

    def _named(self) -> dict[Address, str]:
        times = Counter(name for _, name in self._reached)
        taken = {
            part.id if isinstance(part, ast.Name) else part.arg
            for module in self.modules.values()
            for part in ast.walk(module.tree)
            if isinstance(part, (ast.Name, ast.arg))
        }
        names = {}
        for address in self._reached:
            module, name = address
            # A local variable may have the name of a function called through its module.
            hidden = address in self._qualified and name == name.lower()
            if times[name] > 1 or hidden or name in self.outside:
                new = f"{'_' if name.startswith('_') else ''}{module}_{name.lstrip('_')}"
                if address in self.roots or new in taken:
                    raise HoistingError(f"{module}.{name} cannot be called {new}")
                name = new
            names[address] = name
        return names
