"""The size of a launch's grid: asked of the grid, or told from other points."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import measured
import pytest
from test_choice import portfolio

from shipconf.portfolio import Portfolio
from shipconf.programs import Sizes, of_grid


def told(table: Portfolio, at: Mapping[str, int]) -> list[int] | None:
    return Sizes(table).told(at)


@pytest.mark.parametrize(
    ("grid", "size"),
    [((3,), 3), ((3, 4, 5), 60), ([2, 2], 4), (7, 7), (lambda named: (named["n"], 2), 20)],
)
def test_a_grid_is_a_size_in_each_direction_or_a_function(grid, size):
    assert of_grid(grid, {"n": 10}) == size


@pytest.mark.parametrize("grid", [(1.5,), None, "x", lambda named: None])
def test_a_grid_that_is_none_raises(grid):
    with pytest.raises(TypeError):
        of_grid(grid, {})


def test_tiles_of_a_knob_tell_the_grid_between_the_points():
    """On the measured GEMM, at every M that no octave is: as the table itself has it."""
    for table in measured.tables():
        octaves = measured.at(table, measured.OCTAVES)
        for row in table.rows:
            assert told(octaves, row.at) == list(row.programs or ())


def test_what_never_changes_is_told_and_what_nobody_knows_is_not():
    fixed = portfolio({1: [1.0], 64: [1.0]}, programs={1: (132,), 64: (132,)})
    assert told(fixed, {"M": 9}) == [132]
    odd = portfolio({1: [1.0], 64: [1.0]}, programs={1: (3,), 64: (7,)})
    assert told(odd, {"M": 9}) is None
    assert told(portfolio({1: [1.0]}), {"M": 9}) is None
    assert told(portfolio({(1, 1): [1.0]}, programs={(1, 1): (1,)}), {"M": 1, "B": 9}) is None


def test_rules_that_fit_and_disagree_tell_nothing():
    """One program at 1 and at 16: tiles of 16 and of 64 both do that."""
    table = portfolio({1: [1.0], 16: [1.0]}, programs={1: (1,), 16: (1,)})
    table = dataclasses.replace(table, configs=({"BLOCK_M": 16, "BLOCK_N": 64},))
    assert told(table, {"M": 16}) == [1]
    assert told(table, {"M": 32}) is None


def test_points_where_a_config_does_not_run_say_nothing_of_its_grid():
    rows = {1: [None], 16: [1.0], 64: [1.0]}
    table = portfolio(rows, programs={1: (0,), 16: (16,), 64: (64,)})
    assert told(table, {"M": 32}) == [32]
    assert told(portfolio({1: [None]}, programs={1: (0,)}), {"M": 32}) is None
