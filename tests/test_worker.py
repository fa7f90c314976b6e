"""A process that tunes: it dies, it is started again, and one bad candidate costs one candidate."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from forked import Child, event
from kernels import Trial
from packages import records_in

from shipconf import TuningError, journal, serving, worker
from shipconf.targets import find, load, shipped, target_of
from shipconf.worker import Task, Unreachable

SOURCE = """
import os
from pathlib import Path

import torch
import triton
import triton.language as tl

from shipconf import Launch, TuningError, shipped_autotune

HERE = Path(__file__).parent
out = torch.zeros(1, dtype=torch.int32)


def measure(block):
    pass


def build():
    pass


def note(name, text):
    with (HERE / name).open("a") as file:
        file.write(f"{text} ")


def do_bench(fn, quantiles):
    fn()
    block = int(out[0])
    note("measured", block)
    measure(block)
    return 64 / block


@shipped_autotune(configs=[triton.Config({"BLOCK": b}) for b in (16, 32, 64)], key=["N"],
                  do_bench=do_bench)
@triton.jit
def told(out_ptr, N, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)


@told.workload
def workload(N, dtypes):
    note("processes", os.getpid())
    build()
    return Launch((1,), (out, N))
"""

NAME = "tuned_elsewhere"
NOTHING = "    pass"
KILLED = "    if block == 32:\n        os.kill(os.getpid(), 9)"
RAISES = "    raise ValueError('no clock')"
BROKEN = """    if len((HERE / "processes").read_text().split()) < {}:
        raise TuningError("A broke it", kernel="told", device="", key="", fatal=True,
                          reasons={{"A": "broke it"}})
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes and imports a module with a kernel, and what it does when it measures and builds."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(measure: str = NOTHING, build: str = NOTHING) -> Any:
        source = SOURCE.replace("(block):\n    pass", f"(block):\n{measure}")
        source = source.replace("build():\n    pass", f"build():\n{build}")
        (tmp_path / f"{NAME}.py").write_text(source)
        return load(f"{NAME}:told")

    yield write
    sys.modules.pop(NAME, None)


def task(kernel: Any, n: int = 8) -> Task:
    name = kernel.base_fn.__module__
    found, workload = target_of(kernel, name), target_of(kernel.registered_workload, name)
    assert found is not None and workload is not None
    return Task(found, workload, kernel.identity, kernel.declared, "int32", {"N": n}, False, None)


def noted(folder: Path, name: str = "measured") -> list[int]:
    return [int(word) for word in (folder / name).read_text().split()]


def test_a_worker_tunes_into_the_store_and_answers_with_all_times(module, process, tmp_path, store):
    kernel = module()
    answer = process.tune(task(kernel))
    assert answer.record.config["BLOCK"] == 64 and answer.stored
    assert sorted(times_ms[0] for _, times_ms in answer.times_ms) == [1.0, 2.0, 4.0]
    (kept,) = records_in(store)
    assert kept["config"]["BLOCK"] == 64
    process.tune(task(kernel, 16))
    assert noted(tmp_path) == [16, 32, 64] * 2
    assert len(set(noted(tmp_path, "processes")) - {os.getpid()}) == 1
    assert process.close() == 0


def test_a_candidate_that_kills_its_process_costs_one_candidate(module, process, tmp_path, caplog):
    """Twice, since once may be chance; what was measured before is measured no more."""
    with caplog.at_level(logging.WARNING, logger="shipconf"):
        answer = process.tune(task(module(KILLED)))
    assert answer.record.config["BLOCK"] == 64
    ((name, why),) = answer.record.left_out.items()
    assert name.startswith("BLOCK=32") and why == "was running when its process died, twice"
    assert noted(tmp_path) == [16, 32, 32, 64]
    assert len(set(noted(tmp_path, "processes"))) == 3
    assert "died with exit code -9" in caplog.text and "leaves out BLOCK=32" in caplog.text


def test_a_broken_context_costs_a_process(module, process, tmp_path, caplog):
    """A worker whose GPU context is broken can launch nothing more: another one goes on."""
    with caplog.at_level(logging.WARNING, logger="shipconf"):
        answer = process.tune(task(module(build=BROKEN.format(2))))
    assert answer.record.config["BLOCK"] == 64
    assert len(set(noted(tmp_path, "processes"))) == 2
    assert "A broke it; the tuning goes on in a new process" in caplog.text


def test_a_candidate_that_nothing_leaves_out_ends_the_tuning(module, process, tmp_path):
    """No journal can be written, say: the same candidate would break every process."""
    with pytest.raises(TuningError, match="A broke it") as caught:
        process.tune(task(module(build=BROKEN.format(99))))
    assert caught.value.fatal and len(noted(tmp_path, "processes")) == 2


def test_the_worker_s_log_reaches_this_process_s_handlers(module, process, caplog):
    with caplog.at_level(logging.INFO, logger="shipconf"):
        process.tune(task(module()))
    told = [record for record in caplog.records if record.name == "shipconf.tuner"]
    assert any("3 candidates" in record.getMessage() for record in told)
    assert os.getpid() not in {record.process for record in told}


def test_what_the_tuning_raises_is_raised_here(module, process):
    with pytest.raises(TuningError, match="ValueError: no clock") as caught:
        process.tune(task(module(RAISES)))
    assert len(caught.value.reasons) == 3 and not caught.value.fatal


def test_another_kernel_of_that_name_is_not_tuned(module, process, tmp_path):
    """The file was edited since this process imported it, say."""
    given = task(module())
    source = tmp_path / f"{NAME}.py"
    source.write_text(source.read_text().replace("(out_ptr, BLOCK)", "(out_ptr, 1)"))
    with pytest.raises(Unreachable, match="is another kernel there"):
        process.tune(given)


def test_a_module_that_was_loaded_from_a_file_is_found_again(module, tmp_path, monkeypatch):
    """As `shipconf tune file.py:kernel` loads it."""
    module()
    monkeypatch.undo()  # the folder is on no path now
    sys.modules.pop(NAME)
    path = str(tmp_path / f"{NAME}.py")
    kernel = load(f"{path}:told")
    target = target_of(kernel, kernel.base_fn.__module__)
    assert target is not None and target.file == path
    sys.modules.pop(path)
    assert shipped(find(target)).identity == kernel.identity


def test_what_no_other_process_can_import_has_no_target():
    kernel = Trial().kernel
    assert target_of(kernel, kernel.base_fn.__module__) is None
    assert target_of(kernel, "__main__") is None and target_of(kernel, "no.such.module") is None


def test_an_exception_that_cannot_be_sent_is_told_of():
    class Local(Exception):
        pass

    sent = serving._portable(Local("what happened"))
    assert type(sent) is RuntimeError and "what happened" in str(sent)


# --- a conversation that is broken off --------------------------------------------------------


class Interrupting(logging.Handler):
    """Interrupts this process, once, when the worker tells of its first measurement."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.done = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.done and "1 of 3 candidates measured" in record.getMessage():
            self.done = True
            raise KeyboardInterrupt


@pytest.fixture
def interrupting():
    handler, logger = Interrupting(), logging.getLogger("shipconf")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


WAITS = """    import threading
    if block == 32 and not (HERE / "again").exists():
        threading.Event().wait(60)"""


def test_an_interrupted_tuning_answers_no_later_task(
    module, process, tmp_path, store, interrupting
):
    """Ctrl-C in a notebook: its worker ends, and the journal knows that nobody killed it."""
    kernel = module(WAITS)
    for _ in range(2):  # else the second would count as a candidate that kills
        interrupting.done = False
        with pytest.raises(KeyboardInterrupt):
            process.tune(task(kernel))
    (path,) = store.rglob("*.journal")
    told = [event["event"] for event in journal.events(path)]
    assert told.count("running") == told.count("measured") + told.count("stopped") > 0
    (tmp_path / "again").touch()
    answer = process.tune(task(kernel, 16))
    assert answer.record.config["BLOCK"] == 64
    (written,) = store.rglob("*.json")
    assert written.name.startswith("N=16,")
    assert process.tune(task(kernel)).record.left_out == {}


def test_a_worker_that_dies_in_the_middle_of_a_message_is_started_again(
    module, process, tmp_path, caplog
):
    dies = """    if len((HERE / "processes").read_text().split()) < 2:
        from multiprocessing.connection import Connection
        for number in range(3, 64):
            if os.path.islink(f"/proc/self/fd/{number}"):
                if os.readlink(f"/proc/self/fd/{number}").startswith("socket"):
                    os.write(number, b"\\0\\0\\1\\0half")
        os.kill(os.getpid(), 9)"""
    with caplog.at_level(logging.WARNING, logger="shipconf"):
        answer = process.tune(task(module(build=dies)))
    assert answer.record.config["BLOCK"] == 64
    assert "died with exit code -9" in caplog.text


def test_an_idle_worker_that_was_killed_is_replaced(module, process, tmp_path):
    kernel = module()
    process.tune(task(kernel))
    os.kill(noted(tmp_path, "processes")[-1], signal.SIGKILL)
    assert process.tune(task(kernel, 16)).record.config["BLOCK"] == 64
    assert len(set(noted(tmp_path, "processes"))) == 2


def test_a_worker_ends_with_its_parent_though_a_fork_of_it_lives_on(module, monkeypatch):
    """A data loader's process, say, which has all that was open at the fork."""
    shared = worker.the_worker
    try:
        shared.tune(task(module()))
        child = Child(event().wait, 60)
        process = shared._process
        assert process is not None and shared._connection is not None
        shared._connection.close()  # as the end of this process would
        assert process.wait(9) == 0
        child.kill()
    finally:
        shared.close()


# --- tasks that a worker cannot do ------------------------------------------------------------


def test_what_cannot_be_sent_is_tuned_in_this_process(module, process):
    """A key value that is a lambda, say."""
    unsendable = dataclasses.replace(task(module()), values={"N": lambda: 8})
    with pytest.raises(Unreachable, match="cannot be sent"):
        process.tune(unsendable)


class OfMain:
    """Of a class that the worker does not find, as those in `__main__`."""

    def __reduce__(self) -> Any:
        return _only_here, (os.getpid(),)


def _only_here(pid: int) -> None:
    if os.getpid() != pid:
        raise AttributeError("no such class in <module '__main__'>")


def test_what_a_worker_cannot_read_is_tuned_in_this_process(module, process, caplog):
    unreadable = dataclasses.replace(task(module()), values={"N": OfMain()})
    with pytest.raises(Unreachable, match="cannot be read"):
        process.tune(unreadable)
    assert process.tune(task(module())).record.config["BLOCK"] == 64
    assert "died" not in caplog.text


def test_where_no_process_can_be_started_this_one_tunes(module, process, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(Unreachable, match="no process can be started"):
        process.tune(task(module()))


def test_a_kernel_with_other_configs_is_another_one(module, process):
    """Those that this process declares are to be measured, not those the file has by now."""
    kernel = module()
    kernel.configs.append(kernel.configs[0].__class__({"BLOCK": 128}))
    with pytest.raises(Unreachable, match="is another kernel there"):
        process.tune(task(kernel))


# --- what a worker shares with this process ---------------------------------------------------


def test_modules_in_the_working_directory_are_not_imported_from_there(
    module, process, tmp_path, monkeypatch
):
    """Unless this process imports from there too."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "logging.py").write_text("raise ImportError('the wrong one')")
    kernel = module()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(folder)
    assert process.tune(task(kernel)).record.config["BLOCK"] == 64


def test_what_a_worker_prints_is_no_result_of_this_process(module, process, capfd):
    """A compiler that prints its input, say."""
    process.tune(task(module('    print("PTX", flush=True)')))
    out, err = capfd.readouterr()
    assert out == "" and "PTX" in err


def test_settings_are_those_of_the_task(module, process, tmp_path, monkeypatch, store):
    kernel = module()
    process.tune(task(kernel))
    monkeypatch.setenv("SHIPCONF_CACHE_DIR", str(tmp_path / "other"))
    process.tune(task(kernel))
    assert noted(tmp_path) == [16, 32, 64] * 2
    assert len(records_in(store)) == len(records_in(tmp_path / "other")) == 1


def test_relative_paths_start_from_where_this_process_is(module, process, tmp_path, monkeypatch):
    monkeypatch.setenv("SHIPCONF_CACHE_DIR", "near")
    kernel = module()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        process.tune(task(kernel))
        assert len(records_in(tmp_path / name / "near")) == 1


def test_an_idle_worker_holds_no_tensors_after_a_failure_either(module, process, tmp_path):
    build = """    import weakref
    if (HERE / "first").exists():
        note("alive", int(measure.kept() is not None))
    else:
        note("first", 1)
        big = torch.zeros(1000)
        measure.kept = weakref.ref(big)
        raise ValueError("no launch can be built")"""
    kernel = module(build=build)
    with pytest.raises(ValueError, match="no launch can be built"):
        process.tune(task(kernel))
    process.tune(task(kernel))
    assert noted(tmp_path, "alive") == [0]


def test_two_threads_that_tune_two_keys_get_each_their_own_answer(module, process, store):
    kernel = module()
    answers: dict[int, Any] = {}

    def tune(n: int) -> None:
        answers[n] = process.tune(task(kernel, n))

    threads = [threading.Thread(target=tune, args=(n,)) for n in (8, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {n: answer.record.config["BLOCK"] for n, answer in answers.items()} == {8: 64, 16: 64}
    assert len(list(store.rglob("*.json"))) == 2


# --- what this process makes of an answer -----------------------------------------------------


def blocks_launched(kernel: Any) -> int:
    out = torch.zeros(1, dtype=torch.int32)
    kernel[(1,)](out, 8)
    return int(out[0])


@pytest.mark.usefixtures("apart")
def test_a_launch_after_a_tuning_on_purpose_uses_what_it_found(module, tmp_path, store):
    """Though this process launched with something else before."""
    first = module().tune(N=8, dtypes="int32")
    (path,) = store.rglob("*.json")
    path.write_text(path.read_text().replace('"BLOCK": 64', '"BLOCK": 16'))
    sys.modules.pop(NAME)
    kernel = module()
    assert [blocks_launched(kernel), blocks_launched(kernel)] == [16, 16]
    again = kernel.tune(N=8, dtypes="int32", force=True)
    assert again.config["BLOCK"] == first.config["BLOCK"] == 64
    assert kernel.best_config.kwargs == {"BLOCK": 64}
    assert blocks_launched(kernel) == 64
    assert len(noted(tmp_path)) == 6


@pytest.mark.usefixtures("apart")
def test_triton_s_tools_are_told_here_of_what_a_worker_tuned(module, monkeypatch, capfd):
    told: list[Any] = []
    tools = triton.knobs.autotuning
    monkeypatch.setattr(tools, "listener", lambda **what: told.append(what), raising=False)
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
    kernel = module()
    kernel.tune(N=8, dtypes="int32")
    (what,) = told
    assert what["best_config"].kwargs == {"BLOCK": 64} and not what["cache_hit"]
    assert what["configs_timings"] == kernel.configs_timings and len(kernel.configs_timings) == 3
    assert what["duration"] == kernel.bench_time > 0
    out, err = capfd.readouterr()
    assert out.count("best config selected: BLOCK: 64") == 1 and "best config" not in err


@pytest.mark.usefixtures("apart")
def test_a_kernel_that_no_worker_reaches_is_tuned_here(module, tmp_path):
    kernel = module()
    kernel.configs.append(kernel.configs[0].__class__({"BLOCK": 128}))
    assert kernel.tune(N=8, dtypes="int32").config["BLOCK"] == 128
    assert set(noted(tmp_path, "processes")) == {os.getpid()}
