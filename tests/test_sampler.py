"""Times of single launches, on a GPU that is stood in for."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_gpu import CLEARING_MS, FakeGpu

from shipconf.bench import Call
from shipconf.hooks import Hooks
from shipconf.sampler import (
    CLEARS_AFTER,
    FIRST_CLEARS,
    LAUNCHES_IN_GRAPH,
    MOST_CLEARS,
    CallFailed,
    Sampler,
)


def hooked(gpu: FakeGpu, launch: Any) -> Call:
    """A call with something slow before the launch and after it."""

    @contextmanager
    def around() -> Iterator[None]:
        gpu.put("before", 1.0)
        yield
        gpu.put("after", 1.0)

    return Call(launch, around)


def launches_of(gpu: FakeGpu, name: str) -> int:
    return gpu.done.count(name)


# --- what lies between the events -------------------------------------------------------------


def test_hooks_run_outside_the_events_and_the_cache_is_cleared_after_them(gpu: FakeGpu):
    """What a hook writes would else lie in the cache, and its time would count."""
    sampler = Sampler()
    (times,) = sampler.sample([hooked(gpu, gpu.launch("launch", 0.2))], 2)
    assert times == pytest.approx([0.2, 0.2])
    one = ["before", "clear", "record", "launch", "record", "after"]
    assert gpu.done == ["clear"] * FIRST_CLEARS + one * 2 + ["synchronize"]


def test_calls_are_launched_in_turn_and_each_has_its_own_times(gpu: FakeGpu):
    calls = [Call(gpu.launch(name, ms)) for name, ms in (("a", 0.1), ("b", 0.2), ("c", 0.3))]
    times = Sampler().sample(calls, 2)
    assert times == [pytest.approx([ms] * 2) for ms in (0.1, 0.2, 0.3)]
    assert [name for name in gpu.done if name in ("a", "b", "c")] == ["a", "b", "c"] * 2
    assert gpu.done.count("clear") == FIRST_CLEARS + 6 + CLEARS_AFTER


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("period", [2, 4, 8])
def test_every_place_in_the_queue_is_shared_out_among_the_calls(period, number, gpu: FakeGpu):
    """On a GPU every second launch takes longer, whichever it is."""
    places = itertools.count()

    def launch() -> None:
        gpu.put("launch", 0.02 + 0.001 * (next(places) % period == 0))

    times = Sampler().sample([Call(launch) for _ in range(number)], 8)
    assert {len(taken) for taken in times} == {8}
    slow = [sum(time > 0.0205 for time in taken) for taken in times]
    assert slow == [8 // period] * number


def test_launches_that_are_compared_are_never_the_last_in_the_queue(gpu: FakeGpu):
    """On a GPU the last few take less."""
    Sampler().sample([Call(gpu.launch("a", 0.02)), Call(gpu.launch("b", 0.02))], 4)
    assert gpu.done[-1 - CLEARS_AFTER :] == ["clear"] * CLEARS_AFTER + ["synchronize"]


def test_a_later_sample_has_none_of_an_earlier_one_s_times(gpu: FakeGpu):
    """Events are kept, and recorded anew."""
    sampler = Sampler()
    sampler.sample([Call(gpu.launch("a", 0.5))], 9)
    assert sampler.sample([Call(gpu.launch("b", 0.1))], 2) == [pytest.approx([0.1, 0.1])]


# --- a host that is late ----------------------------------------------------------------------


def test_the_gpu_is_held_back_until_a_slow_host_has_queued_all(gpu: FakeGpu):
    """Launches that the host takes 1 ms for last 0.02 ms all the same."""
    sampler = Sampler()
    call = Call(gpu.launch("launch", 0.02, host_ms=1.0))
    (times,) = sampler.sample([call], 4)
    assert times == pytest.approx([0.02] * 4)
    taken = launches_of(gpu, "launch")
    assert taken > 4  # batches in which it waited were taken again
    gpu.done.clear()
    sampler.sample([call], 4)
    assert launches_of(gpu, "launch") == 4  # and from then on it is held back for long enough
    assert CLEARING_MS * gpu.done.count("clear") > 3.0


def test_a_host_that_is_in_time_holds_the_gpu_back_no_longer(gpu: FakeGpu):
    sampler = Sampler()
    for _ in range(3):
        sampler.sample([Call(gpu.launch("launch", 0.2))], 4)
    assert gpu.done.count("clear") == 3 * (FIRST_CLEARS + 4)


def test_a_host_that_is_always_late_is_waited_for_up_to_a_limit(gpu: FakeGpu, caplog):
    """A launch that waits for the device itself, say: it is timed as it is."""
    sampler = Sampler()

    def launch() -> None:
        gpu.put("launch", 0.02)
        gpu.synchronize()

    with caplog.at_level(logging.DEBUG, logger="shipconf.sampler"):
        (times,) = sampler.sample([Call(launch)], 3)
    assert len(times) == 3 and "waits for the host: 3 launches" in caplog.text
    batches = launches_of(gpu, "launch") / 3
    assert FIRST_CLEARS * 2 ** (batches - 1) == MOST_CLEARS
    gpu.done.clear()
    sampler.sample([Call(launch)], 3)
    assert launches_of(gpu, "launch") == 3


# --- a launch that fails ----------------------------------------------------------------------


def failing() -> None:
    raise ValueError("no")


def test_a_launch_that_raises_is_named_when_the_device_is_done(gpu: FakeGpu):
    with pytest.raises(CallFailed) as caught:
        Sampler().sample([Call(gpu.launch("a", 0.1)), Call(failing)], 2)
    assert caught.value.index == 1 and isinstance(caught.value.__cause__, ValueError)
    assert gpu.done[-1] == "synchronize" and launches_of(gpu, "a") == 1


def test_a_call_that_fails_where_it_fills_up_a_turn_is_named_as_itself(gpu: FakeGpu):
    left = iter(range(1))

    def once() -> None:
        gpu.put("b", 0.1)
        if next(left, None) is None:
            raise ValueError("no")

    with pytest.raises(CallFailed) as caught:
        Sampler().sample([Call(gpu.launch("a", 0.1)), Call(once)], 1)
    assert caught.value.index == 1


def test_the_hook_after_a_launch_that_raises_is_told_of_its_very_error(gpu: FakeGpu):
    told: list[Any] = []
    hooks = Hooks(post_hook=lambda named, exception: told.append(exception))
    with pytest.raises(CallFailed):
        Sampler().sample([Call(failing, lambda: hooks.around({}))], 1)
    assert isinstance(told[0], ValueError)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_that_raises_is_its_call_s_failure(when, gpu: FakeGpu):
    @contextmanager
    def around() -> Iterator[None]:
        if when == "before":
            raise KeyError("the hook")
        yield
        raise KeyError("the hook")

    calls = [Call(gpu.launch("a", 0.1)), Call(gpu.launch("b", 0.1), around)]
    with pytest.raises(CallFailed) as caught:
        Sampler().sample(calls, 2)
    assert caught.value.index == 1 and isinstance(caught.value.__cause__, KeyError)


def test_what_the_device_raises_is_raised_as_it_is(gpu: FakeGpu, monkeypatch):
    """An illegal address shows when the device is waited for: nobody can tell whose it was."""

    def synchronize() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(gpu, "synchronize", synchronize)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        Sampler().sample([Call(gpu.launch("a", 0.1))] * 2, 1)


# --- warming up -------------------------------------------------------------------------------


@pytest.mark.parametrize("launch_ms", [0.0, 0.003, 0.3, 30.0, 300.0])
def test_a_warm_up_keeps_the_gpu_busy_for_its_time(launch_ms, gpu: FakeGpu):
    Sampler().warm_up(Call(gpu.launch("launch", launch_ms)), 100)
    busy = launches_of(gpu, "launch") * (launch_ms + 0.05)
    assert 100 <= busy < 100 + 2 * (launch_ms + 1)


# --- graphs -----------------------------------------------------------------------------------


def test_a_graph_clears_before_each_of_its_launches(gpu: FakeGpu):
    graph = Sampler().graph_of(gpu.launch("launch", 0.004))
    assert gpu.done == [] and gpu.captured is None  # nothing ran while it was captured
    graph()
    assert gpu.done == [["clear", "launch"] * LAUNCHES_IN_GRAPH]


def test_times_from_graphs_are_without_the_clearings(gpu: FakeGpu):
    """Of one launch each, though a graph has many."""
    sampler = Sampler()
    graphs = [sampler.graph_of(gpu.launch(name, ms)) for name, ms in (("a", 0.004), ("b", 0.003))]
    times = sampler.replay(graphs, sampler.graph_of(None), 3)
    assert times == [pytest.approx([0.004] * 3), pytest.approx([0.003] * 3)]


def test_a_launch_shorter_than_the_clock_can_tell_lasts_no_time(gpu: FakeGpu):
    sampler = Sampler()
    slower = Call(gpu.launch("clearings alone", LAUNCHES_IN_GRAPH * CLEARING_MS + 0.01))
    (times,) = sampler.replay([sampler.graph_of(gpu.launch("a", 0.0))], slower, 2)
    assert times == [0.0, 0.0]


def test_a_launch_that_cannot_be_captured_ends_the_capture(gpu: FakeGpu):
    with pytest.raises(ValueError, match="no"):
        Sampler().graph_of(failing)
    assert gpu.captured is None and gpu.done == ["synchronize"]


def test_clearings_that_fail_are_no_call_s_failure(gpu: FakeGpu):
    """No finalist has the number that they have."""
    sampler = Sampler()
    with pytest.raises(ValueError, match="no"):
        sampler.replay([sampler.graph_of(gpu.launch("a", 0.004))], Call(failing), 2)
