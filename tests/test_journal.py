"""The journal of a tuning: nothing measured is lost, and killers are found."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from forked import Child, event

from shipconf import journal
from shipconf.journal import Journal

AT = {"M": 16}
TWICE = "was running when its process died, twice"


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "k.journal"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines() if line]


def died_with(path: Path, *before: str, candidate: str | None, at: Any = AT) -> Journal:
    """What a process leaves that measured some candidates and was killed while one ran."""
    log = Journal(path, at)
    log.start()
    for measured in before:
        log.running(measured)
        log.measured(measured, [1.0, 0.9, 1.1])
    if candidate is not None:
        log.running(candidate)
    return log


# --- resuming ---------------------------------------------------------------------------------


def test_a_first_tuning_has_no_history(path):
    history = Journal(path, AT).start()
    assert (history.times, history.left_out) == ({}, {})


def test_times_come_back(path):
    """Case 29: by candidate; the latest counts."""
    log = died_with(path, "A", "B", candidate="C")
    log.measured("A", [2.0, 1.9, 2.1])
    log.measured("A", [3.0, 2.9, 3.1])
    history = Journal(path, AT).start()
    assert history.times == {
        "A": [3.0, 2.9, 3.1], "B": [1.0, 0.9, 1.1],
    }  # fmt: skip


def test_times_come_back_from_a_killed_process(path):
    """SIGKILL while a candidate runs: all that was measured before is there."""

    def tune(running: Any) -> None:
        log = Journal(path, AT)
        log.start()
        for number in range(400):
            log.running(f"c{number}")
            if number == 250:
                running.set()
                event().wait()  # for good
            log.measured(f"c{number}", [number + 0.5, number, number + 1.0])

    running = event()
    child = Child(tune, running)
    assert running.wait(30)
    assert journal.holder(path) == f"pid {child.pid} on {socket.gethostname()}"
    child.kill()
    history = Journal(path, AT).start()
    assert history.times == {
        f"c{n}": [n + 0.5, n, n + 1.0] for n in range(250)
    }  # fmt: skip
    assert history.left_out == {}


@pytest.mark.parametrize("cut", range(2, 60, 7))
def test_a_line_cut_short_is_skipped_and_spoils_no_other(path, cut):
    """Neither the ones before nor the one that the next process appends."""
    died_with(path, "A", candidate=None).measured("B", [1.0, 1.0, 1.0])
    path.write_bytes(path.read_bytes()[:-cut])
    history = Journal(path, AT).start()
    assert "A" in history.times and "B" not in history.times
    assert journal.holder(path) == f"pid {os.getpid()} on {socket.gethostname()}"
    assert [entry["event"] for entry in journal.events(path)].count("start") == 2


def test_rubbish_in_a_journal_is_skipped(path):
    died_with(path, "A", candidate=None)
    with path.open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n3\nnull\n{"event": "measured"}\n{"at": 1}\n{}\n\n')
        file.write(b'{"event": "measured", "at": {"M": 16}, "candidate": "Z"}\n')
    history = Journal(path, AT).start()
    assert list(history.times) == ["A"] and history.left_out == {}


@pytest.mark.parametrize("times", [
    "[]", "[1.0]", "[1.0, 1.0, 1.0, 1.0]", '["a", 1.0, 1.0]', "[null, 1, 1]", "[NaN, 1, 1]",
    "[1, 1, Infinity]", "[-1, 1, 1]", "{}", "[" * 100_000,
])  # fmt: skip
def test_what_are_no_times_is_measured_again(times, path):
    """A tuning that takes them for times would fail at every start."""
    died_with(path, "A", candidate=None)
    with path.open("a") as file:
        file.write(
            f'{{"event": "measured", "at": {{"M": 16}}, "candidate": "Z", "times_ms": {times}}}\n'
        )
        file.write(f'{{"event": "round", "at": {{"M": 16}}, "times_ms": {{"Z": {times}}}}}\n')
    log = Journal(path, AT)
    log.round({"A": [1.0], "B": [2.0, 3]})
    history = log.start()
    assert list(history.times) == ["A"]
    assert history.rounds[-1] == {"A": [1.0], "B": [2.0, 3]}
    assert all(len(round_.get("Z", [1])) in (1, 4) for round_ in history.rounds)


def test_another_points_events_do_not_count(path):
    """One file has the journals of all tuned points of a key."""
    died_with(path, "A", candidate="B", at={"M": 1})
    died_with(path, candidate="B", at={"M": 1})
    assert Journal(path, AT).start() == journal.History()
    assert Journal(path, {"M": 1}).start().left_out == {"B": TWICE}


# --- who killed the process -------------------------------------------------------------------


def test_one_death_is_no_proof(path):
    died_with(path, candidate="A")
    assert Journal(path, AT).start().left_out == {}


def test_two_deaths_in_a_row_with_one_candidate_leave_it_out(path):
    died_with(path, candidate="A")
    died_with(path, candidate="A")
    assert Journal(path, AT).start().left_out == {"A": TWICE}
    assert Journal(path, AT).start().left_out == {"A": TWICE}  # and stays out


def test_a_killed_process_twice_leaves_its_candidate_out(path):
    """With real kills, and what was measured before the first one kept."""

    def tune(running: Any) -> None:
        log = Journal(path, AT)
        if not log.start().times:
            log.running("A")
            log.measured("A", [1.0, 1.0, 1.0])
        log.running("B")
        running.set()
        event().wait()

    for _ in range(2):
        running = event()
        child = Child(tune, running)
        assert running.wait(30)
        child.kill()
    history = Journal(path, AT).start()
    assert history.left_out == {"B": TWICE} and list(history.times) == ["A"]


def test_a_measurement_between_two_deaths_clears_the_candidate(path):
    """It was bad luck: the machine is dying, not the candidate."""
    died_with(path, candidate="A")
    died_with(path, "B", candidate="A")
    assert Journal(path, AT).start().left_out == {}


def test_two_deaths_with_two_candidates_leave_none_out(path):
    died_with(path, candidate="A")
    died_with(path, candidate="B")
    assert Journal(path, AT).start().left_out == {}
    died_with(path, candidate="B")
    assert Journal(path, AT).start().left_out == {"B": TWICE}


def test_a_candidate_that_failed_did_not_kill(path):
    for _ in range(3):
        died_with(path, candidate="A").failed("A", "out of resources")
    assert Journal(path, AT).start().left_out == {}


def test_a_fatal_failure_leaves_its_candidate_out_at_once(path):
    """A fatal CUDA error ended its process: once is enough."""
    died_with(path, "A", candidate="B").failed("B", "an illegal memory access", fatal=True)
    history = Journal(path, AT).start()
    assert history.left_out == {"B": "ended its process: an illegal memory access"}
    assert list(history.times) == ["A"]


# --- the file ---------------------------------------------------------------------------------


def test_a_closed_journal_is_gone(path):
    died_with(path, "A", candidate=None).close()
    assert not path.exists()
    Journal(path, AT).close()  # nothing to forget


def test_closing_one_points_journal_keeps_the_others(path):
    """Nothing is lost: M=1 was killed, M=16 ended well, M=1 still resumes."""
    died_with(path, "A", candidate="B", at={"M": 1})
    died_with(path, "C", candidate=None).close()
    assert Journal(path, AT).start() == journal.History()
    assert list(Journal(path, {"M": 1}).start().times) == ["A"]


def test_without_a_path_nothing_is_written(tmp_path):
    log = died_with(None, "A", candidate="B")  # type: ignore[arg-type]
    log.failed("B", "x")
    log.close()
    assert Journal(None, AT).start() == journal.History()
    assert os.listdir(tmp_path) == []


def test_a_journal_that_cannot_be_written_costs_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    log = died_with(tmp_path / "file" / "k.journal", "A", candidate="B")
    log.close()
    assert os.listdir(tmp_path) == ["file"]


def test_nobody_holds_a_journal_that_is_not_there(path):
    assert journal.holder(path) == "" and journal.holder(None) == ""


def test_every_line_is_json_with_its_point(path):
    died_with(path, "A", candidate="B").failed("B", "é\nline two")
    assert [entry["event"] for entry in lines(path)] == [
        "start", "running", "measured", "running", "failed",
    ]  # fmt: skip
    assert all(entry["at"] == AT for entry in lines(path))


def test_what_is_measured_for_another_purpose_is_told_apart(tmp_path):
    """At one point, in one file: each knows and forgets its own."""
    path = tmp_path / "N=8.journal"
    tuning, other = Journal(path, AT), Journal(path, AT, "", "portfolio")
    for log, time in ((tuning, 1.0), (other, 2.0)):
        log.start()
        log.running("A")
        log.measured("A", [time] * 3)
    assert Journal(path, AT).start().times == {"A": [1.0] * 3}
    assert Journal(path, AT, "", "portfolio").start().times == {"A": [2.0] * 3}
    tuning.close()
    assert Journal(path, AT).start().times == {}
    assert Journal(path, AT, "", "portfolio").start().times == {"A": [2.0] * 3}
