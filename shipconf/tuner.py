"""Tune one key: candidates → compile → measure → the winner, with the reasons for the rest."""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from .bench import Bench, Timing
from .compiling import compile_all
from .configs import Choice
from .errors import TuningError
from .journal import History, Journal
from .records import Device

log = logging.getLogger("shipconf.tuner")

REACH = 1.15  # the full pass measures candidates within 15 % of the short pass's best
FINALISTS = 8
ROUNDS = 3  # in which the finalists are measured in turn
MAX_NOISE = 0.01  # a lead of more than 1 % decides, however noisy the measurement
SAY_EVERY_S = 5.0


class OutOfMemory(Exception):
    """The device has no memory left to tune with; its cause is the device's own error."""


@dataclass(frozen=True, eq=False)
class Hooks:
    """What Triton's autotuner does around each measured call, and the check of the result.

    A user's `pre_hook` and `post_hook` replace the resetting and restoring, as in Triton.
    """

    reset_to_zero: Sequence[str] = ()
    restore_value: Sequence[str] = ()
    pre_hook: Callable[..., Any] | None = None
    post_hook: Callable[..., Any] | None = None
    check: Callable[..., Any] | None = None

    @contextmanager
    def around(self, named: dict[str, Any]) -> Iterator[None]:
        """One measured call: hooks before, and after it, with its exception if it raises."""
        copies: dict[str, Any] = {}
        if self.pre_hook is not None:
            self.pre_hook(named)
        else:
            for name in _tensors(self.reset_to_zero, named):
                named[name].zero_()
            copies = {n: named[n].clone() for n in _tensors(self.restore_value, named)}
        try:
            yield
        except Exception as error:
            with suppress(Exception):  # the kernel's own error is the one to tell
                self._after(named, copies, error)
            raise
        self._after(named, copies, None)

    def _after(
        self, named: dict[str, Any], copies: dict[str, Any], error: Exception | None
    ) -> None:
        if self.post_hook is not None:
            self.post_hook(named, exception=error)
        else:
            for name, copy in copies.items():
                named[name].copy_(copy)

    @contextmanager
    def preserved(self, named: dict[str, Any]) -> Iterator[None]:
        """The whole tuning: the named tensors end as they began, whatever was measured."""
        names = list(_tensors([*self.reset_to_zero, *self.restore_value], named))
        copies = {name: named[name].clone() for name in names}
        try:
            yield
        finally:
            with suppress(Exception):  # after a fatal error nothing can be copied
                for name, copy in copies.items():
                    named[name].copy_(copy)


def _tensors(names: Sequence[str], named: Mapping[str, Any]) -> Iterator[str]:
    return (name for name in names if named.get(name) is not None)


@dataclass(frozen=True, eq=False)
class Plan:
    """A tuning to do. `launch(choice, warmup)` runs the kernel on the user's arguments.

    `candidates` are in order of preference among equals: the default and the incumbent first,
    then `configs` as declared. `default` is the one that speed-ups are told against.
    """

    kernel: str
    key: str
    device: Device
    candidates: Sequence[Choice]
    default: Choice | None
    launch: Callable[[Choice, bool], Any]
    jit: Any
    named: dict[str, Any]
    hooks: Hooks
    bench: Bench
    journal: Journal


@dataclass(eq=False)
class Outcome:
    """What a tuning found: the winner, all timings, and why other candidates have none."""

    winner: Choice
    timings: dict[Choice, Timing]
    left_out: dict[str, str]
    default_ms: float | None
    seconds: float
    compiled: Any = None


@dataclass(eq=False)
class _Progress:
    plan: Plan
    left_out: dict[str, str]
    timings: dict[Choice, Timing] = field(default_factory=dict)
    finalists: Sequence[Choice] = ()
    started: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)

    def say(self, done: int, total: int) -> None:
        if time.monotonic() - self.said > SAY_EVERY_S:
            self.said = time.monotonic()
            log.info("tuning %s: %d of %d candidates measured", self.plan.kernel, done, total)

    def error(self, what: str, *, fatal: bool = False) -> TuningError:
        plan = self.plan
        reasons = "".join(f"\n  {name}: {why}" for name, why in self.left_out.items())
        return TuningError(
            f"tuning {plan.kernel} on {plan.device} for {plan.key}: {what}{reasons}",
            kernel=plan.kernel, device=plan.device.name, key=plan.key,
            reasons=dict(self.left_out), fatal=fatal,
        )  # fmt: skip


def tune(plan: Plan) -> Outcome:
    """Measure the candidates and choose one.

    Raises `TuningError` when no candidate works or one of them broke the device's context, and
    `OutOfMemory`. The tensors named by `reset_to_zero` and `restore_value` end as they began.
    """
    history = plan.journal.start()
    progress = _Progress(plan, dict(history.left_out))
    for name, why in history.left_out.items():
        log.warning("tuning %s leaves out %s: it %s", plan.kernel, name, why)
    log.info("tuning %s on %s for %s: %d candidates", plan.kernel, plan.device, plan.key,
             len(plan.candidates))  # fmt: skip
    try:
        with plan.hooks.preserved(plan.named):
            _measure_all(progress, history)
    except Exception as error:
        if out_of_memory(error):
            raise OutOfMemory(str(error)) from error
        raise
    if not plan.candidates:
        raise progress.error("pruning left no candidate")
    if not progress.timings:
        raise progress.error("no candidate works; the reason of each:")
    outcome = _outcome(progress)
    if plan.hooks.pre_hook is not None:
        plan.hooks.pre_hook({**plan.named, **outcome.winner.flat}, reset_only=True)
    return outcome


def _measure_all(progress: _Progress, history: History) -> None:
    plan = progress.plan
    todo = [choice for choice in plan.candidates if str(choice) not in progress.left_out]
    if plan.device.backend != "interpreter":
        in_turn = any(choice.pre_hook is not None for choice in todo)
        failed = compile_all(
            todo, functools.partial(_compile, plan), plan.jit, plan.device, in_turn=in_turn
        )
        for choice, why in failed.items():
            progress.left_out[str(choice)] = why if isinstance(why, str) else reason(why)
        todo = [choice for choice in todo if str(choice) not in progress.left_out]
        log.info("tuning %s: compiled in %.1f s, %d candidates to measure", plan.kernel,
                 time.monotonic() - progress.started, len(todo))  # fmt: skip
    _warm_up(plan, todo)
    for done, choice in enumerate(todo):
        progress.say(done, len(todo))
        _measure(progress, history, choice, "short")
    if not plan.bench.single_pass and progress.timings:
        _measure_finalists(progress, history)


def _compile(plan: Plan, choice: Choice) -> Any:
    if choice.pre_hook is not None:  # it may set what is compiled: a descriptor's block, say
        choice.pre_hook({**plan.named, **choice.flat})
    return plan.launch(choice, True)


def _warm_up(plan: Plan, todo: Sequence[Choice]) -> None:
    """Bring the clock up: it has fallen while the GPU waited for the compilers."""
    if plan.bench.warm_up is None:
        return
    for choice in todo:
        named = {**plan.named, **choice.flat}
        try:
            plan.journal.running(str(choice))
            plan.bench.warm_up(functools.partial(_call, plan, choice, named))
            return
        except Exception as error:
            if out_of_memory(error) or context_is_broken(error):
                return  # the measurement of the same candidate tells
            log.debug("%s does not warm up: %r", choice, error)


def _measure_finalists(progress: _Progress, history: History) -> None:
    """Measure the finalists in turn, several rounds; of each, the fastest round counts.

    What disturbs a measurement (other processes, a falling clock) only ever slows it.
    """
    finalists = progress.finalists = _finalists(progress)
    best: dict[Choice, Timing] = {}
    for number in range(ROUNDS):
        for choice in finalists:
            _measure(progress, history, choice, f"full {number + 1}")
            if choice in progress.timings:
                timing = progress.timings[choice]
                best[choice] = min(best.get(choice, timing), timing, key=lambda t: t.median)
    for choice in finalists:
        if choice in progress.timings:
            progress.timings[choice] = best[choice]


def _finalists(progress: _Progress) -> list[Choice]:
    plan = progress.plan
    best = min(timing.median for timing in progress.timings.values())
    reached = sorted(
        (c for c, t in progress.timings.items() if t.median <= best * REACH),
        key=lambda c: progress.timings[c].median,
    )[:FINALISTS]  # fmt: skip
    if plan.default in progress.timings and plan.default not in reached:
        reached.append(plan.default)
    return [choice for choice in plan.candidates if choice in reached]


def _measure(progress: _Progress, history: History, choice: Choice, stage: str) -> None:
    """Time one candidate, or take its time from the journal; its failure becomes its reason."""
    plan, name = progress.plan, str(choice)
    if (name, stage) in history.times:
        progress.timings[choice] = Timing.of(history.times[name, stage])
        return
    named = {**plan.named, **choice.flat}
    bench = plan.bench.short if stage == "short" else plan.bench.full
    plan.journal.running(name)
    try:
        if stage == "short" and plan.hooks.check is not None:
            _check(plan, choice, named)
        timing = bench(lambda: _call(plan, choice, named))
    except (KeyboardInterrupt, SystemExit):
        plan.journal.stopped(name)
        raise
    except Exception as error:
        why = reason(error)
        if out_of_memory(error):
            plan.journal.failed(name, why)  # else the next run takes it for a death
            raise
        progress.left_out[name] = why
        progress.timings.pop(choice, None)
        fatal = plan.device.backend != "interpreter" and context_is_broken(error)
        plan.journal.failed(name, why, fatal=fatal)
        if fatal:
            raise progress.error(
                f"{name} broke the device's context ({why}). Restart the process: this "
                "candidate will be left out. Every reason:",
                fatal=True,
            ) from error
        return
    progress.timings[choice] = timing
    plan.journal.measured(name, stage, [timing.median, timing.p20, timing.p80])


def _call(plan: Plan, choice: Choice, named: dict[str, Any]) -> None:
    if choice.pre_hook is not None:
        choice.pre_hook(named)
    with plan.hooks.around(named):
        plan.launch(choice, False)


class _WrongResult(Exception):
    pass


def _check(plan: Plan, choice: Choice, named: dict[str, Any]) -> None:
    check = plan.hooks.check
    assert check is not None
    if choice.pre_hook is not None:
        choice.pre_hook(named)
    with plan.hooks.around(named):
        plan.launch(choice, False)
        if check(named) is False:  # before the hooks restore what the candidate wrote
            raise _WrongResult("check says that its output is wrong")


def _outcome(progress: _Progress) -> Outcome:
    plan = progress.plan
    timings = {c: progress.timings[c] for c in progress.finalists if c in progress.timings}
    winner = choose(plan.candidates, timings or progress.timings)
    default = progress.timings.get(plan.default) if plan.default is not None else None
    seconds = time.monotonic() - progress.started
    speed_up = default.median / progress.timings[winner].median if default else None
    log.info(
        "tuned %s on %s for %s in %.1f s: %s, %.4g ms%s", plan.kernel, plan.device, plan.key,
        seconds, winner, progress.timings[winner].median,
        f", {speed_up:.2f} times the default" if speed_up else "",
    )  # fmt: skip
    compiled = None
    if plan.device.backend != "interpreter":
        compiled = _compile(plan, winner)
    default_ms = round(default.median, 6) if default else None
    return Outcome(winner, progress.timings, progress.left_out, default_ms, seconds, compiled)


def choose(candidates: Sequence[Choice], timings: Mapping[Choice, Timing]) -> Choice:
    """The first of `candidates` among those as fast as the best, within the measured noise.

    Noise is half the spread between the best's percentiles, at most 1 %; so two runs agree, and
    a default that stands first is replaced only by a margin above the noise.
    """
    best = min(timings.values(), key=lambda timing: timing.median)
    limit = best.median * (1 + min(MAX_NOISE, best.noise))
    return next(c for c in candidates if c in timings and timings[c].median <= limit)


# --- failures --------------------------------------------------------------------------------


def reason(error: Exception) -> str:
    """One line for a candidate's failure; text only, since a traceback keeps tensors alive."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if type(error).__name__.startswith("Compil") and lines else " ".join(lines)
    name = "" if isinstance(error, _WrongResult) else f"{type(error).__name__}: "
    return f"{name}{text}"[:300]


def out_of_memory(error: BaseException) -> bool:
    """Whether the device (not a block of it) ran out of memory."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error).lower()


def context_is_broken(error: Exception) -> bool:
    """Whether the error left the GPU's context unusable: every later call then fails too."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception as later:
        log.error("the device's context is broken: %s (after %s)", later, error)
        return True
    return False
