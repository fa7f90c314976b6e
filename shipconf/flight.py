"""Single flight: one tuning of a key among all threads and processes, and what it leaves."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import bench, files, journal, provenance, settings, stores, tuner, worker
from . import device as devices
from .configs import Choice, UnfitError, distinct, from_triton, to_triton
from .errors import LockTimeout, warn_once
from .gpu_bench import GpuBench
from .hooks import Hooks
from .keys import TIE
from .memory import Remembered
from .placement import Arguments
from .plan import Plan
from .records import Record
from .resolver import Match, Query, Request, Resolver, by_default
from .worker import Answer

if TYPE_CHECKING:
    from .kernel import ShippedKernel

RETRY_S = 300.0  # how long what a launch took in the place of another's tuning serves


class Flight:
    """Tunes one kernel: under the key's lock, with the kernel's hooks and benchmark."""

    def __init__(
        self, kernel: ShippedKernel, resolver: Resolver, hooks: Hooks,
        prune: Mapping[str, Any], *, warmup: int | None, rep: int | None, use_cuda_graph: bool,
        do_bench: Callable[..., Any] | None,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.resolver = resolver
        self.hooks = hooks
        self.prune = prune
        self.do_bench = do_bench
        self.gpu_bench = (warmup, rep, use_cuda_graph)

    def tune(self, request: Request, *, force: bool = False, exact: bool = False) -> Remembered:
        """Tune for the request's key unless another did meanwhile, and keep the record.

        With `exact`, only a record of the very point will do, and `LockTimeout` is raised where
        another tuner holds the key; a launch takes something else then. Raises `TuningError` and
        `OutOfMemory`.
        """
        query = request.query
        try:
            with self.alone(query) as journal_path:
                return self._tune_alone(request, journal_path, force, exact)
        except LockTimeout as timeout:
            if exact:
                raise
            fallback = self.resolver.last_resort(query, settings.policy())
            if fallback is not None:
                self.warn_of_failure(timeout)
                return replace(fallback, until=time.monotonic() + RETRY_S)
            if files.held_by_this_thread(self._lock_name(query)):
                raise  # tuning it again inside its own tuning would never end
            self.warn_of_failure(timeout, "a config tuned without the lock")
            return self._measure(request, None, force)

    @contextmanager
    def alone(self, query: Query) -> Iterator[Path | None]:
        """Hold the lock of the query's key. Yields the path of its journal; None where the lock
        is this process's alone, since there is no user store to lock and write in."""
        path, subject = self._lock_path(query), self.resolver.subject
        journal_path = path and stores.journal_path(subject, query.key, query.device)
        with files.lock(
            self._lock_name(query), path, settings.lock_timeout_s(),
            lambda: journal.holder(journal_path),
        ) as why:  # fmt: skip
            if why and path is not None:  # without a path, the reading of the stores warned
                self._warn_memory_only(why)
            yield None if why else journal_path

    def _tune_alone(
        self, request: Request, journal_path: Path | None, force: bool, exact: bool
    ) -> Remembered:
        query = request.query
        if not force:
            self.resolver.refresh(query.key, query.device)
            found = self.resolver.near(query)
            if found is not None and (not exact or found.match.rule == "exact"):
                return found  # another process tuned while this one waited
        with self.quiet_gpu(query):
            return self._measure(request, journal_path, force)

    def _measure(self, request: Request, journal_path: Path | None, force: bool) -> Remembered:
        query = request.query
        log = journal.Journal(journal_path, query.key.nearest, provenance.triton_version())
        plan = self.plan(request, log)
        if len(plan.candidates) == 1:
            return by_default(plan.candidates[0])
        outcome = tuner.tune(plan)
        timings = {
            to_triton(choice.flat, choice.pre_hook): [t.median, t.p20, t.p80]
            for choice, t in outcome.timings.items()
        }
        self._publish(query, outcome.winner, timings, outcome.seconds)
        record = provenance.record(
            plan, outcome, query.key.nearest, self.resolver.subject.fingerprint,
            request.bound.options,
        )  # fmt: skip
        if force:
            record = replace(record, supersedes=True)
        path = self._keep(query, record)
        if path is not None:
            plan.journal.close()
        winner = outcome.winner
        match = Match(dict(winner.flat), "tuned", "exact", record=record, path=path)
        return Remembered(winner.flat, winner.pre_hook, match)

    # --- what to measure ----------------------------------------------------------------------

    def candidates(self, request: Request) -> list[Choice]:
        """The default, the incumbent, and `configs` after pruning, each once, in this order."""
        query = request.query
        live = [from_triton(config) for config in self._pruned(request)]
        return self._distinct([self.resolver.default(query), self.resolver.incumbent(query), *live])

    def _distinct(self, choices: Sequence[Choice | None]) -> list[Choice]:
        # The interpreter's clock cannot tell launch options apart; a user's may.
        alike = self.do_bench is None and devices.interpreted(self.kernel.fn)
        return distinct(choices, ignore_options=alike)

    def _pruned(self, request: Request) -> list[Any]:
        """`configs` as `prune_configs_by` leaves them, called as Triton's autotuner calls it."""
        configs = list(self.kernel.configs)
        if len(configs) == 1:
            return configs
        nargs, kwargs = self._named_as_triton_does(request)
        if early := self.prune.get("early_config_prune"):
            configs = self._early(request, early)
        model = self.prune.get("perf_model")
        top_k = self.prune.get("top_k", 1.0)
        if model is None:
            return configs
        if isinstance(top_k, float) and top_k <= 1.0:
            top_k = max(1, int(len(configs) * top_k))
        elif not isinstance(top_k, int):
            raise TypeError("top_k must be a float of at most 1.0, or an int")
        if len(configs) <= top_k:
            return configs
        flats = {config: from_triton(config).flat for config in configs}
        return sorted(configs, key=lambda c: model(**{**nargs, **kwargs, **flats[c]}))[:top_k]

    def allows(self, request: Request, choice: Choice, distance: float) -> bool:
        """Whether `early_config_prune` lets a config that was stored for another point serve.

        It may drop configs that are wrong for a shape, not only slow ones.
        """
        early = self.prune.get("early_config_prune")
        if early is None or distance <= TIE or len(self.kernel.configs) == 1:
            return True
        live = self.resolver.knobs.live_config(choice)
        return live is None or any(config is live for config in self._early(request, early))

    def _early(self, request: Request, early: Callable[..., Any]) -> list[Any]:
        nargs, kwargs = self._named_as_triton_does(request)
        return list(early(list(self.kernel.configs), nargs, **kwargs))

    def _named_as_triton_does(self, request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
        nargs = dict(zip(self.kernel.arg_names, request.args))
        return nargs, {**request.kwargs, "grid": request.grid, "warmup": request.warmup}

    def plan(self, request: Request, log: journal.Journal) -> Plan:
        """The tuning of the request: its candidates, and how they are launched and measured."""
        from triton.runtime.jit import JITFunction

        kernel, query, jit = self.kernel, request.query, _innermost(self.kernel.fn)

        def launch(choice: Choice, given: Arguments, warmup: bool) -> Any:
            compiled = kernel.target.run(
                *given.args, grid=request.grid, warmup=warmup, **given.kwargs, **choice.flat
            )
            if warmup and compiled is None and isinstance(jit, JITFunction):
                # No launch of it would run anything.
                raise RuntimeError("triton.knobs.runtime.jit_cache_hook kept it from compiling")
            return compiled

        default, near = self.resolver.default(query), self.resolver.near(query)
        serving = None if near is None else Choice(near.flat, near.pre_hook)
        replaced = [choice.identity for choice in (default, self.resolver.incumbent(query), serving)
                    if choice is not None]  # fmt: skip
        candidates = [
            choice for choice in self._distinct([*self.candidates(request), serving])
            # Without those that failed at a launch, which would win, and fail, over and over.
            if not self.resolver.is_bad(query, choice)
        ]  # fmt: skip
        same = [c for c in candidates if default is not None and c.identity == default.identity]
        named = {**query.named, **request.bound.options}
        return Plan(
            kernel=kernel.name, key=str(query.key), device=query.device, candidates=candidates,
            default=same[0] if same else None, launch=launch,
            arguments=Arguments(request.args, request.kwargs, named), jit=jit,
            hooks=self.hooks, bench=self._bench(candidates), journal=log,
            assured=[c for c in candidates if c.identity in replaced],
        )  # fmt: skip

    def _bench(self, candidates: Sequence[Choice]) -> bench.Bench | GpuBench:
        warmup, rep, use_cuda_graph = self.gpu_bench
        if self.do_bench is not None:
            return bench.of_user(self.do_bench)
        if devices.interpreted(self.kernel.fn):
            return bench.of_interpreter()
        if use_cuda_graph:
            return bench.of_graph(rep)
        hooked = any(choice.pre_hook is not None for choice in candidates)
        return GpuBench(warmup, rep, replays=self.hooks.idle and not hooked)

    @contextmanager
    def quiet_gpu(self, query: Query) -> Iterator[None]:
        """Hold the GPU's lock: two tuners on one GPU would time each other."""
        if query.device.backend == "interpreter":
            yield
            return
        name = f"gpu-{devices.physical_id()}"
        if files.held_by_this_thread(name):  # a kernel launched inside another's tuning
            yield
            return
        # Not in the user store: ranks with a store each may share a GPU.
        path = settings.machine_dir() / f"{name}.lock"
        with files.lock(name, path, settings.lock_timeout_s()):
            yield

    # --- what a tuning leaves -----------------------------------------------------------------

    def take(self, query: Query, answer: Answer) -> None:
        """Take over what a worker tuned, as if it had been tuned here."""
        self.resolver.refresh(query.key, query.device)
        if not answer.stored and answer.record.time_ms is not None:
            self.resolver.add(query.key, query.device, answer.record, None)
        if answer.seconds is None:  # another process had tuned it
            return
        timings = {}
        for document, times_ms in answer.times_ms:
            with suppress(UnfitError):  # a knob that only the worker's own candidates have
                choice = self.resolver.knobs.accept(document, frozenset(), query.device)
                timings[to_triton(choice.flat, choice.pre_hook)] = times_ms
        with suppress(UnfitError):
            winner = self.resolver.knobs.accept(answer.record.config, frozenset(), query.device)
            self._publish(query, winner, timings, answer.seconds)

    def _keep(self, query: Query, record: Record) -> Path | None:
        """Write the record to the user store, or keep it in this process where that fails."""
        path = None
        if not query.key.storable:
            warn_once(
                self.resolver.subject.name, "not storable",
                f"{self.resolver.subject.name}: the key {query.key} has a value that no file can "
                "hold; its records stay in this process's memory",
            )  # fmt: skip
        else:
            try:
                path = stores.put(self.resolver.subject, query.key, query.device, record)
            except OSError as error:
                self._warn_memory_only(str(error))
            except RuntimeError:  # no home directory, as the reading of the stores warned
                pass
        self.resolver.add(query.key, query.device, record, path)
        return path

    def _publish(
        self, query: Query, winner: Choice, timings: dict[Any, list[float]], seconds: float
    ) -> None:
        """Tell Triton's tools, as its own autotuner does; those of the process that asked."""
        import triton

        self.kernel.configs_timings, self.kernel.bench_time = timings, seconds
        if worker.inside:
            return
        best = to_triton(winner.flat, winner.pre_hook)
        listener = getattr(triton.knobs.autotuning, "listener", None)
        if listener is not None:
            listener(
                fn=_innermost(self.kernel.fn), key=query.key.exact, best_config=best,
                configs_timings=timings, duration=seconds, cache_hit=False,
            )  # fmt: skip
        if triton.knobs.autotuning.print:
            sys.stdout.write(
                f"Triton autotuning for function {self.kernel.name},\nwith key as {query.key},\n"
                f"finished after {seconds:.2f}s,\nbest config selected: {best};\n"
            )

    def _lock_name(self, query: Query) -> str:
        subject = self.resolver.subject
        return str(self._lock_path(query) or f"{subject.identity} {query.key} {query.device.name}")

    def _lock_path(self, query: Query) -> Path | None:
        if not query.key.storable:
            return None
        try:
            return stores.lock_path(self.resolver.subject, query.key, query.device)
        except RuntimeError:  # no home directory
            return None

    def _warn_memory_only(self, why: str) -> None:
        warn_once(
            "user store", "memory only",
            f"shipconf cannot lock or write its user store, so other processes tune again: {why}",
        )  # fmt: skip

    def warn_of_failure(self, error: Exception, then: str = "a stored or default config") -> None:
        name = self.resolver.subject.name
        warn_once(name, ("tuning failed", str(error)), f"{name} launches with {then}: {error}")

    def capture_warning(self, request: Request) -> str:
        """Warn that a capture is under way, and say why that forbids tuning."""
        name = self.resolver.subject.name
        warn_once(
            name, "capture",
            f"{name}: no record for {request.query.key} while a CUDA graph is captured, where "
            f"nothing can be tuned. Call {name}.prepare(…, grid=…) before the capture",
        )  # fmt: skip
        return f"a CUDA graph is being captured: call {name}.prepare(…, grid=…) before the capture"


def _innermost(fn: Any) -> Any:
    """The JIT function below heuristics."""
    while hasattr(fn, "values") and hasattr(fn, "fn"):
        fn = fn.fn
    return fn
