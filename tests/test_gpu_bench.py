"""How a tuning measures on a GPU, with one that is stood in for."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from fake_gpu import CLEARING_MS, FakeGpu

from shipconf import gpu_bench
from shipconf.bench import Call
from shipconf.finals import LEAST_ROUNDS, Finals
from shipconf.gpu_bench import (
    BLOCK_MS,
    FEW_FINALISTS,
    FINALISTS,
    FINALS_S,
    GRAPHS,
    LONG_MS,
    LONG_ROUNDS,
    ROUND_MS,
    TURNS,
    GpuBench,
)
from shipconf.sampler import LAUNCHES_IN_GRAPH, SHORT_MS, CallFailed

INF = float("inf")


def bench(warmup: float | None = None, rep: float | None = None, *, replays: bool = True) -> Any:
    return GpuBench(warmup, rep, replays=replays)


def finalists(gpu: FakeGpu, times_ms: dict[str, float], places: int = 1) -> dict[str, list[Call]]:
    """Calls of each at as many placements, which are noted as `a0`, `a1` and so on."""
    return {
        name: [Call(gpu.launch(f"{name}{place}", ms)) for place in range(places)]
        for name, ms in times_ms.items()
    }


def launched(gpu: FakeGpu) -> list[str]:
    """What ran since it was asked last, but for clearings and what belongs to a measurement."""
    names = [n for n in gpu.done if n not in ("clear", "record", "synchronize")]
    gpu.done.clear()
    return names


# --- one candidate alone ----------------------------------------------------------------------


def test_the_clock_is_brought_up_once_before_the_first_measurement(gpu: FakeGpu):
    own = bench()
    assert own.first(Call(gpu.launch("a", 1.0)), INF).median == pytest.approx(1.0)
    assert len(launched(gpu)) * 1.06 >= 100
    own.first(Call(gpu.launch("b", 1.0)), 1.0)
    assert len(launched(gpu)) == 1 + 3 + 7


def test_warmup_is_how_long_the_gpu_is_kept_busy_first(gpu: FakeGpu):
    counts = []
    for warmup in (0, 50, 1000):
        bench(warmup).first(Call(gpu.launch("a", 1.0)), INF)
        counts.append(len(launched(gpu)) - 11)
    assert counts[0] == 1 and 45 <= counts[1] <= 50 and 940 <= counts[2] <= 1000


def test_a_candidate_without_hope_is_launched_three_times_and_no_more(gpu: FakeGpu):
    """But for the launch that loads it."""
    own = bench(0)
    own.first(Call(gpu.launch("best", 1.0)), INF)
    launched(gpu)
    assert own.first(Call(gpu.launch("hopeless", 1.6)), 1.0).median == pytest.approx(1.6)
    assert launched(gpu) == ["hopeless"] * 4
    own.first(Call(gpu.launch("slower", 1.4)), 1.0)
    assert launched(gpu) == ["slower"] * 11


def test_a_launch_that_fails_is_raised_as_its_own_error(gpu: FakeGpu):
    """Even in the middle; and the next candidate warms the GPU up in its place."""
    left = iter(range(3))

    def launch() -> None:
        gpu.put("a", 1.0)
        if next(left, None) is None:
            raise ValueError("no more")

    own = bench(50)
    with pytest.raises(ValueError, match="no more"):
        own.first(Call(launch), INF)
    launched(gpu)
    own.first(Call(gpu.launch("b", 1.0)), INF)
    assert len(launched(gpu)) > 40


# --- rounds -----------------------------------------------------------------------------------


def test_the_longer_a_launch_the_fewer_the_finalists():
    assert GpuBench.finalists(LONG_MS * 0.99) == FINALISTS
    assert GpuBench.finalists(LONG_MS) == FEW_FINALISTS < FINALISTS


@pytest.mark.parametrize(("number", "ms"), [(2, 0.02), (20, 0.05), (60, 0.1), (64, 0.29)])
def test_a_round_has_a_few_turns_and_is_soon_over(number, ms, gpu: FakeGpu):
    """So that what disturbs the GPU for longer disturbs all of its launches."""
    own = bench()
    calls = finalists(gpu, {f"{i}-": ms for i in range(number)})
    own.open_finals(calls, ms)
    times = own.round(list(calls), 0)
    soon = TURNS * number * (ms + CLEARING_MS) <= ROUND_MS
    turns = TURNS if soon else TURNS // 2
    assert {len(samples) for samples in times.values()} == {turns}
    fill = [f"{number - 1}-0"]  # an odd number of launches a turn
    assert launched(gpu) == [*(f"{i}-0" for i in range(number)), *fill] * turns


def test_few_rounds_of_long_launches_are_enough_and_are_taken_to_differ_by_more(gpu: FakeGpu):
    own = bench()
    own.open_finals(finalists(gpu, {"a": 0.512, "b": 0.5, "c": 0.6}), 0.5)
    finals = own.finals("abc", 0.5)
    for number in range(LONG_ROUNDS):
        assert not own.enough(finals) and finals.live == ["a", "b", "c"]
        finals.add(own.round(finals.live, number))
    assert finals.live == ["a", "b"]  # 2.4 % may still be noise, 20 % is none


def test_long_launches_are_measured_in_blocks_without_their_first_quarter(gpu: FakeGpu):
    """In it the clock still follows what ran before."""
    own = bench()
    clock = {"a": iter([9.0] * 20 + [0.5] * 500), "b": iter([9.0] * 20 + [0.6] * 500)}
    calls = {
        name: [Call(lambda name=name: gpu.put(name, next(clock[name])))]  # type: ignore[misc]
        for name in clock
    }
    own.open_finals(calls, 0.5)
    times = own.round(["a", "b"], 0)
    names = launched(gpu)
    each = len(names) // 2
    assert names == ["a"] * each + ["b"] * each and each * 0.5 >= BLOCK_MS
    assert len(times["a"]) == len(times["b"]) == each - each // 4
    assert max(times["a"]) == pytest.approx(0.5) and max(times["b"]) == pytest.approx(0.6)


def test_a_launch_of_a_second_is_measured_twice_in_a_round(gpu: FakeGpu):
    own = bench()
    calls = finalists(gpu, {"a": 1000.0, "b": 1010.0})
    own.open_finals(calls, 1000.0)
    assert own.round(["a", "b"], 0) == {
        "a": pytest.approx([1000.0] * 2), "b": pytest.approx([1010.0] * 2),
    }  # fmt: skip


@pytest.mark.parametrize("ms", [0.1, 0.5])
def test_a_finalist_that_fails_is_named_by_its_place_in_the_round(ms, gpu: FakeGpu):
    def fail() -> None:
        raise ValueError("no")

    own = bench()
    own.open_finals({**finalists(gpu, {"a": ms, "b": ms}), "c": [Call(fail)]}, ms)
    with pytest.raises(CallFailed) as caught:
        own.round(["b", "c"], 0)
    assert caught.value.index == 1 and isinstance(caught.value.__cause__, ValueError)
    assert own.round(["b"], 1)["b"]


@pytest.mark.parametrize("ms", [0.1, 0.5])
def test_each_round_takes_the_next_placement(ms, gpu: FakeGpu):
    own = bench()
    calls = finalists(gpu, {"a": ms, "b": ms}, places=3)
    own.open_finals(calls, ms)
    for number in range(7):
        own.round(["a", "b"], number)
        assert set(launched(gpu)) == {f"a{number % 3}", f"b{number % 3}"}


# --- graphs -----------------------------------------------------------------------------------


def from_graphs(gpu: FakeGpu) -> bool:
    """Whether what ran last was replayed from graphs."""
    names = launched(gpu)
    kinds = {isinstance(name, list) for name in names}
    assert len(kinds) == 1
    return kinds.pop()


@pytest.mark.parametrize(("ms", "replays", "graphs"), [
    (SHORT_MS * 0.9, True, True), (SHORT_MS * 0.9, False, False), (SHORT_MS, True, False),
])  # fmt: skip
def test_graphs_are_for_short_launches_without_hooks(ms, replays, graphs, gpu: FakeGpu):
    own = bench(replays=replays)
    own.open_finals(finalists(gpu, {"a": ms, "b": ms * 1.1}), ms)
    times = own.round(["a", "b"], 0)
    assert times == {
        "a": pytest.approx([ms] * TURNS), "b": pytest.approx([ms * 1.1] * TURNS),
    }  # fmt: skip
    assert from_graphs(gpu) == graphs


@pytest.mark.parametrize("count", [2, 16, 64])
def test_a_round_of_graphs_takes_no_longer_than_another(count, gpu: FakeGpu):
    """A turn is as many launches as a graph has; at least one is taken."""
    own = bench()
    ms = 0.004
    own.open_finals(finalists(gpu, {f"f{i}": ms for i in range(count)}), ms)
    times = own.round([f"f{i}" for i in range(count)], 0)
    (turns,) = {len(taken) for taken in times.values()}
    turn_ms = count * LAUNCHES_IN_GRAPH * (ms + CLEARING_MS)
    assert turns == 1 or turns * turn_ms <= ROUND_MS
    assert turns == TURNS or (turns + 1) * turn_ms > ROUND_MS


def test_only_a_few_placements_are_captured(gpu: FakeGpu):
    """Each capture takes a while, and memory."""
    own = bench()
    own.open_finals(finalists(gpu, {"a": 0.004}, places=16), 0.004)
    seen = []
    for number in range(2 * GRAPHS):
        own.round(["a"], number)
        replayed = next(name for name in launched(gpu) if "clear" not in name[1:2])
        seen.append(replayed[1])
    assert seen == [f"a{place}" for place in range(GRAPHS)] * 2


def test_where_one_capture_fails_all_are_timed_by_events(gpu: FakeGpu):
    """Times of the two kinds must not be compared."""

    def uncapturable() -> None:
        if gpu.captured is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        gpu.put("b0", 0.004)

    own = bench()
    calls = {**finalists(gpu, {"a": 0.004}), "b": [Call(uncapturable)]}
    own.open_finals(calls, 0.004)
    times = own.round(["a", "b"], 0)
    assert not from_graphs(gpu)
    assert times["b"] == pytest.approx([0.004] * TURNS)


# --- when the finals end ----------------------------------------------------------------------


def rounds_until_enough(own: GpuBench, finals: Finals[str], most: int = 400) -> int:
    while not own.enough(finals) and finals.rounds < most:
        finals.add(own.round(finals.live, finals.rounds))
    return finals.rounds


def test_the_finals_end_when_it_is_clear_who_wins_but_not_before_some_rounds(gpu: FakeGpu):
    own = bench()
    own.open_finals(finalists(gpu, {"a": 0.2, "b": 0.1}), 0.1)
    assert rounds_until_enough(own, Finals("ab")) == LEAST_ROUNDS


def test_the_finals_end_when_their_time_is_up(gpu: FakeGpu, monkeypatch):
    clock = iter([0.0] + [0.1 * FINALS_S] * 6 + [1.1 * FINALS_S])
    monkeypatch.setattr(gpu_bench, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    own = bench()
    own.open_finals(finalists(gpu, {"a": 0.10049, "b": 0.1}), 0.1)
    finals = Finals("ab")
    assert rounds_until_enough(own, finals) == LEAST_ROUNDS + 6
    assert not finals.decided


@pytest.mark.parametrize("ms", [0.002, 0.1, 0.5])
def test_rep_is_how_many_ms_of_each_finalist_are_measured_at_least(ms, gpu: FakeGpu):
    """Launches in graphs count too: else a very short one would be measured for minutes."""
    own = bench(rep=20)
    own.open_finals(finalists(gpu, {"a": 2 * ms, "b": ms}), ms)
    finals = Finals("ab")
    assert rounds_until_enough(own, finals) < 400
    launches = LAUNCHES_IN_GRAPH if ms < SHORT_MS else 1
    assert finals.live == ["b"]
    measured_ms = launches * sum(finals.times["b"])
    assert 20 <= measured_ms <= 20 + LEAST_ROUNDS * max(BLOCK_MS, launches * TURNS * ms)


def test_rep_of_launches_that_seem_to_last_no_time_ends(gpu: FakeGpu):
    own = bench(rep=1)
    own.open_finals(finalists(gpu, {"a": 0.0}), 0.0)
    assert rounds_until_enough(own, Finals("a")) < 400


def test_closed_finals_hold_no_tensors(gpu: FakeGpu):
    class Tensor:
        pass

    tensor = Tensor()
    gone = weakref.ref(tensor)
    own = bench()
    own.open_finals({"a": [Call(lambda kept=tensor: gpu.put("a", 0.1))]}, 0.1)  # type: ignore[misc]
    own.round(["a"], 0)
    del tensor
    assert gone() is not None
    own.close()
    gc.collect()
    assert gone() is None
