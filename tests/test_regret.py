"""How the loss at sizes that were not tuned is measured, on a GPU that is stood in for."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from fake_gpu import FakeGpu

from shipconf import Device, device

pytestmark = pytest.mark.usefixtures("scripts")

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
MADE_UP: list[Any] = [
    {
        "case": f"{kernel}:64x32:float16", "along": "M", "tuned": [1, 2], "seconds": {},
        "stored": 3, "kept": 2, "candidates": 9,
        "points": [
            {
                "at": at, "rule": "predicted", "best_ms": 0.02,
                "chosen": {
                    "nearest": {"loss": 0.2}, "predicted": {"loss": 0.01},
                    "stored": {"loss": 0.0}, "default": {"loss": None},
                },
            }
            for at in (3, 100)
        ],
    }
    for kernel in ("gemm", "gemv", "softmax")
]  # fmt: skip


def test_losses_are_told_with_the_size_where_they_are_worst():
    regret = import_module("regret")
    text = regret.render(MADE_UP)
    assert "gemm:64x32:float16: the nearest record" in text and "20.0 %" in text and "M=100" in text
    assert ": the default" not in text  # it ran nowhere
    assert "2 in the portfolio" in regret.render_points(MADE_UP[0])


def test_there_is_a_panel_for_each_case():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure()
    import_module("regret").draw(figure, MADE_UP)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == [
        f"{kernel} 64x32 float16" for kernel in ("gemm", "gemv", "softmax")
    ]
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in shown)


class OnGpu:
    """What the kernel launches on the stand-in: tiles of a GEMM, in waves of 132 programs."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def run(self, *args: Any, grid: Any, warmup: bool, **flat: Any) -> Any:
        if not warmup:
            self.gpu.put(json.dumps(flat), self.ms(args[3], flat))
        return SimpleNamespace(
            metadata=SimpleNamespace(shared=100_000, num_warps=flat["num_warps"]),
            n_regs=100, n_spills=0, src=SimpleNamespace(constants={}, signature={}, attrs={}),
        )  # fmt: skip

    @staticmethod
    def ms(m: int, flat: dict[str, Any]) -> float:
        tiles = -(-m // flat["BLOCK_M"]) * -(-4096 // flat["BLOCK_N"])
        tile_ms = (flat["BLOCK_M"] + flat["BLOCK_N"]) / 16384 * (1 + 0.01 * flat["num_stages"])
        return 0.005 + -(-tiles // 264) * tile_ms * (1 + 4 / flat["BLOCK_K"])


@pytest.fixture
def case(scripts: None, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Any:
    regret = import_module("regret")
    monkeypatch.setattr(device, "interpreted", lambda kernel: False)
    monkeypatch.setattr(device, "current", lambda kernel: H200)
    monkeypatch.setattr(device, "current_index", lambda: 0)
    monkeypatch.setattr(device, "physical_id", lambda: "0")
    monkeypatch.setattr(device, "all_alike", lambda: True)
    small = replace(regret.KINDS["gemm"], tuned=[64, 256, 1024], between=[100, 160, 500, 700])
    monkeypatch.setitem(regret.KINDS, "gemm", small)
    made = regret.Case("gemm:4096x64:float16")
    made.kernel.target = OnGpu(gpu)
    return made


def test_losses_are_measured_between_the_tuned_sizes(case, tmp_path):
    """Of each rule, against the best of all candidates; and written after every size."""
    regret = import_module("regret")
    file = tmp_path / "found.json"
    regret.measure(case, 3, file, float("inf"))
    found = json.loads(file.read_text("utf-8"))
    assert [point["at"] for point in found["points"]] == [100, 500, 160]
    assert found["kept"] > 1 and found["stored"] >= found["kept"] and found["candidates"] > 50
    assert {"tuning", "of it compiling", "portfolio", "searching"} < found["seconds"].keys()
    for point in found["points"]:
        assert point["rule"] == "predicted"
        choices = case.kernel.flight.candidates(case.request(point["at"]))
        flats = {regret._told(choice.identity): choice.flat for choice in choices}
        best = min(OnGpu.ms(point["at"], flat) for flat in flats.values())
        assert point["best_ms"] == pytest.approx(best, rel=0.01)
        for chosen in point["chosen"].values():
            took = OnGpu.ms(point["at"], flats[chosen["config"]])
            assert chosen["loss"] == pytest.approx(took / best - 1, abs=0.02)
        lost = {rule: chosen["loss"] for rule, chosen in point["chosen"].items()}
        assert lost["stored"] <= min(lost["predicted"], lost["nearest"])
    assert "M=" in regret.render([found]) and "predicted" in regret.render_points(found)


def test_where_the_time_is_up_what_was_measured_stays(case, tmp_path, monkeypatch, capsys):
    regret = import_module("regret")
    now = itertools.count()
    clock = SimpleNamespace(time=lambda: float(next(now)), monotonic=time.monotonic)
    monkeypatch.setattr(regret, "time", clock)
    regret.measure(case, 4, tmp_path / "found.json", 6.0)
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert len(found["points"]) == 2 and "before 2 sizes" in capsys.readouterr().out


def test_every_default_case_is_one():
    """The sizes searched at are none of the tuned ones, and 20 for each kernel."""
    regret = import_module("regret")
    assert list(map(regret._case, regret.CASES)) == regret.CASES
    for kind in regret.KINDS.values():
        assert len(kind.between) == 20 and not set(kind.between) & set(kind.tuned)
        assert sorted(regret.spread(kind.between)) == sorted(kind.between)
        kernel = regret.own_kernel(kind)
        assert kernel.registered_workload is not None and kernel.subject.nearest_names
