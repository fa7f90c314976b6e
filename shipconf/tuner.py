"""Tune one key: candidates → compile → measure → the winner, with the reasons for the rest.

On a GPU every candidate is measured with a few launches first. Those within reach of the best
are finalists, and measured in turn, on copies of the tensors at several addresses (`finals` says
who wins). Anywhere else one measurement of each is all, and decides by the same rule. `compare`
measures likewise, and chooses none.
"""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .bench import Call, Timing
from .compiling import compile_all
from .configs import Choice
from .errors import TuningError
from .failures import OutOfMemory, WrongResult, context_is_broken, out_of_memory, reason
from .finals import TIE, Comparison, Finals
from .gpu_bench import HOPELESS, GpuBench
from .journal import IN_TURN, History
from .placement import copies, release
from .plan import Outcome, Plan
from .records import OPTIONS
from .sampler import CallFailed

log = logging.getLogger("shipconf.tuner")

REACH = 1.1  # finalists are within 10 % of the best of the first measurements, which err by 4 %
MAX_NOISE = 0.01
SAY_EVERY_S = 5.0


@dataclass(eq=False)
class _Tuning:
    """A tuning under way."""

    plan: Plan
    history: History
    left_out: dict[str, str]
    compares: bool = False
    timings: dict[Choice, Timing] = field(default_factory=dict)
    winner: Choice | None = None
    compile_s: float = 0.0
    started: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)

    @property
    def best_ms(self) -> float:
        return min((timing.median for timing in self.timings.values()), default=float("inf"))

    def say(self, doing: str, done: int, total: int) -> None:
        """Tell how far it is: to people every few seconds, and always at the level of debugging,
        with the numbers in fields of their own, which a progress bar listens to."""
        now = time.monotonic()
        loud = now - self.said > SAY_EVERY_S
        if loud:
            self.said = now
        log.log(
            logging.INFO if loud else logging.DEBUG, "tuning %s: %d of %d candidates %s",
            self.plan.kernel, done, total, doing,
            extra={"key": self.plan.key, "doing": doing, "done": done, "total": total},
        )  # fmt: skip

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
    tuning = _begun(plan)
    log.info("tuning %s on %s for %s: %d candidates", plan.kernel, plan.device, plan.key,
             len(plan.candidates))  # fmt: skip
    with _preserved(plan):
        _measure_all(tuning)
        outcome = _outcome(tuning)
    if plan.hooks.pre_hook is not None:
        plan.hooks.pre_hook({**plan.arguments.named, **outcome.winner.flat}, reset_only=True)
    return outcome


def compare(plan: Plan) -> dict[Choice, Timing]:
    """The times of the candidates that work, each measured in every round of the finals.

    One that takes 1.5 times as long as the best or longer has the time of a few launches alone.
    Raises what `tune` raises, but for candidates of which none works.
    """
    tuning = _begun(plan, compares=True)
    with _preserved(plan):
        _measure_all(tuning)
    return tuning.timings


def _begun(plan: Plan, *, compares: bool = False) -> _Tuning:
    history = plan.journal.start()
    left_out = {name: why for name, why in history.left_out.items() if name != IN_TURN}
    for name, why in left_out.items():
        log.warning("tuning %s leaves out %s: it %s", plan.kernel, name, why)
    return _Tuning(plan, history, left_out, compares)


@contextmanager
def _preserved(plan: Plan) -> Iterator[None]:
    """The user's tensors end as they began. Raises `OutOfMemory` for what says so."""
    try:
        with plan.hooks.preserved(plan.arguments.named):
            yield
    except Exception as error:
        if out_of_memory(error):
            traceback.clear_frames(error.__traceback__)  # which hold copies of the tensors
            raise OutOfMemory(str(error)) from error
        raise


def _measure_all(tuning: _Tuning) -> None:
    plan = tuning.plan
    todo = [choice for choice in plan.candidates if str(choice) not in tuning.left_out]
    ready = _compiled(tuning, todo)
    for done, choice in enumerate(ready):
        tuning.say("measured", done, len(ready))
        _measure(tuning, choice)
    if isinstance(plan.bench, GpuBench) and tuning.timings:
        _hold_finals(tuning, plan.bench)


def _compiled(tuning: _Tuning, todo: Sequence[Choice]) -> list[Choice]:
    """The candidates that compile.

    All do before any is measured. Where threads compile, to measure meanwhile takes longer on the
    whole: on an H200 of 16 cores 98 candidates took 9.8 s instead of 3.8 to compile, since the
    compilers' threads and the one that launches wait for each other's GIL.
    """
    plan = tuning.plan
    if plan.device.backend == "interpreter":
        return list(todo)
    started = time.monotonic()
    in_turn = any(choice.pre_hook is not None for choice in todo)
    # The longest first: one that is begun last would be waited for alone.
    ordered = sorted(todo, key=_code_size, reverse=True)
    compiled = compile_all(ordered, plan.compile, plan.jit, plan.device, in_turn=in_turn)
    failed = set()
    for done, (choice, why) in enumerate(compiled):
        tuning.say("compiled", done, len(todo))
        if why is not None:
            failed.add(choice)
            tuning.left_out[str(choice)] = why if isinstance(why, str) else reason(why)
    tuning.compile_s = time.monotonic() - started
    return [choice for choice in todo if choice not in failed]


def _code_size(choice: Choice) -> float:
    """About how much code a candidate compiles to: the elements of its tiles for each warp."""
    sizes = [value for name, value in choice.flat.items()
             if name not in OPTIONS and type(value) is int and value > 0]  # fmt: skip
    return math.prod(sizes) / (choice.flat.get("num_warps") or 1)


# --- one candidate alone ----------------------------------------------------------------------


def _measure(tuning: _Tuning, choice: Choice) -> None:
    """Time one candidate, or take its time from the journal; its failure becomes its reason."""
    plan, name = tuning.plan, str(choice)
    if name in tuning.history.times:
        tuning.timings[choice] = Timing.of(tuning.history.times[name])
        return
    plan.journal.running(name)
    try:
        call = plan.call(choice)
        if plan.hooks.check is not None:
            _check(plan.hooks.check, call)
        if isinstance(plan.bench, GpuBench):
            timing = plan.bench.first(call, tuning.best_ms)
        else:
            timing = plan.bench.measure(call)
    except (KeyboardInterrupt, SystemExit):
        plan.journal.stopped(name)
        raise
    except Exception as error:
        _leave_out(tuning, choice, error)
        return
    tuning.timings[choice] = timing
    plan.journal.measured(name, [timing.median, timing.p20, timing.p80])


def _check(check: Callable[..., Any], call: Call) -> None:
    with call.around():
        call.launch()
        if check(call.named) is False:  # before the hooks restore what the candidate wrote
            raise WrongResult("check says that its output is wrong")


def _leave_out(tuning: _Tuning, choice: Choice, error: Exception) -> None:
    """Keep the reason of a failure. Raises where it ends the tuning."""
    journal, name, why = tuning.plan.journal, str(choice), reason(error)
    if out_of_memory(error):
        journal.failed(name, why)  # else the next run takes it for a death
        raise error
    tuning.left_out[name] = why
    tuning.timings.pop(choice, None)
    _end_if_broken(tuning, name, error)
    journal.failed(name, why)


def _end_if_broken(tuning: _Tuning, name: str, error: Exception) -> None:
    plan, why = tuning.plan, reason(error)
    if plan.device.backend == "interpreter" or not context_is_broken(error):
        return
    plan.journal.failed(name, why, fatal=True)
    tuning.left_out[name] = why
    then = "they are measured one by one" if name == IN_TURN else "this candidate is left out"
    raise tuning.error(
        f"{name} broke the device's context ({why}). Restart the process: {then} then. "
        "Every reason:",
        fatal=True,
    ) from error


# --- the finals -------------------------------------------------------------------------------


def _hold_finals(tuning: _Tuning, bench: GpuBench) -> None:
    """Measure the finalists in turn, until it is clear who wins or the time is up."""
    plan, known = tuning.plan, list(tuning.history.rounds)
    finalists = _finalists(tuning, bench.finalists(tuning.best_ms))
    kind = Comparison if tuning.compares else Finals
    finals = bench.finals(finalists, tuning.best_ms, kind)
    placements = [plan.arguments, *copies(plan.arguments)]
    try:
        bench.open_finals(
            {choice: [plan.call(choice, given) for given in placements] for choice in finals.live},
            tuning.best_ms,
        )
        while finals.live and not bench.enough(finals):
            names = {choice: str(choice) for choice in finals.live}
            if known and known[0].keys() >= set(names.values()):
                earlier = known.pop(0)
                finals.add({choice: earlier[name] for choice, name in names.items()})
                continue
            known.clear()
            tuning.say("measured, the finals under way", len(plan.candidates), len(plan.candidates))
            times = _round(tuning, bench, finals)
            for choice in finals.live[:]:
                if choice not in times:
                    finals.drop(choice)
            finals.add(times)
    finally:
        bench.close()
    del placements
    release()
    for choice, samples in finals.times.items():
        if choice in tuning.timings and samples:
            tuning.timings[choice] = Timing.of_samples(samples)
    tuning.winner = finals.winner if finals.live else None


def _finalists(tuning: _Tuning, most: int) -> list[Choice]:
    """Those within reach, and those assured. A comparison reaches further."""
    plan, timings = tuning.plan, tuning.timings
    limit_ms = tuning.best_ms * (HOPELESS if tuning.compares else REACH)
    reached = sorted(
        (choice for choice, timing in timings.items() if timing.median <= limit_ms),
        key=lambda choice: timings[choice].median,
    )[:most]  # fmt: skip
    return [c for c in plan.candidates if c in reached or (c in plan.assured and c in timings)]


def _round(tuning: _Tuning, bench: GpuBench, finals: Finals[Choice]) -> dict[Choice, list[float]]:
    """One round of the finals; of each finalist alone, where a process died in one before."""
    journal = tuning.plan.journal
    alone = IN_TURN in tuning.history.left_out
    times: dict[Choice, list[float]] = {}
    for group in [[choice] for choice in finals.live] if alone else [finals.live[:]]:
        name = str(group[0]) if alone else IN_TURN
        journal.running(name)
        try:
            times.update(_in_turn(tuning, bench, group, finals.rounds))
        except (KeyboardInterrupt, SystemExit):
            journal.stopped(name)
            raise
        except TuningError:
            raise
        except Exception as error:
            if not out_of_memory(error):
                _end_if_broken(tuning, name, error)
            journal.failed(name, reason(error))  # else the next run takes it for a death
            raise
    journal.round({str(choice): samples for choice, samples in times.items()})
    return times


def _in_turn(
    tuning: _Tuning, bench: GpuBench, group: list[Choice], number: int
) -> dict[Choice, list[float]]:
    """The times of those of the group that do not fail."""
    while group:
        try:
            return bench.round(group, number)
        except CallFailed as caught:
            failure = caught
        # Outside, where what is raised has no context: its frames hold copies of the tensors.
        error = failure.__cause__
        assert isinstance(error, Exception)
        if len(group) > 1 and not out_of_memory(error):
            # A launch that raises may be told of what another one did before it.
            _end_if_broken(tuning, IN_TURN, error)
        _leave_out(tuning, group.pop(failure.index), error)
    return {}


# --- the outcome ------------------------------------------------------------------------------


def _outcome(tuning: _Tuning) -> Outcome:
    plan, timings = tuning.plan, tuning.timings
    if not plan.candidates:
        raise tuning.error("pruning left no candidate")
    if not timings:
        raise tuning.error("no candidate works; the reason of each:")
    winner = tuning.winner or choose(plan.candidates, timings)
    default = timings.get(plan.default) if plan.default is not None else None
    seconds = time.monotonic() - tuning.started
    best_ms = timings[winner].median  # 0 where a user's clock says so
    speed_up = default.median / best_ms if default and best_ms else None
    log.info(
        "tuned %s on %s for %s in %.1f s (%.1f of them compiling): %s, %.4g ms%s", plan.kernel,
        plan.device, plan.key, seconds, tuning.compile_s, winner, best_ms,
        f", {speed_up:.2f} times the default" if speed_up else "",
    )  # fmt: skip
    interpreted = plan.device.backend == "interpreter"
    return Outcome(
        winner, timings, tuning.left_out, round(default.median, 6) if default else None, seconds,
        tuning.compile_s, None if interpreted else plan.compile(winner),
    )  # fmt: skip


def choose(candidates: Sequence[Choice], timings: Mapping[Choice, Timing]) -> Choice:
    """The first of `candidates` among those tied with the fastest, where one pass is all.

    With no rounds to compare, the tie is as wide as the fastest's own noise, but at most 1 %.
    """
    best = min(timings.values(), key=lambda timing: timing.median)
    limit_ms = best.median * (1 + min(MAX_NOISE, max(TIE, best.noise)))
    return next(c for c in candidates if c in timings and timings[c].median <= limit_ms)
