"""The misses that launches noted: read, counted, grouped, the worst first."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels import Trial

from shipconf import misses, offline
from shipconf.cli import main


def line(kernel: str = "told", n: Any = 8, m: int = 8, dtypes: Any = "int32") -> str:
    return json.dumps({"kernel": kernel, "key": {"N": n}, "nearest": {"M": m}, "dtypes": dtypes,
                       "device": "NVIDIA H200"})  # fmt: skip


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{text}\n" for text in lines))
    return path


def test_what_launches_note_is_what_is_read(tmp_path, monkeypatch):
    """A launch of the real thing writes, offline or not; a tuned point is noted once."""
    path = tmp_path / "misses.jsonl"
    monkeypatch.setenv("SHIPCONF_MISSES", str(path))
    trial = Trial()
    trial.launch(8, 8)
    trial.launch(8, 4096)
    with offline(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            with pytest.raises(LookupError):
                Trial().launch(9, 1)
    found = misses.read(path)
    assert found.count == 4 and found.faults == []
    groups = [(g.first.key, g.first.dtypes, g.first.device, g.worst()) for g in found.groups]
    dtypes = {"out_ptr": "int32"}
    assert groups == [
        ({"N": 8}, dtypes, "interpreter", [({"M": 8}, 1), ({"M": 4096}, 1)]),
        ({"N": 9}, dtypes, "interpreter", [({"M": 1}, 2)]),
    ]


def test_the_worst_come_first(tmp_path):
    """Groups by their count, and points within a group too."""
    others = [line("other"), line("other")]
    path = written(tmp_path / "m", line(n=1), *[line(n=2, m=m) for m in (16, 4, 4)], *others)
    found = misses.read(path)
    assert [(g.first.kernel, g.first.key["N"], g.count) for g in found.groups] == [
        ("told", 2, 3), ("other", 8, 2), ("told", 1, 1),
    ]  # fmt: skip
    assert found.groups[0].worst() == [({"M": 4}, 2), ({"M": 16}, 1)]


def test_typed_values_are_kept_apart(tmp_path):
    """1, true, 1.0, "1" and a dtype are five keys."""
    values = [1, True, 1.0, "1", {"dtype": "float16"}]
    found = misses.read(written(tmp_path / "m", *(line(n=value) for value in values)))
    assert len(found.groups) == 5


@given(st.permutations([line(n=n, m=m) for n in (1, 2) for m in (1, 1, 8)]))
def test_the_order_of_lines_does_not_matter(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("misses") / "m"
    groups = misses.read(written(path, *lines)).groups
    assert [(g.count, g.worst()) for g in groups] == [(3, [({"M": 1}, 2), ({"M": 8}, 1)])] * 2


FAULTS = {
    "[": "not strict JSON",
    "3": "must be an object",
    '{"kernel": "told"}': "device: is missing",
    line(n=[1]): "a key value cannot be",
    line(m=1).replace('"M": 1', '"M": 1.5'): "nearest.M: must be an integer",
    line(dtypes=[3]): "dtypes: must be names",
    line(dtypes=3): "dtypes: is 3",
    line().replace('"told"', "null"): "kernel: is null",
    line()[:-9]: "not strict JSON",
}


def test_a_bad_line_is_reported_by_its_number_and_the_rest_is_read(tmp_path, capsys):
    """A line cut short by a full disk, say; blank lines say nothing."""
    path = written(tmp_path / "m", line(), *FAULTS, "", line())
    found = misses.read(path)
    assert found.count == 2
    assert [number for number, _ in found.faults] == list(range(2, 2 + len(FAULTS)))
    for (_, said), expected in zip(found.faults, FAULTS.values()):
        assert expected in said
    assert main(["misses", str(path)]) == 1
    printed = capsys.readouterr()
    assert f"{path}: line 2: not strict JSON" in printed.err
    assert "told" in printed.out


def test_the_command_prints_a_table_or_json(tmp_path, capsys, monkeypatch):
    path = written(tmp_path / "m", line(n=1), *[line(n=2, m=m) for m in (16, 4, 4)])
    monkeypatch.setenv("SHIPCONF_MISSES", str(path))
    assert main(["misses"]) == 0
    printed = capsys.readouterr()
    rows = [row.split() for row in printed.out.splitlines()]
    assert rows[1] == [
        "3",
        "told",
        "NVIDIA",
        "H200",
        "N=2",
        "int32",
        "M=4",
        "(2",
        "times),",
        "M=16",
    ]
    assert rows[2][-1] == "M=8"
    assert f"shipconf tune --from {path}" in printed.err
    assert main(["misses", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == str(path) and document["count"] == 4 and document["faults"] == []
    assert document["groups"][0] == {
        "kernel": "told", "device": "NVIDIA H200", "key": {"N": 2}, "dtypes": "int32", "count": 3,
        "points": [{"nearest": {"M": 4}, "count": 2}, {"nearest": {"M": 16}, "count": 1}],
    }  # fmt: skip


def test_without_a_file_the_command_says_what_it_wants(tmp_path, capsys):
    assert main(["misses"]) == 2
    assert "SHIPCONF_MISSES is not set" in capsys.readouterr().err
    assert main(["misses", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
    assert main(["misses", str(written(tmp_path / "empty"))]) == 0
    assert "holds no misses" in capsys.readouterr().err
