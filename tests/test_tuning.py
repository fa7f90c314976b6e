"""A tuning: what is measured, what wins, what is kept, and how it fails."""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kernels
import pytest
import torch
import triton
from hypothesis import given
from hypothesis import strategies as st
from kernels import BLOCKS, Trial, configs
from packages import files_in, package, record, records_in, shelf, write

import shipconf
from shipconf import Device, ShipconfWarning, TuningError, tuner
from shipconf.bench import Call, Timing
from shipconf.configs import Choice
from shipconf.failures import OutOfMemory
from shipconf.finals import LEAST_ROUNDS
from shipconf.gpu_bench import GpuBench
from shipconf.hooks import Hooks
from shipconf.journal import Journal
from shipconf.placement import Arguments
from shipconf.plan import Outcome, Plan
from shipconf.records import OPTIONS
from shipconf.sampler import CallFailed

# --- what wins --------------------------------------------------------------------------------


def test_the_fastest_candidate_wins_and_every_time_is_kept():
    trial = Trial(times={16: 3.0, 32: 1.0, 64: 2.0})
    assert trial.launch(8, 8) == 32
    assert [times[0] for times in trial.kernel.configs_timings.values()] == [3.0, 1.0, 2.0]


def noisy(times: dict[int, list[float]], **options: Any) -> Trial:
    """A trial whose clock answers with quantiles."""

    def do_bench(fn: Any, quantiles: Any) -> list[float]:
        fn()
        block = int(trial.out[0])
        trial.measured.append(block)
        return times[block]

    trial = Trial(do_bench=do_bench, **options)
    return trial


def test_among_those_within_1_percent_the_first_declared_wins():
    """Case 36: however noisy or quiet they seem, so two runs agree."""
    spread = {16: [1.009, 0.95, 1.06], 32: [1.0, 0.95, 1.05], 64: [1.005, 0.95, 1.05]}
    assert noisy(spread).launch(8, 8) == 16
    beyond = {16: [1.02, 0.95, 1.05], 32: [1.0, 0.95, 1.05], 64: [1.005, 0.95, 1.05]}
    assert noisy(beyond, name="beyond").launch(8, 8) == 32
    quiet = {16: [1.002, 1.002, 1.002], 32: [1.0, 1.0, 1.0], 64: [1.0, 1.0, 1.0]}
    assert noisy(quiet, name="quiet").launch(8, 8) == 16


@given(
    jitter=st.lists(st.floats(-0.004, 0.004), min_size=6, max_size=6),
    order=st.permutations(BLOCKS),
)
def test_two_noisy_runs_choose_the_same_config(jitter, order):
    """Case 36: medians that wobble by less than the spread they report."""
    chosen = []
    candidates = [Choice({"BLOCK": block}) for block in order]
    for noise in (jitter[:3], jitter[3:]):
        timings = {choice: Timing(1 + part, 0.95, 1.05) for choice, part in zip(candidates, noise)}
        chosen.append(tuner.choose(candidates, timings).flat["BLOCK"])
    assert chosen == [order[0], order[0]]


def test_the_default_is_replaced_only_by_a_real_margin():
    equal = {16: [1.0, 0.9, 1.1], 32: [1.0, 0.9, 1.1], 64: [1.005, 0.9, 1.1]}
    trial = noisy(equal, default=configs([64])[0])
    assert trial.launch(8, 8) == 64
    assert trial.measured == [64, 16, 32]


def test_the_default_and_the_incumbent_are_candidates_and_measured_once(tmp_path, store):
    """Each once, though `configs` have them too; the speed-up is told against the default."""
    trial = Trial(default=configs([32])[0], times={16: 1.0, 32: 4.0, 64: 2.0})
    assert trial.launch(8, 8) == 16
    assert trial.measured == [32, 16, 64]
    (kept,) = records_in(store)
    assert kept["default_ms"] == 4.0 and kept["candidates"] == 3


def test_a_default_of_a_function_is_a_candidate_too():
    trial = Trial(default=lambda a: configs([a["M"]])[0])
    assert trial.launch(8, 128) == 128
    assert trial.measured == [128, *BLOCKS]


# --- candidates that fail ---------------------------------------------------------------------


def test_a_candidate_that_raises_is_left_out_with_its_reason_as_text(store):
    """Case 30: any exception; one line in the record, under the candidate's name."""
    trial = Trial(times={32: OSError("no such\nclock"), 64: MemoryError()})
    assert trial.launch(8, 8) == 16
    (kept,) = records_in(store)
    assert list(kept["left_out"].items()) == [
        ("BLOCK=32, num_warps=4, num_stages=3, num_ctas=1", "OSError: no such clock"),
        ("BLOCK=64, num_warps=4, num_stages=3, num_ctas=1", "MemoryError: "),
    ]


def test_a_kernel_that_raises_for_a_candidate_is_its_reason(store):
    assert Trial(kernels.picky).launch(8, 8, BAD=64) == 32
    (kept,) = records_in(store)
    ((name, why),) = kept["left_out"].items()
    assert name.startswith("BLOCK=64") and "this block fails" in why


def test_a_failure_keeps_no_tensor_alive():
    """Case 30: text, no traceback; a failed candidate's gigabytes are free again."""

    class Big(RuntimeError):
        pass

    gone: list[weakref.ref[Any]] = []

    def do_bench(fn: Any, quantiles: Any) -> float:
        fn()
        if int(trial.out[0]) == 32:
            big = torch.zeros(1000)
            gone.append(weakref.ref(big))
            raise Big("too big")
        return 1.0

    trial = Trial(do_bench=do_bench)
    trial.launch(8, 8)
    gc.collect()
    assert gone[0]() is None


def test_all_candidates_failing_raises_with_every_reason_and_persists_nothing(store):
    """Case 31."""
    trial = Trial(times={block: OSError(f"reason {block}") for block in BLOCKS})
    with pytest.raises(TuningError) as caught:
        trial.launch(8, 8)
    error = caught.value
    assert len(error.reasons) == 3 and not error.fatal
    assert (error.kernel, error.device) == ("told", "interpreter")
    for block in BLOCKS:
        assert f"OSError: reason {block}" in str(error)
    assert records_in(store) == []
    with pytest.raises(TuningError):
        trial.launch(8, 8)  # and is tried again, since nothing is known


def test_all_candidates_failing_launches_what_is_stored_far_or_the_default(tmp_path, store):
    """Case 31: unless step 6 of the lookup has something that runs. Warned, once."""
    trial = Trial(
        times={block: OSError("no") for block in (*BLOCKS, 128)}, default=configs([128])[0]
    )
    with pytest.warns(ShipconfWarning) as caught:
        assert [trial.launch(8, 8), trial.launch(8, 8)] == [128, 128]
    assert sum("no candidate works" in str(w.message) for w in caught) == 1
    assert records_in(store) == []
    assert trial.measured == [128, *BLOCKS]  # not tried again in this process


# --- out of memory ----------------------------------------------------------------------------


def oom() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def test_out_of_memory_launches_the_default_with_a_warning_and_persists_nothing(store):
    """Case 37: no candidate's fault; the machine may be free again tomorrow."""
    trial = Trial(times={32: oom()}, default=configs([16])[0])
    with pytest.warns(ShipconfWarning) as caught:
        assert trial.launch(8, 8) == 16
    assert any("out of memory" in str(warning.message) for warning in caught)
    assert trial.measured == [16, 32]  # it stops: the rest would fare no better
    assert records_in(store) == []


def test_out_of_memory_launches_the_nearest_record(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(128, M=8))
    trial = Trial(module.told, times={16: oom()})
    with pytest.warns(ShipconfWarning):
        assert trial.launch(8, 4096) == 128


def test_out_of_memory_with_nothing_to_fall_back_on_is_raised_as_it_is(store):
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        Trial(times={32: oom()}).launch(8, 8)
    assert records_in(store) == []


def test_out_of_memory_is_no_death_of_the_candidate(store):
    """Twice out of memory in a row, and the candidate is measured all the same in the third."""
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            Trial(times={64: oom()}).launch(8, 8)
    assert Trial().launch(8, 8) == 64
    assert records_in(store)[0]["left_out"] == {}


# --- the journal ------------------------------------------------------------------------------


def test_a_tuning_that_ends_leaves_no_journal(store):
    Trial().launch(8, 8)
    assert [name for name in files_in(store) if name.endswith(".journal")] == []
    assert [name for name in files_in(store) if name.endswith(".tmp")] == []


def test_a_tuning_that_is_interrupted_resumes_with_what_was_measured(store):
    """Ctrl-C in the middle: the finished measurements are not made again."""
    trial = Trial(times={64: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        trial.launch(8, 8)
    assert [name for name in files_in(store) if name.endswith(".journal")]
    assert [name for name in files_in(store) if name.endswith(".json")] == []
    again = Trial()
    assert again.launch(8, 8) == 64
    assert again.measured == [64]
    (kept,) = records_in(store)
    assert kept["candidates"] == 3
    assert [name for name in files_in(store) if name.endswith(".journal")] == []


def test_a_journal_is_of_one_point():
    """Measurements at M=8 say nothing of M=4096."""
    with pytest.raises(KeyboardInterrupt):
        Trial(times={64: KeyboardInterrupt()}).launch(8, 8)
    again = Trial()
    again.launch(8, 4096)
    assert again.measured == list(BLOCKS)


def test_a_journal_cut_short_is_read_as_far_as_it_goes(store):
    with pytest.raises(KeyboardInterrupt):
        Trial(times={64: KeyboardInterrupt()}).launch(8, 8)
    (journal,) = Path(store).rglob("*.journal")
    lines = journal.read_bytes().splitlines(keepends=True)
    assert json.loads(lines[-2])["event"] in ("measured", "running")
    journal.write_bytes(b"".join(lines[:-2]) + b'{"event": "meas\xff')
    again = Trial()
    assert again.launch(8, 8) == 64
    assert len(again.measured) in (1, 2)


# --- a GPU's tuning, with the GPU stood in for --------------------------------------------------


class StandIn(GpuBench):
    """A few launches of each candidate and finals in turn, with times in ms from tables."""

    def __init__(self, first: dict[int, Any], rounds: dict[int, Any] | None = None) -> None:
        super().__init__(None, None, replays=False)
        self.tables = {"first": first, "round": rounds or {}}
        self.now = 0
        self.passes: list[tuple[str, int]] = []

    def first(self, call: Call, best_ms: float) -> Timing:
        return Timing.of_samples([self.time("first", call)])

    def round(self, finalists: Any, number: int) -> dict[Any, list[float]]:
        times = {}
        for index, finalist in enumerate(finalists):
            calls = self._calls[finalist]
            try:
                times[finalist] = [self.time("round", calls[number % len(calls)])]
            except RuntimeError as error:
                if "illegal" in str(error):  # which a GPU tells only when it is waited for
                    raise
                raise CallFailed(index) from error
        return times

    def time(self, stage: str, call: Call) -> float:
        call()
        self.passes.append((stage, self.now))
        table = self.tables[stage]
        time = table.get(self.now, self.tables["first"][self.now])
        if isinstance(time, list):
            time = time.pop(0) if len(time) > 1 else time[0]
        if isinstance(time, BaseException):
            raise time
        return float(time)

    def measured(self, stage: str) -> list[int]:
        return [block for name, block in self.passes if name == stage]


def choice(block: int, warps: int = 4) -> Choice:
    return Choice({"BLOCK": block, "num_warps": warps, "num_stages": 3, "num_ctas": 1})


def plan(bench: StandIn, blocks: Any = BLOCKS, *, path: Path | None = None, launch: Any = None,
         default: int | None = None, assured: Sequence[int] = ()) -> Plan:  # fmt: skip
    candidates = [choice(block) for block in blocks]

    def run(candidate: Choice, arguments: Arguments, warmup: bool) -> None:
        if not warmup:
            bench.now = candidate.flat["BLOCK"]
        if launch is not None:
            launch(candidate.flat["BLOCK"], warmup)

    return Plan(
        kernel="told", key="N=8", device=Device("cuda", "NVIDIA H200", "sm_90", 132, 232448),
        candidates=candidates, default=next((c for c in candidates if c.flat["BLOCK"] == default),
        None), launch=run, arguments=Arguments((), {}, {}), jit=kernels.told, hooks=Hooks(),
        bench=bench, journal=Journal(path, {"M": 8}),
        assured=[c for c in candidates if c.flat["BLOCK"] in assured],
    )  # fmt: skip


def block(outcome: Outcome) -> Any:
    return outcome.winner.flat["BLOCK"]


def test_only_candidates_within_reach_and_those_assured_are_finalists():
    bench = StandIn({64: 9.0, 256: 8.0, 16: 1.0, 32: 1.1, 128: 5.0}, {16: 1.2, 32: 1.0})
    outcome = tuner.tune(plan(bench, (64, 256, 16, 32, 128), default=64, assured=(64, 256)))
    assert block(outcome) == 32 and outcome.default_ms == 9.0
    assert set(bench.measured("round")) == {16, 32, 64, 256}
    assert sorted(bench.measured("first")) == [16, 32, 64, 128, 256]


def test_finalists_are_measured_in_turn():
    """What disturbs the GPU for a while then disturbs them all: 16 is the faster one."""
    bench = StandIn({16: 1.0, 32: 1.0}, {16: [1.5, 1.4, 1.2, 1.0], 32: [1.6, 1.5, 1.3, 1.1]})
    outcome = tuner.tune(plan(bench, (32, 16)))
    assert bench.measured("round")[:4] == [32, 16, 32, 16]
    assert block(outcome) == 16


def test_a_finalist_that_fails_is_left_out_and_the_others_go_on():
    bench = StandIn({16: 1.0, 32: 1.05, 64: 1.0}, {16: [1.0, RuntimeError("now it fails")]})
    outcome = tuner.tune(plan(bench))
    assert block(outcome) == 64
    assert list(outcome.left_out.values()) == ["RuntimeError: now it fails"]


def test_where_every_finalist_fails_the_first_measurements_decide():
    failing = {16: RuntimeError("now it fails")}
    outcome = tuner.tune(plan(StandIn({16: 1.0, 32: 1.3, 64: 1.2}, failing)))
    assert block(outcome) == 64


def test_where_every_finalist_fails_late_the_tuning_ends_with_the_reasons():
    """After the rounds from which on the slower ones are dropped."""
    times = {16: 0.1001, 32: 0.1}  # a tie that so few rounds do not decide
    late = {b: [time] * LEAST_ROUNDS + [RuntimeError(f"{b} fails")] for b, time in times.items()}
    outcome = tuner.tune(plan(StandIn({**times, 64: 9.0}, late)))
    assert block(outcome) == 64
    assert [why[-8:] for why in outcome.left_out.values()] == ["16 fails", "32 fails"]


def test_a_candidate_that_does_not_compile_is_left_out_unlaunched():
    def launch(block: int, warmup: bool) -> None:
        if block == 64:
            assert warmup, "launched, though it does not compile"
            raise ValueError("does not compile")

    outcome = tuner.tune(plan(StandIn({16: 1.0, 32: 2.0}), launch=launch))
    assert block(outcome) == 16
    assert list(outcome.left_out.values()) == ["ValueError: does not compile"]


def test_the_candidate_with_the_most_code_is_compiled_first(monkeypatch):
    """Begun last, it would be waited for alone; they are measured in their own order."""
    monkeypatch.setattr("shipconf.compiling.workers", lambda: 1)
    compiled: list[tuple[int, int]] = []
    bench = StandIn({16: 1.0, 32: 2.0, 64: 3.0})
    given = plan(bench)
    candidates = [choice(16), choice(64, 8), choice(64, 2), choice(32)]

    def launch(candidate: Choice, arguments: Arguments, warmup: bool) -> None:
        if warmup:
            compiled.append((candidate.flat["BLOCK"], candidate.flat["num_warps"]))
        bench.now = candidate.flat["BLOCK"]

    tuner.tune(dataclasses.replace(given, candidates=candidates, launch=launch))
    assert compiled[:4] == [(64, 2), (64, 8), (32, 4), (16, 4)]
    assert bench.measured("first") == [16, 64, 64, 32]


def test_an_error_that_breaks_the_context_is_fatal_and_names_the_candidate(tmp_path, monkeypatch):
    """Case 33: nothing of this run is measured after it, and the next run leaves it out."""
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(tuner, "context_is_broken", lambda error: "illegal" in str(error))
    journal = tmp_path / "told.journal"
    bench = StandIn({16: 1.0, 32: error, 64: 0.5})
    message = r"BLOCK=32.*broke the device's context.*this candidate is left out"
    with pytest.raises(TuningError, match=message) as caught:
        tuner.tune(plan(bench, path=journal))
    assert caught.value.fatal
    assert bench.measured("first") == [16, 32]
    again = StandIn({16: 1.0, 32: 0.1, 64: 0.5})
    outcome = tuner.tune(plan(again, path=journal))
    assert block(outcome) == 64
    ((name, why),) = outcome.left_out.items()
    assert name.startswith("BLOCK=32") and "illegal memory access" in why
    assert again.measured("first") == [64]  # 16 was measured before the error, and is kept


def test_an_error_in_the_finals_has_them_measured_one_by_one_next_time(tmp_path, monkeypatch):
    """Which of those that ran in turn broke the context, nobody can tell; alone, it shows."""
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(tuner, "context_is_broken", lambda error: "illegal" in str(error))
    journal = tmp_path / "told.journal"
    for named in ("the finalists in turn", "BLOCK=32"):
        bench = StandIn({16: 0.1, 32: 0.1, 64: 0.105}, {32: [0.1, error]})
        with pytest.raises(TuningError, match=f"{named}.*broke the device's context"):
            tuner.tune(plan(bench, path=journal))
    last = StandIn({16: 0.1, 32: 0.1, 64: 0.09}, {64: 0.09})
    outcome = tuner.tune(plan(last, path=journal))
    assert block(outcome) == 64 and last.measured("first") == []
    assert [name[:8] for name in outcome.left_out] == ["BLOCK=32"]


class Blamed(StandIn):
    """An illegal address in a round shows at the launch after the one at fault, while both run."""

    def round(self, finalists: Any, number: int) -> dict[Any, list[float]]:
        if len(finalists) > 1:
            raise CallFailed(1) from RuntimeError("CUDA error: an illegal memory access")
        return super().round(finalists, number)


def test_a_finalist_is_not_left_out_for_what_another_one_did(tmp_path, monkeypatch):
    monkeypatch.setattr(tuner, "context_is_broken", lambda error: "illegal" in str(error))
    journal = tmp_path / "told.journal"
    times = {16: 1.0, 32: 1.05, 64: 1.05}
    message = "the finalists in turn broke .* they are measured one by one"
    with pytest.raises(TuningError, match=message) as caught:
        tuner.tune(plan(Blamed(times), path=journal))
    assert list(caught.value.reasons) == ["the finalists in turn"]
    last = Blamed(times)
    outcome = tuner.tune(plan(last, path=journal))
    assert outcome.left_out == {} and set(last.measured("round")) == set(BLOCKS)


def test_out_of_memory_in_the_finals_is_no_death(tmp_path):
    """Whether a launch tells of it or the device does."""
    journal = tmp_path / "told.journal"
    for table in ({32: oom()}, {32: RuntimeError("out of memory: illegal to name one")}):
        for _ in range(2):
            with pytest.raises(OutOfMemory):
                tuner.tune(plan(StandIn({16: 1.0, 32: 1.0}, table), (16, 32), path=journal))
    assert Journal(journal, {"M": 8}).start().left_out == {}


def test_out_of_memory_in_the_finals_keeps_no_copy_alive(monkeypatch):
    """Not even while the error is: the launch that falls back needs the memory."""
    gone: list[weakref.ref[Any]] = []

    def copied(arguments: Arguments) -> list[Arguments]:
        copy = torch.zeros(1000)
        gone.append(weakref.ref(copy))
        return [Arguments((copy,), {}, {"out_ptr": copy})]

    monkeypatch.setattr(tuner, "copies", copied)
    bench = StandIn({16: 1.0, 32: 1.0}, {16: [1.0, oom()]})
    with pytest.raises(OutOfMemory) as caught:
        tuner.tune(plan(bench, (16, 32)))
    assert caught.value.__cause__ is not None and gone[0]() is None


def test_the_winner_s_own_hook_leaves_nothing_behind_when_the_winner_is_compiled():
    """It may set what is compiled, and runs for that; the tensors end as they began."""
    counted = torch.zeros(1, dtype=torch.int32)
    hooked: list[int] = []

    def hook(named: dict[str, Any]) -> None:
        named["x"].add_(1)
        hooked.append(named["BLOCK"])

    given = plan(StandIn({16: 1.0, 32: 9.0}), (16, 32))
    for candidate in given.candidates:
        object.__setattr__(candidate, "pre_hook", hook)
    given = dataclasses.replace(
        given, arguments=Arguments((), {}, {"x": counted}), hooks=Hooks(restore_value=["x"])
    )
    compiled: list[int] = []
    plain = given.launch

    def launch(candidate: Choice, arguments: Arguments, warmup: bool) -> Any:
        if warmup:
            compiled.append(candidate.flat["BLOCK"])
            assert hooked[-1] == compiled[-1]
        return plain(candidate, arguments, warmup)

    outcome = tuner.tune(dataclasses.replace(given, launch=launch))
    assert block(outcome) == 16 and compiled[-1] == 16 and len(compiled) == 3
    assert int(counted) == 0


def test_rounds_of_the_finals_are_kept_and_not_repeated(tmp_path):
    journal = tmp_path / "told.journal"
    bench = StandIn({16: 0.1, 32: 0.1}, {32: [0.1, 0.1, KeyboardInterrupt()]})
    with pytest.raises(KeyboardInterrupt):
        tuner.tune(plan(bench, (16, 32), path=journal))
    again = StandIn({16: 0.1, 32: 0.1})
    tuner.tune(plan(again, (16, 32), path=journal))
    assert again.measured("first") == []
    assert again.measured("round")[:2] == [16, 32]
    assert len(again.measured("round")) == 2 * (LEAST_ROUNDS - 2)


def test_a_fatal_error_at_a_launch_is_raised_and_no_default_is_tried(monkeypatch, store):
    """Case 33: nothing can launch in this process any more."""
    h200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
    monkeypatch.setattr("shipconf.device.current", lambda kernel: h200)
    monkeypatch.setattr("shipconf.device.physical_id", lambda: "0")
    monkeypatch.setattr(tuner, "context_is_broken", lambda error: "illegal" in str(error))
    times = {32: RuntimeError("CUDA error: an illegal memory access was encountered")}
    trial = Trial(times=times, default=configs([16])[0])
    with pytest.raises(TuningError, match=r"BLOCK=32.*broke the device's context") as caught:
        trial.launch(8, 8)
    assert caught.value.fatal
    assert records_in(store) == []
    again = Trial(default=configs([16])[0])  # as in the next process
    assert again.launch(8, 8) == 64
    assert 32 not in again.measured
    (kept,) = records_in(store)
    assert "illegal memory access" in next(iter(kept["left_out"].values()))


def test_every_launch_option_of_a_config_is_stored(store):
    """The defaults of Triton's versions differ."""
    Trial(configs=[triton.Config({"BLOCK": b}, maxnreg=64) for b in BLOCKS]).launch(8, 8)
    (kept,) = records_in(store)
    assert set(kept["config"]) & set(OPTIONS) == {"num_warps", "num_stages", "num_ctas", "maxnreg"}


# --- what is told -----------------------------------------------------------------------------


def test_a_tuning_is_logged_at_its_start_and_its_end(caplog):
    """Kernel, key, device, candidates; then the best, and the speed-up over the default."""
    with caplog.at_level(logging.INFO, logger="shipconf"):
        Trial(default=configs([16])[0]).launch(8, 8)
    started, ended = [r.getMessage() for r in caplog.records if "tun" in r.getMessage()]
    assert "told" in started and "N=8" in started and "interpreter" in started
    assert "3 candidates" in started
    assert "BLOCK=64" in ended and "4.00 times the default" in ended and " s" in ended


def test_long_work_says_how_far_it_is(caplog, monkeypatch):
    monkeypatch.setattr(tuner, "SAY_EVERY_S", -1.0)
    with caplog.at_level(logging.INFO, logger="shipconf"):
        Trial().launch(8, 8)
    assert "tuning told: 2 of 3 candidates measured" in caplog.text


def test_a_served_launch_logs_nothing(caplog):
    Trial().launch(8, 8)
    caplog.clear()
    trial = Trial()
    with caplog.at_level(logging.DEBUG, logger="shipconf"):
        trial.launch(8, 8)
        trial.launch(8, 8)
    assert caplog.text == ""


# --- what must not start a tuning -------------------------------------------------------------


def test_adding_or_removing_candidates_tunes_nothing():
    """Case 20: the user's record serves, and so does one that is no candidate any more."""
    Trial().launch(8, 8)
    for blocks in ((*BLOCKS, 128), (16, 32), (8, 4)):
        trial = Trial(blocks=blocks)
        assert trial.launch(8, 8) == 64
        assert trial.measured == []


def test_a_new_nearest_value_is_kept_beside_the_others(store):
    trial = Trial()
    for m in (8, 512, 8):
        trial.launch(8, m)
    (path,) = Path(store).rglob("*.json")
    assert [r["at"]["M"] for r in json.loads(path.read_text())["records"]] == [8, 512]


def test_tuning_again_replaces_the_record_of_the_point(store):
    trial = Trial()
    trial.kernel.workload(lambda N, M, dtypes: shipconf.Launch((1,), (trial.out, N, M)))
    trial.launch(8, 8)
    trial.times.update({16: 0.1})
    trial.kernel.tune(N=8, M=8, dtypes="int32", force=True)
    (kept,) = records_in(store)
    assert kept["config"]["BLOCK"] == 16
