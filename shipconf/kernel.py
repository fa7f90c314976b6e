"""`shipped_autotune` and the kernel it returns: bind → look up → launch."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch.compiler import is_dynamo_compiling
from triton.runtime.jit import KernelInterface, MockTensor

from . import device as devices
from . import explain, settings, sweep
from .configs import Choice, Knobs, from_triton, to_triton
from .failures import out_of_memory
from .fingerprint import plain_function
from .flight import Flight
from .hooks import Hooks
from .keys import Binder, Dtype, Entry, Value, asked_dtypes, dtypes_text
from .lookup import Lookup, Override, config_failed, is_mock, is_traced
from .memory import Memory, Remembered
from .records import Device, Record
from .resolver import Match, Query, Request, Resolver, by_default
from .settings import Policy
from .subject import Subject, subject_of
from .tracing import Tracer
from .workload import Launch, torch_dtypes

if TYPE_CHECKING:
    import torch


class _OneAtATime:
    """Launches of an interpreted kernel: Triton's interpreter keeps its state in globals."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with devices.interpreter_lock:
            return self.fn.run(*args, **kwargs)


class ShippedKernel(KernelInterface[Any]):  # type: ignore[misc]  # Triton has no types
    """A Triton kernel with a memory for its tuned configs; made by `shipped_autotune`.

    Launch it as any Triton kernel: `kernel[grid](*args, **kwargs)`.
    """

    def __init__(
        self, fn: Any, configs: Sequence[Any], key: Sequence[Entry], *,
        nearest: Sequence[Entry] = (), max_distance: float = 2.0, default: Any = None,
        configs_dir: str | Path | None = None, name: str | None = None,
        prune_configs_by: Mapping[str, Any] | None = None, hooks: Hooks = Hooks(),
        warmup: int | None = None, rep: int | None = None, use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None, valid: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        from triton import Config

        self.fn = fn
        self.base_fn = plain_function(fn)
        self.arg_names = list(fn.arg_names)
        self.keys = list(key)
        self.configs = list(configs) or [Config({})]
        self.name = name or self.base_fn.__qualname__
        functools.update_wrapper(self, self.base_fn, updated=())
        del self.__wrapped__  # tools walk `fn`; inspect must not look through to the plain function
        for what, names in (("reset_to_zero", hooks.reset_to_zero),
                            ("restore_value", hooks.restore_value)):  # fmt: skip
            _check_names(what, names, self.arg_names)
        signature = inspect.signature(self.base_fn)
        self._configs_dir = configs_dir
        self._valid = valid
        set_by_configs = {name for config in self.configs for name in config.kwargs}
        self._binder = Binder(signature, key, nearest, set_by_configs)
        self.target = _OneAtATime(fn) if devices.interpreted(fn) else fn
        self.resolver = Resolver(
            lambda: self.subject, Knobs(self.name, signature, self.configs, default),
            max_distance, default,
        )  # fmt: skip
        self.flight = Flight(
            self, self.resolver, hooks, dict(prune_configs_by or {}),
            warmup=warmup, rep=rep, use_cuda_graph=use_cuda_graph, do_bench=do_bench,
        )  # fmt: skip
        self._lookup = Lookup(self.resolver, self.flight)
        self._memory: Memory | None = None  # until the first launch, which may ask the driver
        self._overrides: list[Override] = []
        # Torch puts no interpreted kernel into a graph.
        self._tracer = (
            None if devices.interpreted(fn)
            else Tracer(fn, self._binder, self._lookup, self._check_passed, self._overrides)
        )  # fmt: skip
        self.registered_workload: Callable[..., Launch] | None = None
        self.latest: Remembered | None = None
        # What Triton's own decorator keeps under these names, for tools that read them.
        pruning = dict(prune_configs_by or {})
        self.reset_to_zero = list(hooks.reset_to_zero)
        self.restore_value = list(hooks.restore_value)
        self.perf_model, self.configs_top_k = pruning.get("perf_model"), pruning.get("top_k", 1.0)
        self.early_config_prune = pruning.get("early_config_prune")
        self.num_warmups, self.num_reps, self.use_cuda_graph = warmup, rep, use_cuda_graph
        self.cache_results = True
        self.configs_timings: dict[Any, list[float]] = {}
        self.bench_time: float | None = None

    # --- launching ----------------------------------------------------------------------------

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch with the stored config, tuning first where there is none and it is allowed.

        This is what `kernel[grid](…)` calls. With `warmup=True` only compile.
        """
        if is_dynamo_compiling() and self._tracer is not None:
            return self._trace(args, kwargs, grid)
        memory: Any = self._memory
        try:
            key = memory.key(*args, **kwargs) if kwargs else memory.positional(*args)
            known = memory.launches[key]
        except (KeyError, AttributeError, TypeError):  # of a launch with no memory yet, too
            return self._run_with_care(args, kwargs, grid, warmup)
        if (
            self._overrides
            or (known.policy is not None and not known.serves(settings.policy()))
            or (kwargs and not known.flat.keys().isdisjoint(kwargs))
        ):
            return self._run_with_care(args, kwargs, grid, warmup)
        self.latest = known  # for tools that read `best_config`; no launch depends on it
        try:
            return known.start(*args, grid=grid, warmup=warmup, **kwargs)
        except Exception as error:
            if isinstance(error, TypeError):
                self._request(args, kwargs)  # raises where the launch passes a knob by position
            if not config_failed(error, known):
                raise
            first_error = error
        return self._run_with_care(args, kwargs, grid, warmup, (known, first_error))

    def _trace(self, args: Any, kwargs: dict[str, Any], grid: Any) -> Any:
        """A launch that torch traces into a graph. Dynamo reads this."""
        assert self._tracer is not None
        override = self._overrides[-1].name if self._overrides else None
        return self._tracer.launch(args, kwargs, grid, override)

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Compile without launching: the resolved config, or every candidate on a miss.

        Arguments may be dtypes in the place of tensors, as in Triton.
        """
        mocked = map(MockTensor.wrap_dtype, args)
        compiled = self.run(*mocked, grid=grid, warmup=True, **kwargs)
        return compiled if isinstance(compiled, list) else [compiled]

    def _run_with_care(
        self, args: Any, kwargs: dict[str, Any], grid: Any, warmup: bool,
        failed: tuple[Remembered, Exception] | None = None,
    ) -> Any:  # fmt: skip
        """A launch that memory alone cannot serve: look up, launch, go on where a config fails."""
        if self._tracer is not None and not warmup and is_traced((*args, *kwargs.values())):
            return self._trace(args, kwargs, grid)
        request = self._request(args, kwargs, grid, warmup)
        return self._attempt(request, lambda known: self._start(request, known), failed)

    def _attempt(
        self, request: Request, start: Callable[[Remembered], Any],
        failed: tuple[Remembered, Exception] | None = None,
    ) -> Any:  # fmt: skip
        """`start` with one config after another, until one does not fail.

        The failed ones stay marked only where another launched. Where none did, the launch
        itself is at fault: the first error is raised, and no config pays for it.
        """
        failures = [failed] if failed is not None else []
        try:
            while True:
                if failures:
                    self._forget(request, failures[-1][0])
                found = self._find(request, failures[0][1] if failures else None)
                if isinstance(found, list):
                    return [start(by_default(choice)) for choice in found]
                try:
                    started = start(found)
                except Exception as error:
                    if not self._blames(request, found, error):
                        raise failures[0][1] if failures else error from None
                    failures.append((found, error))
                else:
                    break
        except BaseException:
            for known, _ in failures:
                self._forget(request, known)  # and what was tried in its place
                self.resolver.absolve(request.query, Choice(known.flat))
            raise
        for known, failure in failures:
            self.resolver.warn_of_bad(request.query, known, failure)
        return started

    def _blames(self, request: Request, known: Remembered, error: Exception) -> bool:
        """Whether the config is to blame for a launch that failed.

        What an unknown error means, compiling alone tells: a config of a file may be refused by
        Triton in many ways.
        """
        if config_failed(error, known):
            return True
        stored = known.match.source in ("path", "package", "user")
        if not stored or devices.interpreted(self.fn) or out_of_memory(error):
            return False
        try:
            self._start(replace(request, warmup=True), known)
        except Exception as again:
            return type(again) is type(error)
        return False

    def _start(self, request: Request, known: Remembered) -> Any:
        if known.pre_hook is not None and not (request.warmup and is_mock(request.query.named)):
            known.pre_hook({**request.query.named, **request.bound.options, **known.flat})
        return self.target.run(
            *request.args, grid=request.grid, warmup=request.warmup, **request.kwargs, **known.flat
        )

    def _request(
        self, args: Any, kwargs: dict[str, Any], grid: Any = None, warmup: bool = False
    ) -> Request:
        bound = self._binder.bind(args, kwargs)
        self._check_passed(bound.passed)
        query = Query(
            self._binder.key(bound.named), devices.current(self.fn), bound.passed, bound.named,
            lambda choice, distance: self._is_valid(choice, bound.named)
            and self.flight.allows(request, choice, distance),
            grid,
        )  # fmt: skip
        request = Request(query, bound, args, kwargs, grid, warmup)
        return request

    def _is_valid(self, choice: Choice, named: Mapping[str, Any]) -> bool:
        """Whether the author's predicate lets a stored config serve these arguments."""
        return self._valid is None or bool(self._valid(dict(choice.flat), named))

    def _check_passed(self, passed: frozenset[str]) -> None:
        self.check_heuristics()
        for knob in sorted(self.resolver.knobs.set_by_configs & passed):
            raise ValueError(
                f"{self.name}: the launch passes {knob!r}, which the configs set; drop it from "
                "one of them"
            )

    def check_heuristics(self) -> None:
        """Raise `ValueError` where a heuristic sets what the configs set, or the key reads."""
        fn = self.fn
        while hasattr(fn, "fn"):
            for name in getattr(fn, "values", {}):
                if name in self.resolver.knobs.set_by_configs:
                    raise ValueError(
                        f"{self.name}: {name!r} is set by a heuristic and by the configs; "
                        "drop it from one of them"
                    )
                if name in self._binder.key_entries or name in self._binder.nearest_entries:
                    raise ValueError(
                        f"{self.name}: key entry {name!r} is computed by a heuristic, after the "
                        f"lookup; use the pair ({name!r}, function of the named arguments)"
                    )
            fn = fn.fn

    # --- what a launch uses -------------------------------------------------------------------

    def _find(self, request: Request, error: Exception | None) -> Remembered | list[Choice]:
        """What to launch with. It is remembered, but not where the next launch may tune: after a
        capture of a CUDA graph, a warmup, a launch on tensors without data."""
        if self._overrides:
            return self._overridden(request.query)
        memory = self._memory_for(request)
        key = memory.key(*request.args, **request.kwargs)
        known = memory.launches.get(key)
        if known is not None and known.serves(settings.policy()):
            return known
        found = self._lookup.find(request, error)
        if isinstance(found, Remembered):
            self.latest = found
            passing = request.warmup or is_mock(request.query.named) or devices.capturing()
            if not passing and found.until > time.monotonic():
                self._remember(memory, key, found)
        return found

    def take_over(self, found: Remembered | None) -> None:
        """Have the next launches look up anew: a worker tuned, and `found` is what it found."""
        if self._memory is not None:  # which has what served until now
            self._memory.launches.clear()
        self.latest = found or self.latest

    def remember(self, request: Request, found: Remembered) -> None:
        """Launch with this from now on, where the request's arguments come again."""
        memory = self._memory_for(request)
        self._remember(memory, memory.key(*request.args, **request.kwargs), found)
        self.latest = found

    def _remember(self, memory: Memory, key: Any, found: Remembered) -> None:
        # A partial merges keywords faster than Python code does: 2 % of a launch.
        launch = functools.partial(self.target.run, **found.flat)
        if (hook := found.pre_hook) is None:
            memory.remember(key, replace(found, start=launch))
            return
        names, defaults = self.arg_names, self._binder.defaults

        def after_hook(*args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            named = {**defaults, **dict(zip(names, args)), **kwargs, **found.flat}
            if not (warmup and is_mock(named)):
                hook(named)
            return launch(*args, grid=grid, warmup=warmup, **kwargs)

        memory.remember(key, replace(found, start=after_hook))

    def _overridden(self, query: Query) -> Remembered:
        return self._lookup.overridden(query, self._overrides[-1])

    def _memory_for(self, request: Request) -> Memory:
        """The memory that can tell this launch from the others, made anew if it could not."""
        memory = self._memory
        if memory is None:
            alike = devices.interpreted(self.fn) or devices.all_alike()
            memory = Memory(self._binder, None if alike else devices.current_index)
        self._memory = memory = memory.learn(request.query.named)
        return memory

    def _forget(self, request: Request, known: Remembered) -> None:
        self.resolver.mark_bad(request.query, Choice(known.flat))
        memory = self._memory_for(request)
        memory.launches.pop(memory.key(*request.args, **request.kwargs), None)

    # --- asking without launching -------------------------------------------------------------

    def resolve(self, *args: Any, **kwargs: Any) -> Match | None:
        """What a launch with these arguments would use; nothing is launched, tuned or written.

        None where a launch would tune or fail. Where the default would serve (offline, say), a
        match with `source="default"`. Raises what binding the arguments raises.
        """
        request = self._request(args, kwargs, kwargs.pop("grid", None))
        if self._overrides:
            return self._match(self._overridden(request.query))
        memory = self._memory_for(request)
        known = memory.launches.get(memory.key(*args, **kwargs))
        if known is not None and known.serves(settings.policy()):
            return self._match(known)
        found = self._lookup.without_tuning(request.query, lambda: self._lookup.sole(request))
        return self._match(found)

    def resolve_for(
        self, *, dtypes: Any, device: Device | None = None, **values: Any
    ) -> Match | None:
        """`resolve` from key and nearest values alone, by name, without tensors.

        `dtypes` is one dtype (of torch or Triton, or its name) that all tensor arguments have,
        or a sequence with one for each of them, or None for a kernel without any. `device` is
        the current one if left out. Raises `TypeError` for missing or unknown values.
        """
        query = self.query_for(dtypes, device, values)
        if self._overrides:
            return self._match(self._overridden(query))
        return self._match(self._lookup.without_tuning(query, self._lookup.sole_declared))

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """`resolve` in words: the key, every place looked in, the closest records there and
        which field of each differs, and the one command that would fill the gap."""
        match = self.resolve(*args, **kwargs)
        kwargs.pop("grid", None)
        return self._explain(self._request(args, kwargs).query, match)

    def explain_for(self, *, dtypes: Any, device: Device | None = None, **values: Any) -> str:
        """`explain` from key and nearest values alone, as in `resolve_for`."""
        match = self.resolve_for(dtypes=dtypes, device=device, **values)
        return self._explain(self.query_for(dtypes, device, values), match)

    def _explain(self, query: Query, match: Match | None) -> str:
        shelf = self.resolver.shelf(query.key, query.device)
        why = "a launch would tune" if settings.policy() is Policy.TUNE else "a launch would fail"
        return explain.explanation(self.subject, query.key, query.device, shelf, match, why)

    @staticmethod
    def _match(known: Remembered | None) -> Match | None:
        match: Match | None = known.match if known is not None else None
        return match

    def query_for(self, dtypes: Any, device: Device | None, values: Mapping[str, Any]) -> Query:
        """The lookup of `resolve_for`. Raises `TypeError` for missing or unknown values."""
        entries = [*self._binder.key_entries, *self._binder.nearest_entries]
        if set(values) != set(entries):
            raise TypeError(
                f"{self.name} is looked up by {', '.join(entries) or 'no values'}; "
                f"got {', '.join(values) or 'none'}"
            )
        key = self._binder.key_of_values(values, asked_dtypes(dtypes))
        found = device if device is not None else devices.current(self.fn)
        return Query(key, found, frozenset(), values)

    # --- tuning on purpose --------------------------------------------------------------------

    def prepare(self, *args: Any, grid: Any, **kwargs: Any) -> Match:
        """Resolve, tuning if that is allowed, and compile and load, without a launch.

        Call it before capturing a CUDA graph, and before serving. The config's own `pre_hook`
        runs, since it may set what is compiled. Raises what a launch would.
        """
        request = self._request(args, kwargs, grid)
        warm = replace(request, warmup=True)
        used: list[Remembered] = []

        def compile_and_load(known: Remembered) -> None:
            compiled = self._start(warm, known)
            getattr(compiled, "_init_handles", lambda: None)()  # loads the binary
            used.append(known)

        self._attempt(request, compile_and_load)
        match: Match = used[-1].match
        return match

    def workload(self, build: Callable[..., Launch]) -> Callable[..., Launch]:
        """Register how to build a launch from key and nearest values: a decorator.

        `build` takes the values by name and `dtypes` (one `torch.dtype`, or a tuple of them) and
        returns a `Launch` with arguments of that key. `tune` and `shipconf tune` call it.
        """
        self.registered_workload = build
        return build

    if TYPE_CHECKING:

        @overload  # for one point: no value is a list
        def tune(
            self, *, dtypes: Any, force: bool = ..., within: float | None = ...,
            **values: Value | torch.dtype,
        ) -> Record: ...  # fmt: skip

        @overload
        def tune(
            self, *, dtypes: Any, force: bool = ..., within: float | None = ..., **values: Any
        ) -> list[Record]: ...

    def tune(
        self, *, dtypes: Any, force: bool = False, within: float | None = 0.03, **values: Any
    ) -> Record | list[Record]:
        """Tune for key and nearest values, through the registered workload, and keep the record.

        A nearest value may be a list: each combination is tuned, and a list of records returned.
        All winners are then measured at all tuned points, and a portfolio is kept: the fewest
        configs, at most 10, that lose at most `within` (0.03: 3 %) at each. Points and winners
        that the user store has already count too, and a single further point extends a portfolio
        that is there. With `within=None` none is measured.

        An exact record that exists already is returned as it is. With `force=True` the kernel is
        tuned all the same, and the record supersedes the one that ships with the package. On a
        GPU, a worker process measures, so that a candidate which breaks its context costs only
        itself; this process does where the kernel or its workload is defined in `__main__`.
        Raises `OfflineError` offline, `TuningError`, `LockTimeout`, and `ValueError` where there
        is no workload, it builds a launch of another key, or `within` is below 0.
        """
        if within is not None and within < 0:
            raise ValueError(f"within is a loss of 0 or more, not {within}")
        records = sweep.tune(self, dtypes, values, force=force, within=within)
        several = any(sweep.is_several(values[n]) for n in self.subject.nearest_names)
        return records if several else records[0]

    def build(self, *, dtypes: Any, **values: Any) -> Request:
        """The launch that the workload builds for the values, checked to be of that very key."""
        if self.registered_workload is None:
            raise ValueError(self.lacks_workload)
        asked = self.query_for(dtypes, None, values).key
        plain = {n: torch_dtypes(v.name) if isinstance(v, Dtype) else v for n, v in values.items()}
        launch = self.registered_workload(**plain, dtypes=torch_dtypes(dtypes))
        request = self._request(tuple(launch.args), dict(launch.kwargs), launch.grid)
        built = request.query.key
        same = dtypes_text(asked.dtypes) == dtypes_text(built.dtypes)
        if not same or (asked.exact, asked.nearest) != (built.exact, built.nearest):
            raise ValueError(f"the workload of {self.name} built {built} when asked for {asked}")
        return request

    @property
    def lacks_workload(self) -> str:
        """What to say, and to write, where there is no workload and one is needed."""
        return (
            f"{self.name} has no workload: register one with @{self.__name__}.workload, a "
            "function of the key and nearest values and dtypes that returns shipconf.Launch"
        )

    # --- what tools expect of an autotuned kernel ---------------------------------------------

    @property
    def best_config(self) -> Any:
        """The `triton.Config` of the latest lookup; `AttributeError` before the first."""
        if self.latest is None:
            raise AttributeError("best_config: the kernel has not been launched")
        return to_triton(self.latest.flat, self.latest.pre_hook)

    @property
    def cache(self) -> dict[Any, Any]:
        """The process's memory: `triton.Config` by key."""
        launches = dict(self._memory.launches) if self._memory is not None else {}
        return {key: to_triton(known.flat, known.pre_hook) for key, known in launches.items()}

    def __repr__(self) -> str:
        return f"ShippedKernel({self.base_fn.__module__}:{self.name})"

    def __reduce__(self) -> str:
        """Pickle by import path, and be copied as itself: what a function does."""
        qualified: str = self.base_fn.__qualname__
        return qualified

    @property
    def identity(self) -> str:
        """The kernel's folder in the user store: its name, and a hash of what makes it this one."""
        return self.subject.identity

    @property
    def declared(self) -> tuple[str, ...]:
        """The configs, as text."""
        return tuple(str(from_triton(config)) for config in self.configs)

    @functools.cached_property
    def subject(self) -> Subject:
        return subject_of(self.fn, self.name, self._binder, self._configs_dir)


def shipped_autotune(
    configs: Sequence[Any],
    key: Sequence[Entry],
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    *,
    nearest: Sequence[Entry] = (),
    max_distance: float = 2.0,
    default: Any = None,
    configs_dir: str | Path | None = None,
    name: str | None = None,
    check: Callable[..., Any] | None = None,
    valid: Callable[..., Any] | None = None,
) -> Callable[[Any], ShippedKernel]:
    """`triton.autotune` with a memory: decorate a `@triton.jit` kernel with it.

    A launch takes the config stored for its key in the JSON that ships with the kernel, else in
    the user's cache directory, and otherwise tunes once for all processes and keeps the result.

    Parameters up to `cache_results` mean what they mean in `triton.autotune` (`cache_results` is
    accepted and ignored: results are always kept). Those of shipconf:

    - `nearest`: entries, integers of at least 1, that a stored record need not have exactly: a
      launch takes the record of the nearest values, in octaves (`|log2(asked / tuned)|`, summed),
      at most `max_distance` away, unless `early_config_prune` drops its config here.
    - `default`: a `triton.Config`, or a function of the named arguments that returns one, to
      launch with where nothing is stored and nothing may be tuned.
    - `configs_dir`: the folder of the shipped records, relative to the kernel's source file;
      else `configs/<the source file's stem>/<the kernel's name>`.
    - `name`: the kernel's name in files; else its qualified name.
    - `check`: a function of the named arguments, called after a candidate ran, that returns False
      or raises where its output is wrong. Such candidates are left out.
    - `valid`: a function of a flat config and the named arguments that returns False where that
      config must not launch with these. No stored config that it refuses is used; where a lookup
      has the key alone (`resolve_for`), the function is not asked.

    An entry of `key` or `nearest` is an argument's name, or a pair of a name and a function of
    the named arguments.

    While tuning, the kernel runs many times on the caller's tensors. Name those it reads and
    writes in `restore_value`, those it accumulates into in `reset_to_zero`: they are restored
    before the launch itself.

    Raises `ValueError` for names that are no arguments of the kernel.

    >>> import triton, triton.language as tl
    >>> @shipped_autotune(configs=[triton.Config({"BLOCK": 128})], key=["n"])
    ... @triton.jit
    ... def scale(x_ptr, n, BLOCK: tl.constexpr):
    ...     pass  # doctest: +SKIP
    """
    hooks = Hooks(
        tuple(reset_to_zero or ()), tuple(restore_value or ()), pre_hook, post_hook, check
    )

    def decorate(fn: Any) -> ShippedKernel:
        return ShippedKernel(
            fn, configs, key, nearest=nearest, max_distance=max_distance, default=default,
            configs_dir=configs_dir, name=name, prune_configs_by=prune_configs_by, hooks=hooks,
            warmup=warmup, rep=rep, use_cuda_graph=use_cuda_graph, do_bench=do_bench, valid=valid,
        )  # fmt: skip

    return decorate


@contextmanager
def override(kernel: ShippedKernel, config: Any) -> Iterator[None]:
    """Launch the kernel with this config inside the block, on every thread of the process.

    `config` is a `triton.Config` or a flat dict of knobs and launch options. It beats every
    lookup. A launch raises `ValueError` where the config does not fit the kernel.

    >>> with override(scale, {"BLOCK": 256, "num_warps": 8}):  # doctest: +SKIP
    ...     scale[grid](x, n)
    """
    if not isinstance(kernel, ShippedKernel):
        raise TypeError(f"override needs a kernel made by shipped_autotune, not {kernel!r}")
    choice = Choice(dict(config)) if isinstance(config, Mapping) else from_triton(config)
    entry = Override(choice)
    kernel._overrides.append(entry)
    try:
        yield
    finally:
        kernel._overrides.remove(entry)


def _check_names(what: str, names: Sequence[str], valid: Sequence[str]) -> None:
    unknown = [name for name in names if name not in valid]
    if unknown:
        raise ValueError(
            f"{what} names {', '.join(map(repr, unknown))}, which are no arguments of the kernel; "
            f"its arguments are: {', '.join(valid)}"
        )
