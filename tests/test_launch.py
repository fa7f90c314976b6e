"""A launch: where its config comes from, in which order, and how it survives."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import kernels
import pytest
import torch
import triton
from forked import Child
from kernels import BLOCKS, Trial, configs
from packages import (
    files_in,
    load,
    package,
    record,
    records_in,
    shelf,
    user_folder,
    write,
)
from torch._subclasses.fake_tensor import FakeTensorMode

import shipconf
from shipconf import OfflineError, ShipconfWarning, TuningError

# --- the order of the places ------------------------------------------------------------------


def test_a_cold_launch_tunes_once_and_a_new_process_does_not():
    """Cold: every candidate is measured and the fastest launched. Then: read from the file."""
    first = Trial()
    assert first.launch(8, 8) == 64
    assert first.measured == list(BLOCKS)
    assert first.launch(8, 8) == 64
    assert first.measured == list(BLOCKS)
    second = Trial()
    assert second.launch(8, 8) == 64
    assert second.measured == []
    match = second.resolve(8, 8)
    assert (match.source, match.rule) == ("user", "exact")


def test_two_configs_are_tuned_by_wall_clock_under_the_interpreter(store):
    """Case 41: stock `triton.autotune` fails here with "0 active drivers"."""
    trial = Trial(blocks=(16, 32), do_bench=None)
    assert trial.launch(8, 8) in (16, 32)
    (kept,) = records_in(store)
    assert kept["rigor"] == "quick" and kept["time_ms"]["median"] > 0
    with pytest.raises(RuntimeError, match="0 active drivers"):
        triton.autotune(configs=configs(), key=["N"])(kernels.told)[(1,)](trial.out, 8, 8)


def test_under_the_interpreter_configs_that_differ_in_options_alone_count_as_one(store):
    """The interpreter ignores launch options: there is nothing to measure."""
    options = [triton.Config({"BLOCK": 16}, num_warps=w) for w in (1, 2, 4)]
    trial = Trial(configs=options, do_bench=None)
    assert trial.launch(8, 8) == 16
    assert trial.kernel.best_config == options[0]
    assert files_in(store) == []


def test_the_package_serves_before_the_user_store_and_nothing_is_tuned(tmp_path):
    module = package(tmp_path)
    Trial(module.told).launch(8, 8)  # leaves 64 in the user store
    write(shelf(module), record(16))
    trial = Trial(module.told)
    assert trial.launch(8, 8) == 16
    assert trial.measured == []
    match = trial.resolve(8, 8)
    assert (match.source, match.rule, match.path.parent) == ("package", "exact", shelf(module))


def test_a_package_is_found_beside_the_source_file_whatever_the_module_s_name(tmp_path):
    """Loaded a second time under another name, it serves the same records."""
    module = package(tmp_path)
    write(shelf(module), record(16))
    again = load(Path(str(module.__file__)))
    assert again.__name__ != module.__name__
    for told in (module.told, again.told):
        trial = Trial(told)
        assert trial.launch(8, 8) == 16 and trial.measured == []


def test_a_package_is_never_written_by_a_launch(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(16))
    before = {path: path.read_bytes() for path in shelf(module).rglob("*")}
    trial = Trial(module.told)
    with pytest.warns(ShipconfWarning):
        for n, m in ((8, 8), (8, 4096), (9, 8)):
            trial.launch(n, m)
    assert {path: path.read_bytes() for path in shelf(module).rglob("*")} == before


@pytest.mark.parametrize("layout", ["told", "tile/told"])
def test_a_folder_of_the_config_path_serves_before_the_package(layout, tmp_path, monkeypatch):
    """`SHIPCONF_CONFIG_PATH` folders are laid out as `<kernel>/` or `<stem>/<kernel>/`."""
    module = package(tmp_path / "package")
    write(shelf(module), record(16))
    write(tmp_path / "extra" / layout, record(32))
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "extra"))
    trial = Trial(module.told)
    assert trial.launch(8, 8) == 32 and trial.measured == []
    assert trial.resolve(8, 8).source == "path"


def test_of_several_config_path_folders_the_first_serves(tmp_path, monkeypatch):
    for folder, block in (("a", 16), ("b", 32)):
        write(tmp_path / folder / "told", record(block))
    path = f"{tmp_path / 'none'}{os.pathsep}{tmp_path / 'b'}{os.pathsep}{tmp_path / 'a'}"
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", path)
    assert Trial().launch(8, 8) == 32


def test_an_exact_record_of_any_place_serves_before_a_nearer_place_s_near_one(tmp_path):
    """The package has M=4, the user store M=8: a launch at 8 takes the exact one."""
    module = package(tmp_path)
    Trial(module.told).launch(8, 8)
    write(shelf(module), record(16, M=4))
    trial = Trial(module.told)
    assert trial.launch(8, 8) == 64
    assert trial.launch(8, 5) == 16
    assert trial.launch(8, 7) == 64


def test_a_superseding_user_record_beats_the_package_and_not_the_path(tmp_path, monkeypatch):
    """What `shipconf tune --force` wrote: better than what shipped, not than what was ordered."""
    module = package(tmp_path / "package")
    write(shelf(module), record(16))
    write(user_folder(Trial(module.told).kernel), record(64, supersedes=True))
    trial = Trial(module.told)
    assert trial.launch(8, 8) == 64
    write(tmp_path / "extra" / "told", record(32))
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "extra"))
    assert Trial(module.told).launch(8, 8) == 32


def test_what_this_process_tuned_serves_where_nothing_can_be_written(monkeypatch):
    """A user store that is a file: tuned once, kept in memory, one warning."""
    monkeypatch.setenv("SHIPCONF_CACHE_DIR", __file__)
    trial = Trial()
    with pytest.warns(ShipconfWarning, match="user store") as caught:
        assert [trial.launch(8, m) for m in (8, 8, 9)] == [64, 64, 64]
    assert len(caught) == 1
    assert trial.measured == list(BLOCKS)
    assert trial.resolve(8, 9).source == "tuned"


def test_the_files_of_a_key_are_read_once_a_process(tmp_path):
    """A record that comes later is for the next process; a new nearest value opens no file."""
    module = package(tmp_path)
    path = write(shelf(module), record(16))
    trial = Trial(module.told)
    assert trial.launch(8, 8) == 16
    path.unlink()
    assert trial.launch(8, 9) == 16
    assert trial.measured == []


# --- override ---------------------------------------------------------------------------------


def test_an_override_beats_every_lookup_and_ends_with_its_block():
    trial = Trial()
    with shipconf.override(trial.kernel, {"BLOCK": 128}):
        assert trial.launch(8, 8) == 128
        assert (trial.resolve(8, 8).source, trial.resolve(8, 8).rule) == ("override", "exact")
    assert trial.measured == []
    assert trial.launch(8, 8) == 64
    with shipconf.override(trial.kernel, triton.Config({"BLOCK": 16}, num_warps=8)):
        assert trial.launch(8, 8) == 16
        assert trial.resolve(8, 8).config["num_warps"] == 8
    assert trial.launch(8, 8) == 64


def test_overrides_nest_and_end_when_the_block_raises():
    trial = Trial()
    trial.launch(8, 8)
    with shipconf.override(trial.kernel, {"BLOCK": 16}):
        with (
            pytest.raises(KeyError),
            shipconf.override(trial.kernel, {"BLOCK": 32}),
        ):
            assert trial.launch(8, 8) == 32
            raise KeyError
        assert trial.launch(8, 8) == 16
    assert trial.launch(8, 8) == 64


def test_an_override_holds_on_other_threads():
    """Autograd launches backward kernels on threads of its own."""
    trial = Trial()
    found: list[int] = []
    with shipconf.override(trial.kernel, {"BLOCK": 16}):
        thread = threading.Thread(target=lambda: found.append(trial.launch(8, 8)))
        thread.start()
        thread.join()
    assert found == [16]


def test_an_override_is_of_one_kernel():
    one, other = Trial(), Trial()
    with shipconf.override(one.kernel, {"BLOCK": 16}):
        assert one.launch(8, 8) == 16
        assert other.launch(8, 8) == 64


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"BLOCKS": 16}, "BLOCKS is no parameter"), ({}, "BLOCK is missing"),
        ({"BLOCK": 16, "num_warps": 3}, "num_warps"), ({"BLOCK": "16"}, "BLOCK must be int"),
        ({"BLOCK": 16, "N": 8}, "N is passed by the launch"),
    ],
)  # fmt: skip
def test_an_override_that_does_not_fit_raises_and_says_why(config, why):
    trial = Trial()
    with (
        shipconf.override(trial.kernel, config),
        pytest.raises(ValueError, match=f"override of told: .*{why}"),
    ):
        trial.launch(8, 8)
    assert trial.launch(8, 8) == 64


def test_an_override_that_fails_at_launch_raises():
    """Who overrides wants this config, not another one."""
    trial = Trial(kernels.picky)
    with (
        shipconf.override(trial.kernel, {"BLOCK": 16}),
        pytest.raises(Exception, match="this block fails"),
    ):
        trial.launch(8, 8, BAD=16)
    assert trial.measured == []


def test_an_override_of_something_else_is_refused():
    with (
        pytest.raises(TypeError, match="made by shipped_autotune"),
        shipconf.override(kernels.told, {"BLOCK": 16}),
    ):
        pass


def test_an_override_runs_the_pre_hook_of_its_config():
    seen: list[int] = []
    trial = Trial()
    config = triton.Config({"BLOCK": 16}, pre_hook=lambda named: seen.append(named["BLOCK"]))
    with shipconf.override(trial.kernel, config):
        trial.launch(8, 8)
        trial.launch(8, 8)
    assert seen == [16, 16]


# --- a stored config that fails ---------------------------------------------------------------


def test_a_stored_config_that_fails_gives_way_to_the_next_nearest_with_one_warning(tmp_path):
    """One warning, and no further attempt in this process, for other shapes either."""
    module = package(tmp_path)
    write(shelf(module, "picky"), record(16, M=8), record(32, M=16), kernel="picky")
    trial = Trial(module.picky)
    with pytest.warns(ShipconfWarning, match="BLOCK=16.*fails and is not used again") as caught:
        assert trial.launch(8, 8, BAD=16) == 32
        assert trial.launch(8, 8, BAD=16) == 32
        assert trial.launch(8, 7, BAD=16) == 32
    assert len(caught) == 1
    assert trial.resolve(8, 8, BAD=16).record.at == {"M": 16}
    assert trial.measured == []


def test_a_config_that_fails_once_it_is_remembered_gives_way_too(tmp_path):
    """Another variant of the kernel may not compile with what served the first one."""
    module = package(tmp_path)
    write(shelf(module, "picky"), record(16, M=8), record(32, M=16), kernel="picky")
    trial = Trial(module.picky)
    assert trial.launch(8, 8, BAD=1) == 16
    with pytest.warns(ShipconfWarning, match="BLOCK=16.*fails"):
        assert trial.launch(8, 8, BAD=16) == 32
    assert trial.launch(8, 8, BAD=16) == 32


def test_where_every_stored_config_fails_the_default_launches(tmp_path):
    module = package(tmp_path)
    write(shelf(module, "picky"), record(16, M=8), kernel="picky")
    trial = Trial(module.picky, default=configs([64])[0])
    with pytest.warns(ShipconfWarning, match="BLOCK=16.*fails"):
        assert trial.launch(8, 8, BAD=16) == 64
    assert trial.measured == []
    assert trial.resolve(8, 8, BAD=16) is not None
    assert trial.resolve(8, 8, BAD=16).source == "default"


def test_where_the_default_fails_too_the_first_error_is_raised(tmp_path):
    """Then the kernel is at fault, and its own error says most."""
    module = package(tmp_path)
    write(shelf(module, "picky"), record(16, M=8), record(32, M=16), kernel="picky")
    trial = Trial(module.picky, default=configs([64])[0])
    with pytest.raises(Exception, match="this block fails"):
        trial.launch(8, 8, BAD=0)
    assert trial.launch(8, 8, BAD=1) == 16  # no config paid for the launch's own fault


def test_offline_where_the_only_stored_config_fails_its_error_is_raised(tmp_path):
    module = package(tmp_path)
    write(shelf(module, "picky"), record(16, M=8), kernel="picky")
    trial = Trial(module.picky)
    with shipconf.offline():
        with pytest.raises(Exception, match="this block fails"):
            trial.launch(8, 8, BAD=16)
        assert trial.launch(8, 8, BAD=1) == 16


def test_where_every_stored_config_fails_and_tuning_is_allowed_it_tunes(tmp_path):
    module = package(tmp_path)
    write(shelf(module, "picky"), record(16, M=8), kernel="picky")
    trial = Trial(module.picky)
    with pytest.warns(ShipconfWarning):
        assert trial.launch(8, 8, BAD=16) == 64
    assert 64 in trial.measured


def test_where_tuning_finds_nothing_that_runs_the_first_error_is_raised(tmp_path):
    """With the reasons of the candidates as its cause."""
    module = package(tmp_path)
    write(shelf(module, "picky"), record(16, M=8), kernel="picky")
    with (
        pytest.warns(ShipconfWarning, match="no shipped record"),
        pytest.raises(Exception, match="this block fails") as caught,
    ):
        Trial(module.picky).launch(8, 8, BAD=0)
    assert not isinstance(caught.value, TuningError)
    assert isinstance(caught.value.__cause__, TuningError)


def test_a_winner_that_fails_at_its_launch_gives_way_and_is_not_tuned_again():
    """A benchmark that never runs its candidates may choose one that does not run."""
    trial = Trial(kernels.picky, do_bench=lambda fn, quantiles: 1.0)
    with pytest.warns(ShipconfWarning, match=r"BLOCK=16.*fails") as caught:
        assert [trial.launch(8, 8, BAD=16), trial.launch(8, 8, BAD=16)] == [32, 32]
    assert len(caught) == 1
    hopeless = Trial(kernels.picky, do_bench=lambda fn, quantiles: 1.0, name="hopeless")
    with pytest.raises(Exception, match="this block fails"):
        hopeless.launch(8, 8, BAD=0)


def test_an_error_of_the_launch_itself_blames_no_config():
    """A grid that raises, say: the record stays in use."""
    trial = Trial()
    trial.launch(8, 8)

    def grid(named: Any) -> Any:
        raise LookupError("no grid today")

    for _ in range(2):
        with pytest.raises(LookupError, match="no grid today"):
            trial.kernel[grid](trial.out, 8, 8)
    assert trial.launch(8, 8) == 64 and trial.measured == list(BLOCKS)


# --- launches of size zero, and negative values -----------------------------------------------


@pytest.mark.parametrize("size", [0, -3])
def test_a_launch_of_size_zero_never_tunes(size, store):
    """Case 12: the nearest at any distance, the default, else the first of `configs`."""
    trial = Trial()
    assert trial.resolve(8, size).config["BLOCK"] == 16
    assert trial.launch(8, size) == 16
    assert trial.measured == [] and files_in(store) == []
    with_default = Trial(default=configs([32])[0])
    with pytest.warns(ShipconfWarning):
        assert with_default.launch(8, size) == 32
    assert with_default.measured == []
    tuned = Trial()
    tuned.launch(8, 4096)
    assert Trial().launch(8, size) == 64
    assert tuned.launch(8, size) == 64


def test_a_stored_zero_is_a_point_like_one(tmp_path):
    """Case 12: values below 1 count as 1."""
    module = package(tmp_path)
    write(shelf(module), record(16, M=0), record(32, M=64))
    trial = Trial(module.told)
    assert [trial.launch(8, m) for m in (0, 1, 2, 64)] == [16, 16, 16, 32]
    assert trial.resolve(8, 1).rule == "exact"


# --- capture of a CUDA graph ------------------------------------------------------------------


@pytest.fixture
def capturing(monkeypatch):
    """A stream that captures, as far as anyone can ask torch."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    return monkeypatch


def test_capture_with_a_cold_key_launches_the_default_with_one_warning(capturing, store):
    """Case 38: no tuning, a working launch, one warning, nothing remembered or written."""
    trial = Trial(default=configs([32])[0])
    with pytest.warns(ShipconfWarning, match=r"told\.prepare\(") as caught:
        assert [trial.launch(8, m) for m in (8, 8, 9)] == [32, 32, 32]
    assert [str(w.message) for w in caught][1:] == []
    assert trial.measured == [] and files_in(store) == []
    assert trial.kernel.cache == {}
    capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert trial.launch(8, 8) == 64


def test_capture_with_a_far_record_launches_it_with_one_warning(capturing):
    capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    Trial().launch(8, 8)
    capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    trial = Trial()
    with pytest.warns(ShipconfWarning, match="prepare") as caught:
        assert trial.launch(8, 4096) == 64
    assert [str(w.message) for w in caught][1:] == []
    assert trial.measured == [] and trial.kernel.cache == {}


def test_capture_with_nothing_to_launch_is_an_error_that_names_prepare(capturing):
    trial = Trial()
    with pytest.warns(ShipconfWarning), pytest.raises(OfflineError, match=r"told\.prepare\("):
        trial.launch(8, 8)
    assert trial.measured == []


def test_capture_with_a_known_key_says_nothing(capturing):
    trial = Trial()
    capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    trial.kernel.prepare(trial.out, 8, 8, grid=(1,))
    capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert trial.launch(8, 8) == 64


def test_without_a_driver_nothing_is_captured(monkeypatch):
    """On a CPU build the question itself raises; it is asked only of an initialised driver."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", _no_driver)
    assert Trial().launch(8, 8) == 64


def _no_driver() -> bool:
    raise RuntimeError("no driver")


# --- warmup, mock and fake tensors ------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch):
    """What `told` is compiled and launched with."""
    runs: list[dict[str, Any]] = []
    monkeypatch.setattr(kernels.told, "run", lambda *args, **kw: runs.append(kw), raising=False)
    return runs


def test_warmup_compiles_the_resolved_config(recorded):
    write(user_folder(Trial().kernel), record(32))
    trial = Trial()
    trial.kernel.warmup(torch.int32, 8, 8, grid=(1,))
    trial.kernel.warmup(trial.out, 8, 9, grid=(1,))
    trial.kernel.run(trial.out, 8, 8, grid=(1,), warmup=True)
    assert [run["BLOCK"] for run in recorded] == [32, 32, 32]
    assert all(run["warmup"] for run in recorded)


def test_warmup_compiles_every_candidate_on_a_miss(recorded, store):
    """All that a tuning could choose; nothing is launched, tuned, warned of or written."""
    trial = Trial()
    assert trial.kernel.warmup(torch.int32, 8, 8, grid=(1,)) == [None, None, None]
    assert [run["BLOCK"] for run in recorded] == [16, 32, 64]
    assert all(run["warmup"] for run in recorded)
    assert trial.measured == [] and files_in(store) == []


def test_warmup_compiles_every_candidate_on_a_miss_of_a_kernel_with_a_default(recorded):
    """The launch will tune, so the default alone would not do."""
    trial = Trial(default=configs([32])[0])
    trial.kernel.warmup(torch.int32, 8, 8, grid=(1,))
    assert {run["BLOCK"] for run in recorded} == {16, 32, 64}


def test_warmup_offline_compiles_what_a_launch_would_use(recorded):
    """The default; and where there is nothing, all candidates all the same."""
    with shipconf.offline():
        with pytest.warns(ShipconfWarning, match="default config is used"):
            Trial(default=configs([32])[0]).kernel.warmup(torch.int32, 8, 8, grid=(1,))
        assert [run["BLOCK"] for run in recorded] == [32]
        recorded.clear()
        Trial().kernel.warmup(torch.int32, 8, 8, grid=(1,))
        assert [run["BLOCK"] for run in recorded] == [16, 32, 64]


def test_warmup_leaves_the_launch_to_tune():
    """What a warmup compiled, on dtypes in place of tensors, is no choice made."""
    for options in ({}, {"default": configs([32])[0]}):
        trial = Trial(name=f"warm{len(options)}", **options)
        trial.kernel.warmup(torch.int32, 8, 8, grid=(1,))
        assert trial.measured == []
        assert trial.launch(8, 8) == 64


def test_a_launch_on_fake_tensors_never_tunes(recorded, store):
    """Eager calls on fake tensors are not always rejected by Triton; they have no data."""
    trial = Trial()
    with FakeTensorMode():
        fake = torch.zeros(1, dtype=torch.int32)
        trial.kernel[(1,)](fake, 8, 8)
        assert trial.kernel.resolve(fake, 8, 8).config["BLOCK"] == recorded[0]["BLOCK"]
    assert [run["BLOCK"] for run in recorded] == [16]
    assert trial.measured == [] and files_in(store) == []


def test_a_launch_on_fake_tensors_leaves_the_real_one_to_tune(monkeypatch):
    trial = Trial()
    with monkeypatch.context() as patched:
        patched.setattr(kernels.told, "run", lambda *args, **kw: None, raising=False)
        with FakeTensorMode():
            trial.kernel[(1,)](torch.zeros(1, dtype=torch.int32), 8, 8)
    assert trial.launch(8, 8) == 64
    assert trial.measured == list(BLOCKS)


# --- prepare ----------------------------------------------------------------------------------


def test_prepare_tunes_and_compiles_and_does_not_launch(store):
    trial = Trial()
    match = trial.kernel.prepare(trial.out, 8, 8, grid=(1,))
    assert match.config["BLOCK"] == 64 and len(records_in(store)) == 1
    trial.out.zero_()
    assert trial.kernel.prepare(trial.out, 8, 8, grid=(1,)).config == match.config
    assert int(trial.out[0]) == 0
    assert trial.measured == list(BLOCKS)


def test_prepare_compiles_with_what_it_returns(recorded):
    write(user_folder(Trial().kernel), record(32))
    trial = Trial()
    match = trial.kernel.prepare(trial.out, 8, 8, grid=(1,))
    assert (match.source, match.rule) == ("user", "exact")
    assert [(run["BLOCK"], run["warmup"]) for run in recorded] == [(32, True)]


def test_prepare_raises_what_a_launch_would():
    trial = Trial()
    with shipconf.offline(), pytest.raises(OfflineError):
        trial.kernel.prepare(trial.out, 8, 8, grid=(1,))


# --- steady state -----------------------------------------------------------------------------


def _files_opened_by_known_launches() -> list[str]:
    opened: list[str] = []
    listening = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if listening and (event == "open" or event.startswith("os.")):
            opened.append(f"{event} {args[:1]}")

    sys.addaudithook(hook)
    trial = Trial()
    out = trial.out
    for m in (8, 9, 10):
        trial.launch(8, m)
    launches = 0

    def run(*args: Any, **kwargs: Any) -> None:  # in the place of the interpreter, which is slow
        nonlocal launches
        launches += 1

    kernels.told.run = run
    launch = trial.kernel[(1,)]
    with mock.patch.object(os, "environ", None):  # a launch of a known key reads none of it
        listening = True
        for _ in range(2500):
            launch(out, 8, 8)
            launch(out, 8, 9)
            launch(out, N=8, M=10)
            launch(out, 8, M=8)
        listening = False
    assert launches == 10_000
    return opened


def test_ten_thousand_launches_of_known_keys_open_no_file():
    """Case 40: no file access, and no environment read, on the hot path."""
    assert Child(_files_opened_by_known_launches).result() == []


def test_the_interpreter_opens_no_file_for_a_known_key_either(tmp_path):
    """The same without the stand-in: real launches of a record that ships with a package."""
    module = package(tmp_path)
    write(shelf(module), record(16))
    assert Child(_opened_by_real_launches, module).result() == []


def _opened_by_real_launches(module: Any) -> list[str]:
    trial = Trial(module.told)
    trial.launch(8, 8)
    opened: list[str] = []
    listening = True
    sys.addaudithook(
        lambda event, args: opened.append(event)
        if listening and event in ("open", "os.listdir", "os.scandir") else None
    )  # fmt: skip
    for _ in range(100):
        trial.launch(8, 8)
    listening = False
    return opened


# --- misses -----------------------------------------------------------------------------------


def test_misses_are_noted_once_for_each_key(tmp_path, monkeypatch):
    """`SHIPCONF_MISSES`: one JSON line for each miss, with what a tuner needs."""
    noted = tmp_path / "misses.jsonl"
    monkeypatch.setenv("SHIPCONF_MISSES", str(noted))
    trial = Trial(key=["N"], default=configs([32])[0])
    with shipconf.offline(), pytest.warns(ShipconfWarning):
        for n, m in ((8, 8), (8, 8), (9, 100), (8, 8)):
            trial.launch(n, m)
    assert [json.loads(line) for line in noted.read_text().splitlines()] == [
        {"kernel": "told", "target": "kernels:told", "key": {"N": n}, "nearest": {"M": m},
         "dtypes": {"out_ptr": "int32"}, "device": "interpreter"}
        for n, m in ((8, 8), (9, 100))
    ]  # fmt: skip


def test_a_hit_is_no_miss_and_a_tuned_miss_is_one(tmp_path, monkeypatch):
    noted = tmp_path / "misses.jsonl"
    monkeypatch.setenv("SHIPCONF_MISSES", str(noted))
    trial = Trial()
    trial.launch(8, 8)
    trial.launch(8, 9)
    Trial().launch(8, 8)
    assert len(noted.read_text().splitlines()) == 1


def test_a_misses_file_that_cannot_be_written_costs_one_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIPCONF_MISSES", str(tmp_path / "none" / "misses"))
    trial = Trial()
    with pytest.warns(ShipconfWarning, match="cannot note misses") as caught:
        assert [trial.launch(n, 8) for n in (8, 9)] == [64, 64]
    assert len(caught) == 1


def test_all_that_failed_is_raised_where_nothing_runs(store):
    """Case 31 at a launch: `TuningError`, and nothing persisted."""
    trial = Trial(kernels.picky)
    with pytest.raises(TuningError, match="no candidate works"):
        trial.launch(8, 8, BAD=0)
    assert records_in(store) == []
