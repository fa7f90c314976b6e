"""How winners are measured at all points: on a GPU that is stood in for, and by a worker."""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from fake_gpu import FakeGpu
from kernels import Trial

from shipconf import Device, Launch, device, files
from shipconf.targets import load

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
TIMES_MS = {
    16: {16: 0.020, 32: 0.022, 64: 0.060},
    64: {16: 0.050, 32: 0.040, 64: 0.055},
    256: {16: 0.300, 32: 0.140, 64: 0.120},
}
SHARED = {16: 1000, 32: 2000, 64: 4000}


def portfolio(store: Path) -> Any:
    (path,) = store.rglob("*.json")
    (table,) = json.loads(path.read_text())["portfolios"]
    return table


# --- on a GPU -------------------------------------------------------------------------------------


class OnGpu:
    """What a kernel launches on the stand-in: each launch takes the time of the table.

    `shared` says what a config takes of a block's shared memory at a point.
    """

    def __init__(self, gpu: FakeGpu, shared: Callable[[int, int], int]) -> None:
        self.gpu = gpu
        self.shared = shared
        self.unlocked = 0

    def run(self, out: Any, n: int, m: int, *, grid: Any, warmup: bool, **flat: Any) -> Any:
        block = flat["BLOCK"]
        if not warmup:
            self.unlocked += not files.held_by_this_thread("gpu-0")
            self.gpu.put((m, block), TIMES_MS[m][block])
        return SimpleNamespace(
            metadata=SimpleNamespace(shared=self.shared(m, block), num_warps=flat["num_warps"]),
            n_regs=m // 16 + block, n_spills=0,
            src=SimpleNamespace(constants={}, signature={}, attrs={}),
        )  # fmt: skip


@pytest.fixture
def on_gpu(gpu: FakeGpu, monkeypatch) -> Callable[..., tuple[Trial, OnGpu]]:
    monkeypatch.setattr(device, "interpreted", lambda kernel: False)
    monkeypatch.setattr(device, "current", lambda kernel: H200)
    monkeypatch.setattr(device, "current_index", lambda: 0)
    monkeypatch.setattr(device, "physical_id", lambda: "0")
    monkeypatch.setattr(device, "all_alike", lambda: True)

    def make(
        shared: Callable[[int, int], int] = lambda m, block: SHARED[block], **options: Any
    ) -> tuple[Trial, OnGpu]:
        trial = Trial(do_bench=None, warmup=1, **options)
        launches = OnGpu(gpu, shared)
        trial.kernel.target = launches

        @trial.kernel.workload
        def workload(N: int, M: int, dtypes: Any) -> Launch:
            return Launch(lambda named: (triton.cdiv(M, named["BLOCK"]), 10), (trial.out, N, M))

        return trial, launches

    return make


def tune(trial: Trial, **options: Any) -> Any:
    return trial.kernel.tune(N=8, M=[16, 64, 256], dtypes="int32", **options)


def test_each_winner_has_its_times_resources_and_grids(on_gpu, store):
    """Registers are those of the point where it takes the most of them."""
    trial, launches = on_gpu()
    assert [record.config["BLOCK"] for record in tune(trial)] == [16, 32, 64]
    table = portfolio(store)
    assert [config["BLOCK"] for config in table["configs"]] == [16, 32, 64]
    for row in table["rows"]:
        assert row["time_ms"] == pytest.approx(list(TIMES_MS[row["at"]["M"]].values()), rel=1e-3)
    assert [row["programs"] for row in table["rows"]] == [
        [10, 10, 10], [40, 20, 10], [160, 80, 40],
    ]  # fmt: skip
    assert table["resources"] == [
        {"shared": SHARED[block], "registers": 16 + block, "spills": 0, "warps": 4}
        for block in (16, 32, 64)
    ]
    assert launches.unlocked == 0
    match = trial.kernel.resolve(
        trial.out, 8, 128, grid=lambda named: (triton.cdiv(128, named["BLOCK"]), 10)
    )
    assert match is not None and match.rule == "predicted" and match.prediction.waves == 1


def test_what_serves_from_another_point_reaches_the_finals(on_gpu, gpu: FakeGpu):
    """Though its first launches are slow; in the finals it is the fastest."""
    trial, launches = on_gpu()
    assert trial.kernel.tune(N=8, M=16, dtypes="int32").config["BLOCK"] == 16
    others: list[int] = []

    def run(out: Any, n: int, m: int, *, grid: Any, warmup: bool, **flat: Any) -> Any:
        if not warmup and flat["BLOCK"] == 16:
            gpu.put((m, 16), 0.030 if others else 0.200)
            warmup = True
        elif not warmup:
            others.append(flat["BLOCK"])
        return launches.run(out, n, m, grid=grid, warmup=warmup, **flat)

    trial.kernel.target = SimpleNamespace(run=run)
    assert trial.kernel.tune(N=8, M=64, dtypes="int32").config["BLOCK"] == 16


def test_they_are_measured_in_turn_by_rounds_with_a_cold_cache(on_gpu, gpu: FakeGpu, store):
    """Within 1.5 times the best, that is; those far behind get a few launches alone."""
    trial, _ = on_gpu()
    tune(trial, within=None)
    gpu.done.clear()
    tune(trial)
    done = [name for name in gpu.done if name != "record"]
    launches = [name for name in done if name not in ("clear", "synchronize")]
    at_64 = [block for m, block in launches if m == 64]
    assert at_64[-6:] == [16, 32, 64] * 2 and at_64.count(64) >= 4 * 8
    at_16 = [block for m, block in launches if m == 16]
    assert at_16[-6:] == [16, 32, 32] * 2 and at_16.count(64) == 4  # an odd number in each turn
    warm = [b for a, b in itertools.pairwise(["", *done]) if b in launches and a != "clear"]
    assert sorted(warm) == sorted((m, block) for m in TIMES_MS for block in SHARED)  # to load it


def test_a_config_that_does_not_fit_at_a_point_is_not_launched_there(on_gpu, gpu: FakeGpu, store):
    trial, _ = on_gpu(lambda m, block: 300_000 if (m, block) == (256, 16) else SHARED[block])
    assert len(tune(trial, within=0.2)) == 3
    assert (256, 16) not in gpu.done
    table = portfolio(store)
    assert [config["BLOCK"] for config in table["configs"]] == [32]


def test_a_tuning_that_holds_the_key_is_waited_for(on_gpu, store, monkeypatch, caplog):
    trial, _ = on_gpu()
    records = tune(trial, within=None)
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", "0")
    (lock,) = store.rglob("*.json.lock")
    with files.lock(str(lock), lock, 1.0):
        assert tune(trial) == records
    assert "told has no new portfolio" in caplog.text and str(lock) in caplog.text
    tune(trial)
    assert len(portfolio(store)["rows"]) == 3


# --- in a worker ----------------------------------------------------------------------------------

NAME = "swept_elsewhere"
SOURCE = """
import os
from pathlib import Path

import torch
import triton
import triton.language as tl

from shipconf import Launch, shipped_autotune

HERE = Path(__file__).parent
TIMES = {16: {16: 1.0, 32: 1.1, 64: 3.0}, 64: {16: 4.4, 32: 4.0, 64: 4.5},
         256: {16: 18.0, 32: 13.0, 64: 12.0}}
out = torch.zeros(1, dtype=torch.int32)
at = [0]


def do_bench(fn, quantiles):
    fn()
    pair = f"{at[0]}:{int(out[0])}"
    with (HERE / "measured").open("a+") as file:
        file.write(f"{pair} {os.getpid()}\\n")
        file.seek(0)
        if pair == KILLER and file.read().count(pair) > 1:
            os.kill(os.getpid(), 9)
    return TIMES[at[0]][int(out[0])]


@shipped_autotune(configs=[triton.Config({"BLOCK": b}) for b in (16, 32, 64)], key=["N"],
                  nearest=["M"], do_bench=do_bench)
@triton.jit
def swept(out_ptr, N, M, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)


@swept.workload
def workload(N, M, dtypes):
    at[0] = M
    return Launch(lambda named: (triton.cdiv(M, named["BLOCK"]),), (out, N, M))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes and imports a module, whose process ends when it measures a pair again."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(killer: str = "none") -> Any:
        (tmp_path / f"{NAME}.py").write_text(SOURCE.replace("KILLER", repr(killer)))
        return load(f"{NAME}:swept")

    yield write
    sys.modules.pop(NAME, None)


def measured(folder: Path) -> list[tuple[str, int]]:
    lines = (folder / "measured").read_text().splitlines()
    return [(pair, int(pid)) for pair, pid in map(str.split, lines)]


@pytest.mark.usefixtures("apart")
def test_the_worker_that_tunes_measures_the_portfolio(module, tmp_path, store, caplog):
    kernel = module()
    with caplog.at_level(logging.INFO, logger="shipconf"):
        records = kernel.tune(N=8, M=[16, 64, 256], dtypes="int32")
    assert [record.config["BLOCK"] for record in records] == [16, 32, 64]
    pairs = measured(tmp_path)
    assert len(pairs) == 18 and len({pid for _, pid in pairs} - {os.getpid()}) == 1
    assert [config["BLOCK"] for config in portfolio(store)["configs"]] == [16, 32, 64]
    assert "3 configs measured at 3 points" in caplog.text
    out = torch.zeros(1, dtype=torch.int32)
    assert kernel.resolve(out, 8, 100, grid=(1,)).rule == "predicted"
    kernel.tune(N=8, M=[16, 64, 256], dtypes="int32")
    assert len(measured(tmp_path)) == 18


@pytest.mark.usefixtures("apart")
def test_a_config_that_kills_the_worker_at_a_point_is_not_kept(module, tmp_path, store, caplog):
    """After it did twice; the others are measured by the workers that follow."""
    kernel = module(killer="256:16")
    records = kernel.tune(N=8, M=[16, 64, 256], dtypes="int32", within=0.11)
    assert len(records) == 3
    assert [pair for pair, _ in measured(tmp_path)].count("256:16") == 1 + 2
    assert [config["BLOCK"] for config in portfolio(store)["configs"]] == [32]
    assert "died with exit code -9" in caplog.text
    assert "leaves out BLOCK=16" in caplog.text and list(store.rglob("*.journal")) == []


@pytest.mark.usefixtures("apart")
def test_a_kernel_that_no_worker_reaches_is_measured_here(module, tmp_path, store):
    kernel = module()
    kernel.configs.append(kernel.configs[0].__class__({"BLOCK": 64}, num_warps=8))
    kernel.tune(N=8, M=[16, 64, 256], dtypes="int32")
    assert {pid for _, pid in measured(tmp_path)} == {os.getpid()}
    assert len(portfolio(store)["rows"]) == 3
