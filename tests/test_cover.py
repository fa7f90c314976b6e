"""The fewest configs that serve every point: exact where that can be had, never too many."""

from __future__ import annotations

import itertools
import random

import measured
import pytest

from shipconf.cover import covering, fewest


def served(times, chosen, within):
    return all(
        any(row[c] is not None and row[c] <= (1 + within) * min(filter(None, row)) for c in chosen)
        for row in times
    )


@pytest.mark.parametrize("within", [0.0, 0.01, 0.03, 0.1])
def test_no_smaller_set_serves_and_none_of_its_size_loses_less(within):
    """Held against every subset, on the measured winners."""
    for table in measured.tables():
        times = [row.time_ms for row in measured.at(table, measured.OCTAVES).rows]
        chosen = fewest(times, within=within)
        assert served(times, chosen, within)
        every = range(len(table.configs))
        smaller = itertools.combinations(every, len(chosen) - 1)
        assert not any(served(times, subset, within) for subset in smaller)

        def loss(subset, times=times):
            return sum(min(row[c] for c in subset) / min(row) for row in times)

        same = itertools.combinations(every, len(chosen))
        least = min(loss(subset) for subset in same if served(times, subset, within))
        assert loss(chosen) == pytest.approx(least)


def test_one_config_that_is_near_everywhere_is_enough():
    times = [[1.0, 1.02, 9.0], [9.0, 1.02, 1.0]]
    assert fewest(times, within=0.03) == [1]
    assert fewest(times, within=0.01) == [0, 2]


def test_at_most_so_many_are_kept_where_more_would_be_needed():
    """Those that lose least: a config for the dearest points first."""
    times = [[1.0 if c == p else 2.0 + p for c in range(12)] for p in range(12)]
    assert len(fewest(times, most=10)) == 10
    assert fewest(times, most=2) == [10, 11]
    assert fewest(times, most=12) == list(range(12))


def test_holes_and_times_that_are_none_serve_nothing():
    assert fewest([[None, 2.0], [1.0, 5.0]]) == [0, 1]
    assert fewest([[0.0, 2.0], [float("nan"), 5.0]]) == [1]
    assert fewest([[None, None], [1.0, 1.2]]) == [0]
    assert fewest([[None]]) == []
    assert fewest([]) == []


def test_a_large_table_is_covered_in_bounded_time():
    """Fifty points and configs with a thousand near ties: the search gives up, not the cover."""
    rng = random.Random(6)
    times = [[rng.choice([1.0, 1.01, 1.5]) for _ in range(50)] for _ in range(50)]
    chosen = fewest(times, within=0.005, most=50)
    assert served(times, chosen, 0.005)
    assert len(chosen) <= 8


@pytest.mark.parametrize("wrong", [{"most": 0}, {"within": -0.1}])
def test_a_cover_of_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="1 config or more"):
        fewest([[1.0]], **wrong)


def test_the_portfolio_to_keep_has_every_row_and_the_chosen_configs_alone():
    """With their own resources, times and grids."""
    for table in measured.tables():
        tuned = measured.at(table, measured.OCTAVES)
        kept = covering(tuned)
        chosen = fewest([row.time_ms for row in tuned.rows])
        assert 1 < len(chosen) <= 6
        assert [table.configs.index(config) for config in kept.configs] == chosen
        assert kept.resources == tuple(table.resources[i] for i in chosen)
        assert [row.at for row in kept.rows] == [row.at for row in tuned.rows]
        for row, whole in zip(kept.rows, tuned.rows, strict=True):
            assert row.time_ms == tuple(whole.time_ms[i] for i in chosen)
            assert row.programs == tuple((whole.programs or ())[i] for i in chosen)
        assert len(covering(tuned, most=1).configs) == 1
