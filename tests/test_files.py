"""Files that many processes share: atomic replacement, and locks."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import random
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from forked import CONTEXT, NOBODY, Child, event

from shipconf import files
from shipconf.errors import LockTimeout

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may change the user id")


def version(writer: int, number: int) -> bytes:
    """A document that says of itself whether it is whole: 40 kB, in many blocks."""
    return json.dumps({"writer": writer, "number": number, "body": [number] * 8000}).encode()


def check_whole(data: bytes) -> dict[str, Any]:
    document = json.loads(data)
    assert set(document["body"]) == {document["number"]} and len(document["body"]) == 8000
    return document


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


# --- replace ----------------------------------------------------------------------------------


def test_replace_writes_the_bytes_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    files.replace(path, b"one\n")
    files.replace(path, b"two\n")
    assert path.read_bytes() == b"two\n"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_replaced_file_is_readable_as_the_umask_says(tmp_path):
    """A package's records are read by other users than the one who exported them."""
    before = os.umask(0o022)
    try:
        files.replace(tmp_path / "a.json", b"{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o644


def test_the_longest_names_of_records_can_be_replaced(tmp_path):
    """200 bytes, a number, an ending: the temporary's name fits in 255 bytes as well."""
    path = tmp_path / f"{'x' * 200}~123.json"
    files.replace(path, b"{}")
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch, step):
    """ENOSPC while writing, syncing or renaming: the error is raised, the old file stays."""
    path = tmp_path / "a.json"
    files.replace(path, b"old")

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "write":
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full")
        open_ = Path.open

        def to_full_disk(self: Path, mode: str = "r", *args: Any) -> Any:
            open_(self, mode).close()
            return open_(Path("/dev/full"), mode, *args)

        monkeypatch.setattr(Path, "open", to_full_disk)
    else:
        monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError) as caught:
        files.replace(path, b"new")
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path):
    """Killed at random moments, twenty times: each read meanwhile and afterwards is whole."""
    path = tmp_path / "a.json"
    files.replace(path, version(0, 0))

    def write_forever(started: Any, writer: int) -> None:
        number = 0
        while True:
            number += 1
            files.replace(path, version(writer, number))
            started.set()

    rng = random.Random(7)
    seen = set()
    for writer in range(20):
        started = event()
        child = Child(write_forever, started, writer)
        assert started.wait(30)
        for _ in range(rng.randrange(1, 40)):
            check_whole(path.read_bytes())
        child.kill()
        seen.add(check_whole(path.read_bytes())["writer"])
    assert seen == set(range(20))
    files.replace(path, version(99, 1))  # what the killed left does not hinder the next
    assert check_whole(path.read_bytes())["writer"] == 99


def test_twelve_writers_and_readers_race(tmp_path):
    """Six processes write and six read one file: no read is torn, no temporary stays."""
    path = tmp_path / "a.json"
    files.replace(path, version(99, 0))
    start = event()

    def write(writer: int) -> None:
        assert start.wait(30)
        for number in range(40):
            files.replace(path, version(writer, number))

    def read() -> int:
        assert start.wait(30)
        for _ in range(80):
            check_whole(path.read_bytes())
        return 80

    children = [Child(write, writer) for writer in range(6)] + [Child(read) for _ in range(6)]
    start.set()
    results = [child.result() for child in children]
    assert results == [None] * 6 + [80] * 6
    assert check_whole(path.read_bytes())["number"] == 39
    assert temporaries(tmp_path) == []


def test_threads_replace_one_file_at_once(tmp_path):
    """Each thread has a temporary of its own, so their bytes do not mix."""
    path = tmp_path / "a.json"

    def write(writer: int) -> None:
        for number in range(30):
            files.replace(path, version(writer, number))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert check_whole(path.read_bytes())["number"] == 29
    assert temporaries(tmp_path) == []


# --- append -----------------------------------------------------------------------------------


def test_lines_of_several_processes_are_whole(tmp_path):
    path = tmp_path / "lines.jsonl"
    start = event()

    def write(writer: int) -> None:
        assert start.wait(30)
        for number in range(200):
            files.append(path, json.dumps({"writer": writer, "number": number, "pad": "x" * 500}))

    children = [Child(write, writer) for writer in range(6)]
    start.set()
    for child in children:
        child.result()
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    numbers = {writer: [x["number"] for x in lines if x["writer"] == writer] for writer in range(6)}
    assert numbers == {writer: list(range(200)) for writer in range(6)}


# --- lock -------------------------------------------------------------------------------------


def test_a_lock_yields_nothing_when_it_is_held(tmp_path):
    path = tmp_path / "new" / "folder" / "a.lock"
    with files.lock("a", path, 5) as why:
        assert why == ""
        assert path.exists()
    assert path.exists()  # deleting it would let two processes lock two files of one name


def hold(path: Path, held: Any, release: Any) -> None:
    with files.lock("a", path, 60) as why:
        assert why == ""
        held.set()
        assert release.wait(60)


def test_processes_exclude_one_another(tmp_path):
    """Four processes count in one file, reading and writing: no count is lost."""
    path, counter = tmp_path / "a.lock", tmp_path / "counter"
    counter.write_text("0")
    start = event()

    def count() -> None:
        assert start.wait(30)
        for _ in range(10):
            with files.lock("a", path, 60):
                number = int(counter.read_text())
                os.sched_yield()
                counter.write_text(str(number + 1))

    children = [Child(count) for _ in range(4)]
    start.set()
    for child in children:
        child.result()
    assert counter.read_text() == "40"


@pytest.mark.parametrize("with_path", [True, False])
def test_threads_exclude_one_another(tmp_path, with_path):
    """Also where there is no folder to put a lock in."""
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(10):
            with files.lock("a", tmp_path / "a.lock" if with_path else None, 60) as why:
                assert bool(why) is not with_path
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                os.sched_yield()
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_locks_of_two_names_do_not_wait_for_one_another(tmp_path):
    with files.lock("a", tmp_path / "a.lock", 1), files.lock("b", tmp_path / "b.lock", 1) as why:
        assert why == ""


def test_a_killed_holders_lock_is_free_at_once(tmp_path):
    """Case 24: the kernel frees it; no timeout has to pass, no stale file to be noticed."""
    path, held, release = tmp_path / "a.lock", event(), event()
    holder = Child(hold, path, held, release)
    assert held.wait(30)
    with pytest.raises(LockTimeout), files.lock("a", path, 0):
        pass
    holder.kill()
    with files.lock("a", path, 0.0) as why:
        assert why == ""


def test_a_timeout_names_the_path_and_the_holder(tmp_path):
    path, held, release = tmp_path / "a.lock", event(), event()
    child = Child(hold, path, held, release)
    assert held.wait(30)
    start = time.monotonic()
    with (
        pytest.raises(LockTimeout, match=r"held by pid 4711 on host for 0.2 s") as caught,
        files.lock("a", path, 0.2, lambda: "pid 4711 on host"),
    ):
        pass
    assert 0.2 <= time.monotonic() - start < 10
    assert caught.value.path == str(path)
    assert (caught.value.holder, caught.value.timeout_s) == ("pid 4711 on host", 0.2)
    release.set()
    child.result()
    with files.lock("a", path, 0.0) as why:
        assert why == ""


def test_a_thread_that_waits_too_long_times_out(tmp_path):
    with files.lock("a", tmp_path / "a.lock", 1):
        caught = []

        def wait() -> None:
            try:
                with files.lock("a", tmp_path / "a.lock", 0.05):
                    pass
            except LockTimeout as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    assert f"pid {os.getpid()} on" in caught[0].holder


def test_a_long_wait_says_whom_it_waits_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(files, "SAY_AFTER_S", 0.05)
    path, held, release = tmp_path / "a.lock", event(), event()
    child = Child(hold, path, held, release)
    assert held.wait(30)

    def holder() -> str:
        release.set()  # asked for the holder: this is the log line
        return "pid 4711 on host"

    with caplog.at_level(logging.WARNING, "shipconf"), files.lock("a", path, 30, holder) as why:
        assert why == ""
    child.result()
    assert caplog.messages == [f"waiting for pid 4711 on host, which holds {path}"]


def test_the_longest_timeouts_are_as_good_as_forever(tmp_path):
    """A timeout beyond what the platform can count does not overflow."""
    with files.lock("a", tmp_path / "a.lock", 1e30) as why:
        assert why == ""


def test_a_body_that_raises_releases_the_lock(tmp_path):
    with pytest.raises(KeyError), files.lock("a", tmp_path / "a.lock", 1):
        raise KeyError
    with files.lock("a", tmp_path / "a.lock", 0.0) as why:
        assert why == ""


def test_an_oserror_of_the_body_is_the_bodys(tmp_path):
    """A full disk while the lock is held is no failure of the lock."""
    with pytest.raises(OSError, match="full"), files.lock("a", tmp_path / "a.lock", 1):
        raise OSError("full")


def test_a_lock_held_at_a_fork_does_not_block_the_child(tmp_path):
    """A thread that held it stays behind in the parent; the file's lock still counts."""
    held, release = threading.Event(), threading.Event()

    def hold_here() -> None:
        with files.lock("a", None, 30):
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold_here)
    thread.start()
    assert held.wait(30)

    def take() -> str:
        with files.lock("a", None, 1) as why:
            return why

    try:
        assert Child(take).result() == "no folder to put a lock in"
    finally:
        release.set()
        thread.join()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_costs_a_reason(tmp_path, code):
    """Case 23: within the timeout, the body runs with the reason why it is not locked."""

    def try_to_lock() -> tuple[str, float]:
        def no_locks(*args: Any) -> None:
            raise OSError(code, os.strerror(code))

        fcntl.flock = no_locks  # type: ignore[assignment]  # in this child only
        start = time.monotonic()
        with files.lock("a", tmp_path / "a.lock", 0.5) as why:
            return why, time.monotonic() - start

    why, seconds = Child(try_to_lock).result()
    assert str(tmp_path / "a.lock") in why
    assert seconds < 5
    # No marker file that a killed process would leave behind for good.
    with files.lock("a", tmp_path / "a.lock", 0.0) as locked:
        assert locked == ""


@only_root
@pytest.mark.parametrize("exists", [True, False])
def test_a_read_only_folder_costs_a_reason(tmp_path, exists):
    """Case 22, as another user, since root sees no permission error."""
    open_way(tmp_path)
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)
    if exists:
        (folder / "a.lock").touch(mode=0o644)

    def try_to_lock() -> tuple[str, str]:
        with files.lock("a", folder / "a.lock", 1) as why:
            pass
        with files.lock("b", folder / "deeper" / "b.lock", 1) as deeper:
            pass
        return why, deeper

    why, deeper = Child(try_to_lock, user=NOBODY).result()
    assert "ermission denied" in why and "a.lock" in why
    assert "ermission denied" in deeper
    assert os.listdir(folder) == (["a.lock"] if exists else [])


@only_root
def test_a_read_only_folder_refuses_replacement_and_keeps_the_old(tmp_path):
    open_way(tmp_path)
    path = tmp_path / "store" / "a.json"
    path.parent.mkdir(mode=0o755)
    path.write_bytes(b"old")

    def try_to_write() -> int:
        try:
            files.replace(path, b"new")
        except OSError as error:
            return error.errno or 0
        return -1

    assert Child(try_to_write, user=NOBODY).result() == errno.EACCES
    assert path.read_bytes() == b"old" and os.listdir(path.parent) == ["a.json"]


def open_way(folder: Path) -> None:
    """Let other users pass through the test's temporary folders, which are private."""
    for parent in [folder, *folder.parents]:
        with suppress(OSError):
            if parent.stat().st_uid == os.getuid() and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o055)
        if parent == Path("/tmp"):
            break


def test_a_folder_that_is_a_file_costs_a_reason(tmp_path):
    (tmp_path / "store").write_text("")
    with files.lock("a", tmp_path / "store" / "a.lock", 1) as why:
        assert str(tmp_path) in why


def test_this_process_says_pid_and_host():
    child = CONTEXT.Process(target=os._exit, args=(0,))
    child.start()
    child.join()
    assert files.this_process().startswith(f"pid {os.getpid()} on ")
