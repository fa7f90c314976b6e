"""Kernels decorated by others: what `triton.autotune` made, with a memory.

`adopt` makes a `ShippedKernel` of one. Where other modules hold the kernel already, or a program
is not to be changed at all, it is diverted: it stays the object that it is, and its launches go to
the `ShippedKernel` made of it.
"""

from __future__ import annotations

import copy
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import warn_once
from .hooks import Hooks
from .kernel import ShippedKernel
from .keys import Entry


def adopt(
    kernel: Any, *, nearest: Sequence[Entry] = (), max_distance: float = 2.0,
    default: Any = None, configs_dir: str | Path | None = None, name: str | None = None,
    check: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """A kernel decorated with `triton.autotune`, with a memory for its tuned configs.

    It keeps its candidates, key, hooks, pruning and benchmark, and the heuristics above and below
    it; entries of its key that `nearest` names move there. The rest is as in `shipped_autotune`.
    Returns a `ShippedKernel`; for a kernel with heuristics above it, the same heuristics above
    one. The kernel itself stays as it is. Raises `TypeError` for what is no such kernel.

    >>> softmax = shipconf.adopt(theirs.softmax_kernel, nearest=["M"])  # doctest: +SKIP
    """
    tuner = _autotuner(kernel)
    if tuner is None:
        raise TypeError(f"adopt needs a kernel decorated with triton.autotune, not {kernel!r}")
    near = {entry if isinstance(entry, str) else entry[0] for entry in nearest}
    shipped = ShippedKernel(
        tuner.fn, tuner.configs,
        [entry for entry in tuner.keys if entry not in near and _is_passed(entry, tuner.fn)],
        nearest=nearest, max_distance=max_distance, default=default, configs_dir=configs_dir,
        name=name, prune_configs_by=_pruning(tuner), hooks=_hooks(tuner, check),
        **_benchmark(tuner),
    )  # fmt: skip
    return _with_heuristics(kernel, tuner, shipped)


def adopt_all(package: ModuleType | str, **options: Mapping[str, Any]) -> list[Any]:
    """Divert every kernel of a package that is decorated with `triton.autotune`.

    All its modules are imported. `options` are those of `adopt`, by kernel name:
    `adopt_all(theirs, softmax_kernel={"nearest": ["M"]})`. Returns the diverted kernels.
    """
    found: dict[int, Any] = {}
    for module in _modules(package):
        for value in list(vars(module).values()):
            tuner = _autotuner(value)
            if tuner is not None and tuner.base_fn.__module__ == module.__name__:
                found[id(tuner)] = tuner
    for tuner in found.values():
        _divert(tuner, options.get(tuner.base_fn.__name__, {}))
    return list(found.values())


@dataclass(frozen=True)
class Adoption:
    """Which kernels a program's own are diverted: those in modules with one of these prefixes,
    all where there is none; and options of `adopt` by kernel name."""

    prefixes: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def wants(self, tuner: Any) -> bool:
        module = tuner.base_fn.__module__
        return not self.prefixes or any(
            module == prefix or module.startswith(f"{prefix}.") for prefix in self.prefixes
        )


@contextmanager
def adopting(adoption: Adoption) -> Iterator[None]:
    """Divert the kernels that are decorated inside the block, those of subclasses of Triton's
    `Autotuner` too."""
    from triton.runtime.autotuner import Autotuner

    made = Autotuner.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if adoption.wants(self):
            _divert(self, adoption.options.get(self.base_fn.__name__, {}))

    Autotuner.__init__ = init
    try:
        yield
    finally:
        Autotuner.__init__ = made


def _divert(tuner: Any, options: Mapping[str, Any]) -> None:
    """Have the autotuner launch through a `ShippedKernel`, made at its first launch: a subclass
    may go on changing what it is made of until then. One that cannot be made is warned of, and
    Triton tunes as before."""

    def shipped() -> Any:
        del tuner.run, tuner.warmup
        try:
            made = adopt(tuner, **options)
            made.check_heuristics()
        except (TypeError, ValueError) as error:
            name = tuner.base_fn.__qualname__
            warn_once(name, "adopt", f"{name} keeps Triton's own autotuner: {error}")
            return tuner
        tuner.shipped, tuner.run, tuner.warmup = made, made.run, made.warmup
        return made

    def run(*args: Any, **kwargs: Any) -> Any:
        return shipped().run(*args, **kwargs)

    def warmup(*args: Any, **kwargs: Any) -> Any:
        return shipped().warmup(*args, **kwargs)

    tuner.run, tuner.warmup = run, warmup


def _autotuner(kernel: Any) -> Any:
    """The `Autotuner` that a kernel is, below heuristics; else None."""
    autotuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", ())
    while type(kernel).__name__ == "Heuristics" and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel if isinstance(kernel, autotuner) else None


def _with_heuristics(kernel: Any, tuner: Any, shipped: ShippedKernel) -> Any:
    if kernel is tuner:
        return shipped
    above = copy.copy(kernel)
    above.fn = _with_heuristics(kernel.fn, tuner, shipped)
    return above


def _is_passed(entry: Any, fn: Any) -> bool:
    """Whether Triton's key would have it: what a heuristic below computes, or no argument is
    called, is left out there in silence."""
    while hasattr(fn, "values") and hasattr(fn, "fn"):
        if entry in fn.values:
            return False
        fn = fn.fn
    return entry in fn.arg_names


def _pruning(tuner: Any) -> dict[str, Any]:
    pruning = {
        "early_config_prune": tuner.early_config_prune, "perf_model": tuner.perf_model,
        "top_k": tuner.configs_top_k,
    }  # fmt: skip
    return {name: value for name, value in pruning.items() if value is not None}


def _hooks(tuner: Any, check: Callable[..., Any] | None) -> Hooks:
    """Its hooks; those that Triton makes of names to reset and restore are made anew."""
    return Hooks(
        tuple(tuner.reset_to_zero), tuple(tuner.restore_value),
        tuner.pre_hook if tuner.user_defined_pre_hook else None,
        tuner.post_hook if tuner.user_defined_post_hook else None, check,
    )  # fmt: skip


def _benchmark(tuner: Any) -> dict[str, Any]:
    times = {
        "warmup": tuner.num_warmups, "rep": tuner.num_reps,
        "use_cuda_graph": tuner.use_cuda_graph,
    }  # fmt: skip
    given = tuner.num_warmups is not None or tuner.num_reps is not None or tuner.use_cuda_graph
    # Of these three Triton makes a benchmark of its own.
    return times if given else {"do_bench": getattr(tuner, "_do_bench", None)}


def _modules(package: ModuleType | str) -> Iterator[ModuleType]:
    top = importlib.import_module(package) if isinstance(package, str) else package
    yield top
    for found in pkgutil.walk_packages(getattr(top, "__path__", []), f"{top.__name__}."):
        yield importlib.import_module(found.name)
