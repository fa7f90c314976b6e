"""The command line: what it prints, where, and its exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from packages import TOLD, records_in

from shipconf import OfflineError, offline
from shipconf.cli import main
from shipconf.targets import load

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


def test_json_is_one_document_with_each_record(module, store, capsys):
    assert tune(module, "--at", "M=1,2", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["faults"] == []
    assert [entry["values"] for entry in document["tuned"]] == [{"N": 8, "M": 1}, {"N": 8, "M": 2}]
    for entry in document["tuned"]:
        assert set(entry) == {"kernel", "values", "dtypes", "path", "config", "time_ms",
                              "default_ms", "seconds"}  # fmt: skip
        assert entry["config"]["BLOCK"] in (16, 32) and entry["time_ms"] > 0
        assert Path(entry["path"]).is_file() and Path(entry["path"]).is_relative_to(store)


def test_a_dry_run_names_keys_and_files_and_what_serves_now(module, store, capsys):
    assert tune(module, "--at", "M=1") == 0
    capsys.readouterr()
    assert tune(module, "--at", "M=1,2,4096", "--dry-run", "--json") == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["served_by"] for point in points] == ["user, exact", "user, nearest", "nothing"]
    assert {point["path"] for point in points} == {str(next(store.rglob("*.json")))}
    assert len(records_in(store)) == 1
    assert tune(module, "--at", "M=2", "--dry-run") == 0
    assert "N=8 M=2" in capsys.readouterr().out


def test_records_go_where_they_are_told_to(module, store, tmp_path, capsys):
    assert tune(module, "--at", "M=1", "--to", str(tmp_path / "mine")) == 0
    assert records_in(store) == [] and len(records_in(tmp_path / "mine")) == 1


def test_what_cannot_be_tuned_is_told_at_the_end_and_the_rest_is_tuned(module, store, capsys):
    """One of three points fails: exit code 1, and two records."""
    refusing = (
        "    if M == 2:\n        raise ValueError('no such shape')\n    return shipconf.Launch"
    )
    module.write_text(module.read_text().replace("    return shipconf.Launch", refusing))
    assert tune(module, "--at", "M=1,2,3") == 1
    printed = capsys.readouterr()
    assert "N=8 M=2: no such shape" in printed.err and len(printed.out.splitlines()) == 2
    assert sorted(kept["at"]["M"] for kept in records_in(store)) == [1, 3]


# --- misses -----------------------------------------------------------------------------------


def missed(path: Path, module: Path, *more: dict[str, object]) -> Path:
    """A file of misses of the tuned kernel at M=1 (twice) and M=64, and lines of other kinds."""
    line = {"kernel": "tuned", "target": f"{module}:tuned", "key": {"N": 8}, "nearest": {"M": 1},
            "dtypes": {"out_ptr": "int32"}, "device": "interpreter"}  # fmt: skip
    lines = [line, line, {**line, "nearest": {"M": 64}}, *({**line, **other} for other in more)]
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in lines))
    return path


def test_misses_are_tuned_the_most_frequent_first(module, store, tmp_path, capsys):
    assert main(["tune", "--from", str(missed(tmp_path / "misses", module))]) == 0
    assert [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "N=8 M=1", "N=8 M=64",
    ]  # fmt: skip
    assert sorted(kept["at"]["M"] for kept in records_in(store)) == [1, 64]


def test_misses_that_launches_noted_can_be_tuned(module, store, tmp_path, monkeypatch, capsys):
    """What an offline run recorded is what the command reads."""
    import torch

    noted = tmp_path / "noted"
    monkeypatch.setenv("SHIPCONF_MISSES", str(noted))
    kernel = load(f"{module}:tuned")
    with offline(), pytest.raises(OfflineError):
        kernel[(1,)](torch.zeros(1, dtype=torch.int32), 8, 16)
    assert main(["tune", "--from", str(noted)]) == 0
    (kept,) = records_in(store)
    assert kept["at"] == {"M": 16}


def test_misses_that_cannot_be_tuned_here_are_named_with_the_reason(
    module, store, tmp_path, capsys
):
    """Another device, a kernel without a workload (with what to write), one that is nowhere."""
    path = missed(
        tmp_path / "misses", module, {"device": "NVIDIA L4"},
        {"kernel": "bare", "target": f"{module}:bare"},
        {"kernel": "lost", "target": "no.such.module:lost"}, {"kernel": "old", "target": None},
    )  # fmt: skip
    with path.open("a") as file:
        file.write("rubbish\n")
    assert main(["tune", "--from", str(path)]) == 1
    told = capsys.readouterr().err
    for what in (
        "missed on NVIDIA L4, and this is interpreter", "@bare.workload", "line 8",
        "cannot import no.such.module", "old: the misses do not say where",
    ):  # fmt: skip
        assert what in told, what
    assert len(records_in(store)) == 2


def test_a_kernel_that_is_given_alone_is_tuned_from_misses(module, store, tmp_path, capsys):
    """By its name, also from lines that do not say where it is."""
    path = missed(tmp_path / "misses", module, {"kernel": "bare", "target": None})
    path.write_text(path.read_text().replace(json.dumps(f"{module}:tuned"), "null"))
    assert main(["tune", f"{module}:tuned", "--from", str(path)]) == 0
    assert len(records_in(store)) == 2
    assert main(["tune", "--from", str(path), "-k", "N=8"]) == 2


# --- the bar ----------------------------------------------------------------------------------


def test_on_a_terminal_a_bar_moves_with_the_tuning(module, store):
    """In a process whose stderr is a terminal; into a pipe there are lines only."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "shipconf", "tune", f"{module}:tuned", "-k", "N=8", "--at",
               "M=1,2", "--dtypes", "int32"]  # fmt: skip
    environment = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": "120",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=follower, stdin=subprocess.DEVNULL,
        env=environment, text=True,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone with the process
        while part := os.read(leader, 4096):
            shown += part
    out, _ = process.communicate(timeout=60)
    os.close(leader)
    assert process.returncode == 0 and len(out.splitlines()) == 2
    assert b"\x1b[" in shown and b"measured" in shown and b"points" in shown
    assert b"tuned tuned on interpreter" in shown


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
        (["--at", "M=1", "-k", "X=3"], "tuned", "is looked up by N, M"),
    ],
)
def test_what_cannot_be_tuned_exits_with_1_or_2_and_says_what_is_wrong(
    module, capsys, arguments, kernel, what
):
    """2 where there is no such kernel, 1 where it cannot be tuned for what was asked."""
    assert tune(module, *arguments, kernel=kernel) == (2 if "no kernel" in what else 1)
    printed = capsys.readouterr()
    assert what in printed.err and printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--at", "M=one"], "NAME=INTEGER"), (["--at", "M"], "NAME=INTEGER"),
        (["-k", "N"], "wants NAME=VALUE"),
    ],
)  # fmt: skip
def test_bad_usage_exits_with_2(module, capsys, arguments, what):
    try:
        code = tune(module, *arguments)
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2 and what in capsys.readouterr().err


@pytest.mark.parametrize("kernels", [[], ["a:b", "c:d"]])
def test_one_kernel_is_tuned_at_a_time_unless_misses_name_them(kernels, capsys):
    assert main(["tune", *kernels]) == 2
    assert "name one kernel" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["shipconf.nowhere:kernel", "/nowhere/kernel.py:kernel", "x"])
def test_a_target_that_is_not_there_exits_with_2(target, capsys):
    assert main(["tune", target]) == 2
    assert capsys.readouterr().err.startswith("shipconf: ")


def test_offline_it_refuses_and_names_the_command(module, capsys, monkeypatch):
    monkeypatch.setenv("SHIPCONF_OFFLINE", "1")
    assert tune(module, "--at", "M=1") == 1
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
