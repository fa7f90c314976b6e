"""Offline: no tuning, nothing written, and a clear error where nothing serves."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from forked import Child
from kernels import BLOCKS, Trial, configs
from packages import files_in, package, record, shelf, write

import shipconf
from shipconf import OfflineError, ShipconfError, ShipconfWarning, offline


@contextmanager
def variable(strict: bool = False) -> Iterator[None]:
    """`offline` by the variable, which may change while a process runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHIPCONF_OFFLINE", "strict" if strict else "1")
        yield


ways = pytest.mark.parametrize("forbid", [offline, variable], ids=["block", "variable"])
Forbid = Callable[..., Any]


@ways
def test_nothing_is_tuned_and_nothing_serves_is_an_error(forbid: Forbid, store):
    trial = Trial()
    with forbid(), pytest.raises(OfflineError, match="tuning is forbidden"):
        trial.launch(8, 8)
    assert trial.measured == [] and files_in(store) == []
    assert trial.launch(8, 8) == 64


@ways
def test_exact_and_near_records_serve(forbid: Forbid):
    Trial().launch(8, 8)
    for strict in (False, True):
        with forbid(strict=strict):
            trial = Trial()
            assert [trial.launch(8, m) for m in (8, 9, 32)] == [64, 64, 64]
            assert trial.measured == []


@ways
def test_a_far_record_serves_with_a_warning_and_not_under_strict(forbid: Forbid):
    Trial().launch(8, 8)
    trial = Trial()
    with forbid(), pytest.warns(ShipconfWarning, match=r"9\.0 octaves away"):
        assert trial.launch(8, 4096) == 64
    with forbid(strict=True), pytest.raises(OfflineError, match="strict"):
        Trial().launch(8, 4096)


@ways
def test_a_far_record_in_memory_is_not_served_after_switching_to_strict(forbid: Forbid):
    """A match found under one policy is not served under a stricter one, nor under a laxer one
    that would tune."""
    Trial().launch(8, 8)
    trial = Trial()
    with forbid(), pytest.warns(ShipconfWarning):
        assert [trial.launch(8, 4096) for _ in range(3)] == [64, 64, 64]
    with forbid(strict=True):
        for _ in range(2):
            with pytest.raises(OfflineError):
                trial.launch(8, 4096)
        assert trial.resolve(8, 4096) is None
    with forbid():
        assert trial.launch(8, 4096) == 64
    assert trial.measured == []
    trial.times.update({16: 0.1})
    assert trial.launch(8, 4096) == 16
    assert trial.measured == list(BLOCKS)
    with forbid(strict=True):
        assert trial.launch(8, 4096) == 16


@ways
@pytest.mark.parametrize("strict", [False, True])
def test_the_default_serves_with_one_warning_and_ends_with_the_block(forbid: Forbid, strict, store):
    trial = Trial(default=configs([32])[0])
    with forbid(strict=strict), pytest.warns(ShipconfWarning) as caught:
        assert [trial.launch(n, m) for n, m in ((8, 8), (8, 8), (9, 8))] == [32, 32, 32]
    (warning,) = caught
    assert "default config is used" in str(warning.message)
    assert "shipconf tune" in str(warning.message)
    assert files_in(store) == []
    assert trial.launch(8, 8) == 64


def test_a_kernel_with_one_config_needs_nothing_stored(store):
    """There is nothing to tune."""
    trial = Trial(blocks=[16])
    with offline(strict=True):
        assert trial.launch(8, 8) == 16
        assert trial.resolve(8, 8).config["BLOCK"] == 16
    assert files_in(store) == []


def test_blocks_nest_and_the_strictest_holds():
    Trial().launch(8, 8)
    trial = Trial()
    with offline(strict=True), offline(), pytest.raises(OfflineError):
        trial.launch(8, 4096)
    with offline():
        with offline(strict=True), pytest.raises(OfflineError):
            trial.launch(8, 4096)
        with pytest.warns(ShipconfWarning):
            assert trial.launch(8, 4096) == 64


def test_a_block_wins_over_the_variable(monkeypatch):
    Trial().launch(8, 8)
    monkeypatch.setenv("SHIPCONF_OFFLINE", "strict")
    trial = Trial()
    with offline(), pytest.warns(ShipconfWarning):
        assert trial.launch(8, 4096) == 64
    with pytest.raises(OfflineError):
        trial.launch(8, 4096)


def test_a_block_holds_on_other_threads():
    """Autograd launches backward kernels on threads of its own."""
    trial = Trial()
    caught: list[BaseException] = []

    def launch() -> None:
        try:
            trial.launch(8, 8)
        except OfflineError as error:
            caught.append(error)

    with offline():
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
    assert len(caught) == 1 and trial.measured == []


def test_a_bad_value_of_the_variable_names_it_and_the_values_allowed(monkeypatch):
    monkeypatch.setenv("SHIPCONF_OFFLINE", "yes")
    with pytest.raises(ValueError, match="SHIPCONF_OFFLINE='yes': allowed are 0, 1 and strict"):
        Trial().launch(8, 8)


# --- nothing is written -----------------------------------------------------------------------


def _written_by(situation: Callable[[], Any]) -> list[str]:
    written: list[str] = []
    listening = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if listening and (
            (event == "open" and isinstance(args[2], int) and args[2] & 0o3)  # for writing
            or event in ("os.mkdir", "os.rename", "os.remove", "fcntl.flock", "fcntl.lockf")
        ):
            written.append(f"{event} {args}")

    sys.addaudithook(hook)
    situation()
    listening = False
    return written


def _launches_offline(module: Any) -> None:
    trial = Trial(module.told, default=configs([32])[0])
    with offline(), pytest.warns(ShipconfWarning):
        for n, m in ((8, 8), (8, 9), (8, 4096), (9, 8), (8, 0)):
            trial.launch(n, m)
            trial.resolve(n, m)
            trial.kernel.explain(trial.out, n, m)


def test_offline_nothing_is_written_not_even_a_lock_file(tmp_path, store):
    module = package(tmp_path)
    write(shelf(module), record(16))
    assert Child(_written_by, lambda: _launches_offline(module)).result() == []
    assert files_in(store) == []


def _resolves() -> None:
    trial = Trial()
    for n, m in ((8, 8), (8, 4096), (9, 8), (8, 0)):
        trial.resolve(n, m)
        trial.kernel.resolve_for(dtypes="int32", N=n, M=m)
        trial.kernel.explain(trial.out, n, m)
        trial.kernel.explain_for(dtypes="int32", N=n, M=m)


def test_asking_writes_nothing_where_tuning_is_allowed(store):
    """`resolve` and `explain` launch, tune and write nothing."""
    assert Child(_written_by, _resolves).result() == []
    Trial().launch(8, 8)
    assert Child(_written_by, _resolves).result() == []


def test_the_listener_of_these_tests_sees_a_tuning(store):
    """Else the two above would hold for nothing."""
    assert Child(_written_by, lambda: Trial().launch(8, 8)).result() != []


# --- the error --------------------------------------------------------------------------------


def test_the_error_says_what_failed_where_we_looked_and_what_cures_it(tmp_path, store):
    """Fields are attributes; the closest records are named, with what differs."""
    module = package(tmp_path)
    write(shelf(module), record(16), name="N=9,x.json", key={"N": 9})
    trial = Trial(module.told)
    with offline(), pytest.raises(OfflineError) as caught:
        trial.launch(8, 8)
    error = caught.value
    assert isinstance(error, LookupError) and isinstance(error, ShipconfError)
    assert (error.kernel, error.device) == ("told", "interpreter")
    assert error.key == "N=8, dtypes=int32, M=8"
    assert error.looked[0] == f"package: {shelf(module)}"
    assert error.looked[1].startswith(f"user: {store}")
    assert error.command == f"shipconf tune {module.__name__}:told -k N=8 --at M=8 --dtypes int32"
    text = str(error)
    for part in ("told", "interpreter", "N=8", str(shelf(module)), error.command, "N is 9"):
        assert part in text
    assert text.splitlines()[-1].endswith(error.command)


def test_the_error_says_that_only_the_dtype_differs():
    """Case 5: tuned in int32, launched in float32."""
    trial = Trial()
    trial.launch(8, 8)
    trial.out = trial.out.to(torch.float32)
    with offline(), pytest.raises(OfflineError, match="dtypes are int32") as caught:
        trial.launch(8, 8)
    assert "dtypes=float32" in caught.value.key


def test_the_error_pickles_with_its_fields():
    trial = Trial()
    with offline(), pytest.raises(OfflineError) as caught:
        trial.launch(8, 8)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value) and copy.command == caught.value.command


@pytest.mark.parametrize("strict", [False, True])
def test_the_size_zero_is_launched_offline(strict):
    """Case 12: the first of `configs`, where there is nothing better."""
    with offline(strict=strict), nullcontext():
        assert Trial().launch(8, 0) == 16


def test_offline_serves_what_this_process_tuned():
    trial = Trial()
    trial.launch(8, 8)
    with shipconf.offline(strict=True):
        assert trial.launch(8, 8) == 64
        assert trial.launch(8, 9) == 64
