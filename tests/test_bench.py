"""Times, and who is asked for them: the user's function, Triton's graphs, the clock."""

from __future__ import annotations

import math
from typing import Any

import kernels
import pytest
import torch
import triton.testing
from hypothesis import given
from hypothesis import strategies as st
from kernels import Trial, configs
from packages import records_in

from shipconf import Device, Launch, ShippedKernel, bench
from shipconf.bench import QUANTILES, Bench, Call, Timing
from shipconf.gpu_bench import WARM_UP_MS, GpuBench
from shipconf.journal import Journal

# --- times ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_percentiles_of_launches_are_in_order_and_among_them(times):
    timing = Timing.of_samples(times)
    assert min(times) <= timing.p20 <= timing.median <= timing.p80 <= max(times)
    assert timing.noise >= 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("place", range(3))
def test_each_of_the_three_must_be_a_time(bad, place):
    """No NaN and no infinity reaches a file, not even as a percentile."""
    times = [1.0, 1.0, 1.0]
    times[place] = bad
    with pytest.raises(ValueError, match="which is no time"):
        Timing.of(times)


def test_a_candidate_with_a_percentile_that_is_no_time_is_left_out(store):
    def do_bench(fn: Any, quantiles: Any) -> list[float]:
        fn()
        return [1.0, 0.9, math.nan if int(trial.out[0]) == 64 else 1.1]

    trial = Trial(do_bench=do_bench)
    assert trial.launch(8, 8) == 16
    (kept,) = records_in(store)
    assert len(kept["left_out"]) == 1


@pytest.mark.parametrize("times", [{16: 0.0, 32: 0.0, 64: 2.0}, {16: 1.0, 32: 0.0, 64: 2.0}])
def test_a_clock_that_says_no_time_passed_ends_no_tuning(times, store):
    """Whatever it is worth: nobody can be faster than that by any factor."""
    best = min(times, key=lambda block: (times[block], block))
    assert Trial(times=times, default=configs([16])[0]).launch(8, 8) == best
    (kept,) = records_in(store)
    assert kept["time_ms"]["median"] == 0.0 and kept["default_ms"] == times[16]


# --- who is asked -----------------------------------------------------------------------------


def bench_of(kernel: ShippedKernel) -> Bench | GpuBench:
    """How a tuning of the kernel measures."""
    kernel.workload(lambda N, M, dtypes: Launch((1,), (torch.zeros(1, dtype=dtypes), N, M)))
    request = kernel.build(dtypes=torch.int32, N=8, M=8)
    return kernel.flight.plan(request, Journal(None, {})).bench


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Kernels are measured as on a GPU, and run on the interpreter."""
    h200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
    monkeypatch.setattr("shipconf.device.current", lambda kernel: h200)
    monkeypatch.setattr("shipconf.device.physical_id", lambda: "0")
    monkeypatch.setattr("shipconf.device.interpreted", lambda kernel: False)
    monkeypatch.setattr("shipconf.device.all_alike", lambda: True)


@pytest.fixture
def graphs(monkeypatch) -> list[Any]:
    """Triton's measurement by graphs, on an interpreter; what it was asked for."""
    asked: list[Any] = []

    def do_bench_cudagraph(fn: Any, *, rep: float, quantiles: Any) -> list[float]:
        fn()
        asked.append((rep, quantiles))
        return [1.0, 0.9, 1.1]

    monkeypatch.setattr(triton.testing, "do_bench_cudagraph", do_bench_cudagraph)
    return asked


@pytest.mark.parametrize(("rep", "passed"), [(None, 100), (17, 17)])
def test_use_cuda_graph_measures_by_triton_s_graphs_for_rep_ms(rep, passed, graphs, on_a_gpu):
    """`rep` as Triton has it: 100 ms where nothing is said."""
    trial = Trial(do_bench=None, use_cuda_graph=True, rep=rep)
    assert trial.launch(8, 8) == 16
    assert graphs == [(passed, QUANTILES)] * 3


def test_a_user_s_do_bench_is_asked_before_graphs_and_before_events(graphs, on_a_gpu):
    """It is used wherever something is measured, a deliberate difference from Triton, where
    `use_cuda_graph`, `warmup` or `rep` win."""
    trial = Trial(use_cuda_graph=True, warmup=3, rep=17)
    assert trial.launch(8, 8) == 64
    assert graphs == [] and len(trial.measured) == 3


def test_without_any_wish_a_gpu_is_measured_by_events_or_graphs_as_it_fits(on_a_gpu):
    def made(**options: Any) -> Bench | GpuBench:
        return bench_of(Trial(do_bench=None, **options).kernel)

    plain, wished = made(), made(warmup=7, rep=50)
    assert isinstance(plain, GpuBench) and isinstance(wished, GpuBench)
    assert (plain.warmup_ms, plain.rep_ms, plain.replays) == (WARM_UP_MS, 0, True)
    assert (wished.warmup_ms, wished.rep_ms) == (7, 50)


@pytest.mark.parametrize("options", [
    {"reset_to_zero": ["out_ptr"]}, {"restore_value": ["out_ptr"]},
    {"pre_hook": lambda named, reset_only=False: None},
    {"post_hook": lambda named, exception: None},
])  # fmt: skip
def test_hooks_forbid_graphs(options, on_a_gpu):
    """They would be captured along with the launch, or run once for many."""
    made = bench_of(Trial(do_bench=None, **options).kernel)
    assert isinstance(made, GpuBench) and not made.replays


def test_a_config_s_own_hook_forbids_graphs(on_a_gpu):
    hooked = configs((16, 32), pre_hook=lambda named: None)
    made = bench_of(Trial(do_bench=None, configs=hooked).kernel)
    assert isinstance(made, GpuBench) and not made.replays


def test_the_interpreter_is_measured_by_the_clock():
    calls: list[int] = []
    timing = bench.of_interpreter().measure(Call(lambda: calls.append(1)))
    assert len(calls) == 3 and timing.p20 <= timing.median <= timing.p80
    assert bench.of_interpreter().rigor == "quick"


def test_a_do_bench_may_return_tensors():
    own = bench.of_user(lambda fn, quantiles: torch.tensor([1.5, 1.0, 2.0]))
    assert own.measure(Call(lambda: None)) == Timing(1.5, 1.0, 2.0)


# --- hooks, where a GPU is measured -----------------------------------------------------------


class Tensors:
    """An in-place kernel on eight integers, and one that adds to a total; on the interpreter."""

    def __init__(self, name: str, **options: Any) -> None:
        self.total = torch.tensor([7], dtype=torch.int32)
        self.x = torch.arange(8, dtype=torch.int32)
        plain = {"do_bench": None, "warmup": 1, "key": ["n"], "nearest": [], "name": name}
        self.trial = Trial(getattr(kernels, name), **{**plain, **options})

    def launch(self) -> list[int]:
        other = (self.total,) if self.trial.kernel.name == "accumulated" else (self.x, None)
        self.trial.kernel[(2,)](self.trial.out, *other, 8)
        return [*self.total.tolist(), *self.x.tolist()]


@pytest.mark.usefixtures("gpu", "on_a_gpu")
@pytest.mark.parametrize(("name", "options"), [
    ("accumulated", {"reset_to_zero": ["total_ptr"]}),
    ("accumulated", {"restore_value": ["total_ptr"]}),
    ("accumulated", {"configs": configs((16, 32), pre_hook=lambda a: a["total_ptr"].zero_())}),
    ("in_place", {"restore_value": ["x_ptr"], "check": lambda named: named["BLOCK"] != 16}),
    ("in_place", {"restore_value": ["x_ptr", "bias_ptr"], "rep": 1}),
])  # fmt: skip
def test_tensors_are_what_a_launch_from_a_file_leaves(name, options, store):
    """Bit for bit; through the first launches, the finals and the compilation of the winner."""
    tuned, served = Tensors(name, **options), Tensors(name, **options)
    left = tuned.launch()
    (kept,) = records_in(store)
    assert kept["rigor"] == "full" and kept["candidates"] >= 2
    assert served.launch() == left
    assert served.trial.kernel.configs_timings == {}
    assert ("check" in options) == any("16" in name for name in kept["left_out"])


@pytest.mark.usefixtures("on_a_gpu")
def test_hooks_run_around_every_launch_that_is_timed(gpu, store):
    """The user's own, with the config's before them; and no launch is without them."""
    told: list[str] = []

    class Told:
        def run(self, *args: Any, warmup: bool, **kwargs: Any) -> None:
            if not warmup:
                gpu.put("launch", 0.1)
                told.append("launch")

    def config_hook(named: dict[str, Any]) -> None:
        told.append("config")

    trial = Trial(
        do_bench=None, configs=configs((16, 32), pre_hook=config_hook),
        pre_hook=lambda named, reset_only=False: told.append("reset" if reset_only else "pre"),
        post_hook=lambda named, exception: told.append("post"),
    )  # fmt: skip
    trial.kernel.target = Told()
    trial.launch(8, 8)
    before_launch = told.index("reset")
    timed = [what for what in told[:before_launch] if what != "config"]
    assert timed == ["pre", "launch", "post"] * (len(timed) // 3) and len(timed) > 3 * 40
    assert all(
        told[number - 1] == "config" for number, what in enumerate(told) if what == "pre"
    )  # fmt: skip
    assert told[before_launch:] == ["reset", "config", "launch"]
