"""Who wins among the finalists: the rule, and how alike it chooses where times are noisy."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shipconf.finals import LEAST_ROUNDS, TIE, Comparison, Finals

Round = dict[str, list[float]]


def held(order: Sequence[str], rounds: Sequence[Mapping[str, Sequence[float]]]) -> Finals[str]:
    finals = Finals(order)
    for times in rounds:
        finals.add({finalist: times[finalist] for finalist in finals.live})
    return finals


def steady(times: Mapping[str, float], rounds: int = LEAST_ROUNDS) -> list[Round]:
    """Rounds without any noise."""
    return [{name: [time] for name, time in times.items()} for _ in range(rounds)]


times_ms = st.floats(0.001, 1000.0)


@st.composite
def noisy_finals(draw: st.DrawFn) -> tuple[list[str], list[Round]]:
    """Finalists in order, and rounds of them that agree within some per cent."""
    order = list("abcdef"[: draw(st.integers(1, 6))])
    true = {name: draw(st.floats(1.0, 1.1)) for name in order}
    noise = st.floats(0.97, 1.03)
    rounds = [
        {name: [true[name] * draw(noise)] * 2 for name in order}
        for _ in range(draw(st.integers(1, 12)))
    ]
    return order, rounds


def mean_logs(finals: Finals[str], name: str) -> float:
    """The geometric mean of the medians of its rounds, of which each here has two equal times."""
    return statistics.geometric_mean(finals.times[name])


# --- the rule ---------------------------------------------------------------------------------


@given(noisy_finals())
def test_the_winner_is_within_a_tie_of_the_fastest_as_measured(given_finals):
    finals = held(*given_finals)
    fastest = min(mean_logs(finals, name) for name in finals.live)
    assert mean_logs(finals, finals.winner) <= fastest * (1 + TIE) * (1 + 1e-9)


@given(noisy_finals())
def test_the_winner_is_the_earliest_within_a_tie(given_finals):
    """Nobody who stands before it, and is measured still, is within a tie of the fastest."""
    finals = held(*given_finals)
    fastest = min(mean_logs(finals, name) for name in finals.live)
    for earlier in finals.live[: finals.live.index(finals.winner)]:
        assert mean_logs(finals, earlier) > fastest * (1 + TIE) * (1 - 1e-9)


@pytest.mark.parametrize(("lead", "winner"), [(0.0, "a"), (0.005, "a"), (0.007, "b"), (0.1, "b")])
def test_the_first_is_replaced_only_by_what_is_more_than_a_tie_faster(lead, winner):
    """A default and an incumbent stand first."""
    assert TIE == 0.006
    assert held("ab", steady({"a": 1 + lead, "b": 1.0})).winner == winner


def test_who_stands_later_wins_by_no_lead_within_a_tie():
    """Not even the fastest: of those tied with it the earliest wins."""
    finals = held("abc", steady({"a": 1.02, "b": 1.002, "c": 1.0}, rounds=40))
    assert finals.winner == "b" and finals.decided


@given(noisy_finals(), st.lists(st.floats(0.2, 5.0), min_size=12, max_size=12))
def test_what_slows_a_whole_round_changes_nothing(given_finals, factors):
    """A clock that falls, another process: all finalists of a round suffer alike."""
    order, rounds = given_finals
    slowed = [
        {name: [time * factor for time in times] for name, times in one.items()}
        for one, factor in zip(rounds, factors)
    ]
    plain, disturbed = held(order, rounds), held(order, slowed)
    assert (disturbed.live, disturbed.winner) == (plain.live, plain.winner)


@given(st.lists(times_ms, min_size=1, max_size=8), st.integers(1, 20))
def test_without_noise_the_fastest_is_never_dropped_and_a_tie_with_it_wins(times, rounds):
    names = list("abcdefgh"[: len(times)])
    true = dict(zip(names, times))
    finals = held(names, steady(true, rounds))
    fastest = min(names, key=lambda name: true[name])
    # Or one that the logarithms do not tell from it.
    assert min(true[name] for name in finals.live) <= true[fastest] * (1 + 1e-9)
    within = [name for name in names if true[name] <= true[fastest] * (1 + TIE) * (1 - 1e-9)]
    assert not within or names.index(finals.winner) <= names.index(within[0])


@given(st.lists(times_ms, min_size=2, max_size=8))
def test_a_few_rounds_drop_nobody_and_decide_nothing(times):
    """They may agree by chance."""
    names = list("abcdefgh"[: len(times)])
    finals = held(names, steady(dict(zip(names, times)), LEAST_ROUNDS - 1))
    assert finals.live == names and not finals.decided


def test_the_surely_slower_are_measured_no_more():
    finals = held("abc", steady({"a": 1.2, "b": 1.0, "c": 1.1}))
    assert finals.live == ["b"] and finals.decided
    assert {name: len(times) for name, times in finals.times.items()} == dict.fromkeys(
        "abc", LEAST_ROUNDS
    )


def test_who_is_slower_within_its_noise_stays():
    noise = [0.9, 1.12, 0.95, 1.1] * 2
    finals = held("ab", [{"a": [1.03 * part], "b": [1.0]} for part in noise])
    assert finals.live == ["a", "b"] and not finals.decided


def test_who_stands_behind_one_surely_tied_is_measured_no_more():
    """It can win no more: the earlier one would."""
    finals = held("abcd", steady({"a": 1.1, "b": 1.0, "c": 1.0, "d": 1.0}, rounds=20))
    assert finals.live == ["b"] and finals.winner == "b"


def test_the_fastest_stays_to_be_compared_with():
    finals = held("ab", steady({"a": 1.001, "b": 1.0}, rounds=20))
    assert finals.live == ["a", "b"] and finals.winner == "a" and finals.decided


def test_rounds_that_agree_by_chance_decide_no_tie():
    """Equal ratios are no proof that the next would be equal."""
    rounds = steady({"a": 1.001, "b": 1.0, "c": 1.0009})
    finals = held("abc", rounds)
    assert finals.live[:2] == ["a", "b"] and not finals.decided


@given(noisy_finals(), st.data())
def test_who_is_dropped_never_wins(given_finals, data):
    """It failed; those left are compared by the rounds that they have in common."""
    order, rounds = given_finals
    finals = Finals(order)
    for times in rounds:
        if len(finals.live) > 1 and data.draw(st.booleans()):
            failed = data.draw(st.sampled_from(finals.live))
            finals.drop(failed)
            assert failed not in finals.live
        finals.add({finalist: times[finalist] for finalist in finals.live})
    assert finals.winner in finals.live


@pytest.mark.parametrize("rounds", [0, LEAST_ROUNDS - 1, LEAST_ROUNDS + 1])
def test_where_all_have_failed_it_is_over(rounds):
    finals = held("ab", steady({"a": 1.0, "b": 1.0}, rounds))
    for name in finals.live[:]:
        finals.drop(name)
    finals.add({})
    assert finals.live == [] and finals.decided


def test_one_alone_wins_and_is_decided_at_once():
    finals = Finals(["only"])
    assert finals.decided and finals.winner == "only"


@pytest.mark.parametrize("time", [0.0, 1e-12, 1e12])
def test_times_of_nothing_and_of_hours_are_compared_too(time):
    """A clearing may seem longer than the launch after it."""
    finals = held("ab", steady({"a": time, "b": time}))
    assert finals.winner == "a"


# --- how alike it chooses ---------------------------------------------------------------------


def simulated(seed: int) -> tuple[str, str]:
    """Whom the rule chooses in one process, and whom the fastest median would.

    A process has a factor of its own for each config (where its tensors lie), a round one for
    all (the clock), and each launch some noise.
    """
    random_ = random.Random(seed)
    true = {"a": 1.02, "b": 1.0, "c": 0.9995, "d": 0.999, "e": 1.03}
    placed = {name: time * random_.gauss(1, 0.0003) for name, time in true.items()}
    finals = Finals(list(true))
    everything: dict[str, list[float]] = {name: [] for name in true}
    for _ in range(12):
        for name in true:  # the plain rule has each measured alone, at another clock
            clock = random_.uniform(0.98, 1.02)
            everything[name] += [placed[name] * clock * random_.gauss(1, 0.003) for _ in range(8)]
        if not finals.decided:
            clock = random_.uniform(0.9, 1.1)
            finals.add({
                name: [placed[name] * clock * random_.gauss(1, 0.003) for _ in range(8)]
                for name in finals.live
            })  # fmt: skip
    medians = {name: statistics.median(times) for name, times in everything.items()}
    return finals.winner, min(medians, key=lambda name: medians[name])


def test_processes_choose_alike_far_more_often_than_by_the_fastest_median():
    """Case 36: nineteen of twenty, where a plain fastest-wins rule is a lottery."""
    chosen, fastest = zip(*map(simulated, range(200)))
    assert chosen.count("b") >= 190
    assert max(map(fastest.count, "abcde")) < 150


def test_a_comparison_measures_all_in_every_round_and_ends_after_the_least_number():
    """Whoever is slower, or surely tied."""
    finals = Comparison("abc")
    for number in range(LEAST_ROUNDS):
        assert finals.rounds == number and not finals.decided
        finals.add({"a": [1.0], "b": [1.0], "c": [9.0]})
    assert finals.live == ["a", "b", "c"] and finals.decided
    assert {len(times) for times in finals.times.values()} == {LEAST_ROUNDS}
