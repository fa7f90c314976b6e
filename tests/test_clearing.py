"""Clearing the user store: what goes, what stays, and who is waited for."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from forked import Child, event
from kernels import Trial
from packages import FILE, document, files_in, record, records_in, user_folder, write

from shipconf import clearing, files
from shipconf.clearing import Wanted, clear, plan
from shipconf.cli import main

DAY_S = 86400.0


def tuned(days_ago: float) -> dict[str, str]:
    when = datetime.now(timezone.utc) - timedelta(days=days_ago)
    return {"tuned_at": when.strftime("%Y-%m-%dT%H:%M:%SZ")}


@pytest.fixture
def folder(store) -> Path:
    """The folder of a kernel in the user store, with records of three ages in one file."""
    path = user_folder(Trial().kernel)
    write(path, record(16, M=1, **tuned(40)), record(32, M=8, **tuned(20)), record(64, M=64,
          **tuned(1)))  # fmt: skip
    return path


def removed(**wanted: Any) -> int:
    """How many records a clearing removes."""
    asked = Wanted(**wanted)
    return clear(plan(asked), asked).records


def test_all_of_the_store_goes_and_locks_stay(store):
    """Journals and files moved aside too. A launch then finds nothing, and tunes again."""
    Trial().launch(8, 8)
    Trial(name="other").launch(8, 8)
    folder = user_folder(Trial().kernel)
    (folder / f"{FILE}.bad").write_text("{")
    (folder / FILE.replace(".json", ".journal")).write_text("")
    locks = [name for name in files_in(store) if name.endswith(".lock")]
    assert removed() == 2
    assert files_in(store) == locks and len(locks) == 2
    assert Trial().resolve(8, 8) is None
    assert Trial().launch(8, 8) == 64


def test_only_the_kernel_asked_for_goes(store):
    Trial(name="one").launch(8, 8)
    Trial(name="one more").launch(8, 8)
    assert removed(kernel="on") == 0
    assert removed(kernel="one") == 1
    assert Trial(name="one more").resolve(8, 8) is not None
    assert Trial(name="one").resolve(8, 8) is None


def test_records_go_by_their_own_age(folder, store):
    """Of one file some go, and what stays is written as it was."""
    assert removed(older_than_s=30 * DAY_S) == 1
    assert [kept["at"]["M"] for kept in records_in(store)] == [8, 64]
    assert removed(older_than_s=30 * DAY_S) == 0
    assert removed(older_than_s=0) == 2
    assert not list(folder.glob("*.json"))


def test_a_record_without_a_date_has_the_age_of_its_file(store):
    path = write(user_folder(Trial().kernel), record(16))
    assert removed(older_than_s=DAY_S) == 0
    os.utime(path, (time.time() - 2 * DAY_S,) * 2)
    assert removed(older_than_s=DAY_S) == 1


def test_stale_records_are_those_of_other_versions_of_the_kernels_asked_about(folder, store):
    write(folder, record(16, fingerprint="1:old"), record(32, M=9, fingerprint="1:new"),
          record(64, M=10))  # fmt: skip
    write(folder.with_name("other-0123456789ab"), record(16, fingerprint="1:old"), kernel="other")
    assert removed(current={"told": {"1:new"}}) == 1  # not the one that names no fingerprint
    assert [kept["at"]["M"] for kept in records_in(store)] == [8, 9, 10]


def test_a_file_of_a_newer_schema_is_kept_and_named(folder):
    path = write(folder, record(16), name=f"N=9,{FILE}", schema=9)
    made = plan(Wanted())
    done = clear(made, Wanted())
    assert [kept for kept, _ in done.kept] == [path] and "newer" in done.kept[0][1]
    assert path.exists() and not (folder / FILE).exists()


def test_a_broken_file_goes_with_all_and_is_left_by_what_asks_for_records(folder):
    (folder / FILE).write_text("{")
    assert plan(Wanted(current={"told": {"1:new"}})).removals == []
    assert plan(Wanted(older_than_s=DAY_S)).removals == []
    assert [r.path for r in plan(Wanted(kernel="told")).removals] == [folder / FILE]


def test_unknown_fields_of_what_stays_are_kept(folder):
    path = write(folder, record(16, **tuned(9)), record(32, M=9, mood="good"), more=[1])
    assert removed(older_than_s=DAY_S) == 1
    kept = json.loads(path.read_text())
    assert kept["more"] == [1] and kept["records"][0]["mood"] == "good"


def test_what_was_tuned_anew_since_the_plan_is_kept(folder, store):
    """The file is read again under its lock: what is asked for decides, not what was listed."""
    asked = Wanted(older_than_s=30 * DAY_S)
    made = plan(asked)
    assert made.records == 1
    write(folder, record(16, M=1, **tuned(0)))
    assert clear(made, asked).removals == []
    assert [kept["at"]["M"] for kept in records_in(store)] == [1]


def test_a_file_whose_lock_another_process_holds_is_kept(folder, monkeypatch):
    """It tunes that very key: its record would be lost, or its journal."""
    monkeypatch.setattr(clearing, "WAIT_S", 0.1)
    lock = folder / f"{FILE}.lock"

    def hold(started: Any, ended: Any) -> None:
        with files.lock(str(lock), lock, 5):
            started.set()
            ended.wait(30)

    started, ended = event(), event()
    child = Child(hold, started, ended)
    assert started.wait(30)
    try:
        done = clear(plan(Wanted()), Wanted())
    finally:
        ended.set()
        child.result()
    assert done.removals == [] and "in use" in done.kept[0][1]
    assert (folder / FILE).exists()
    assert clear(plan(Wanted()), Wanted()).records == 3
    assert lock.exists()


@pytest.mark.parametrize("name", [FILE, FILE.replace(".json", "~2.json"), f"{FILE}.bad",
                                  FILE.replace(".json", ".journal")])  # fmt: skip
def test_a_file_is_removed_under_the_lock_of_its_key(name, folder, monkeypatch):
    """The one that a launch of the key takes, whatever the file."""
    held: list[str] = []
    lock = files.lock

    def noted(lock_name: str, *arguments: Any) -> Any:
        held.append(lock_name)
        return lock(lock_name, *arguments)

    monkeypatch.setattr(files, "lock", noted)
    for path in folder.iterdir():
        path.unlink()
    (folder / name).write_text(json.dumps(document([record(16)])))
    clear(plan(Wanted()), Wanted())
    assert held == [str(folder / f"{FILE}.lock")] and not (folder / name).exists()


# --- the command ------------------------------------------------------------------------------


def test_the_command_asks_and_takes_only_yes(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, code, left in (("\n", 2, 3), ("no\n", 2, 3), ("y\n", 0, 0)):
        monkeypatch.setattr(sys.stdin, "readline", lambda answer=answer: answer, raising=False)
        assert main(["clear"]) == code
        assert len(records_in(folder.parent)) == left
    printed = capsys.readouterr()
    assert "remove 3 records in 1 files? [y/N]" in printed.err
    assert "told" in printed.out and str(folder / FILE) in printed.out


def test_without_anyone_to_ask_nothing_goes(folder, capsys):
    """In a pipe, and with --json."""
    for arguments in (["clear"], ["clear", "--json"]):
        assert main(arguments) == 2
        assert "--yes" in capsys.readouterr().err
    assert len(records_in(folder.parent)) == 3


def test_dry_run_and_json_say_what_goes(folder, capsys):
    arguments = ["clear", "--older-than", "30d", "--json"]
    assert main([*arguments, "--dry-run"]) == 0
    looked = json.loads(capsys.readouterr().out)
    expected = {"path": str(folder / FILE), "kernel": "told", "records": 1, "left": 2}
    assert looked == {"removed": [expected], "kept": [], "dry_run": True}
    assert len(records_in(folder.parent)) == 3
    assert main([*arguments, "--yes"]) == 0
    assert json.loads(capsys.readouterr().out) == {**looked, "dry_run": False}
    assert len(records_in(folder.parent)) == 2


def test_an_empty_store_is_nothing_to_clear(capsys, store):
    assert main(["clear", "--yes"]) == 0
    assert "nothing to remove" in capsys.readouterr().err
    assert files_in(store) == []
