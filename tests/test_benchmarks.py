"""The benchmarks' scripts as far as no GPU is needed: options, tables and pictures."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
KEPT = sorted((FOLDER / "results").glob("*.json"))
SCRIPTS = sorted(
    path.stem
    for path in FOLDER.glob("*.py")
    if "    add_output_options(" in path.read_text("utf-8")
)

SHAPES = [
    {
        "example": "gemm", "shape": {"M": m, "N": 64, "K": 64}, "source": "package",
        "times_ms": {"ours": 1.0}, "ratios": {"ours": 1.0, "torch": 0.9, "default": 4.0},
        "tuning_s": None, "correct": True,
    }
    for m in (1, 16)
]  # fmt: skip
MADE_UP = {
    "examples": {"dtype": "float16", "shapes": SHAPES},
    "command_line": {"files": [10, 100], "median_s": {"list": [0.2, 0.3], "show": [0.2, 0.4]}},
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("scripts")


def documents() -> list[Any]:
    made_up = {
        "device": "a GPU", "python": "3", "torch": "2", "triton": "3", "shipconf": "0",
        "date": "2026-01-01", "commit": None, "command": "",
    }  # fmt: skip
    found = [pytest.param(json.loads(path.read_text("utf-8")), id=path.stem) for path in KEPT]
    return found + [
        pytest.param({**made_up, "benchmark": name, "results": results}, id=f"{name}, made up")
        for name, results in MADE_UP.items()
    ]


# --- options and files of figures -----------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_writes_and_draws_what_it_measures(script, monkeypatch):
    """`--json` and `--plot`, as the README beside them says."""
    words = ["TABLE.json"] if script == "choice" else []
    monkeypatch.setattr(sys, "argv", [script, *words, "--json", "a.json", "--plot", "a.svg"])
    options = import_module(script)._options()
    assert (options.json, options.plot) == (Path("a.json"), Path("a.svg"))
    assert script in import_module("plot").BENCHMARKS


def test_a_file_of_figures_says_what_they_hold_for(monkeypatch, tmp_path):
    report = import_module("report")
    monkeypatch.setattr(sys, "argv", ["x", "--rounds", "9", "--json", "a b.json", "--plot=a.svg"])
    options = SimpleNamespace(json=tmp_path / "a.json", plot=None, commit="1a2b3c4")
    report.keep(options, "launch", {"median_us": {}})
    found = json.loads(options.json.read_text("utf-8"))
    assert found["benchmark"] == "launch" and found["results"] == {"median_us": {}}
    assert found["command"] == "python benchmarks/launch.py --rounds 9"
    assert found["commit"] == "1a2b3c4" and found["device"] == "no GPU" and found["date"]


def test_there_is_no_commit_outside_a_checkout(monkeypatch, tmp_path):
    report = import_module("report")
    monkeypatch.setattr(report, "__file__", str(tmp_path / "report.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert report.commit() is None


def test_a_picture_of_another_kind_is_refused_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["launch", "--plot", "a.jpeg"])
    with pytest.raises(SystemExit):
        import_module("launch")._options()
    assert "a picture is a .svg or a .png" in capsys.readouterr().err


@pytest.mark.parametrize("document", documents())
def test_figures_that_are_kept_say_where_they_are_from(document):
    versions = {"device", "python", "torch", "triton", "shipconf"}
    assert document.keys() == {*versions, "benchmark", "date", "commit", "command", "results"}


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", documents())
def test_a_picture_is_drawn_from_a_file_of_figures(document, tmp_path):
    """The same one each time, with labelled axes."""
    pytest.importorskip("matplotlib")
    plot = import_module("plot")
    for name in ("a.svg", "b.svg", "a.png"):
        plot.draw(document, tmp_path / name)
    first = (tmp_path / "a.svg").read_bytes()
    assert first.startswith(b"<?xml") and first == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("document", documents())
def test_every_axis_of_a_picture_is_labelled(document):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure()
    import_module(document["benchmark"]).draw(figure, document["results"])
    assert all(axes.get_xlabel() for axes in figure.axes if axes.get_visible())


def test_a_file_of_something_else_is_no_picture(monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "a.json").write_text('{"benchmark": "os"}')
    monkeypatch.setattr(sys, "argv", ["plot", str(tmp_path / "a.json"), str(tmp_path / "a.svg")])
    with pytest.raises(SystemExit):
        import_module("plot").main()
    assert "is of none of adopted" in capsys.readouterr().err


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", documents())
def test_a_table_is_printed_from_a_file_of_figures(document):
    """A run's tables can be had again from its file."""
    script, results = import_module(document["benchmark"]), document["results"]
    if document["benchmark"] == "tuning":
        results = [script.Result(**found) for found in results]
    if document["benchmark"] == "adopted":
        text = script.render(results["steps"]["from nothing"])
        assert "NO" not in script.render_outputs(results["outputs"])
    elif document["benchmark"] == "examples":
        text = script.summary([SimpleNamespace(**found) for found in results["shapes"]])
    else:
        text = script.render(results)
    assert "| -" in text and "nan" not in text
