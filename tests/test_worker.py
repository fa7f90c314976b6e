"""A process that tunes: it dies, it is started again, and one bad candidate costs one candidate."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import triton
from kernels import Trial
from packages import records_in

from shipconf import TuningError, serving
from shipconf.targets import find, load, shipped, target_of
from shipconf.worker import Task, Unreachable, Worker

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


@pytest.fixture
def process():
    made = Worker()
    yield made
    made.close()


def task(kernel: Any, n: int = 8) -> Task:
    name = kernel.base_fn.__module__
    found, workload = target_of(kernel, name), target_of(kernel.registered_workload, name)
    assert found is not None and workload is not None
    return Task(found, workload, kernel.identity, "int32", {"N": n}, False, None)


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


def test_what_a_worker_tuned_counts_here(module, process, tmp_path, monkeypatch, capsys):
    """Its record serves, its times are there, and Triton's tools are told, by this process."""
    told: list[Any] = []
    if hasattr(triton.knobs.autotuning, "listener"):
        monkeypatch.setattr(triton.knobs.autotuning, "listener", lambda **news: told.append(news))
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
    kernel = module()
    answer = process.tune(task(kernel))
    kernel.flight.take(kernel.query_for("int32", None, {"N": 8}), answer)
    assert {c.kwargs["BLOCK"]: t[0] for c, t in kernel.configs_timings.items()} == {
        16: 4.0, 32: 2.0, 64: 1.0,
    }  # fmt: skip
    assert "best config selected: BLOCK: 64" in capsys.readouterr().out
    assert [news["best_config"].kwargs for news in told] in ([], [{"BLOCK": 64}])
    kernel[(1,)](sys.modules[NAME].out, 8)
    assert kernel.best_config.kwargs == {"BLOCK": 64} and noted(tmp_path) == [16, 32, 64]


def test_a_record_that_another_process_tuned_brings_no_times(module, process, tmp_path):
    kernel = module()
    process.tune(task(kernel))
    answer = process.tune(task(kernel))
    assert answer.record.config["BLOCK"] == 64 and (answer.times_ms, answer.seconds) == ([], None)
    assert noted(tmp_path) == [16, 32, 64]


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
    kernel = load(f"{tmp_path / NAME}.py:told")
    target = target_of(kernel, NAME)
    assert target is not None and target.file == str(tmp_path / f"{NAME}.py")
    sys.modules.pop(NAME)
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
