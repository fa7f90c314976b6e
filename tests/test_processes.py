"""Launches of several processes and threads, killed ones, and places that cannot be written."""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import logging
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import filelock  # noqa: F401  # here, since another user may not be able to read the interpreter
import platformdirs
import pytest
from forked import CONTEXT, NOBODY, Child, event
from kernels import BLOCKS, Trial, blocks_in, configs
from packages import files_in, package, record, records_in, user_folder, write

import shipconf
from shipconf import LockTimeout, files, journal

root_only = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
platformdirs.user_cache_path("shipconf")  # which imports more
MANY = (1, 2, 4, 8, 16, 32)


def launched(**options: Any) -> tuple[int, list[int], list[str]]:
    """The block of a launch in this process, what it measured, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trial = Trial(**options)
        block = trial.launch(8, 8)
    return block, trial.measured, [str(warning.message) for warning in caught]


# --- single flight ----------------------------------------------------------------------------


def _meets_a_cold_key(barrier: Any, log: Path, number: int) -> tuple[int, bool, float]:
    """The block, whether this process tuned, and when its launch was done."""
    # Ranks whose timings disagree: each has another favourite.
    times = {block: 1.0 + ((i + number) % 3) for i, block in enumerate(BLOCKS)}
    trial = Trial(times=times, log=log, during=lambda block: event().wait(0.3))
    barrier.wait(60)
    block = trial.launch(8, 8)
    return block, bool(trial.measured), time.monotonic()


def test_of_eight_processes_on_one_cold_key_one_tunes_and_all_use_its_config(tmp_path, store):
    """Cases 26 and 28: seven wait and read, and have launched a second after the tuning at most;
    the file is whole and holds one record."""
    log = tmp_path / "measured"
    barrier = CONTEXT.Barrier(8)
    children = [Child(_meets_a_cold_key, barrier, log, number) for number in range(8)]
    results = [child.result() for child in children]
    blocks = {block for block, _, _ in results}
    (tuned,) = [done for _, measured, done in results if measured]
    assert max(done for _, _, done in results) - tuned < 1.0
    assert sorted(blocks_in(log)) == list(BLOCKS)
    (kept,) = records_in(store)
    assert blocks == {kept["config"]["BLOCK"]}
    assert [name for name in files_in(store) if not name.endswith(".lock")] == [
        "N=8,dtypes=int32,device_name=interpreter,arch=interpreter,mp=0.json"
    ]


def _tunes_its_own_point(barrier: Any, number: int) -> int:
    trial = Trial()
    barrier.wait(60)
    return trial.launch(8, 10**number)


def test_processes_that_tune_different_points_of_one_key_lose_no_record(store):
    """They share a file: each reads it again under the lock before it writes."""
    barrier = CONTEXT.Barrier(4)
    children = [Child(_tunes_its_own_point, barrier, number) for number in range(4)]
    assert [child.result() for child in children] == [64] * 4
    assert [kept["at"]["M"] for kept in records_in(store)] == [1, 10, 100, 1000]


def test_three_threads_on_three_cold_keys_leave_three_records(store):
    """Case 27: one kernel object, no error, no state shared between launches."""
    trials = Trial(do_bench=None)
    barrier = threading.Barrier(3)
    failed: list[BaseException] = []
    blocks: dict[int, int] = {}

    def launch(n: int) -> None:
        import torch

        try:
            out = torch.zeros(1, dtype=torch.int32)
            barrier.wait(60)
            for _ in range(5):
                trials.kernel[(1,)](out, n, 8)
            blocks[n] = int(out[0])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=launch, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    kept = {path.name[:3]: json.loads(path.read_text()) for path in Path(store).rglob("*.json")}
    assert {
        name: [r["config"]["BLOCK"] for r in file["records"]] for name, file in kept.items()
    } == {f"N={n}": [blocks[n]] for n in (1, 2, 3)}


def test_threads_on_one_cold_key_tune_once(store):
    trial = Trial()
    barrier = threading.Barrier(4)
    lock = threading.Lock()
    failed: list[BaseException] = []

    def launch() -> None:
        try:
            barrier.wait(60)
            trial.kernel[(1,)](trial.out, 8, 8)
        except BaseException as error:
            with lock:
                failed.append(error)

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert trial.measured == list(BLOCKS)


# --- killed processes -------------------------------------------------------------------------


def _tunes_until(block: int, log: Path, reached: Any) -> None:
    """Tunes, says when it measures the block, and stays there until it is killed."""

    def during(measured: int) -> None:
        if measured == block:
            reached.set()
            event().wait(60)

    Trial(blocks=MANY, log=log, during=during).launch(8, 8)


def killed_while_it_measures(block: int, log: Path) -> None:
    reached = event()
    child = Child(_tunes_until, block, log, reached)
    assert reached.wait(60)
    child.kill()


def test_a_killed_tuning_is_resumed_and_measures_nothing_twice(tmp_path, store):
    """Cases 24 and 29: its lock is free at once, and what it measured is not measured again."""
    log = tmp_path / "measured"
    killed_while_it_measures(8, log)
    assert blocks_in(log) == [1, 2, 4, 8]
    log.unlink()
    started = time.monotonic()
    trial = Trial(blocks=MANY, log=log)
    assert trial.launch(8, 8) == 32
    assert time.monotonic() - started < 60, "waited for a lock that nobody holds"
    assert blocks_in(log) == [8, 16, 32]
    (kept,) = records_in(store)
    assert kept["candidates"] == 6 and kept["left_out"] == {}
    assert [name for name in files_in(store) if "journal" in name or "tmp" in name] == []


def test_a_candidate_that_runs_at_two_deaths_in_a_row_is_left_out_and_named(tmp_path, store):
    log = tmp_path / "measured"
    killed_while_it_measures(8, log)
    killed_while_it_measures(8, log)
    assert blocks_in(log) == [1, 2, 4, 8, 8]
    trial = Trial(blocks=MANY)
    assert trial.launch(8, 8) == 32
    assert trial.measured == [16, 32]
    (kept,) = records_in(store)
    ((name, why),) = kept["left_out"].items()
    assert name.startswith("BLOCK=8,") and "twice" in why


def test_deaths_at_different_candidates_accuse_none(tmp_path, store):
    log = tmp_path / "measured"
    for block in (4, 8, 16):
        killed_while_it_measures(block, log)
    assert blocks_in(log) == [1, 2, 4, 4, 8, 8, 16]
    trial = Trial(blocks=MANY)
    assert trial.launch(8, 8) == 32
    assert trial.measured == [16, 32]
    assert records_in(store)[0]["left_out"] == {}


EVERY = range(1, 1001)


def _tunes_all(log: Path, started: Any) -> None:
    trial = Trial(blocks=EVERY, log=log)
    started.set()
    trial.launch(8, 8)


def measured_in(store: Path) -> list[int]:
    """The blocks whose measurement the journal holds, once for each time."""
    return [
        int(str(found["candidate"]).partition("BLOCK=")[2].partition(",")[0])
        for path in store.rglob("*.journal")
        for found in journal.events(path) if found["event"] == "measured"
    ]  # fmt: skip


def test_tunings_killed_at_sixty_random_moments_lose_no_measurement(tmp_path, store):
    """Case 29: what the journal holds is never measured again, and it never loses a line."""
    random = Random(29)
    kept: list[int] = []
    killed = 0
    while not records_in(store):
        log, started = tmp_path / str(killed), event()
        child = Child(_tunes_all, log, started)
        assert started.wait(60)
        child.process.join(random.uniform(0, 0.03) if killed < 60 else None)
        killed += child.process.is_alive()
        child.kill()
        assert set(blocks_in(log)).isdisjoint(kept)
        now = measured_in(store)
        assert now[: len(kept)] == kept or records_in(store)
        kept = now
    (record,) = records_in(store)
    assert record["candidates"] == 1000 and killed >= 50
    assert all("twice" in why for why in record["left_out"].values())


def test_one_that_waits_for_a_killed_holder_gets_the_lock_and_tunes(tmp_path, store):
    """Case 24: with the waiter in the queue already, as far as anyone can tell."""
    log = tmp_path / "measured"
    reached = event()
    holder = Child(_tunes_until, 8, log, reached)
    assert reached.wait(60)
    waiting = event()
    waiter = Child(_waits, log, waiting)
    assert waiting.wait(60)
    holder.kill()
    assert waiter.result() == 32
    assert blocks_in(log) == [1, 2, 4, 8, 8, 16, 32]
    assert len(records_in(store)) == 1


def _waits(log: Path, waiting: Any) -> int:
    flock = fcntl.flock

    def watched(descriptor: int, operation: int) -> None:
        try:
            flock(descriptor, operation)
        except OSError:
            waiting.set()  # somebody else holds it
            raise

    fcntl.flock = watched
    return Trial(blocks=MANY, log=log).launch(8, 8)


# --- a lock that stays with another -----------------------------------------------------------


@pytest.fixture
def holder(tmp_path, monkeypatch) -> Iterator[Child]:
    """A process that tunes and never ends, while nobody waits for long."""
    reached = event()
    child = Child(_tunes_until, 2, tmp_path / "holder", reached)
    assert reached.wait(60)
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", "0.1")
    yield child
    child.kill()


def test_after_the_lock_s_timeout_the_default_is_launched_with_a_warning(holder, store):
    """And the key is not waited for again in this process."""
    block, measured, warned = launched(default=configs([16])[0])
    assert (block, measured) == (16, [])
    (why,) = [text for text in warned if "was held by" in text]
    assert f"pid {holder.pid} on " in why and "for 0.1 s" in why
    assert records_in(store) == []


def test_after_the_lock_s_timeout_the_nearest_is_launched(holder, tmp_path, monkeypatch):
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "extra"))
    write(tmp_path / "extra" / "told", record(16, M=4096))
    block, measured, warned = launched()
    assert (block, measured) == (16, [])
    assert any("9.0 octaves away" in text for text in warned)


def test_with_neither_it_tunes_without_the_lock(holder, store):
    block, measured, warned = launched()
    assert (block, measured) == (64, list(BLOCKS))
    assert any("was held by" in text and "without the lock" in text for text in warned)
    assert [kept["config"]["BLOCK"] for kept in records_in(store)] == [64]


def test_a_tuning_on_purpose_raises_where_another_one_holds_the_key(holder, store):
    """`kernel.tune` was asked for a record: a default would pass for one."""
    trial = Trial(default=configs([16])[0])
    trial.kernel.workload(lambda N, M, dtypes: shipconf.Launch((1,), (trial.out, N, M)))
    with pytest.raises(LockTimeout, match="was held by"):
        trial.kernel.tune(N=8, M=8, dtypes="int32")
    assert trial.measured == [] and records_in(store) == []


def test_the_log_says_who_holds_the_lock(holder, caplog, monkeypatch):
    """After five seconds in the field; at once here."""
    monkeypatch.setattr(files, "SAY_AFTER_S", 0.0)
    with caplog.at_level(logging.WARNING, logger="shipconf"):
        launched(default=configs([16])[0])
    assert f"waiting for pid {holder.pid} on " in caplog.text


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "inf"])
def test_a_bad_timeout_names_the_variable(text, monkeypatch):
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", text)
    with pytest.raises(ValueError, match="SHIPCONF_LOCK_TIMEOUT="):
        Trial().launch(8, 8)


def test_the_error_of_a_timeout_names_path_and_holder(tmp_path):
    """The library's own error, where a caller takes the lock itself."""
    path = tmp_path / "x.lock"
    with (
        files.lock("x", path, 1),
        pytest.raises(LockTimeout, match="held by"),
        files.lock("x", path, 0.01),
    ):
        pass


# --- locks that cannot be had -----------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_flock_fails_the_kernel_is_tuned_without_it(code, store, monkeypatch):
    """Case 23: a bounded wait, then on; one warning; and the record is kept all the same."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", "5")
    started = time.monotonic()
    block, measured, warned = launched()
    assert (block, measured) == (64, list(BLOCKS))
    assert time.monotonic() - started < 30
    assert len(warned) == 1 and "shipconf cannot lock" in warned[0]
    assert [kept["config"]["BLOCK"] for kept in records_in(store)] == [64]
    assert launched() == (64, [], [])


# --- places that cannot be written ------------------------------------------------------------


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can read, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="shipconf-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def readable() -> Iterator[Any]:
    """A kernel whose source and folder every user can read, wherever the tests lie."""
    folder = Path(tempfile.mkdtemp(prefix="shipconf-test-"))
    folder.chmod(0o755)
    yield package(folder).told
    shutil.rmtree(folder)


def _launched_twice(
    environment: dict[str, str | None], kernel: Any
) -> tuple[list[int], list[int], list[str]]:
    for name, value in environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trial = Trial(kernel)
        blocks = [trial.launch(8, m) for m in (8, 8, 9, 4096, 7)]
    return blocks, trial.measured, [str(warning.message) for warning in caught]


def in_memory_only(outcome: tuple[list[int], list[int], list[str]]) -> None:
    """Launches go on, tuned once for each point, with one warning."""
    blocks, measured, warned = outcome
    assert blocks == [64] * 5
    assert measured == list(BLOCKS) * 2
    assert len(warned) == 1, warned


@root_only
@pytest.mark.parametrize("exists", [True, False])
def test_a_read_only_store_costs_one_warning(exists, public, readable):
    """Case 22: as another user than root, who sees no permission error."""
    store = public / "store"
    if exists:
        store.mkdir(mode=0o755)
    child = Child(_launched_twice, {"SHIPCONF_CACHE_DIR": str(store)}, readable, user=NOBODY)
    in_memory_only(child.result())
    assert files_in(public) == []


@root_only
def test_records_of_a_read_only_store_serve(public, readable, monkeypatch):
    """An administrator's store: read, and never written to."""
    monkeypatch.setenv("SHIPCONF_CACHE_DIR", str(public))
    Trial(readable).launch(8, 8)
    for path in public.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = files_in(public)
    serve = functools.partial(launched, fn=readable)
    block, measured, warned = Child(serve, user=NOBODY).result()
    assert (block, measured, warned) == (64, [], [])
    assert files_in(public) == before


@root_only
def test_a_store_that_cannot_be_read_costs_one_warning_more_at_most(public, readable, monkeypatch):
    monkeypatch.setenv("SHIPCONF_CACHE_DIR", str(public))
    Trial(readable).launch(8, 8)
    (public / "v1").chmod(0o700)
    tune = functools.partial(launched, fn=readable)
    block, measured, warned = Child(tune, user=NOBODY).result()
    assert (block, measured) == (64, list(BLOCKS))
    assert 1 <= len(warned) <= 2


@root_only
def test_no_home_and_no_user_entry_costs_one_warning(readable):
    """Case 22: a container with a random user id."""
    nowhere = {"HOME": None, "SHIPCONF_CACHE_DIR": None, "XDG_CACHE_HOME": None}
    outcome = Child(_launched_twice, nowhere, readable, user=54321).result()
    in_memory_only(outcome)
    assert "SHIPCONF_CACHE_DIR" in outcome[2][0] or "home" in outcome[2][0]


@root_only
def test_a_home_that_does_not_exist_costs_one_warning(readable):
    """Case 22: `HOME=/nonexistent`, which nobody may create."""
    nowhere = {"HOME": "/nonexistent", "SHIPCONF_CACHE_DIR": None, "XDG_CACHE_HOME": None}
    in_memory_only(Child(_launched_twice, nowhere, readable, user=NOBODY).result())
    assert not Path("/nonexistent").exists()


@root_only
def test_a_kernel_that_this_user_may_not_read_still_launches(tmp_path, public):
    """Loaded before the process dropped its privileges: no source, no folder, no crash."""
    hidden = package(tmp_path / "hidden").told
    (tmp_path / "hidden").chmod(0o700)
    environment = {"SHIPCONF_CACHE_DIR": str(public / "store")}
    blocks, measured, warned = Child(_launched_twice, environment, hidden, user=NOBODY).result()
    assert blocks == [64] * 5 and measured == list(BLOCKS) * 2
    assert any("cannot read" in text for text in warned)


def test_a_full_disk_costs_one_warning(monkeypatch, store):
    """`ENOSPC` while the record is written: the old file stays, the launch goes on."""

    def replace(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "replace", replace)
    block, measured, warned = launched()
    assert (block, measured) == (64, list(BLOCKS))
    assert len(warned) == 1 and "No space left" in warned[0]
    assert records_in(store) == []


# --- misses -----------------------------------------------------------------------------------


def _misses(barrier: Any, n: int) -> None:
    trial = Trial()
    barrier.wait(60)
    for m in range(1, 11):
        trial.launch(n, 10**m)


def test_misses_of_several_processes_do_not_mix(tmp_path, monkeypatch):
    """Each is one line of JSON, written at once."""
    noted = tmp_path / "misses"
    monkeypatch.setenv("SHIPCONF_MISSES", str(noted))
    barrier = CONTEXT.Barrier(3)
    children = [Child(_misses, barrier, n) for n in range(3)]
    for child in children:
        child.result()
    lines = [json.loads(line) for line in noted.read_text().splitlines()]
    assert sorted((line["key"]["N"], line["nearest"]["M"]) for line in lines) == [
        (n, 10**m) for n in range(3) for m in range(1, 11)
    ]


def test_a_child_forked_from_a_process_that_launched_launches_too(store):
    """Locks and memory come along in a fork, and nothing hangs."""
    trial = Trial()
    trial.launch(8, 8)
    assert Child(lambda: (trial.launch(8, 8), trial.launch(9, 8))).result() == (64, 64)
    assert user_folder(trial.kernel).is_dir()
