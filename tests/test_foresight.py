"""A launch between tuned points: by predicted time where a portfolio ships, else the nearest."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels import Trial
from packages import INTERPRETER, package, record, shelf, write

import shipconf
from shipconf import Device, ShipconfWarning
from shipconf.choice import Predictor

# On the interpreter a launch takes as long as its programs: 16 is the faster where tiles of 32
# would be half empty. The records say 16 at 64 and 32 at 128, as if nothing lay between.
TIMES = {64: (1.0, 1.05), 128: (2.1, 2.0)}


def tiles(m: int, block: int) -> int:
    return -(-m // block)


def table(times: Any = TIMES, **fields: Any) -> dict[str, Any]:
    return {
        "configs": [{"BLOCK": 16}, {"BLOCK": 32}], "resources": [{}, {}],
        "rows": [{"at": {"M": m}, "time_ms": list(of), "programs": [tiles(m, 16), tiles(m, 32)]}
                 for m, of in times.items()], **fields,
    }  # fmt: skip


@pytest.fixture
def module(tmp_path) -> Any:
    return package(tmp_path / "package")


def ship(module: Any, *tables: dict[str, Any], **fields: Any) -> Path:
    records = fields.pop("records", (record(16, 64), record(32, 128)))
    return write(shelf(module), *records, portfolios=list(tables), **fields)


def launch(trial: Trial, m: int, grid: Any = None) -> int:
    """The block of a launch whose tiles cover `m`."""
    trial.out.zero_()
    trial.kernel[grid or (lambda meta: (tiles(m, meta["BLOCK"]),))](trial.out, 8, m)
    return int(trial.out[0])


def told(trial: Trial, m: int, grid: Any = None) -> Any:
    return trial.kernel.resolve(
        trial.out, 8, m, grid=grid or (lambda meta: (tiles(m, meta["BLOCK"]),))
    )


# --- the choice ----------------------------------------------------------------------------------


def test_between_points_the_config_of_the_least_predicted_time_is_launched(module):
    """97 needs 7 tiles of 16, or 4 of 32, and is nearer to 128; 96 needs 6, or 3."""
    path = ship(module, table())
    trial = Trial(module.told)
    assert (launch(trial, 97), launch(trial, 96)) == (16, 32)
    assert trial.measured == []
    match = told(trial, 97)
    assert (match.rule, match.source, match.path, match.record) == (
        "predicted", "package", path, None,
    )  # fmt: skip
    assert match.distance == pytest.approx(0.400, abs=1e-3)  # from 128
    assert match.prediction.config == {"BLOCK": 16}
    assert match.runner_up.config == {"BLOCK": 32}
    assert match.prediction.time_ms < match.runner_up.time_ms
    assert match.config == {"BLOCK": 16}


def test_without_a_portfolio_the_nearest_is_launched_as_before(module):
    ship(module)
    trial = Trial(module.told)
    assert launch(trial, 97) == 32
    assert told(trial, 97).rule == "nearest"


def test_an_exact_record_comes_first(module):
    ship(module, table(), records=[record(32, 64), record(64, 97)])
    trial = Trial(module.told)
    assert (launch(trial, 64), launch(trial, 97)) == (32, 64)
    assert told(trial, 97).rule == "exact"


def test_a_record_that_is_nearer_than_all_that_was_measured_serves(module):
    """As one that a user tuned beside a package's portfolio."""
    ship(module, table(), records=[record(16, 64), record(64, 98)])
    trial = Trial(module.told)
    assert told(trial, 97).rule == "nearest" and launch(trial, 97) == 64
    assert told(trial, 70).rule == "predicted"


def test_a_portfolio_serves_where_no_record_does(module):
    ship(module, table(), records=[])
    trial = Trial(module.told)
    assert launch(trial, 97) == 16 and trial.measured == []


def test_beyond_the_limit_nothing_is_predicted(module):
    ship(module, table(), records=[])
    assert told(Trial(module.told), 512).rule == "predicted"
    assert told(Trial(module.told), 513) is None
    assert told(Trial(module.told, max_distance=0.1), 97) is None


def test_the_table_of_the_nearest_point_decides_and_of_equals_the_first(
    module, tmp_path, monkeypatch
):
    """The folders of `SHIPCONF_CONFIG_PATH` come before the package."""
    ship(module, table(), records=[])
    other = table({64: (9.0, 1.0), 128: (9.0, 1.0)})
    write(tmp_path / "path" / "told", portfolios=[other])
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "path"))
    trial = Trial(module.told)
    assert (told(trial, 97).source, launch(trial, 97)) == ("path", 32)
    write(tmp_path / "path" / "told", portfolios=[table({32: (9.0, 1.0)})])
    trial = Trial(module.told)
    assert (told(trial, 97).source, launch(trial, 97)) == ("package", 16)


def test_asked_without_a_grid_it_answers_as_the_launch_does(module):
    """The rows tell that tiles of `BLOCK` cover M."""
    ship(module, table(), records=[])
    trial = Trial(module.told)
    for m in (65, 96, 97, 100, 112, 127):
        match = trial.kernel.resolve_for(dtypes=torch.int32, N=8, M=m)
        assert match is not None and match.rule == "predicted"
        assert match.config["BLOCK"] == launch(trial, m), m


def test_the_choice_is_made_once_for_a_shape(module, monkeypatch):
    ship(module, table())
    trial = Trial(module.told)
    asked = []
    first = Predictor.first
    monkeypatch.setattr(
        Predictor, "first", lambda *of, **more: asked.append(of) or first(*of, **more)
    )
    assert [launch(trial, 97) for _ in range(3)] == [16, 16, 16]
    assert len(asked) == 1


@pytest.mark.parametrize("strict", [False, True])
def test_offline_it_works_the_same(module, strict):
    ship(module, table())
    with shipconf.offline(strict=strict):
        assert launch(Trial(module.told), 97) == 16


def test_the_explanation_tells_the_prediction_and_the_runner_up(module):
    path = ship(module, table())
    trial = Trial(module.told)
    grid = lambda meta: (tiles(97, meta["BLOCK"]),)  # noqa: E731
    lines = trial.kernel.explain(trial.out, 8, 97, grid=grid).splitlines()
    best, second = told(trial, 97).prediction, told(trial, 97).runner_up
    assert (
        f"uses: package, predicted: {best}, measured 0.40 octaves away: BLOCK=16 ({path})" in lines
    )
    assert f"  runner-up: {second}: BLOCK=32" in lines
    assert trial.kernel.explain_for(dtypes=torch.int32, N=8, M=97).splitlines() == lines


def test_a_prediction_says_its_waves_where_the_device_has_multiprocessors(module):
    l4 = Device("cuda", "NVIDIA L4", "sm_89", 58, 101376)
    fields = {n: v for n, v in vars(l4).items() if n != "extra"}
    times = {64: (1.0, 1.05), 8192: (80.0, 90.0)}
    write(shelf(module), device=fields, portfolios=[table(times)],
          name="N=8,dtypes=int32,device_name=NVIDIA_L4,arch=sm_89,mp=58.json")  # fmt: skip
    match = Trial(module.told).kernel.resolve_for(dtypes=torch.int32, device=l4, N=8, M=16384)
    assert match is not None and str(match.prediction) == "111.2 ms, 1 wave"
    assert str(match.runner_up) == "160 ms, 2 waves"


# --- what must not be chosen ---------------------------------------------------------------------


def test_the_authors_predicate_has_the_last_word(module):
    ship(module, table())

    def valid(config: dict[str, Any], named: dict[str, Any]) -> bool:
        return not (config["BLOCK"] == 16 and named["M"] > 90)

    trial = Trial(module.told, valid=valid)
    assert (launch(trial, 97), launch(trial, 81)) == (32, 16)
    assert launch(Trial(module.told), 81) == 16
    refused = Trial(module.told, valid=lambda config, named: False)
    assert told(refused, 97) is None and told(refused, 64) is None


def test_a_config_that_early_pruning_drops_is_not_predicted(module):
    ship(module, table())

    def prune(configs: Any, nargs: Any, **kwargs: Any) -> Any:
        return [c for c in configs if c.kwargs["BLOCK"] != 16]

    # As declared, configs have their launch options; stored ones that lack them are equal.
    trial = Trial(module.told, prune_configs_by={"early_config_prune": prune})
    assert launch(trial, 97) == 32


def test_a_config_that_does_not_fit_the_kernel_is_told_of_and_passed_over(module):
    odd = table()
    odd["configs"][0] = {"BLOCK": 16, "WARP": 1}
    ship(module, odd)
    with pytest.warns(ShipconfWarning, match="WARP is no parameter"):
        assert launch(Trial(module.told), 97) == 32


def test_a_config_that_does_not_fit_the_device_is_passed_over(module):
    l4 = {"backend": "cuda", "name": "NVIDIA L4", "arch": "sm_89", "multiprocessors": 58,
          "shared_memory": 101376}  # fmt: skip
    write(shelf(module), device=l4, portfolios=[table(resources=[{"shared": 101377}, {}])],
          name="N=8,dtypes=int32,device_name=NVIDIA_L4,arch=sm_89,mp=58.json")  # fmt: skip
    asked = Device(**l4)
    match = Trial(module.told).kernel.resolve_for(dtypes=torch.int32, device=asked, N=8, M=97)
    assert match is not None and match.config["BLOCK"] == 32 and match.runner_up is None


def test_a_config_that_fails_at_launch_gives_way_to_the_next_best(module):
    write(shelf(module, "picky"), kernel="picky", portfolios=[table()])
    trial = Trial(module.picky)
    with pytest.warns(ShipconfWarning, match="fails and is not used again"):
        trial.kernel[lambda meta: (tiles(97, meta["BLOCK"]),)](trial.out, 8, 97, BAD=16)
    assert int(trial.out[0]) == 32


@pytest.mark.parametrize(
    "fields",
    [
        {"portfolio": {"fingerprint": "1:of-another-version"}},
        {"file": {"dtypes": {"out_ptr": "float16"}}},
        {"file": {"device": {**INTERPRETER, "arch": "other"}}},
    ],
)
def test_a_portfolio_of_something_else_is_not_asked(module, fields):
    """Another version of the kernel, other dtypes, another device."""
    ship(module, table(**fields.get("portfolio", {})), records=[], **fields.get("file", {}))
    assert told(Trial(module.told), 97) is None


# --- bad input -----------------------------------------------------------------------------------


def warned(module: Any, grid: Any = None) -> list[str]:
    """What launches at two points warn of, which take the nearest."""
    trial = Trial(module.told)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert (launch(trial, 97, grid), launch(trial, 98, grid)) == (32, 32)
        assert trial.kernel.resolve(trial.out, 8, 97, grid=grid).rule == "nearest"
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(("bad", "what"), [(None, "is missing"), (0.0, "is 0.0"), (0, "is 0")])
def test_a_table_with_holes_or_times_of_zero_falls_back_to_the_nearest(module, bad, what):
    path = ship(module, table({**TIMES, 256: (bad, 4.0)}))
    (message,) = warned(module)
    assert f"a portfolio in {path}" in message
    assert f"rows[2].time_ms[0]: {what}" in message


@pytest.mark.parametrize("portfolios", [{}, [7], [{"configs": []}]])
def test_a_malformed_portfolio_falls_back_to_the_nearest(module, portfolios):
    path = write(shelf(module), record(16, 64), record(32, 128), portfolios=portfolios)
    (message,) = warned(module)
    assert f"{path} has a malformed portfolio" in message
    assert json.loads(path.read_text())["portfolios"] == portfolios


def test_a_grid_that_fails_for_another_config_falls_back_to_the_nearest(module):
    path = ship(module, table())

    def grid(meta: dict[str, Any]) -> tuple[int]:
        if meta["BLOCK"] == 16:
            raise RuntimeError("no grid of 16\nat all")
        return (1,)

    (message,) = warned(module, grid)
    assert f"a portfolio in {path}" in message and "RuntimeError: no grid of 16" in message
    assert "at all" not in message


def test_a_nan_in_memory_is_a_hole(module):
    """A file cannot hold one; a table made by hand can."""
    from test_choice import portfolio

    (fault,) = portfolio({16: [1.0, float("nan")]}).gaps()
    assert fault[0] == "rows[0].time_ms[1]" and "is nan" in fault[1]
