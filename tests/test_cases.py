"""Faults from the field, by the numbers of shared/cases.md: those that no other test holds.

Where the others are, at the level of launches: 1, 5 test_explain; 7, 8 test_kernel; 10, 15-18, 21
test_validation; 12, 38, 40, 41 test_launch; 13, 14 test_lookup; 22-24, 26-29 test_processes;
30, 31, 36, 37 test_tuning; 32, 34, 35 test_hooks; 33 test_tuning, and test_gpu on a GPU.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import kernels
import pytest
import torch
import triton
from kernels import BLOCKS, Trial
from packages import FILE, TOLD, files_in, load, package, record, records_in, shelf, write

import shipconf
from shipconf import Launch, ShipconfWarning, TuningError


def test_case_2_a_device_s_name_of_any_form_round_trips(monkeypatch, store):
    """A slash, brackets, dots, a `%`: each has a file of its own inside the store."""
    names = [
        "AMD Instinct MI50/MI60", "Orin (nvgpu)", "Intel(R) Arc(TM) Pro B60 Graphics", "../../up",
        "..", "a_b", "a b", "a%20b", "ü",
    ]  # fmt: skip
    for name in names:
        monkeypatch.setenv("SHIPCONF_DEVICE_NAME", name)
        first, again = Trial(), Trial()
        first.launch(8, 8)
        assert first.measured == list(BLOCKS)
        assert again.launch(8, 8) == 64 and again.measured == []
    assert len(records_in(store)) == len(names)
    assert {path.parent.parent for path in store.rglob("*.json")} == {store / "v1"}


def test_case_3_a_name_that_is_a_prefix_of_another_does_not_match(monkeypatch, tmp_path):
    module = package(tmp_path)
    write(
        shelf(module), record(16), device={"name": "NVIDIA H20"},
        name="N=8,dtypes=int32,device_name=NVIDIA_H20,arch=interpreter,mp=0.json",
    )  # fmt: skip
    for name, found in (("NVIDIA H20", True), ("NVIDIA H200", False), ("NVIDIA H2", False),
                        ("nvidia h20", False)):  # fmt: skip
        monkeypatch.setenv("SHIPCONF_DEVICE_NAME", name)
        assert (Trial(module.told).resolve(8, 8) is not None) is found


def test_case_4_what_is_written_is_found_by_every_reader():
    """A packed weight's N is halved in one place, the key's function, for writing and reading."""
    halved = ("N", lambda a: a["N"] // 2)
    trial = Trial(key=[halved])
    trial.launch(8, 8)
    again = Trial(key=[halved])
    assert again.launch(8, 8) == 64 and again.measured == []
    match = again.kernel.resolve_for(dtypes="int32", N=4, M=8)
    assert match is not None and match.rule == "exact"
    assert again.kernel.resolve_for(dtypes="int32", N=8, M=8) is None
    assert "key: N=4," in again.kernel.explain(again.out, 8, 8)


@pytest.mark.parametrize(
    "place",
    [
        f"configs/tile/{FILE}", f"configs/told/{FILE}", f"configs/tile/told/deeper/{FILE}",
        f"tile/told/{FILE}", "configs/tile/told/N=8.json", "configs/tile/told/records.json",
        f"configs/tile/told/{FILE}.bak", f"configs/tile/told/M=8,{FILE}",
    ],
)  # fmt: skip
def test_case_6_a_file_in_the_wrong_place_is_a_miss_and_stays(place, tmp_path):
    module = package(tmp_path)
    folder, _, name = place.rpartition("/")
    path = write(tmp_path / folder, record(16), name=name)
    trial = Trial(module.told)
    assert trial.resolve(8, 8) is None
    assert path.exists()


def test_case_9_two_kernels_of_one_name_have_records_of_their_own(tmp_path, store):
    """Two modules, or two versions of a package, under one HOME."""
    one = package(tmp_path / "one")
    two = package(
        tmp_path / "two",
        TOLD.replace("tl.store(out_ptr, BLOCK)", "tl.store(out_ptr, BLOCK + 0)", 1),
    )
    first, second = Trial(one.told), Trial(two.told)
    second.times.update({16: 0.1})
    for _ in range(3):  # in turn: neither takes the other's place
        assert first.launch(8, 8) == 64 and second.launch(8, 8) == 16
        first, second = Trial(one.told), Trial(two.told)
    assert len({path.parent for path in store.rglob("*.json")}) == 2
    assert first.measured == second.measured == []


def test_case_9_other_keys_of_one_kernel_have_folders_of_their_own(store):
    Trial().launch(8, 8)
    other = Trial(key=["M"], nearest=["N"])
    assert other.launch(8, 8) == 64 and len(other.measured) == 3
    assert Trial().resolve(8, 8) is not None
    assert len({path.parent for path in store.rglob("*.json")}) == 2


def test_case_9_a_loaded_copy_of_a_module_has_the_records_of_the_first(tmp_path):
    """The module's name never matters: a package may be loaded under another one."""
    module = package(tmp_path)
    Trial(module.told).launch(8, 8)
    again = Trial(load(Path(str(module.__file__))).told)
    assert again.launch(8, 8) == 64 and again.measured == []


@pytest.mark.parametrize("length", [190, 300, 5000])
def test_case_11_names_longer_than_the_file_system_allows_work(length, store):
    """A key value of any length; two long ones that begin alike are kept apart."""
    trial = Trial(kernels.told_value, key=["V"], nearest=[])
    trial.launch("x" * length + "a")
    trial.times.update({16: 0.1})
    trial.launch("x" * length + "b")
    again = Trial(kernels.told_value, key=["V"], nearest=[])
    assert again.launch("x" * length + "a") == 64
    assert again.launch("x" * length + "b") == 16
    assert again.measured == []
    assert all(len(name) <= 255 for name in files_in(store))


def test_case_11_a_kernel_with_a_long_name_works(store):
    name = "kernel" * 60
    Trial(name=name).launch(8, 8)
    again = Trial(name=name)
    assert again.launch(8, 8) == 64 and again.measured == []


def test_case_20_one_candidate_added_to_configs_tunes_nothing(tmp_path):
    """Neither what the user has nor what ships becomes stale."""
    module = package(tmp_path)
    write(shelf(module), record(16))
    Trial().launch(8, 8)
    for fn, block in ((module.told, 16), (kernels.told, 64)):
        more = Trial(fn, blocks=(*BLOCKS, 128))
        assert more.launch(8, 8) == block and more.measured == []


def test_case_25_configs_missing_from_the_wheel_are_a_warned_or_silent_miss(tmp_path):
    """A launch cannot know of records that were never packed: it tunes, and says nothing."""
    module = package(tmp_path)
    trial = Trial(module.told)
    assert trial.launch(8, 8) == 64
    assert not (tmp_path / "configs").exists()


def test_case_31_a_tuning_error_pickles_with_its_reasons():
    """Ranks send their errors home."""
    trial = Trial(times={block: OSError("no") for block in BLOCKS})
    with pytest.raises(TuningError) as caught:
        trial.launch(8, 8)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.reasons == caught.value.reasons and str(copy) == str(caught.value)


def test_case_34_without_restore_value_the_docs_say_what_happens():
    """Documented where the decorator is: name what is read and written."""
    words = shipconf.shipped_autotune.__doc__ or ""
    assert "restore_value" in words and "runs many times" in words


def test_a_migration_from_triton_s_decorator_is_a_change_of_name(tmp_path):
    """The whole of section 2, in a module of its own: decorate, launch, register a workload,
    tune, ask, override, go offline."""
    source = """
import torch
import triton
import triton.language as tl
from shipconf import Launch, shipped_autotune


@shipped_autotune(
    configs=[triton.Config({"BLOCK": 16}, num_warps=4), triton.Config({"BLOCK": 32}, num_warps=8)],
    key=["N"],
    nearest=["M"],
    reset_to_zero=["out_ptr"],
)
@triton.jit
def add_one(x_ptr, out_ptr, N, M, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N)
    tl.store(out_ptr + offsets, x + 1, mask=offsets < N)


def grid(named):
    return (triton.cdiv(named["N"], named["BLOCK"]),)


@add_one.workload
def workload(N, M, dtypes):
    x = torch.arange(N, dtype=dtypes)
    return Launch(grid, (x, torch.empty_like(x), N, M))
"""
    module = package(tmp_path, source, stem="ops")
    kernel: Any = module.add_one
    x = torch.arange(40, dtype=torch.float32)
    out = torch.empty_like(x)
    kernel[module.grid](x, out, 40, 8)
    assert torch.equal(out, x + 1)
    assert kernel.tune(N=64, M=4, dtypes=torch.float16).at == {"M": 4}
    with shipconf.offline(strict=True):
        kernel[module.grid](x, out.zero_(), M=9, N=40)
        assert torch.equal(out, x + 1)
        assert kernel.resolve_for(N=64, M=5, dtypes=torch.float16).rule == "nearest"
    with shipconf.override(kernel, {"BLOCK": 64}):
        kernel[module.grid](x, out.zero_(), 40, 8)
        assert torch.equal(out, x + 1)
    assert isinstance(workload_of(module), Launch)
    reloaded = load(Path(str(module.__file__)))
    match = reloaded.add_one.resolve(x, out, 40, 8)
    assert (match.source, match.rule) == ("user", "exact")


def workload_of(module: Any) -> Any:
    """The decorator gives the function back."""
    return module.workload(N=8, M=8, dtypes=torch.float32)


def test_a_user_s_record_can_be_shipped_by_moving_the_file(tmp_path, store):
    """The two stores have one format and one naming: what was tuned serves from a package."""
    module = package(tmp_path)
    Trial(module.told).launch(8, 8)
    (path,) = store.rglob("*.json")
    shelf(module).mkdir(parents=True)
    path.rename(shelf(module) / path.name)
    trial = Trial(module.told)
    assert trial.launch(8, 8) == 64 and trial.measured == []
    assert trial.resolve(8, 8).source == "package"


def test_a_doubled_point_in_a_file_is_a_fault(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(16), record(32))
    with pytest.warns(ShipconfWarning, match=r"records\[1\]\.at: is doubled"):
        assert Trial(module.told).resolve(8, 8) is None


def test_an_empty_list_of_records_is_a_miss(tmp_path):
    """Case 12: a file with nothing in it."""
    module = package(tmp_path)
    path = write(shelf(module))
    assert json.loads(path.read_text())["records"] == []
    assert Trial(module.told).resolve(8, 8) is None
    with pytest.warns(ShipconfWarning, match="no shipped record of told fits"):
        assert Trial(module.told).launch(8, 8) == 64


def test_triton_s_own_config_objects_are_left_as_they_are():
    live = [triton.Config({"BLOCK": block}) for block in BLOCKS]
    before = [(dict(config.kwargs), config.all_kwargs()) for config in live]
    Trial(configs=live).launch(8, 8)
    assert [(dict(config.kwargs), config.all_kwargs()) for config in live] == before
