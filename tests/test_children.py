"""Jobs in forked processes, and what comes of those that fail, crash, hang or lose their parent."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock

from shipconf import children
from shipconf.children import Ended, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")

Job = Callable[[], object]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """In spite of what other tests of this process hold."""
    monkeypatch.setattr(children, "LARGE", 1 << 60)


def in_a_fork(body: Job) -> None:
    """Run it in another process, which alone is to have no children afterwards."""
    if not (process := os.fork()):
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(process, 0)[1] == 0


def noting(folder: Path, number: int, then: Job = lambda: None) -> Job:
    """Leaves a file with its process, and does what is said."""

    def job() -> None:
        with (folder / str(number)).open("a") as file:
            file.write(f"{os.getpid()} ")
        then()

    return job


def raises() -> None:
    raise ValueError("for the parent to find out")


def dies_of(number: int) -> Job:
    return lambda: os.kill(os.getpid(), number)


def ran(folder: Path) -> dict[int, list[int]]:
    """The processes that ran each job."""
    return {
        int(path.name): [int(process) for process in path.read_text().split()]
        for path in folder.iterdir()
    }


def done(*numbers: int) -> list[Ended]:
    return [Ended(number, done=True) for number in numbers]


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_job_runs_once_in_a_process_that_is_none_of_this_one(tmp_path):
    found = list(run([noting(tmp_path, number) for number in range(40)], 3))
    assert sorted(found) == done(*range(40))
    processes = {process for (process,) in ran(tmp_path).values()}
    assert len(ran(tmp_path)) == 40 and 1 <= len(processes) <= 3
    assert not any(map(alive, processes))


def test_there_are_only_so_many_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "PROCESSES", 2)
    assert sorted(run([noting(tmp_path, number) for number in range(30)], 64)) == done(*range(30))
    assert len({process for (process,) in ran(tmp_path).values()}) <= 2


def test_jobs_run_at_once(tmp_path):
    """Each end of a pipe that has a name waits for the other one to be opened."""
    os.mkfifo(tmp_path / "pipe")
    ends = [lambda how=how: os.open(tmp_path / "pipe", how) for how in (os.O_RDONLY, os.O_WRONLY)]
    assert sorted(run(ends, 2)) == done(0, 1)


def test_there_may_be_more_jobs_than_a_pipe_takes_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "MOST", 7)
    assert sorted(run([noting(tmp_path, number) for number in range(20)], 2)) == done(*range(20))
    assert all(len(processes) == 1 for processes in ran(tmp_path).values())


def test_what_raises_is_not_told_of_and_the_others_go_on(tmp_path):
    then = {3: raises, 5: sys.exit}  # the second ends its process
    jobs = [noting(tmp_path, number, then.get(number, int)) for number in range(10)]
    assert sorted(run(jobs, 2)) == done(0, 1, 2, 4, 6, 7, 8, 9)
    assert all(len(processes) == 1 for processes in ran(tmp_path).values())


def test_a_crash_costs_one_job_however_many_crash(tmp_path):
    """More of them than there are processes: others are forked."""
    then = {number: dies_of(signal.SIGABRT) for number in (1, 2, 4, 5)}
    jobs = [noting(tmp_path, number, then.get(number, int)) for number in range(10)]
    crashed = [Ended(number, crash="SIGABRT") for number in then]
    assert sorted(run(jobs, 2)) == sorted(done(0, 3, 6, 7, 8, 9) + crashed)
    assert all(len(processes) == 1 for processes in ran(tmp_path).values())


def test_those_that_crash_before_any_other_is_done_are_told_of_too(tmp_path):
    then = {number: dies_of(signal.SIGSEGV) for number in (0, 1)}
    jobs = [noting(tmp_path, number, then.get(number, int)) for number in range(4)]
    crashed = [Ended(number, crash="SIGSEGV") for number in then]
    assert sorted(run(jobs, 2)) == sorted(done(2, 3) + crashed)


def test_where_every_process_crashes_none_of_the_jobs_is_to_blame(tmp_path):
    jobs = [noting(tmp_path, number, dies_of(signal.SIGSEGV)) for number in range(3)]
    assert list(run(jobs, 2)) == []


def test_one_that_is_killed_from_outside_is_not_told_of(tmp_path):
    """By the kernel for want of memory, say."""
    jobs = [noting(tmp_path, 0), noting(tmp_path, 1, dies_of(signal.SIGKILL)), noting(tmp_path, 2)]
    assert sorted(run(jobs, 1)) == done(0, 2)


def test_one_that_hangs_is_killed_and_what_is_left_is_the_caller_s(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(children, "STUCK_S", 1)
    locked = threading.Lock()
    locked.acquire()  # by a thread that the child does not have
    jobs = [noting(tmp_path, 0), noting(tmp_path, 1, locked.acquire), noting(tmp_path, 2)]

    def body() -> None:
        assert children.usable() and list(run(jobs, 1)) == done(0)
        assert not any(alive(process) for (process,) in ran(tmp_path).values())
        assert "child processes that compile do not get on" in caplog.text
        # Nor does it try again.
        assert not children.usable() and list(run(jobs, 1)) == []

    in_a_fork(body)
    assert 2 not in ran(tmp_path) and children.usable()


def test_it_ends_with_the_last_job_though_a_process_lives_on(tmp_path, monkeypatch):
    """One that a job started, which holds what it inherited."""
    monkeypatch.setattr(children, "STUCK_S", 5)

    def leaves_one() -> None:
        if not (left := os.fork()):
            signal.alarm(0)
            signal.pause()
        (tmp_path / "left").write_text(str(left))

    assert list(run([leaves_one], 1)) == done(0) and children.usable()
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


def test_what_is_left_early_kills_those_at_work(tmp_path):
    (tmp_path / "ran").mkdir()
    os.mkfifo(tmp_path / "begun")

    def hangs() -> None:
        os.open(tmp_path / "begun", os.O_WRONLY)
        signal.pause()

    folder = tmp_path / "ran"
    found = run([noting(folder, 0), noting(folder, 1, hangs), noting(folder, 2)], 1)
    assert next(found) == Ended(0, done=True)
    os.close(os.open(tmp_path / "begun", os.O_RDONLY))
    found.close()
    assert not any(alive(process) for (process,) in ran(folder).values())
    assert set(ran(folder)) == {0, 1}


def test_where_no_process_can_be_made_nothing_runs(tmp_path, monkeypatch):
    def refuses() -> int:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(os, "fork", refuses)
    assert list(run([noting(tmp_path, 0)], 2)) == [] and ran(tmp_path) == {}


def test_a_large_process_or_another_system_has_no_children(monkeypatch):
    assert children.usable()
    monkeypatch.setattr(children, "LARGE", 1 << 20)
    assert not children.usable()
    monkeypatch.setattr(children, "LARGE", 1 << 60)
    monkeypatch.setattr(sys, "platform", "win32")
    assert not children.usable()


def test_nothing_may_have_children_without_proc_or_standard_files(monkeypatch):
    if not (closes := os.fork()):
        os.close(2)
        os._exit(children.usable())
    assert os.waitpid(closes, 0)[1] == 0
    assert children.usable()

    def missing(*args: object, **options: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert not children.usable()


def test_signals_of_the_program_are_no_business_of_a_child():
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    before = signal.set_wakeup_fd(ends[1])
    handler = signal.signal(signal.SIGCHLD, lambda *about: None)

    def job() -> None:
        assert signal.set_wakeup_fd(-1) == -1
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            assert signal.getsignal(number) is signal.SIG_DFL
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])

    try:
        assert list(run([job], 1)) == done(0)
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGCHLD, handler)
        for end in ends:
            os.close(end)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *about: reap()])
def test_whoever_takes_the_ends_of_children_takes_nothing_else(tmp_path, handler):
    """As a program does that ignores SIGCHLD, or waits for any child."""
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        for attempt in range(5):
            folder = tmp_path / str(attempt)
            folder.mkdir()
            jobs = [noting(folder, number) for number in range(4)]
            assert sorted(run([*jobs, dies_of(signal.SIGKILL)], 2)) == done(*range(4))
    finally:
        signal.signal(signal.SIGCHLD, before)


def reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def test_threads_that_fork_at_once_leave_the_warnings_as_they_were(tmp_path):
    before = list(warnings.filters)

    def forks() -> None:
        for _ in range(20):
            assert list(run([int], 1)) == done(0)

    threads = [threading.Thread(target=forks) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def test_children_hold_no_lock_of_a_parent_that_is_killed(tmp_path):
    """A file lock belongs to whoever has the file open."""
    os.mkfifo(tmp_path / "pipe")
    path = str(tmp_path / "lock")
    if not (parent := os.fork()):
        try:
            with FileLock(path):
                for _ in run([lambda: os.open(tmp_path / "pipe", os.O_WRONLY)], 1):
                    pass
        finally:
            os._exit(1)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY)  # waits for the child
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    with FileLock(path, timeout=0):
        pass
    os.close(reader)


def test_children_end_when_their_parent_is_killed(tmp_path):
    """With the job they are at."""
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "go on")

    def job() -> None:
        os.write(os.open(tmp_path / "begun", os.O_WRONLY), str(os.getpid()).encode())
        os.open(tmp_path / "go on", os.O_RDONLY)

    if not (parent := os.fork()):
        try:
            list(run([job, noting(tmp_path, 1)], 1))
        finally:
            os._exit(1)
    child = int(os.read(os.open(tmp_path / "begun", os.O_RDONLY), 20))
    watched = os.pidfd_open(child)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    os.close(os.open(tmp_path / "go on", os.O_WRONLY))
    assert select.select([watched], [], [], 60)[0] and not (tmp_path / "1").exists()


def test_what_is_printed_comes_once(capfd):
    sys.stdout.write("of the parent ")  # is in the buffer at the fork
    assert list(run([lambda: print("of the child")], 1)) == done(0)
    sys.stdout.flush()
    assert capfd.readouterr().out == "of the parent of the child\n"


@pytest.mark.filterwarnings("error")
def test_the_fork_of_a_process_with_threads_warns_of_nothing(recwarn):
    """As it does from Python 3.12 on."""
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    try:
        assert list(run([int], 1)) == done(0)
    finally:
        go_on.set()
        thread.join()
    assert not recwarn.list


def in_a_thread(job: Job) -> None:
    thread = threading.Thread(target=job)
    thread.start()
    thread.join()


def in_a_thread_that_python_did_not_start(job: Job) -> None:
    """As those are on which torch computes gradients."""
    libc = ctypes.CDLL(None)
    entry = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: job() and None)
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, entry, None) == 0
    libc.pthread_join(thread, None)


@pytest.mark.parametrize("thread", [in_a_thread, in_a_thread_that_python_did_not_start])
def test_any_thread_may_have_children(tmp_path, thread):
    found: list[Ended] = []
    thread(lambda: found.extend(run([noting(tmp_path, number) for number in range(10)], 2)))
    assert sorted(found) == done(*range(10)) and len(ran(tmp_path)) == 10
