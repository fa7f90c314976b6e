"""The command line: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packages import TOLD, records_in

from shipconf.cli import main

TUNED = (
    TOLD
    + """
import torch
import shipconf

@shipconf.shipped_autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (16, 32)], key=["N"], nearest=["M"],
)
@triton.jit
def tuned(out_ptr, N, M, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)

@tuned.workload
def workload(N, M, dtypes):
    return shipconf.Launch((1,), (torch.zeros(1, dtype=dtypes), N, M))

above = triton.heuristics({"N": lambda args: 8})(tuned)

@shipconf.shipped_autotune(configs=[triton.Config({"BLOCK": 16})], key=["N"])
@triton.jit
def bare(out_ptr, N, M, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)
"""
)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A file with a kernel that has a workload, and one that has none."""
    path = tmp_path / "kernels_of_the_command_line.py"
    path.write_text(TUNED)
    return path


def tune(module: Path, *arguments: str, kernel: str = "tuned") -> int:
    return main(["tune", f"{module}:{kernel}", "-k", "N=8", "--dtypes", "int32", *arguments])


def test_each_combination_is_tuned_into_the_user_store(module, store, capsys):
    """One line for each on stdout, the talk on stderr, and exit code 0."""
    assert tune(module, "--at", "M=1,64,4096") == 0
    printed = capsys.readouterr()
    assert [line.split(": ")[0] for line in printed.out.splitlines()] == [
        "N=8 M=1", "N=8 M=64", "N=8 M=4096",
    ]  # fmt: skip
    assert sorted(kept["at"]["M"] for kept in records_in(store)) == [1, 64, 4096]


def test_json_has_one_line_for_each_record(module, capsys):
    assert tune(module, "--at", "M=1,2", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["values"] for line in lines] == [{"N": "8", "M": "1"}, {"N": "8", "M": "2"}]
    assert all(line["config"]["BLOCK"] in (16, 32) and line["time_ms"] > 0 for line in lines)


def test_a_second_run_keeps_the_record_and_force_supersedes_it(module, store):
    assert tune(module, "--at", "M=1") == 0
    (first,) = records_in(store)
    assert tune(module, "--at", "M=1") == 0
    assert records_in(store) == [first]
    assert tune(module, "--at", "M=1", "--force") == 0
    (forced,) = records_in(store)
    assert forced["supersedes"] is True and "supersedes" not in first


def test_a_kernel_below_heuristics_is_found(module, store):
    assert tune(module, "--at", "M=1", kernel="above") == 0
    assert len(records_in(store)) == 1


@pytest.mark.parametrize(
    ("arguments", "kernel", "what"),
    [
        ([], "nothing", "no kernel made by shipped_autotune"),
        ([], "told", "no kernel made by shipped_autotune"),
        ([], "bare", "has no workload"),
        ([], "tuned", "is looked up by N, M"),
        (["--at", "M=one"], "tuned", "invalid literal"),
        (["-k", "N"], "tuned", "-k wants NAME=VALUE"),
        (["--at", "M=1", "-k", "X=3"], "tuned", "is looked up by N, M"),
    ],
)
def test_bad_input_exits_with_2_and_says_what_is_wrong(module, capsys, arguments, kernel, what):
    assert tune(module, *arguments, kernel=kernel) == 2
    printed = capsys.readouterr()
    assert what in printed.err and printed.out == ""


@pytest.mark.parametrize("target", ["shipconf.nowhere:kernel", "/nowhere/kernel.py:kernel", "x"])
def test_a_target_that_is_not_there_exits_with_2(target, capsys):
    assert main(["tune", target]) == 2
    assert capsys.readouterr().err.startswith("shipconf tune: ")


def test_offline_it_refuses_and_names_the_command(module, capsys, monkeypatch):
    monkeypatch.setenv("SHIPCONF_OFFLINE", "1")
    assert tune(module, "--at", "M=1") == 2
    assert "tuning is forbidden" in capsys.readouterr().err


def test_python_m_shipconf_is_the_same_command():
    """`python -m shipconf --help` needs neither torch nor triton."""
    program = (
        "import runpy, sys\nsys.argv = ['shipconf', '--help']\n"
        "try: runpy.run_module('shipconf', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'triton', 'filelock', 'rich'} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "tune" in done.stdout
