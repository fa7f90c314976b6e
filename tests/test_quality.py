"""`shipconf quality` and `verify --max-loss`: what a choice between tuned points loses."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import measured
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packages import FILE, TOLD, package, record, write
from test_choice import TEN, portfolio
from test_verify import Package

from shipconf import quality
from shipconf.cli import main
from shipconf.portfolio import Row, document
from shipconf.quality import Loss, left_out, left_out_nearest, summary, worth_tuning

KERNEL = (
    TOLD
    + """
from shipconf import shipped_autotune

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32)]
told = shipped_autotune(configs=CONFIGS, key=["N"], nearest=["M"])(told)
"""
)


def table(times: dict[int, tuple[float | None, float | None]], **fields: Any) -> dict[str, Any]:
    """The blocks 16 and 32, with their times at values of M, on a grid that never changes."""
    return {
        "configs": [{"BLOCK": 16}, {"BLOCK": 32}], "resources": [{}, {}],
        "rows": [{"at": {"M": m}, "time_ms": list(of), "programs": [1, 1]}
                 for m, of in times.items()], **fields,
    }  # fmt: skip


# At 16 the second block is ahead, and everything around it says the first.
ODD = {1: (1.0, 2.0), 4: (1.0, 2.0), 16: (1.5, 1.2), 64: (1.0, 2.0), 256: (1.0, 2.0)}
EVEN = dict.fromkeys(ODD, (1.0, 2.0))


# --- the figures -------------------------------------------------------------------------------


def test_percentiles_are_values_that_occur():
    of = summary(i / 100 for i in range(1, 101))
    assert (of.p90, of.p95, of.worst, of.count) == (0.9, 0.95, 1.0, 100)
    assert of.mean == pytest.approx(0.505)
    assert dataclasses.astuple(summary([0.25])) == (0.25, 0.25, 0.25, 0.25, 1)
    with pytest.raises(ValueError, match="no losses"):
        summary([])


@given(st.lists(st.floats(0, 9), min_size=1))
def test_the_figures_are_in_order(losses):
    of = summary(losses)
    assert min(losses) <= of.p90 <= of.p95 <= of.worst == max(losses)
    assert math.isclose(of.mean, sum(losses) / len(losses), abs_tol=1e-9)


def test_a_hidden_point_is_chosen_for_without_its_own_times():
    odd = portfolio(ODD)
    assert [(loss.at["M"], round(loss.loss, 3)) for loss in left_out(odd, TEN)] == [
        (1, 0.0), (4, 0.0), (16, 0.25), (64, 0.0), (256, 0.0),
    ]  # fmt: skip
    worse = dataclasses.replace(odd, rows=(*odd.rows[:2], Row(at={"M": 16}, time_ms=(3.0, 1.2)),
                                           *odd.rows[3:]))  # fmt: skip
    assert max(loss.loss for loss in left_out(worse, TEN)) == pytest.approx(1.5)


def test_the_losses_of_octaves_foretell_those_between():
    """Hiding a point doubles the distance: over all tables it tells of more than launches meet."""
    hidden, near, met = [], [], []
    for whole in measured.tables():
        stored = measured.at(whole, measured.OCTAVES)
        hidden += left_out(stored, measured.device())
        near += left_out_nearest(stored)
        for row in whole.rows:
            if row.at["M"] not in measured.OCTAVES:
                met.append(quality.predicted(stored, measured.device(), row))
    means = [summary(loss.loss for loss in some if loss).mean for some in (met, hidden, near)]
    assert means[0] < means[1] < means[2] / 4
    assert means[1] < 3 * means[0]


def test_what_tells_nothing_is_left_out():
    assert left_out(portfolio({16: [1.0, 2.0]}), TEN) == []
    assert left_out_nearest(portfolio({16: [1.0, 2.0]})) == []
    holes = portfolio({16: [1.0, 2.0], 64: [None, 2.0], 256: [None, None]})
    assert [loss.at["M"] for loss in left_out(holes, TEN)] == [16]
    assert left_out(holes, TEN)[0].index == 1
    assert quality.oracle(holes.rows[2]) is None


# --- what to tune next -------------------------------------------------------------------------


def losses(*pairs: tuple[Any, float]) -> list[Loss]:
    return [
        Loss({"M": at} if isinstance(at, int) else {"M": at[0], "B": at[1]}, 0, loss)
        for at, loss in pairs
    ]


def test_the_points_beside_a_bad_one_are_worth_tuning():
    found = worth_tuning(losses((1, 0.0), (4, 0.0), (16, 0.3), (256, 0.1), (1024, 0.0)))
    assert found == [{"M": 64}, {"M": 8}, {"M": 512}]


def test_nothing_is_worth_tuning_where_nothing_is_lost():
    assert worth_tuning(losses((1, 0.0), (64, 0.0))) == []
    assert worth_tuning(losses((4, 0.5))) == []
    assert worth_tuning(losses((1, 0.5), (2, 0.5))) == []  # no whole number lies between


def test_of_several_values_the_neighbours_in_each_direction_count():
    grid = losses(((16, 1), 0.0), ((64, 1), 0.0), ((16, 4), 0.4), ((64, 4), 0.0))
    found = worth_tuning(grid, most=9)
    assert {tuple(point.values()) for point in found} == {(16, 2), (32, 4)}


# --- the commands ------------------------------------------------------------------------------


def printed(capsys, *words: str) -> dict[str, Any]:
    assert main(["quality", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_it_tells_the_losses_of_a_file_and_where(tmp_path, capsys):
    path = write(tmp_path, record(16, 1), portfolios=[table(ODD)])
    told = printed(capsys, str(path))
    (one,) = told["portfolios"]
    assert (one["path"], one["where"], one["configs"]) == (str(path), "portfolios[0]", 2)
    assert one["worst_at"] == {"M": 16}
    assert one["predicted"] == {
        "mean": pytest.approx(0.05), "p90": pytest.approx(0.25), "p95": pytest.approx(0.25),
        "worst": pytest.approx(0.25), "count": 5,
    }  # fmt: skip
    # 16 is the nearest of 4, where its winner loses too.
    assert one["nearest"]["mean"] > one["predicted"]["mean"]
    assert one["commands"] == [
        "shipconf tune module:told -k N=8 --at M=8 --dtypes int32",
        "shipconf tune module:told -k N=8 --at M=32 --dtypes int32",
    ]
    assert main(["quality", str(path)]) == 0
    words = capsys.readouterr().out
    assert ["predicted", "5.0%", "25.0%", "25.0%", "25.0%", "M=16"] in map(
        str.split, words.splitlines()
    )
    assert "tune next: shipconf tune module:told -k N=8 --at M=8 --dtypes int32" in words


def test_files_without_portfolios_are_named(tmp_path, capsys):
    path = write(tmp_path, record(16, 1), record(32, 64))
    told = printed(capsys, str(tmp_path))
    assert told["portfolios"] == []
    assert [fault["path"] for fault in told["unknown"]] == [str(path)]


def test_a_kernel_is_asked_in_every_place_and_tuned_by_its_name(tmp_path, store, capsys):
    module = package(tmp_path, KERNEL)
    shelf = Path(str(module.__file__)).parent / "configs" / "tile" / "told"
    write(shelf, record(16, 1), portfolios=[table(ODD)])
    write(shelf, record(16, 1), kernel="other", name=FILE.replace("N=8", "N=9"), key={"N": 9},
          portfolios=[table(ODD)])  # fmt: skip
    target = f"{module.__file__}:told"
    (one,) = printed(capsys, target)["portfolios"]
    assert one["path"] == str(shelf / FILE)
    assert one["commands"][0] == f"shipconf tune {target} -k N=8 --at M=8 --dtypes int32"


def test_a_package_says_how_its_kernel_is_imported(tmp_path, capsys):
    folder = Package(tmp_path)
    write(folder.shelf, record(32), portfolios=[table(ODD)])
    (one,) = printed(capsys, str(folder.folder))["portfolios"]
    assert f"shipconf tune {folder.folder.name}.tile:told -k N=8" in one["commands"][0]


def test_a_broken_file_is_a_finding(tmp_path, capsys):
    (tmp_path / FILE).write_text("{")
    assert main(["quality", str(tmp_path)]) == 1
    assert FILE in capsys.readouterr().err


def test_verify_fails_on_a_loss_beyond_the_one_allowed(tmp_path, capsys):
    folder = Package(tmp_path)
    write(folder.shelf, record(32), portfolios=[table(ODD)])
    asked = ["verify", str(folder.folder), "--no-import", "--max-loss"]
    assert main([*asked, "30%"]) == 0
    assert main([*asked, "0.25"]) == 0
    capsys.readouterr()
    assert main([*asked, "20%"]) == 1
    words = capsys.readouterr().out
    assert "portfolios[0]: a choice for M=16, were it not tuned, would lose 25.0%" in words
    assert "--at M=8" in words


def test_verify_notes_the_files_whose_loss_is_not_known(tmp_path):
    folder = Package(tmp_path)
    assert any("is unknown" in note.what for note in folder.report(max_loss=0.05).notes)
    assert not any("is unknown" in note.what for note in folder.report().notes)


@pytest.mark.parametrize("wrong", ["five", "-1%", "nan", "inf", "%"])
def test_a_loss_that_is_no_share_is_refused(wrong, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify", ".", f"--max-loss={wrong}"])
    assert caught.value.code == 2
    assert "wants a share such as 5%" in capsys.readouterr().err


def test_verify_finds_what_is_wrong_with_a_portfolio(tmp_path):
    """What no launch would choose by: malformed, with gaps, stale, or with an unknown knob."""
    folder = Package(tmp_path)
    where = [where for _, where, _ in folder.faults()]
    assert where == []
    holes = table({1: (1.0, None), 4: (0.0, 2.0)}, fingerprint="1:other")
    holes["configs"][1] = {"BLOCK": 32, "WARP": 1}
    write(folder.shelf, record(32), portfolios=[holes])
    found = {where: what for _, where, what in folder.faults()}
    assert set(found) == {
        "portfolios[0].rows[0].time_ms[1]", "portfolios[0].rows[1].time_ms[0]",
        "portfolios[0].configs[1]", "portfolios[0].fingerprint",
    }  # fmt: skip
    assert "is missing" in found["portfolios[0].rows[0].time_ms[1]"]
    assert "WARP is no parameter" in found["portfolios[0].configs[1]"]
    write(folder.shelf, record(32), portfolios=[{"configs": 1}])
    assert [where for _, where, _ in folder.faults()] == ["portfolios[0].configs"]


def test_a_measured_portfolio_survives_its_file(tmp_path, capsys):
    """What a file holds is what the table in memory says."""
    stored = measured.at(measured.tables()[0], measured.OCTAVES)
    device = {n: v for n, v in vars(measured.device()).items() if n != "extra"}
    rows = tuple(dataclasses.replace(row, extra={}) for row in stored.rows)
    bare = dataclasses.replace(stored, rows=rows)
    name = "N=8,dtypes=int32,device_name=NVIDIA_H200,arch=sm_90,mp=132.json"
    path = write(tmp_path, record(16, 1), name=name, device=device,
                 portfolios=[document(bare, ("M",))])  # fmt: skip
    (one,) = printed(capsys, str(path))["portfolios"]
    expected = summary(loss.loss for loss in left_out(stored, measured.device()))
    assert one["predicted"] == pytest.approx(vars(expected))
