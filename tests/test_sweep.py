"""A tuning over several points: each in turn, then their winners at all, and what of them is kept.

Times are those of a table, by point and block, so that it is known which configs must be kept.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import triton
from kernels import Trial
from packages import records_in

import shipconf
from shipconf import Launch, files
from shipconf.cli import main

# No two blocks are within 3 % of each other, and each wins at one point.
TIMES: Mapping[int, Mapping[int, Any]] = {
    16: {16: 1.0, 32: 1.5, 64: 3.0},
    64: {16: 4.4, 32: 4.0, 64: 4.5},
    256: {16: 18.0, 32: 16.0, 64: 12.0},
}
FAILS = RuntimeError("this block fails here")


class Sweep(Trial):
    """A kernel whose times are of a table by `M` and block; `pairs` are those measured so far."""

    def __init__(self, table: Mapping[int, Mapping[int, Any]] = TIMES, **options: Any) -> None:
        super().__init__(**options)
        self.table = table
        self.pairs: list[tuple[int, int]] = []
        self.m = 0

        @self.kernel.workload
        def workload(N: int, M: int, dtypes: Any) -> Launch:
            self.m = M
            if M not in self.table:
                raise ValueError(f"no launch of {M}")
            return Launch(self.grid(M), (self.out, N, M))

    @staticmethod
    def grid(m: int) -> Any:
        return lambda named: (triton.cdiv(m, named["BLOCK"]),)

    def do_bench(self, fn: Any, quantiles: Any) -> list[float]:
        fn()
        block = int(self.out[0])
        self.pairs.append((self.m, block))
        time = self.table[self.m][block]
        if isinstance(time, BaseException):
            raise time
        return [time, time, time]

    def tune(self, *points: int, **options: Any) -> Any:
        return self.kernel.tune(N=8, M=list(points), dtypes="int32", **options)

    def rule(self, m: int) -> str:
        match = self.kernel.resolve(self.out, 8, m, grid=self.grid(m))
        assert match is not None
        return match.rule


def portfolios(store: Path) -> list[Any]:
    (path,) = store.rglob("*.json")
    return json.loads(path.read_text()).get("portfolios", [])


def blocks(table: Any) -> list[int]:
    return [config["BLOCK"] for config in table["configs"]]


# --- what is measured and kept --------------------------------------------------------------------


def test_all_winners_are_measured_at_all_points_and_kept_in_the_file(store):
    trial = Sweep()
    records = trial.tune(16, 64, 256)
    assert [record.config["BLOCK"] for record in records] == [16, 32, 64]
    every = [(m, block) for m in TIMES for block in (16, 32, 64)]
    assert trial.pairs == every * 2
    (table,) = portfolios(store)
    assert blocks(table) == [16, 32, 64]
    assert [(row["at"], row["time_ms"], row["programs"]) for row in table["rows"]] == [
        ({"M": 16}, [1.0, 1.5, 3.0], [1, 1, 1]),
        ({"M": 64}, [4.4, 4.0, 4.5], [4, 2, 1]),
        ({"M": 256}, [18.0, 16.0, 12.0], [16, 8, 4]),
    ]
    assert table["fingerprint"] == records[0].fingerprint and table["triton"] == triton.__version__
    assert list(store.rglob("*.journal")) == []


def test_a_launch_between_the_points_is_chosen_by_predicted_time(store):
    """Also where a shape was launched before, with the nearest."""
    trial = Sweep()
    trial.tune(16, 64, 256, within=None)
    assert trial.launch(8, 100) == 32 and trial.rule(100) == "nearest"
    trial.tune(16, 64, 256)
    assert (trial.rule(64), trial.rule(100)) == ("exact", "predicted")
    assert Sweep().rule(100) == "predicted"


@pytest.mark.parametrize(("within", "kept"), [(0.0, [16, 32, 64]), (0.11, [16, 64]), (0.5, [16])])
def test_the_fewest_are_kept_that_lose_no_more_than_asked(within, kept, store, caplog):
    with caplog.at_level(logging.INFO, logger="shipconf.crosstab"):
        Sweep().tune(16, 64, 256, within=within)
    assert blocks(portfolios(store)[0]) == kept
    loss = {3: "0.0%", 2: "10.0%", 1: "50.0%"}[len(kept)]
    assert caplog.messages == [
        f"told for N=8, dtypes=int32: 3 configs measured at 3 points; {len(kept)} kept, of which "
        f"the best loses at most {loss}"
    ]


def test_nothing_is_measured_again_where_nothing_was_tuned(store):
    Sweep().tune(16, 64, 256)
    again = Sweep()
    assert [record.at["M"] for record in again.tune(16, 64, 256)] == [16, 64, 256]
    assert again.pairs == []


@pytest.mark.parametrize("several", [True, False])
def test_a_further_point_extends_the_portfolio(several, store):
    """With those tuned before named, and alone, as `shipconf quality` advises."""
    Sweep().tune(16, 256)
    assert blocks(portfolios(store)[0]) == [16, 64]
    trial = Sweep()
    if several:
        trial.tune(16, 64, 256)
    else:
        assert trial.kernel.tune(N=8, M=64, dtypes="int32").config["BLOCK"] == 32
    (table,) = portfolios(store)
    assert [row["at"]["M"] for row in table["rows"]] == [16, 64, 256]
    assert blocks(table) == [16, 32, 64]
    assert len(trial.pairs) == 3 + 9


def test_a_portfolio_is_measured_of_points_that_were_tuned_one_by_one(store):
    trial = Sweep()
    for m in TIMES:
        trial.kernel.tune(N=8, M=m, dtypes="int32")
    assert portfolios(store) == [] and len(trial.pairs) == 9
    trial.tune(16, 64)
    assert [row["at"]["M"] for row in portfolios(store)[0]["rows"]] == [16, 64, 256]
    assert len(trial.pairs) == 9 + 9


def test_what_was_tuned_by_force_is_measured_again(store):
    Sweep().tune(16, 64, 256)
    faster = {**TIMES, 16: {16: 1.0, 32: 0.5, 64: 3.0}}
    Sweep(faster).kernel.tune(N=8, M=16, dtypes="int32", force=True)
    (table,) = portfolios(store)
    assert blocks(table) == [32, 64]
    assert [row["time_ms"] for row in table["rows"]] == [[0.5, 3.0], [4.0, 4.5], [16.0, 12.0]]


def test_winners_that_ship_with_the_package_count_too(store, tmp_path):
    """Their points as well, where they were asked for."""
    Sweep().tune(16)
    (path,) = store.rglob("*.json")
    (tmp_path / "told").mkdir()
    path.rename(tmp_path / "told" / path.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path))
        Sweep().tune(16, 256)
    (table,) = portfolios(store)
    assert blocks(table) == [16, 64]
    assert [record["at"] for record in records_in(store)] == [{"M": 256}]
    assert [row["at"]["M"] for row in table["rows"]] == [16, 256]


def test_a_point_tuned_elsewhere_extends_the_portfolio_that_ships(store, tmp_path, monkeypatch):
    """With all its points: what is exported then takes its place."""
    Sweep().tune(16, 256)
    (path,) = store.rglob("*.json")
    (tmp_path / "told").mkdir()
    path.rename(tmp_path / "told" / path.name)
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path))
    trial = Sweep()
    trial.tune(16, 256)
    assert trial.pairs == []
    trial.kernel.tune(N=8, M=64, dtypes="int32")
    assert [row["at"]["M"] for row in portfolios(store)[0]["rows"]] == [16, 64, 256]
    assert blocks(portfolios(store)[0]) == [16, 32, 64]
    assert [record["at"]["M"] for record in records_in(store)] == [64]


def test_every_combination_of_several_nearest_values_is_a_point(store):
    table = {m: TIMES[m] for m in (16, 256)}
    trial = Sweep(table, nearest=["M", "N"], key=[])
    records = trial.kernel.tune(N=[8, 16], M=[16, 256], dtypes="int32")
    assert [record.at for record in records] == [
        {"M": m, "N": n} for m in (16, 256) for n in (8, 16)
    ]
    rows = portfolios(store)[0]["rows"]
    assert [row["at"] for row in rows] == [record.at for record in records]


# --- where there is none --------------------------------------------------------------------------


def test_one_point_alone_has_none(store):
    trial = Sweep()
    trial.kernel.tune(N=8, M=16, dtypes="int32")
    trial.tune(16)
    assert portfolios(store) == [] and len(trial.pairs) == 3


def test_where_one_config_wins_everywhere_there_is_nothing_to_choose(store):
    """The nearest record has the same config at every point."""
    trial = Sweep({m: {16: 3.0, 32: 2.0, 64: 1.0} for m in TIMES})
    trial.tune(16, 64, 256)
    assert portfolios(store) == [] and len(trial.pairs) == 9


def test_none_is_measured_where_none_is_asked_for(store):
    trial = Sweep()
    trial.tune(16, 64, 256, within=None)
    assert portfolios(store) == [] and len(trial.pairs) == 9


def test_the_interpreter_s_own_clock_measures_none(store, monkeypatch):
    """It says nothing of a GPU, by which the portfolio would choose."""
    trial = Sweep(do_bench=None)
    monkeypatch.setattr(shipconf.sweep.crosstab, "here", lambda *of: pytest.fail("measured"))
    blocks_won = {record.config["BLOCK"] for record in trial.tune(16, 64, 256)}
    assert blocks_won and portfolios(store) == []


@pytest.mark.parametrize(("points", "within", "what"), [
    ([16, 64], -0.1, "within is a loss of 0 or more"), ([], 0.03, "a list of values is empty"),
])  # fmt: skip
def test_what_cannot_be_meant_raises_before_anything_is_tuned(points, within, what, store):
    with pytest.raises(ValueError, match=what):
        Sweep().tune(*points, within=within)
    assert list(store.rglob("*.json")) == []


def test_a_key_that_no_file_can_hold_has_none(store):
    value = object()
    trial = Sweep(key=[("N", lambda named: value)])
    with pytest.warns(shipconf.ShipconfWarning):
        assert len(trial.kernel.tune(N=value, M=[16, 64], dtypes="int32")) == 2
    assert list(store.rglob("*.json")) == []


# --- what fails -----------------------------------------------------------------------------------


def test_a_config_that_fails_at_a_point_is_no_error(store):
    """It is kept where others need it, and launches beside the point choose among the rest."""
    trial = Sweep({**TIMES, 256: {16: FAILS, 32: 99.0, 64: 90.0}})
    assert len(trial.tune(16, 64, 256)) == 3
    (table,) = portfolios(store)
    assert blocks(table) == [16, 32, 64]
    assert [row["time_ms"][0] for row in table["rows"]] == [1.0, 4.4, None]
    assert [row["programs"][0] for row in table["rows"]] == [1, 4, 0]
    # What failed in a tuning is left out there, and not tried again.
    assert trial.pairs.count((256, 16)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trial.rule(100) == trial.rule(20) == "predicted"
        # From what it took at 64, it would be the fastest at 100.
        assert trial.launch(8, 100) != 16 and trial.launch(8, 20) == 16


def test_configs_that_the_author_refuses_at_a_point_do_not_run_there(store):
    trial = Sweep(valid=lambda config, named: config["BLOCK"] <= named["M"])
    trial.tune(16, 64, 256)
    crossed = trial.pairs[9:]
    assert (16, 64) not in crossed and (16, 32) not in crossed and (64, 64) in crossed
    (table,) = portfolios(store)
    assert table["rows"][0]["time_ms"] == [1.0, None, None]
    assert trial.rule(100) == "predicted"


def test_a_point_that_is_stored_and_cannot_be_launched_is_left_out(store, caplog):
    Sweep().tune(64)
    trial = Sweep({m: TIMES[m] for m in (16, 256)})
    trial.tune(16, 256)
    (table,) = portfolios(store)
    assert [row["at"]["M"] for row in table["rows"]] == [16, 256]
    assert "told is not measured at {'M': 64}: no launch of 64" in caplog.text


def test_records_are_kept_where_no_portfolio_can_be_written(store, caplog, monkeypatch):
    write = files.replace

    def full(path: Path, data: bytes) -> None:
        if b"portfolios" in data:
            raise OSError("no space left")
        write(path, data)

    monkeypatch.setattr(files, "replace", full)
    assert len(Sweep().tune(16, 64, 256)) == 3
    assert sorted(record["at"]["M"] for record in records_in(store)) == [16, 64, 256]
    assert "told has no new portfolio: no space left" in caplog.text
    monkeypatch.undo()


def test_a_measuring_that_is_interrupted_goes_on_where_it_was(store):
    broken_off = Sweep()
    broken_off.tune(16, 64, 256, within=None)
    broken_off.table = {**TIMES, 64: {**TIMES[64], 32: KeyboardInterrupt()}}
    with pytest.raises(KeyboardInterrupt):
        broken_off.tune(16, 64, 256)
    trial = Sweep()
    trial.tune(16, 64, 256)
    assert trial.pairs == [(64, 32), (64, 64), (256, 16), (256, 32), (256, 64)]
    assert blocks(portfolios(store)[0]) == [16, 32, 64]
    assert list(store.rglob("*.journal")) == []


# --- what the file held before --------------------------------------------------------------------


def rewritten(store: Path, **fields: Any) -> None:
    (path,) = store.rglob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_malformed_portfolio_is_replaced(store):
    Sweep().tune(16, 64, 256, within=None)
    rewritten(store, portfolios=[{"configs": 1}])
    with pytest.warns(shipconf.ShipconfWarning, match="malformed"):
        Sweep().tune(16, 64, 256)
    assert blocks(portfolios(store)[0]) == [16, 32, 64]


def test_portfolios_of_other_versions_stay_and_their_winners_do_not_count(store):
    Sweep().tune(16, 64, 256)
    (table,) = portfolios(store)
    other = {**table, "triton": "2.0.0", "rows": [{**table["rows"][0], "at": {"M": 8}}]}
    rewritten(store, portfolios=[other, table])
    trial = Sweep({**TIMES, 128: {16: 9.0, 32: 8.0, 64: 6.0}})
    trial.tune(16, 128)
    kept = {one["triton"]: [row["at"]["M"] for row in one["rows"]] for one in portfolios(store)}
    assert kept == {"2.0.0": [8], triton.__version__: [16, 64, 128, 256]}


# --- the command line -----------------------------------------------------------------------------

SOURCE = """
import torch
import triton
import triton.language as tl

import shipconf

TIMES = {16: {16: 1.0, 32: 1.5, 64: 3.0}, 64: {16: 4.4, 32: 4.0, 64: 4.5},
         128: {16: 9.0, 32: 8.0, 64: 6.0}, 256: {16: 18.0, 32: 16.0, 64: 12.0}}
out = torch.zeros(1, dtype=torch.int32)
at = [0]

def do_bench(fn, quantiles):
    fn()
    return TIMES[at[0]][int(out[0])]

@shipconf.shipped_autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (16, 32, 64)], key=["N"], nearest=["M"],
    do_bench=do_bench,
)
@triton.jit
def swept(out_ptr, N, M, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)

@swept.workload
def workload(N, M, dtypes):
    at[0] = M
    return shipconf.Launch(lambda named: (triton.cdiv(M, named["BLOCK"]),), (out, N, M))
"""


@pytest.fixture
def module(tmp_path) -> Any:
    folder = tmp_path / "sweeping"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "kernel.py").write_text(SOURCE)
    yield folder
    for name in ("sweeping", "sweeping.kernel"):  # which `verify` imports
        sys.modules.pop(name, None)


def command(module: Path, *arguments: str) -> int:
    target = f"{module / 'kernel.py'}:swept"
    return main(["tune", target, "-k", "N=8", "--dtypes", "int32", *arguments])


def test_the_command_ends_with_a_portfolio_of_each_key(module, store, capsys):
    assert command(module, "--at", "M=16,64,256") == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "N=8: 3 configs measured at 3 points; 3 kept, of which the best loses at most 0.0%"
    )
    assert command(module, "--at", "M=16,64,256", "--force", "--within", "11%", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)["portfolios"]
    (path,) = store.rglob("*.json")
    assert told.pop("loss") == pytest.approx(0.1)
    assert told == {
        "kernel": f"{module / 'kernel.py'}:swept", "values": {"N": 8}, "dtypes": "int32",
        "path": str(path), "configs": 3, "points": 3, "kept": 2,
    }  # fmt: skip
    assert blocks(portfolios(store)[0]) == [16, 64]


def test_a_dry_run_names_the_portfolio_and_measures_none(module, store, capsys):
    asked = ["--at", "M=16,64", "--dry-run"]
    assert command(module, *asked) == 0
    assert (
        "then, for N=8: all winners measured at M=16, M=64 and at what is stored beside them; the "
        "fewest are kept that lose at most 3.0%"
    ) in capsys.readouterr().out
    assert command(module, *asked, "--within", "0.1", "--json") == 0
    (planned,) = json.loads(capsys.readouterr().out)["portfolios"]
    assert (planned["points"], planned["within"]) == ([{"M": 16}, {"M": 64}], 0.1)
    assert list(store.rglob("*.json")) == []
    assert command(module, "--at", "M=16,64") == 0
    capsys.readouterr()
    for asked, count in ((["M=16,64"], 0), (["M=64"], 0), (["M=16,64,128"], 1), (["M=128"], 1)):
        assert command(module, "--at", *asked, "--dry-run", "--json") == 0
        assert len(json.loads(capsys.readouterr().out)["portfolios"]) == count, asked


def test_a_portfolio_that_fails_is_told_at_the_end_and_the_records_stay(
    module, store, capsys, monkeypatch
):
    def fail(*of: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(shipconf.stores, "put_portfolio", fail)
    assert command(module, "--at", "M=16,64") == 1
    assert "swept N=8: no new portfolio: no space left" in capsys.readouterr().err
    assert len(records_in(store)) == 2


def test_what_is_exported_is_verified_and_its_quality_told(module, store, capsys):
    """From the user store into the package, where a launch chooses by it."""
    assert command(module, "--at", "M=16,64,256") == 0
    assert main(["export", str(module), "--device", "interpreter"]) == 0
    (path,) = module.rglob("*.json")
    assert blocks(json.loads(path.read_text())["portfolios"][0]) == [16, 32, 64]
    capsys.readouterr()
    assert main(["verify", str(module), "--max-loss", "300%"]) == 0
    capsys.readouterr()
    assert main(["quality", str(module), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["portfolios"]
    assert told["predicted"]["count"] == 3 and told["configs"] == 3


def test_a_portfolio_with_a_config_that_fails_somewhere_is_verified_too(module, store, capsys):
    """A time that is missing for another reason is a fault."""
    source = module / "kernel.py"
    source.write_text(source.read_text().replace("256: {16: 18.0", "256: {16: float('nan')"))
    assert command(module, "--at", "M=16,64,256") == 0
    assert main(["export", str(module), "--device", "interpreter"]) == 0
    (path,) = module.rglob("*.json")
    assert json.loads(path.read_text())["portfolios"][0]["rows"][2]["time_ms"][0] is None
    capsys.readouterr()
    assert main(["verify", str(module)]) == 0
    assert main(["quality", str(module)]) == 0
    path.write_text(path.read_text().replace("[0, 8, 4]", "[16, 8, 4]"))
    capsys.readouterr()
    assert main(["verify", str(module)]) == 1
    assert "rows[2].time_ms[0]" in capsys.readouterr().out
